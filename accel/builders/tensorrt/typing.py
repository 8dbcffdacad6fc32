"""The ONNX file that a strongly typed TensorRT network is made from: all of it needs a CPU only.

Precision is a property of this file. It is typed here (FP16, BF16, INT8, FP8), held against the published rules of
strongly typed networks, and described in ``typing.json`` beside it, which a kit carries to the GPU machine.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from accel.builders import Session, held_back
from accel.builders.calibration import calibration_feeds, range_feeds
from accel.builders.declared import copy_onnx
from accel.builders.tensorrt.options import TensorRtOptions
from accel.core.errors import InputError, StageError
from accel.core.feeds import Feed
from accel.core.values import BuildRequest, ModelSource, PrecisionConverted, to_json
from accel.exporters.check import read_onnx

REPORT = "typing.json"
ENTRY = "model.onnx"


def type_onnx(request: BuildRequest, precision: str, options: TensorRtOptions, out_dir: Path) -> PrecisionConverted:
    """Write the typed ONNX file and ``typing.json`` into ``out_dir``.

    Args:
        precision: ``fp32`` and ``tf32`` leave the file as it was exported.

    Raises:
        InputError: the source was not exported, or INT8 and FP8 have no calibration samples.
        StageError: a library failed, or the file breaks a rule of strongly typed networks.
    """
    from accel.builders.tensorrt import network_rules
    from accel.graph import products

    if request.onnx is None or request.onnx_folder is None:
        raise InputError(f"{request.variant.id} starts from ONNX and the source was not exported")
    source = Path(request.onnx_folder) / request.onnx.file.path
    out = out_dir / ENTRY
    facts = _MAKERS[precision](request, precision, options, source, out)
    findings = network_rules.check(out)
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        first = errors[0]
        more = f"; and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise StageError(f"the {precision} ONNX file breaks a rule of TensorRT: {first.message}{more}", fix=first.fix)
    report = {"precision": precision, **facts, "findings": to_json(findings), "products": products.names(out)}
    (out_dir / REPORT).write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    return PrecisionConverted(read_onnx(out), report)


class PrecisionConvertedSession(Session):
    """A typed file on the CPU: every half value rounded as its type says, Q/DQ pairs computed as written."""

    def __init__(self, onnx: Path, source: ModelSource, *, threads: int) -> None:
        from accel.graph import evaluate, fp16

        super().__init__(source.inputs, source.outputs)
        with tempfile.TemporaryDirectory(prefix="accel-emulated-") as scratch:
            emulated = Path(scratch) / onnx.name
            fp16.emulate(onnx, emulated)
            self._session = evaluate.open_light(emulated, threads)
        self._names = [spec.name for spec in source.outputs]
        self._feed: Feed = {}
        self._results: list[np.ndarray] = []

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        """Keep the arrays."""
        self._feed = inputs

    def submit(self, *, slot: int = 0) -> None:
        """Run here.

        Raises:
            StageError: ONNX Runtime failed.
        """
        try:
            self._results = self._session.run(self._names, self._feed)
        except Exception as error:
            shapes = {name: value.shape for name, value in self._feed.items()}
            raise StageError(f"the typed file does not run on inputs of shapes {shapes}: {error}") from error

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        """Return the arrays that the runtime made."""
        return dict(zip(self._names, self._results, strict=True))

    def precision(self) -> str:
        """Say that nothing was observed: a CPU computes sums of FP32, whatever the types say."""
        return "none"


def read_report(folder: Path) -> Mapping[str, Any] | None:
    """Return what ``typing.json`` in a folder says, or None where there is none.

    Raises:
        InputError: it cannot be read.
    """
    try:
        found: Mapping[str, Any] = json.loads((folder / REPORT).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{folder / REPORT} is not JSON: {error}", fix="make the kit again") from error
    return found


def _plain(request: BuildRequest, precision: str, options: TensorRtOptions, source: Path, out: Path) -> dict[str, Any]:
    """Leave the exported file as it is."""
    copy_onnx(request, out)
    return {"kept": []}


def _half(request: BuildRequest, precision: str, options: TensorRtOptions, source: Path, out: Path) -> dict[str, Any]:
    """Type it FP16 or BF16, with the ranges of real samples where there are any."""
    from accel.graph import fp16

    to = cast(Literal["fp16", "bf16"], precision)
    report = fp16.convert(
        source, out, to=to, feeds=range_feeds(request), margin=options.margin, threads=request.threads
    )
    return {"kept": [kept.node for kept in report["kept"]], "half": to_json(report)}


def _quantized(
    request: BuildRequest, precision: str, options: TensorRtOptions, source: Path, out: Path
) -> dict[str, Any]:
    """Put Q/DQ pairs around matrix products and convolutions; the rest is typed ``options.base``."""
    from accel.graph import quantize

    to = cast(Literal["int8", "fp8"], precision)
    feeds = calibration_feeds(request)
    keep: tuple[str, ...] = options.keep
    facts: dict[str, Any] = {}
    if options.search and not keep:
        rest, held = held_back.for_gate(request, source, to, feeds, held_back.onnx_runner(request))
        with tempfile.TemporaryDirectory(prefix="accel-search-") as scratch:
            ready = quantize.prepare(
                source, Path(scratch), to=to, feeds=rest, method=options.calibration, threads=request.threads
            )
            found = ready.search(held.score, held.floor)
        keep = found.chosen.kept
        facts["search"] = to_json(found)
    report = quantize.for_tensorrt(
        source,
        out,
        to=to,
        feeds=feeds,
        method=options.calibration,
        keep=keep,
        base=options.base,
        margin=options.margin,
        threads=request.threads,
    )
    # In an FP32 base any product that is not quantised runs in FP32, as it should.
    kept = [k.node for k in report["half"]["kept"]] if report["half"] is not None else None
    return {**facts, "kept": kept, "quantized": to_json(report)}


_MAKERS = {
    "fp32": _plain,
    "tf32": _plain,
    "fp16": _half,
    "bf16": _half,
    "int8": _quantized,
    "fp8": _quantized,
}
