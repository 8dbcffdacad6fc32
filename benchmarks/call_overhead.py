"""What a call of ``accel.load`` costs over the runtime by hand: the null target and MiniLM, in interleaved rounds.

    python benchmarks/call_overhead.py [-o benchmarks/call_overhead.json]

The null target waits no time, so its calls are accel's own work. For MiniLM by hand is ``InferenceSession.run`` of the
very session that the model holds, on ready arrays: two sessions of one file differ by more than a call costs. Beside
a call on torch tensors, by hand makes arrays of the tensors and tensors of the answer, too. Figures are medians over
rounds of the difference, in microseconds: of the CPU time of the calling thread, which alone computes here, and of the
clock, which on a busy machine counts the neighbours, too.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import accel

ROUNDS, LIMIT_US = 200, 50.0
CPU = "_cpu"
BY_HAND = "_by_hand"
"""What the names of CPU times, and of ways without accel, end in."""


def interleaved(ways: dict[str, Callable[[], Any]], calls: int) -> dict[str, list[float]]:
    """Return the mean time of a call in each round, in microseconds, by clock and CPU; the ways take turns."""
    times: dict[str, list[float]] = {f"{name}{kind}": [] for name in ways for kind in ("", CPU)}
    for call in ways.values():
        for _ in range(calls):
            call()
    for turn in range(ROUNDS):
        for name, call in list(ways.items())[:: 1 if turn % 2 else -1]:
            begin, worked = time.perf_counter_ns(), time.thread_time_ns()
            for _ in range(calls):
                call()
            times[name + CPU].append((time.thread_time_ns() - worked) / 1e3 / calls)
            times[name].append((time.perf_counter_ns() - begin) / 1e3 / calls)
    return times


def overhead(times: dict[str, list[float]], ours: str, kind: str) -> float:
    """Return the median over rounds of the difference to the same by hand."""
    by_hand = f"{ours}{BY_HAND}{kind}"
    return statistics.median(a - b for a, b in zip(times[ours + kind], times[by_hand], strict=True))


def minilm(source: accel.Step) -> dict[str, Any]:
    """Compare a call on torch tensors and on arrays with ONNX Runtime by hand."""
    import onnxruntime as ort
    import torch

    artifact = accel.build("ort", source)
    model = accel.load(accel.emit(artifact, source), threads=1)
    session = model._session._session  # type: ignore[attr-defined]
    assert isinstance(session, ort.InferenceSession)
    built = {s.name: s.dtype for s in artifact.value.built.inputs}
    feed = {s.name: np.ones((1, 8), s.dtype) for s in model.inputs}
    ready = {name: value.astype(built[name]) for name, value in feed.items()}
    tensors = {name: torch.from_numpy(value.astype(np.int64)) for name, value in feed.items()}
    ways = {
        "arrays_by_hand": lambda: session.run(None, ready),
        "arrays": lambda: model(**ready),
        "torch_by_hand": lambda: [
            torch.from_numpy(v) for v in session.run(None, {name: t.numpy() for name, t in tensors.items()})
        ],
        "torch": lambda: model(**tensors),
    }
    return row("minilm, 1 x 8, one thread", interleaved(ways, 5))


def null(source: accel.Step) -> dict[str, Any]:
    """Time the null target, of no latency: bind, submit, wait and read by hand, and a call."""
    from accel.builders.to_null import BUILDER

    artifact = accel.build("null", source)
    model = accel.load(accel.emit(artifact, source), threads=1)
    session = BUILDER.open(artifact.value, artifact.folder, threads=1, mode="latency")
    feed = {s.name: np.ones((1, 8), s.dtype) for s in session.inputs}

    def by_hand() -> Any:
        session.bind(feed)
        session.submit()
        session.wait()
        return session.read()

    ways = {"arrays_by_hand": by_hand, "arrays": lambda: model(**feed)}
    return row("null, inputs of minilm 1 x 8", interleaved(ways, 30))


def row(what: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Print the figures of one model and return them with the raw times."""
    ways = [name for name in times if not name.endswith((CPU, BY_HAND))]
    found: dict[str, Any] = {"model": what, "by_hand_us": statistics.median(times["arrays_by_hand"])}
    found |= {f"{name}{kind}_over_us": overhead(times, name, kind) for name in ways for kind in ("", CPU)}
    print({name: round(v, 1) if isinstance(v, float) else v for name, v in found.items()}, flush=True)
    return found | {"raw_us": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        asked = {"threads": 1, "options": {"null": {"latency_ms": 0.0}}, "targets": "null,ort"}
        source = accel.describe("minilm", out=Path(scratch) / "run", **asked)
        found = [null(source), minilm(source)]
    if out is not None:
        out.write_text(json.dumps({"limit_us": LIMIT_US, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
