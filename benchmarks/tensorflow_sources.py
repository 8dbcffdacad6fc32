"""Keras's Inception-v3 and DenseNet-121 at full size, as SavedModels: how exact, and whether layout matters for speed.

    .venv/bin/python benchmarks/tensorflow_sources.py [--folder DIR] [--out docs/benchmarks/tensorflow.json]

`accel convert` runs on each SavedModel three times: as it is, with `--inputs-as-nchw`, and with OpenVINO reading the
SavedModel itself. Bar: every FP32 variant within 1e-4 of TensorFlow's own logits. Then the files that were built are
timed in turn through ONNX Runtime's and OpenVINO's own APIs, one picture a call. Takes about 10 minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.race import Contest, Race
from accel.bench.rounds import interleave
from accel.bench.stability import ratio_interval
from accel.core import document, hardware
from accel.core.values import TensorSpec
from accel.exporters.layout import array_first
from model_zoo import _pictures

SIZES = {"InceptionV3": 299, "DenseNet121": 224}
BAR = 1e-4
ITEMS, ROUNDS, CALLS = 96, 15, 8
SAMPLES = """
from pathlib import Path
import numpy as np
def pictures():
    with np.load(Path(__file__).with_suffix(".npz")) as held:
        yield from ({"images": picture[None]} for picture in held["images"])
"""
WAYS = {
    "nhwc": ["--targets", "tf,tf-xla,ort,openvino-fp32"],
    "nchw": ["--targets", "ort,openvino-fp32", "--inputs-as-nchw", "images"],
    "frontend": ["--targets", "openvino-fp32", "--config", "frontend.yaml"],
}
"""How the model is converted: pictures channels last, channels first, and past ONNX into OpenVINO."""


def save(name: str, folder: Path) -> np.ndarray:
    """Write ``folder/saved_model``, seeded and settled, logits out; returns pictures (items, height, width, 3)."""
    from accel.exporters.tensorflow_runtime import import_tensorflow

    keras = import_tensorflow().keras
    keras.utils.set_random_seed(0)
    spec = TensorSpec("images", "float32", ("batch", SIZES[name], SIZES[name], 3))
    drawn = _pictures.pictures(_pictures.SETTLING + ITEMS, spec, mean=_pictures.HALF, deviation=_pictures.HALF)
    images = keras.Input(spec.dims[1:], name=spec.name)
    model = getattr(keras.applications, name)(weights=None, input_tensor=images, classifier_activation=None)
    _pictures.settle_keras(model, drawn[: _pictures.SETTLING])
    model.export(folder / "saved_model", verbose=False)
    return np.concatenate([item["images"] for item in drawn[_pictures.SETTLING :]])


def converted(folder: Path, way: str, pictures: np.ndarray) -> dict[str, Any]:
    """Convert the SavedModel from nothing one way; returns what became of each variant."""
    feeds = array_first(pictures) if way == "nchw" else pictures
    np.savez(folder / f"drawn_{way}.npz", images=feeds)
    (folder / f"drawn_{way}.py").write_text(SAMPLES)
    (folder / "frontend.yaml").write_text("options:\n  openvino-fp32: {frontend: tensorflow}\n")
    words = ["convert", "saved_model", *WAYS[way], "--samples", f"drawn_{way}.py:pictures"]
    words += ["--objective", "latency", "--rounds", "2", "-o", way, "--quiet"]
    start = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "accel", *words], cwd=folder).returncode
    wall_s = time.monotonic() - start
    if code:
        raise SystemExit(f"accel {' '.join(words)} ended with {code}")
    run = document.read(folder / way)
    rows = {
        v.id: {
            "status": v.status,
            "max_abs": max((o.max_abs for o in v.parity.outputs), default=None) if v.parity else None,
            "sqnr_db": v.parity.found.get("sqnr_db") if v.parity else None,
            "p50_ms": [m.p50_ms for m in v.measurements],
        }
        for v in run.variants
    }
    return {"wall_s": wall_s, "versions": dict(run.hardware.versions), "variants": rows}


Call = Callable[[], Any]


def ort_call(file: Path, feed: np.ndarray) -> Call:
    """Return one call of an ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = hardware.cpu_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"images": feed})


