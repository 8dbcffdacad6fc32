"""What judges a quantised model: samples that calibrated it, samples that were held out, and the gate's, side by side.

    accel convert MODEL --samples FILE --targets openvino-int8 --bench none -o RUN
    python benchmarks/judges.py RUN -o docs/benchmarks/judges.json

SQNR of the whole model in INT8 by NNCF, as ``openvino-int8`` makes it, for strengths of SmoothQuant: calibrated on all
of the run's calibration feeds, and without a quarter of them, three choices of it. Only the first output counts.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accel.builders.to_openvino import import_openvino
from accel.core import document
from accel.core.accuracy import sqnr
from accel.core.feeds import Feed, read_feeds
from accel.core.values import to_json

STRENGTHS = (0.95, 0.9, 0.8, 0.65, 0.5, -1.0)
"""Alphas; -1 turns SmoothQuant off."""


def main() -> None:
    """Compare the judges and write what they say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--strengths", type=float, nargs="*", default=STRENGTHS)
    parser.add_argument("--whole", action="store_true", help="calibrate on all calibration feeds alone")
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    ov = import_openvino()
    import nncf

    from accel.builders.to_openvino import _activation_products

    nncf.set_log_level(logging.ERROR)
    core = ov.Core()
    model = core.read_model(asked.run / "onnx" / "model.onnx")
    types = {port.get_any_name(): port.get_element_type().to_dtype() for port in model.inputs}
    samples = next((asked.run / ".store").glob("source-*"))

    def feeds(name: str) -> list[Feed]:
        found = read_feeds(samples / name).values()
        return [{key: value.astype(types[key]) for key, value in feed.items()} for feed in found]

    def answers(given: Any, asked_of: Sequence[Feed], hint: str) -> list[np.ndarray]:
        compiled = core.compile_model(given, "CPU", {"INFERENCE_PRECISION_HINT": hint})
        return [np.array(compiled(dict(feed))[0]) for feed in asked_of]

    def decibels(given: Any, asked_of: Sequence[Feed]) -> float | None:
        truth, found = (
            [sqnr.channels(a, None, [a.ndim - 1]) for a in answers(m, asked_of, hint)]
            for m, hint in ((model, "f32"), (given, "bf16"))
        )
        mean = sqnr.mean(truth)
        signal = sum(float(np.square(t - mean).sum()) for t in truth)
        return sqnr.decibels(signal, sum(float(np.square(f - t).sum()) for t, f in zip(truth, found, strict=True)))

    def quantised(chosen: Sequence[Feed], alpha: float) -> Any:
        advanced = nncf.AdvancedQuantizationParameters(backend_params={"compress_weights": False})
        advanced.overflow_fix = nncf.OverflowFix.DISABLE
        advanced.smooth_quant_alphas = nncf.AdvancedSmoothQuantParameters(matmul=alpha)
        return nncf.quantize(
            model,
            nncf.Dataset(chosen),
            subset_size=len(chosen),
            preset=nncf.QuantizationPreset.MIXED,
            model_type=nncf.ModelType.TRANSFORMER,
            ignored_scope=nncf.IgnoredScope(names=_activation_products(model)),
            advanced_parameters=advanced,
        )

    calibration, gate = feeds("calibration.npz"), feeds("gate.npz")
    count, rows = max(1, len(calibration) // 4), []
    for alpha in asked.strengths:
        whole = quantised(calibration, alpha)
        row: dict[str, Any] = {"alpha": alpha, "calibrated_db": decibels(whole, calibration)}
        row |= {"gate_db": decibels(whole, gate), "without": []}
        for first in () if asked.whole else sorted({0, len(calibration) // 2, len(calibration) - count}):
            held = range(first, first + count)
            part = quantised([f for i, f in enumerate(calibration) if i not in held], alpha)
            judged = decibels(part, [calibration[i] for i in held])
            row["without"].append({"feeds": list(held), "held_out_db": judged, "gate_db": decibels(part, gate)})
        rows.append(row)
        print(json.dumps(row), flush=True)
    run = document.read(asked.run)
    sets = {"calibration": calibration, "gate": gate}
    items = {name: sum(len(next(iter(feed.values()))) for feed in found) for name, found in sets.items()}
    told = {"model": run.model.name, "items": items, "hardware": to_json(run.hardware), "rows": rows}
    asked.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
