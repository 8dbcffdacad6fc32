"""A model made ready for INT8 or FP8: ranges measured and scales found once, then any choice of products is one write.

The weights lie in one file; each choice is a small graph beside it that refers to them. That is what lets a search try
dozens of choices.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from accel.core.errors import StageError, UsageError, nearest
from accel.core.feeds import Feed
from accel.graph import fp16, measured, qdq, symmetric
from accel.graph.symmetric import Method, Product, Quantised, QuantRange

if TYPE_CHECKING:
    import numpy as np

Base = Literal["fp32", "fp16", "bf16"]
BASES = ("fp32", "fp16", "bf16")
METHODS = ("minmax", "percentile", "entropy")


@dataclass(frozen=True, slots=True)
class QuantReport:
    """What was quantised, and by which scales.

    Attributes:
        base: precision of everything that is not quantised; ``half`` the account of its making, None for FP32.
        products / quantised: products with a constant weight, all and quantised; ``share`` is the share of their
            multiplications that is quantised, at the shapes of the largest sample.
        others: products that are never quantised: of two activations, or transposed convolutions.
        kept: nodes that stay in ``base``.
        ranges: how each activation is quantised.
        feeds: calibration samples.
        opset: as found in the written file.
    """

    to: Quantised
    base: Base
    method: Method
    products: int
    quantised: int
    share: float
    others: int
    kept: tuple[str, ...]
    ranges: tuple[QuantRange, ...]
    feeds: int
    opset: int
    half: fp16.HalfReport | None
    quantize_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One model and its scales.

    Attributes:
        path: the base graph, with its weights; choices are written beside it.
        products: what can be quantised, in graph order.
        work: multiplications of each product, by node, at the largest sample.
        activations: by node, how what it reads is quantised.
    """

    path: Path
    to: Quantised
    base: Base
    method: Method
    products: tuple[Product, ...]
    work: Mapping[str, int]
    activations: Mapping[str, QuantRange]
    weights: Mapping[str, np.ndarray]
    types: Mapping[str, int]
    half: fp16.HalfReport | None
    others: int
    feeds: int
    opset: int
    prepare_s: float

    def share(self, keep: Collection[str]) -> float:
        """Return the share of the multiplications that is quantised when ``keep`` is not."""
        return sum(w for n, w in self.work.items() if n not in keep) / sum(self.work.values())

    def write(self, keep: Collection[str], name: str) -> Path:
        """Write the graph with all products quantised except ``keep`` to ``name`` beside the weights.

        Raises:
            UsageError: a name in ``keep`` is no product of the model.
        """
        import onnx

        names = [p.node for p in self.products]
        if unknown := sorted(set(keep) - set(names)):
            raise UsageError(
                f"the model has no product named {unknown[0]!r}{nearest(unknown[0], names)}",
                fix="name MatMul, Gemm or Conv nodes with a constant weight",
            )
        model = onnx.load(str(self.path), load_external_data=False)
        wanted = [p for p in self.products if p.node not in keep]
        symmetric.write_pairs(model, wanted, self.activations, self.weights, self.types, to=self.to)
        out = self.path.with_name(name)
        out.write_bytes(model.SerializeToString())
        return out

    def report(self, keep: Collection[str], *, start: float) -> QuantReport:
        """Describe that choice; ``start`` is when the work began, on ``time.monotonic``."""
        used = [self.activations[p.node] for p in self.products if p.node not in keep]
        return QuantReport(
            to=self.to,
            base=self.base,
            method=self.method,
            products=len(self.products),
            quantised=len(self.products) - len(set(keep)),
            share=self.share(keep),
            others=self.others,
            kept=tuple(p.node for p in self.products if p.node in keep),
            ranges=tuple({r.tensor: r for r in used}.values()),
            feeds=self.feeds,
            opset=self.opset,
            half=self.half,
            quantize_s=time.monotonic() - start,
        )


def prepare(
    source: Path,
    folder: Path,
    *,
    to: Quantised,
    feeds: Sequence[Feed],
    method: Method = "percentile",
    base: Base = "fp32",
    margin: float = 2.0,
    threads: int = 0,
) -> Prepared:
    """Measure, calibrate and, where asked, convert the rest to half precision.

    Args:
        source: an FP32 file.
        folder: where the weights and the choices go.
        feeds: the calibration set; its ranges decide about half precision, too.

    Raises:
        UsageError: an unknown precision or method.
        InputError: the source is typed already, or its types cannot be inferred.
        SampleError: there are no feeds, or one does not fit the model.
        StageError: there is no product with a constant weight, an activation is not finite, or a conversion failed.
        UnavailableError: a half-precision base without the environment that makes it.
    """
    import onnx

    start = time.monotonic()
    for given, known, what in (
        (to, symmetric.LARGEST, "precision"),
        (method, METHODS, "method"),
        (base, BASES, "base"),
    ):
        if given not in known:
            raise UsageError(f"unknown {what} {given!r}{nearest(given, known)}", fix=f"choose of {', '.join(known)}")
    model = qdq.load_model(source)
    fp16.check_plain(model, source)
    plain = folder / "plain.onnx"
    found = symmetric.products(model)
    if not found:
        raise StageError(
            f"{source.name} has no matrix product or convolution with a constant weight: nothing to quantise"
        )
    outputs = {n.name: n.output[0] for n in model.graph.node}
    others = symmetric.other_products(model, {p.node for p in found})
    qdq.save_model(model, plain)
    activations = list(dict.fromkeys(p.activation for p in found))
    names = list(dict.fromkeys([*activations, *(outputs[p.node] for p in found)]))
    ranges = measured.measure_ranges(plain, names, feeds, threads=threads)
    scales = symmetric.calibrate(
        plain, {n: ranges[n] for n in activations}, feeds, to=to, method=method, threads=threads
    )
    by_node = {p.node: scales[p.activation] for p in found}
    work = {p.node: ranges[outputs[p.node]].size * p.inner for p in found}
    half = None
    path = plain
    if base != "fp32":
        path = folder / "half.onnx"
        half = fp16.convert(plain, path, to=base, feeds=feeds, margin=margin, threads=threads)
        plain.with_name(f"{plain.name}.data").unlink(missing_ok=True)
    if base != "fp32" or to == "fp8":
        symmetric.raise_opset(path, symmetric.HALF_OPSET)
    loaded = onnx.load(str(path))
    now = [p for p in symmetric.products(loaded) if p.node in by_node]
    if lost := sorted(set(by_node) - {p.node for p in now}):
        raise StageError(f"product {lost[0]!r} lost its constant weight on the way to {base}")
    return Prepared(
        path=path,
        to=to,
        base=base,
        method=method,
        products=tuple(now),
        work=work,
        activations=by_node,
        weights=symmetric.weight_scales(loaded, now, to=to),
        types=measured.float_tensors(onnx.load(str(path), load_external_data=False)),
        half=half,
        others=others,
        feeds=len(feeds),
        opset=next(o.version for o in loaded.opset_import if o.domain in ("", "ai.onnx")),
        prepare_s=time.monotonic() - start,
    )
