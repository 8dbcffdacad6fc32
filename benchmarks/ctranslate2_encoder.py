"""Whether CTranslate2 would be a target worth having: MiniLM by it and by what accel chooses, timed in turns.

    python -m venv CT2 && CT2/bin/pip install torch==2.13.0 ctranslate2==4.8.5 transformers==4.57.6
    accel convert minilm --targets torch,openvino-fp32,openvino-int8 --bench none -o RUN
    python -m benchmarks.ctranslate2_encoder RUN CT2/bin/python --work WORK -o docs/benchmarks/ctranslate2_encoder.json

CTranslate2's encoder in each type that it computes in on this CPU, in a process of its own; both with all cores, both
give the states of the tokens, of which the mean is taken here. One sentence of each length, rounds in an order drawn
anew; ratios are paired by rounds. SQNR is that of the means, scaled to length one, against the framework's, over
sentences of the gate.
"""

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import accel.run  # noqa: F401  hands the zoo in
from accel.bench.stability import ratio_interval
from accel.builders import targets
from accel.core import hardware
from accel.core.accuracy import sqnr
from accel.core.feeds import Feed, read_feeds
from accel.core.values import to_json
from benchmarks.children import Child
from benchmarks.other_kernels import JUDGED, built, in_turns, timer
from model_zoo import _text

TYPES = ("float32", "int8_float32")
LENGTHS = (16, 128)
OURS = ("openvino-fp32", "openvino-int8")
CHILD = """
import json, sys, time
import numpy as np
import ctranslate2
source, folder, kind, threads = sys.argv[1:]
ctranslate2.converters.TransformersConverter(source).convert(folder, quantization=kind, force=True)
encoder = ctranslate2.Encoder(folder, device="cpu", compute_type=kind, inter_threads=1, intra_threads=int(threads))
print(json.dumps({"version": ctranslate2.__version__ + " in " + encoder.compute_type}), flush=True)
def hidden(ids):
    return np.array(encoder.forward_batch(ids).last_hidden_state.to(ctranslate2.DataType.float32))
for line in sys.stdin:
    asked = json.loads(line)
    ids = asked["ids"]
    if "seconds" not in asked:
        print(json.dumps({"answer": hidden(ids).mean(axis=1).tolist()}), flush=True)
        continue
    taken, end = [], time.perf_counter() + asked["seconds"]
    while time.perf_counter() < end or len(taken) < 3:
        begin = time.perf_counter()
        hidden(ids)
        taken.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps({"ms": taken}), flush=True)
"""


def unit(rows: np.ndarray) -> np.ndarray:
    """Scale each row to length one."""
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float64)


def asked_for(child: Child, ids: list[list[int]], seconds: float) -> list[float]:
    """Let a child time its own calls; milliseconds of each."""
    return list(child.ask(ids=ids, seconds=seconds)["ms"])


def main() -> None:
    """Time both, and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("python", help="interpreter with ctranslate2, transformers and torch")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    threads, known = hardware.cpu_threads(), targets.discover()
    samples = list(read_feeds(next((asked.run / ".store").glob("source-*")) / "gate.npz").values())
    sessions: dict[str, tuple[Any, str, dict[str, str]]] = {}
    for name in ("torch", *OURS):
        if (found := built(asked.run, name)) is None:
            raise SystemExit(f"{asked.run} has no {name}: convert with it")
        spec = found[0].built
        session = known[name].open(*found, threads=threads, mode="latency")
        sessions[name] = session, spec.outputs[0].name, {s.name: s.dtype for s in spec.inputs}

    def answer(name: str, feed: Feed) -> np.ndarray:
        session, output, dtypes = sessions[name]
        given = {key: np.ascontiguousarray(feed[key], dtype) for key, dtype in dtypes.items()}
        return np.asarray(session.run(given)[output]).mean(axis=1)

    def ids(feed: Feed) -> list[list[int]]:
        return [row.tolist() for row in feed["input_ids"]]

    single = [
        {name: value[row : row + 1, feed["attention_mask"][row].astype(bool)] for name, value in feed.items()}
        for feed in samples
        for row in range(len(feed["input_ids"]))
    ][:JUDGED]
    true = np.concatenate([unit(answer("torch", feed)) for feed in single])

    def decibels(found: list[np.ndarray]) -> float | None:
        noise = np.square(unit(np.concatenate(found)) - true).sum()
        return sqnr.decibels(float(np.square(true - true.mean()).sum()), float(noise))

    source = str(_text.minilm_folder())
    children: dict[str, Child] = {}
    failed: dict[str, str] = {}
    for kind in TYPES:
        try:
            folder = str(asked.work / kind)
            children[kind] = Child(asked.python, "-c", CHILD, source, folder, kind, str(threads))
        except RuntimeError as error:
            failed[kind] = str(error)[-200:]
    kept = {name: decibels([answer(name, feed) for feed in single]) for name in OURS}
    for kind, child in children.items():
        kept[kind] = decibels([np.array(child.ask(ids=ids(feed))["answer"]) for feed in single])
    told: dict[str, Any] = {"hardware": to_json(hardware.detect()), "judged": len(single), "failed": failed}
    told |= {"versions": {kind: child.version for kind, child in children.items()}, "sqnr_db": kept, "lengths": {}}
    for length in LENGTHS:
        feed = {name: np.resize(value, (1, length)) for name, value in single[0].items()}
        timers = {name: timer(partial(answer, name), feed) for name in OURS}
        timers |= {kind: partial(asked_for, child, ids(feed)) for kind, child in children.items()}
        rounds = in_turns(timers)
        told["lengths"][length] = {
            name: {
                "ms": statistics.median(found),
                "over_openvino_int8": list(ratio_interval(found, rounds["openvino-int8"])),
                "rounds_ms": found,
            }
            for name, found in rounds.items()
        }
        for name, row in told["lengths"][length].items():
            ratio = row["over_openvino_int8"][0]
            print(f"{length:4} {name:16} {row['ms']:7.2f} ms  {ratio:.2f} of openvino-int8  {kept[name]:.1f} dB")
    asked.out.write_text(json.dumps(told, indent=1) + "\n")
    for child in children.values():
        child.close()


if __name__ == "__main__":
    main()