def openvino_call(file: Path, feed: np.ndarray) -> Call:
    """Return one call of an IR, in FP32."""
    import openvino

    asked = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(hardware.cpu_threads())}
    request = openvino.Core().compile_model(file, "CPU", asked).create_infer_request()
    return lambda: request.infer({"images": feed})


@dataclass
class Timed:
    """A file that takes its turn: the median of some calls, in ms, for each round."""

    name: str
    make: Callable[[], Call]
    threads: int = hardware.cpu_threads()
    rounds_ms: list[float] = field(default_factory=list)
    call: Call | None = None

    def open(self) -> None:
        self.call = self.make()
        self._median_ms()  # warms up

    def turn(self, point: str) -> None:
        self.rounds_ms.append(self._median_ms())

    def end_turn(self) -> None:
        """Do nothing: the answers were compared before."""

    def discard(self) -> None:
        self.rounds_ms.pop()

    def times(self) -> dict[str, list[float]]:
        return {"b1": self.rounds_ms}

    def close(self) -> None:
        self.call = None

    leave = close

    def _median_ms(self) -> float:
        assert self.call is not None
        spent = []
        for _ in range(CALLS):
            start = time.perf_counter_ns()
            self.call()
            spent.append((time.perf_counter_ns() - start) / 1e6)
        return float(np.median(spent))


def layouts(folder: Path, picture: np.ndarray) -> dict[str, Any]:
    """Time the built files in turn; ratios are to channels last through ONNX, above 1 is slower."""
    makers = {"ort": (ort_call, "model.onnx"), "openvino-fp32": (openvino_call, "model.xml")}
    timed = {}
    for way, target in (("nhwc", "ort"), ("nchw", "ort"), *((way, "openvino-fp32") for way in WAYS)):
        make, file = makers[target]
        feed = array_first(picture) if way == "nchw" else picture
        name = f"{target} {way}"
        timed[name] = Timed(name, partial(make, folder / way / "variants" / f"{target}@cpu" / file, feed))
    contest = Contest(tuple((name, "b1") for name in timed), frozenset(timed), ROUNDS, least=ROUNDS)
    failed, _ = interleave(
        list(timed.values()), Race([contest]), opening="open", turn="round", progress=lambda name, doing: None
    )
    if failed:
        raise SystemExit(f"could not be timed: {failed}")
    rows = {}
    for name, one in timed.items():
        ratio, low, high = ratio_interval(one.rounds_ms, timed[name.split()[0] + " nhwc"].rounds_ms)
        p50_ms = float(np.median(one.rounds_ms))
        rows[name] = {"p50_ms": p50_ms, "ratio": ratio, "ratio_ci": [low, high], "rounds_ms": one.rounds_ms}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where models and runs go; a temporary one by default")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/tensorflow.json"))
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found: dict[str, Any] = {"hardware": hardware.detect().id, "date": time.strftime("%F")}
    with tempfile.TemporaryDirectory() as scratch:
        for name in SIZES:
            folder = (asked.folder or Path(scratch)).absolute() / name
            folder.mkdir(parents=True, exist_ok=True)
            pictures = save(name, folder)
            ways = {way: converted(folder, way, pictures) for way in WAYS}
            found[name] = {"ways": ways, "layouts": layouts(folder, pictures[:1])}
            for way, done in ways.items():
                for id, row in done["variants"].items():
                    held = "" if row["max_abs"] is None else f"{row['max_abs']:.1e} (bar {BAR:.0e})"
                    print(f"{name:12} {way:9} {id:20} {row['status']:12} {held}", flush=True)
            for way, row in found[name]["layouts"].items():
                low, high = row["ratio_ci"]
                print(f"{name:12} {way:24} {row['p50_ms']:7.1f} ms  {row['ratio']:.2f} [{low:.2f}, {high:.2f}]")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
