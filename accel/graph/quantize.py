"""Quantise matrix products and convolutions: measured and calibrated once, then any choice of them is one write.

Naive INT8 ruins transformers: on a sentence encoder with real weights, MinMax ranges on every product leave 3 dB. So
ranges come from real activations, and ``Prepared.search`` finds which products can bear it. The weights lie in one
file; each choice is a small graph beside it that refers to them. That is what lets a search try dozens of choices.
"""

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import onnx
from onnx_ir.passes.common import RemoveUnusedNodesPass

from accel.core.errors import StageError, UnavailableError, UsageError, nearest
from accel.core.feeds import Feed
from accel.graph import MARGIN, METHOD, METHODS, Method, calibration, fp16, measured, passes, qdq, sensitivity
from accel.graph.calibration import QuantRange
from accel.graph.opset import RaiseOpset
from accel.graph.products import PRODUCTS
from accel.graph.qdq import SCHEMES, Product, Quantised

Base = Literal["fp32", "fp16", "bf16"]
BASES = ("fp32", "fp16", "bf16")
HALF_OPSET = 19
"""First opset whose Q/DQ take scales in half precision, and FP8. Source: https://onnx.ai/onnx/operators/."""
EXTRA_TRIALS = 16
"""Evaluations of a CPU's search beside those of single groups: all, none, the halving, and what still fits."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One model and its scales.

    Attributes:
        path: the base graph, with its weights and all scales; choices are written beside it.
        products: what can be quantised, in graph order.
        work: multiplications of each product, by node, at the largest sample.
        ranges: by activation, how TensorRT's schemes quantise it; empty for a CPU's.
    """

    path: Path
    products: tuple[Product, ...]
    work: Mapping[str, int]
    ranges: Mapping[str, QuantRange]
    half: dict[str, Any] | None
    others: int
    opset: int

    def share(self, keep: Collection[str]) -> float:
        """Return the share of the multiplications that is quantised when ``keep`` is not."""
        return sum(w for n, w in self.work.items() if n not in keep) / sum(self.work.values())

    def write(self, keep: Collection[str], out: Path, *, data: str | None = None) -> Path:
        """Write the graph with all products quantised except ``keep``.

        Args:
            out: a file beside ``path``; elsewhere give ``data``, the name of the file that takes the weights.

        Raises:
            UsageError: a name in ``keep`` is not a product of the model.
        """
        names = [p.node for p in self.products]
        if unknown := sorted(set(keep) - set(names)):
            raise UsageError(
                f"the model has no product named {unknown[0]!r}{nearest(unknown[0], names)}",
                fix="name MatMul, Gemm or Conv nodes with a constant weight",
            )
        model = passes.load(self.path)
        wanted = [p for p in self.products if p.node not in keep]
        passes.run(model, qdq.WritePairs(wanted), RemoveUnusedNodesPass())
        passes.save(model, out, data=data)
        return out

    def search(
        self,
        score: Callable[[Path | None], float],
        floor: float,
        *,
        evaluations: int | None = None,
        groups: int | None = None,
        points: int = sensitivity.CURVE,
    ) -> sensitivity.Search:
        """Search for the largest share that holds ``floor``; products that read one activation go together.

        Args:
            score: takes a quantised file, valid until it returns, and gives its accuracy; None for the float model.
            groups: how many units there may be: with more activations, neighbours are tried together.

        Raises:
            UsageError: as ``sensitivity.search``.
        """
        by_activation: dict[str, tuple[str, ...]] = {}
        for product in self.products:
            by_activation[product.activation] = (*by_activation.get(product.activation, ()), product.node)
        units = list(by_activation.values())
        together = -(-len(units) // (groups or len(units)))
        units = [sum(units[i : i + together], ()) for i in range(0, len(units), together)]

        path = self.path.with_name("trial.onnx")
        model = passes.load(self.path)
        passes.run(model, qdq.WritePairs(self.products))
        passes.save(model, path, data=f"{path.name}.data")
        every = onnx.load(str(path), load_external_data=False)

        def trial(kept: tuple[str, ...]) -> float:
            if self.half is None and len(kept) == len(self.products):
                return score(None)
            path.write_bytes(qdq.without_pairs(every, [p for p in self.products if p.node in kept]))
            return score(path)

        return sensitivity.search(units, self.work, trial, floor, evaluations=evaluations, points=points)


def prepare(
    source: Path,
    folder: Path,
    *,
    to: Quantised,
    feeds: Sequence[Feed],
    method: Method = METHOD,
    base: Base = "fp32",
    margin: float = MARGIN,
    mask: str | None = None,
    threads: int = 0,
) -> Prepared:
    """Measure, calibrate and, where asked, convert the rest to half precision.

    Args:
        source: an FP32 file.
        folder: where the weights and the choices go.
        to: ``int8`` and ``fp8`` as TensorRT takes them; ``cpu-int8`` and ``cpu-int7`` for ONNX Runtime's CPU provider,
            which quantises matrix products alone.
        feeds: the calibration set; its ranges decide about half precision, too.
        method: of TensorRT's scales; a CPU's are those of the least error.
        mask: input that is 0 at padded positions, which a CPU's scales leave out.

    Raises:
        UsageError: an unknown precision or method.
        InputError: its types cannot be inferred.
        SampleError: there are no feeds, or one does not fit the model.
        StageError: an activation is not finite, or a conversion failed.
        UnavailableError: the source is typed already, has no product with a constant weight, or is to have a
            half-precision base without the environment that makes it.
    """
    for given, known, what in ((to, SCHEMES, "precision"), (method, METHODS, "method"), (base, BASES, "base")):
        if given not in known:
            raise UsageError(f"unknown {what} {given!r}{nearest(given, known)}", fix=f"choose of {', '.join(known)}")
    scheme = SCHEMES[to]
    model = qdq.load(source)
    fp16.check_plain(model, source)
    found = [p for p in qdq.products(model) if p.op == "MatMul" or not scheme.folded]
    if not found:
        raise UnavailableError(
            f"{source.name} has no matrix product or convolution with a constant weight: nothing to quantise"
        )
    path = folder / "plain.onnx"
    passes.save(model, path, data=f"{path.name}.data")
    wanted = {p.node for p in found}
    outputs = {str(n.name): str(n.outputs[0].name) for n in model.graph if n.name in wanted}
    activations = list(dict.fromkeys(p.activation for p in found))
    names = list(dict.fromkeys([*activations, *(outputs[p.node] for p in found)]))
    # A CPU's recipes come from the values themselves: only their sizes have to be known before.
    seen = [max(feeds, key=lambda feed: sum(v.size for v in feed.values()))] if scheme.folded and feeds else feeds
    measures = measured.measure_ranges(path, names, seen, threads=threads)
    read = {name: measures[name] for name in activations}
    calibration.check_finite(read)
    ranges: dict[str, QuantRange] = {}
    if scheme.folded:
        recipes = calibration.least_error(path, model, found, read, feeds, scheme=scheme, mask=mask, threads=threads)
    else:
        ranges = calibration.symmetric(path, read, feeds, scheme=scheme, method=method, threads=threads)
        recipes = {name: qdq.Recipe(r.scale) for name, r in ranges.items()}
    half = None
    if base != "fp32":
        path = folder / "half.onnx"
        half = fp16.convert(folder / "plain.onnx", path, to=base, feeds=feeds, margin=margin, threads=threads)
    model = passes.load(path)
    if base != "fp32" or to == "fp8":
        passes.run(model, RaiseOpset(HALF_OPSET))
    now = [p for p in qdq.products(model) if p.node in outputs]
    if lost := sorted(set(outputs) - {p.node for p in now}):
        raise StageError(f"product {lost[0]!r} lost its constant weight on the way to {base}")
    # Beside a node that stays in FP32 a product reads the cast of what it read, and what was measured holds of that.
    before = {p.node: p.activation for p in found}
    recipes = {p.activation: recipes[before[p.node]] for p in now}
    ranges = {p.activation: replace(ranges[before[p.node]], tensor=p.activation) for p in now if ranges}
    qdq.add_constants(model, now, recipes, measured.file_types(path), scheme)
    ready = folder / "base.onnx"
    passes.save(model, ready, data=f"{ready.name}.data" if scheme.folded else None)
    return Prepared(
        path=ready,
        products=tuple(now),
        work={p.node: measures[outputs[p.node]].size * p.inner for p in found},
        ranges=ranges,
        half=half,
        others=sum(n.op_type in PRODUCTS and n.name not in outputs for n in model.graph),
        opset=model.graph.opset_imports[""],
    )


def for_tensorrt(
    source: Path,
    out: Path,
    *,
    to: Quantised,
    feeds: Sequence[Feed],
    method: Method = METHOD,
    keep: Collection[str] = (),
    base: Base = "fp32",
    margin: float = MARGIN,
    threads: int = 0,
) -> dict[str, Any]:
    """Write the FP32 model at ``source`` to ``out`` with Q/DQ pairs as TensorRT takes them.

    Every matrix product and convolution with a constant weight is quantised: int8 or E4M3, symmetric, zero-point 0, one
    scale per activation and one per output channel of a weight. Weights keep their floating-point values behind a pair
    of their own, which every release folds at build time. What to keep out is what ``Prepared.search`` finds.

    Args:
        out: the ``.onnx`` to write, weights in ``<out>.data`` beside it.
        feeds: the calibration set, real samples by input name.
        method: how an activation's range is cut; see ``calibration.symmetric``.
        keep: names of the products that stay in ``base``.
        base: precision of everything else; ``fp16`` and ``bf16`` as ``fp16.convert`` makes them, with ``margin``.
        threads: CPU threads for measuring; 0 for all.

    Returns:
        Facts on what was quantised, and by which scales: ``base``, the precision of everything that is not quantised,
        with ``half`` the account of its making, None for FP32; ``products`` and ``quantised``, the products with a
        constant weight, all and quantised; ``share``, the share of their multiplications that is quantised, at the
        shapes of the largest sample; ``others``, products that are never quantised: of two activations, or transposed
        convolutions; ``kept``, nodes that stay in ``base``; ``ranges``, how each activation is quantised; ``feeds``,
        calibration samples; ``opset``, as found in the written file.

    Raises:
        UsageError: an unknown precision or method, an unknown name in ``keep``, or ``out`` is the source.
        InputError, SampleError, StageError, UnavailableError: as ``prepare``.
    """
    start = time.monotonic()
    if out.resolve() == source.resolve():
        raise UsageError(f"{out} is the source itself", fix="choose another file to write")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".quantise.", dir=out.parent) as name:
        ready = prepare(
            source, Path(name), to=to, feeds=feeds, method=method, base=base, margin=margin, threads=threads
        )
        ready.write(keep, out, data=f"{out.name}.data")
    used = {p.activation for p in ready.products if p.node not in keep}
    return {
        "to": to,
        "base": base,
        "method": method,
        "products": len(ready.products),
        "quantised": len(ready.products) - len(set(keep)),
        "share": ready.share(keep),
        "others": ready.others,
        "kept": tuple(p.node for p in ready.products if p.node in keep),
        "ranges": tuple(r for name, r in ready.ranges.items() if name in used),
        "feeds": len(feeds),
        "opset": ready.opset,
        "half": ready.half,
        "quantize_s": time.monotonic() - start,
    }


def for_cpu(
    source: Path,
    out: Path,
    feeds: Sequence[Feed],
    score: Callable[[Path | None], float],
    floor: float,
    *,
    to: Literal["cpu-int8", "cpu-int7"],
    mask: str | None,
    threads: int,
    trials: int,
) -> sensitivity.Search:
    """Write the model at ``source`` to ``out`` for ONNX Runtime, as many matrix products in INT8 as hold ``floor``.

    Args:
        feeds: the calibration set; ``score``, which takes None for the float model, has other samples.
        trials: how many single measurements there may be. A count, not a time: the result must not depend on how busy
            the machine is.

    Raises:
        InputError, SampleError, StageError: as ``prepare``.
    """
    with tempfile.TemporaryDirectory(prefix=".quantise.", dir=out.parent) as name:
        ready = prepare(source, Path(name), to=to, feeds=feeds, mask=mask, threads=threads)
        found = ready.search(score, floor, evaluations=trials + EXTRA_TRIALS, groups=trials, points=1)
        ready.write(found.chosen.kept, out, data=f"{out.name}.data")
    return found
