"""One converted model in a process of its own: ``child.py ROLE PATH FEEDS THREADS``, JSON in and out by lines.

It runs with the interpreter of the environment that converted the model, by the runtime that is installed there, and
imports nothing of accel but for accel's own variants. A runtime is used as its documentation shows, with as many
threads as the machine has; nothing else of its defaults is changed.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

Feed = Mapping[str, np.ndarray]
Run = Callable[[Feed], Mapping[str, np.ndarray]]


def onnx(path: str, threads: int) -> tuple[Run, list[str], str]:
    """An ONNX file, by ONNX Runtime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs = [o.name for o in session.get_outputs()]
    return (
        lambda feed: dict(zip(outputs, session.run(outputs, feed), strict=True)),
        [i.name for i in session.get_inputs()],
        f"onnxruntime {ort.__version__}",
    )


def openvino(path: str, threads: int) -> tuple[Run, list[str], str]:
    """An OpenVINO IR, by OpenVINO."""
    import openvino as ov

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    compiled = ov.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()
    outputs = [o.any_name for o in compiled.outputs]

    def run(feed: Feed) -> Mapping[str, np.ndarray]:
        found = request.infer(feed)
        return {name: found[name] for name in outputs}

    return run, [i.any_name for i in compiled.inputs], f"openvino {version('openvino')}"


def torchscript(path: str, threads: int) -> tuple[Run, list[str], str]:
    """A TorchScript file, whose inputs come in the order of the feeds."""
    import torch

    torch.set_num_threads(threads)
    module = torch.jit.load(path).eval()

    def run(feed: Feed) -> Mapping[str, np.ndarray]:
        with torch.inference_mode():
            found = module(*map(torch.from_numpy, feed.values()))
        return {str(n): v.numpy() for n, v in enumerate(found.values() if isinstance(found, dict) else [*found])}

    return run, [], f"torch {torch.__version__}"


def accel(path: str, threads: int) -> tuple[Run, list[str], str]:
    """A variant that accel built, as ``accel.load`` opens it."""
    import accel

    model = accel.load(path, threads=threads)
    return model.run, [spec.name for spec in model.inputs], f"accel {version('accel')}, {model.id}"


def main() -> None:
    """Answer each line: ``{"time": feed, "seconds": s}`` with milliseconds, ``{"answers": file}`` with a file."""
    role, path, feeds, threads = sys.argv[1:]
    run, names, told = {"onnx": onnx, "openvino": openvino, "torchscript": torchscript, "accel": accel}[role](
        path, int(threads)
    )
    given: dict[str, dict[str, np.ndarray]] = {}
    with np.load(feeds) as stored:
        every = list(dict.fromkeys(key.partition("/")[2] for key in stored.files))
        own = {name: name for name in every if not names or name in names}
        if not own:  # Model Navigator calls them input__0, input__1, … in the order of their names
            own = dict(zip(sorted(every), sorted(names), strict=True))
        for key in stored.files:
            point, _, name = key.partition("/")
            if name in own:
                given.setdefault(point, {})[own[name]] = stored[key]
    print(json.dumps({"version": told}), flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if "answers" in asked:
            kept = {
                f"{point}/{name}": value
                for point, feed in given.items()
                if point.isdigit()
                for name, value in run(feed).items()
            }
            np.savez(asked["answers"], **kept)
            print("{}", flush=True)
            continue
        feed, taken = given[asked["time"]], []
        end = time.perf_counter() + asked["seconds"]
        while time.perf_counter() < end:
            begin = time.perf_counter()
            run(feed)
            taken.append((time.perf_counter() - begin) * 1e3)
        print(json.dumps({"ms": taken}), flush=True)


if __name__ == "__main__":
    main()
