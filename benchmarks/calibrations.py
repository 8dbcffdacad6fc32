"""Which statistics, corrections and equalisations INT8 by NNCF gains by.

    accel convert MODEL --targets openvino-int8 --search-s 0 --bench none -o RUN
    python -m benchmarks.calibrations RUN... [--only WORD] -o docs/benchmarks/calibrations.json

SQNR of the whole model in INT8 on the gate's samples, calibrated on all calibration samples, everything that is not
INT8 in FP32: one candidate at a time, all else as ``openvino-int8`` has it. The worst output counts, each position of
its fixed axes less its mean, without padding. Rows add up in the file, which is written after each.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accel.builders.to_openvino import STRENGTH, import_openvino
from accel.core import document, hardware
from accel.core.accuracy import sqnr
from accel.core.feeds import Feed, read_feeds
from accel.core.values import to_json

GATE_FEEDS = 64
"""Feeds of the gate that judge, at most: large pictures take a second each."""
MEANS = "ranges: means of minima and maxima"
"""What NNCF takes, and accel for transformers; all others differ from it in one thing."""
OTHER_FORM = "of the network's other form"
"""As it was read where accel takes the form after OpenVINO's common transformations; after them for a transformer."""


def candidates() -> dict[str, Callable[[Any], dict[str, Any]]]:
    """Return by name what each sets on NNCF's advanced parameters, and further arguments of ``quantize``."""
    import nncf
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet as Ranges

    def ranges(name: str) -> Callable[[Any], dict[str, Any]]:
        def change(advanced: Any) -> dict[str, Any]:
            advanced.activations_range_estimator_params = getattr(Ranges, name)
            return {}

        return change

    def attribute(name: str, value: Any) -> Callable[[Any], dict[str, Any]]:
        def change(advanced: Any) -> dict[str, Any]:
            setattr(advanced, name, value)
            return {}

        return change

    def smooth(alpha: float) -> Callable[[Any], dict[str, Any]]:
        return attribute("smooth_quant_alphas", nncf.AdvancedSmoothQuantParameters(convolution=alpha, matmul=alpha))

    def thorough(advanced: Any) -> dict[str, Any]:
        advanced.disable_bias_correction = False
        return {"fast_bias_correction": False}

    return {
        MEANS: lambda advanced: {},
        OTHER_FORM: lambda advanced: {},
        "ranges: minimum and maximum of all": ranges("MINMAX"),
        "ranges: median": ranges("MEDIAN_MINMAX"),
        "ranges: quantiles": ranges("MEAN_QUANTILE"),
        "ranges: without outliers": ranges("MEAN_NO_OUTLIERS_MINMAX"),
        "ranges: histogram": ranges("HISTOGRAM"),
        "symmetric activations": lambda advanced: {"preset": nncf.QuantizationPreset.PERFORMANCE},
        "fast bias correction": attribute("disable_bias_correction", False),
        "thorough bias correction": thorough,
        "cross-layer equalisation": attribute("disable_channel_alignment", False),
        "SmoothQuant of convolutions, 0.5": smooth(0.5),
    }


