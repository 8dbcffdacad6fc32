"""What the search for INT8 layers leaves behind: its build beside that of an exhaustive greedy search, in one session.

    python -m benchmarks.greedy build [MODEL...] --work WORK     # may run on a busy machine
    python -m benchmarks.greedy time [MODEL...] --work WORK -o docs/benchmarks/greedy.json

``openvino-int8`` of zoo models at full size is built twice from the same samples: by the search as it is used,
and by one that tries every layer that is left at every step, for as long as that takes (n(n+1)/2 choices for n layers).
What is float beside INT8, and what judges, is the same for both. Both are then timed in turns, a round each, in one
process. Bar: accel's takes at most 5 % more time.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import accel.run  # noqa: F401  hands the zoo in
from accel.bench.stability import ratio_interval
from accel.builders import targets
from accel.core import hardware
from accel.core.feeds import read_feeds
from accel.core.values import Artifact, BuildRequest, Built, Target, Variant, from_json, to_json
from accel.exporters import describe, export_onnx, load
from accel.exporters.samples import make_samples
from accel.exporters.sources import recognise
from accel.graph import sensitivity
from accel.graph.sensitivity import ScoredChoice, Search

MODELS = ("dlrm", "text-recognition", "mobilenet-v2")
SEARCH_S = 60.0
ROUNDS, ROUND_S = 24, 0.5
FACTS = ("share_of_products", "held_back_score", "search_s", "float_nodes", "whole_missed")


def exhaustive(
    units: Sequence[tuple[str, ...]],
    work: Mapping[str, int],
    score: Callable[[tuple[str, ...]], float],
    floor: float,
    *,
    loss: Callable[[float], float],
    **_: Any,
) -> Search:
    """Quantise one unit at a time, always the one that harms least for its work, while any holds the floor."""
    start, total = time.monotonic(), sum(work[n] for unit in units for n in unit)
    on: list[int] = []
    evaluations = 0

    def trial(chosen: Sequence[int]) -> ScoredChoice:
        nonlocal evaluations
        evaluations += 1
        kept = tuple(n for i, unit in enumerate(units) if i not in chosen for n in unit)
        quantised = [n for i in chosen for n in units[i]]
        value = float(score(kept))
        share = sum(work[n] for n in quantised) / total
        return ScoredChoice(share, len(quantised), value if math.isfinite(value) else -1e300, kept)

    best = trial(())
    while True:
        tried = [(i, trial([*on, i])) for i in range(len(units)) if i not in on]
        holding = [(i, found) for i, found in tried if found.score >= floor]
        if not holding:
            break
        before = loss(best.score)
        chosen, best = min(
            holding, key=lambda t: (max(0.0, loss(t[1].score) - before) / (t[1].share - best.share), -t[1].share)
        )
        on.append(chosen)
        print(f"  greedy: {len(on)} of {len(units)}, {best.share:.1%}, {best.score:.4g}", flush=True)
    seconds = time.monotonic() - start
    return Search(floor, best, best.score >= floor, (), (), evaluations, evaluations, seconds)


def build(name: str, folder: Path) -> None:
    """Build both, and keep in ``folder`` what is needed to time them."""
    source = describe(request := recognise(name))
    model = load(source)
    samples = make_samples(source, request, folder / "samples")
    onnx = export_onnx(source, folder / "onnx", model=model)
    builder, variant = targets.discover()["openvino-int8"], Variant(Target("openvino-int8", "cpu"), source.profile)
    places = str(folder / "onnx"), samples, str(folder / "samples")
    asked = BuildRequest(variant, source, onnx, *places, threads=hardware.cpu_threads())
    usual = sensitivity.search

    def only_int8(units: Sequence[tuple[str, ...]], *given: Any, **how: Any) -> Search:
        """Leave the search of what is float beside INT8 as it is: its units are layers, those of INT8 are numbered."""
        search = exhaustive if units[0][0].isdigit() else usual
        return search(units, *given, **how)

    kept = {}
    for kind, search in (("accel", usual), ("greedy", only_int8)):
        (out := folder / kind).mkdir(exist_ok=True)
        begin = time.monotonic()
        with mock.patch.object(sensitivity, "search", search):
            built = builder.build(asked, builder.options(search_s=SEARCH_S), out)
        kept[kind] = {"built": to_json(built), "seconds": time.monotonic() - begin}
        print(name, kind, {k: v for k, v in built.facts.items() if k in FACTS}, flush=True)
    typical = {s.name: source.profile[s.name].opt for s in source.inputs}
    given = next(iter(read_feeds(folder / "samples" / samples.gate.path).values()))
    feed = {n: np.resize(v, typical[n]).astype(v.dtype) for n, v in given.items()}
    np.savez(folder / "feed.npz", **feed)
    (folder / "built.json").write_text(json.dumps({"variant": to_json(variant), **kept}))


def row(name: str, folder: Path) -> dict[str, Any]:
    """Time both in turns."""
    kept = json.loads((folder / "built.json").read_text())
    builder, variant = targets.discover()["openvino-int8"], from_json(Variant, kept.pop("variant"))
    sessions, told = {}, {}
    for kind, made in kept.items():
        artifact = Artifact(variant, (), "", from_json(Built, made["built"]), 0.0)
        sessions[kind] = builder.open(artifact, folder / kind, threads=hardware.cpu_threads(), mode="latency")
        told[kind] = {"build_s": made["seconds"]} | {fact: artifact.built.facts.get(fact) for fact in FACTS}
    with np.load(folder / "feed.npz") as file:
        feed = dict(file)
    rounds: dict[str, list[float]] = {kind: [] for kind in sessions}
    for number in range(ROUNDS + 1):
        for kind in sorted(sessions, reverse=number % 2 == 0):
            taken, end = [], time.perf_counter() + ROUND_S
            while time.perf_counter() < end:
                begin = time.perf_counter()
                sessions[kind].run(feed)
                taken.append((time.perf_counter() - begin) * 1e3)
            if number:
                rounds[kind].append(statistics.median(taken))
    ratio = list(ratio_interval(rounds["accel"], rounds["greedy"]))
    times = {kind: statistics.median(found) for kind, found in rounds.items()}
    return {"model": name, "ms": times, "accel_over_greedy": ratio, "rounds_ms": rounds, **told}


def main() -> None:
    """Build what is not built, or time and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "time"))
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--work", type=Path, required=True, help="where builds are kept")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/benchmarks/greedy.json"))
    asked = parser.parse_args()
    rows = {r["model"]: r for r in json.loads(asked.out.read_text())["rows"]} if asked.out.exists() else {}
    for name in asked.models:
        folder = asked.work / name
        if asked.step == "build":
            if not (folder / "built.json").exists():
                build(name, folder)
            continue
        rows[name] = row(name, folder)
        document = {"hardware": hardware.detect().id, "search_s": SEARCH_S, "rows": list(rows.values())}
        asked.out.write_text(json.dumps(document, indent=1) + "\n")
        print(name, rows[name]["ms"], rows[name]["accel_over_greedy"], flush=True)


if __name__ == "__main__":
    main()