def rows(folder: Path, keep: Callable[[dict[str, Any]], None], done: set[tuple[str, str]], word: str) -> None:
    """Quantise one run's model by every candidate with this word that has no row yet."""
    import nncf
    from openvino._offline_transformations import apply_moc_transformations

    from accel.builders.to_openvino import _activation_products

    ov = import_openvino()
    nncf.set_log_level(logging.ERROR)
    run, core = document.read(folder), ov.Core()
    transformer = run.model.family == "transformer"
    model, other = (core.read_model(folder / "onnx" / "model.onnx") for _ in range(2))
    apply_moc_transformations(other if transformer else model, cf=False, smart_reshape=False)
    types = {port.get_any_name(): port.get_element_type().to_dtype() for port in model.inputs}
    samples = next((folder / ".store").glob("source-*"))

    def feeds(name: str) -> list[Feed]:
        found = read_feeds(samples / name).values()
        return [{key: value.astype(types[key]) for key, value in feed.items()} for feed in found]

    calibration = feeds("calibration.npz")
    gate = feeds("gate.npz")[:GATE_FEEDS]
    masks = [feed["attention_mask"].astype(bool) if "attention_mask" in feed else None for feed in gate]

    def answers(given: Any) -> list[list[np.ndarray]]:
        compiled = core.compile_model(given, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = [compiled(dict(feed)) for feed in gate]
        outputs = [i for i, port in enumerate(given.outputs) if port.get_element_type().is_real()]
        return [[np.array(one[i], np.float64) for one in found] for i in outputs]

    def decibels(found: list[list[np.ndarray]]) -> float | None:
        each = []
        for truth, other in zip(true, found, strict=True):
            fixed = [axis for axis in range(1, truth[0].ndim) if len({t.shape[axis] for t in truth}) == 1]
            real = [m if m is not None and m.shape == t.shape[:2] else None for m, t in zip(masks, truth, strict=True)]
            rows, others = (
                [sqnr.channels(a, m, fixed) for a, m in zip(answer, real, strict=True)] for answer in (truth, other)
            )
            mean = sqnr.mean(rows)
            signal = sum(float(np.square(t - mean).sum()) for t in rows)
            noise = sum(float(np.square(o - t).sum()) for t, o in zip(rows, others, strict=True))
            each.append(sqnr.decibels(signal, noise))
        return min((e for e in each if e is not None), default=None)

    true = answers(model)
    more: dict[str, Any] = {"model_type": nncf.ModelType.TRANSFORMER} if transformer else {}
    for name, change in candidates().items():
        if word not in name or (run.model.name, name) in done:
            continue
        form = other if name == OTHER_FORM else model
        attention = _activation_products(form)
        scope = {"ignored_scope": nncf.IgnoredScope(names=attention)} if attention else {}
        advanced = nncf.AdvancedQuantizationParameters(backend_params={"compress_weights": False})
        advanced.disable_bias_correction = True
        if hardware.detect().cpu.has_vnni:
            advanced.overflow_fix = nncf.OverflowFix.DISABLE
        if transformer:
            advanced.smooth_quant_alphas = nncf.AdvancedSmoothQuantParameters(matmul=STRENGTH)
        given = {"preset": nncf.QuantizationPreset.MIXED} | more | scope | change(advanced)
        begin, trouble, found = time.monotonic(), None, None
        try:
            built = nncf.quantize(
                form,
                nncf.Dataset(calibration),
                subset_size=len(calibration),
                advanced_parameters=advanced,
                **given,
            )
            taken = time.monotonic() - begin
            found = decibels(answers(built))
        except Exception as error:  # noqa: BLE001 a candidate that a model cannot have is a result
            taken, trouble = time.monotonic() - begin, f"{type(error).__name__}: {error}"[:300]
        keep(
            {
                "model": run.model.name,
                "candidate": name,
                "sqnr_db": found,
                "calibration_s": taken,
                "calibration_feeds": len(calibration),
                "gate_feeds": len(gate),
                "trouble": trouble,
            }
        )


def main() -> None:
    """Try every candidate on every run; print and write what each keeps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    parser.add_argument("--only", default="", help="candidates with this word in their name")
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    kept = json.loads(asked.out.read_text())["rows"] if asked.out.exists() else []

    def keep(row: dict[str, Any]) -> None:
        kept.append(row)
        found = {"hardware": to_json(hardware.detect()), "rows": kept}
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
        shown = row["trouble"] or f"{row['sqnr_db']:.1f} dB"
        print(f"{row['model']:18} {row['candidate']:38} {shown}  {row['calibration_s']:.0f} s", flush=True)

    for folder in asked.runs:
        rows(folder, keep, {(r["model"], r["candidate"]) for r in kept}, asked.only)


if __name__ == "__main__":
    main()
