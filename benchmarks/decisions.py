"""How often accel's decision is right: quiet, and beside neighbours that disturb it; raw rows in one JSON file.

    python benchmarks/decisions.py build    [--model minilm]            builds and proves once (--bench none)
    python benchmarks/decisions.py truth    [--model minilm] --count 5  long sessions; run it on a quiet machine
    python benchmarks/decisions.py run quiet|half_core|lowest_priority [--model minilm] --count 20
    python benchmarks/decisions.py table                                the bars, from what was run so far

Every part adds rows and may be stopped and begun again: ``--count`` is how many rows of that kind there shall be in
all on this machine, of the code that measures and decides as it is now: rows of another are kept, and have lines of
their own in the table. A row is one measuring and deciding of what ``build`` built; its neighbour is one of
``noise.py``.
The truth of a variant is the geometric mean, over the long sessions (all variants in all of 20 rounds), of its time
relative to the baseline's in that session.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from noise import NEIGHBOURS

from accel.core import document, hardware
from accel.run import store

MODELS = ("minilm", "resnet50")
TRUTH = ["--min-rounds", "20", "--rounds", "20", "--budget-s", "3600"]
"""Processes of one file differ by more than their rounds do: many sessions say more than long ones."""
WITHIN = 1.03
DECIDES = ("bench", "run/decide.py", "run/measuring.py", "run/points.py")
"""What rows of one kind have in common: whoever changes it begins anew."""
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}
"""Student's 97.5 % quantile for so many sessions; for other numbers the next smaller one."""
Rows = list[dict[str, Any]]


def convert(model: str, runs: Path, more: list[str]) -> float:
    """Convert into the model's run directory, beside what is there; return the seconds."""
    words = ["convert", model, "--targets", "cpu", "-o", str(runs / model), "--quiet", *more]
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "accel", *words], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"accel {' '.join(words)} ended with {done.returncode}")
    return time.monotonic() - begin


def session(model: str, kind: str, runs: Path) -> dict[str, Any]:
    """Measure and decide anew; return the row."""
    for kept in (runs / model / ".store").glob("measure-*"):
        shutil.rmtree(kept)
    neighbour = NEIGHBOURS.get(kind)
    beside = subprocess.Popen([sys.executable, "-c", neighbour]) if neighbour else None
    try:
        seconds = convert(model, runs, TRUTH if kind == "truth" else [])
    finally:
        if beside:
            beside.kill()
            beside.wait()
    found = document.read(runs / model)
    times: dict[str, dict[str, float]] = defaultdict(dict)
    for v in found.variants:
        for point in v.measurements:
            if v.status == "ok" and point.rounds_ms:
                median = statistics.median(point.rounds_ms)
                times[point.scenario][v.id] = min(median, times[point.scenario].get(v.id, math.inf))
    fields = ("objective", "chosen", "verdict", "ties", "undecided", "speedup", "speedup_ci", "warning", "baseline")
    decisions = [{name: getattr(d, name) for name in fields} for d in found.decisions]
    load = os.getloadavg()[0]
    return {
        "model": model,
        "kind": kind,
        "hardware": found.hardware.id,
        "code": store.code_hash(*DECIDES)[:8],
        "at": time.time(),
        "s": seconds,
        "load": load,
        "ms": times,
        "decisions": decisions,
    }


def truth(rows: Rows, model: str, objective: str) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Return each variant's time over the baseline's, and the interval of that (from two sessions on)."""
    logs: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if (row["model"], row["kind"]) == (model, "truth"):
            base = next(d["baseline"] for d in row["decisions"] if d["objective"] == objective)
            for id, ms in row["ms"][objective].items():
                logs[id].append(math.log(ms / row["ms"][objective][base]))
    middle = {id: statistics.fmean(values) for id, values in logs.items()}
    ends = {}
    for id, values in logs.items():
        if len(values) > 1:
            quantile = T95[max(n for n in T95 if n <= len(values))]
            half = quantile * statistics.stdev(values) / math.sqrt(len(values))
            ends[id] = (math.exp(middle[id] - half), math.exp(middle[id] + half))
    return {id: math.exp(m) for id, m in middle.items()}, ends


def table(rows: Rows) -> None:
    """Print, for each model, objective and neighbour, how many decisions there are and how many are right.

    Args:
        rows: of one machine.
    """
    head = f"{'code':<9} {'model':<10} {'objective':<11} {'neighbour':<16}"
    print(f"{head} runs decided equivalent right(3%) unwarned outside truth")
    for of in dict.fromkeys(row["code"] for row in rows if row["kind"] in NEIGHBOURS):
        _lines(rows, of)


def _lines(rows: Rows, of: str) -> None:
    """Print the lines of one code; the truth is that of all."""
    for model in MODELS:
        for objective in ("latency", "throughput"):
            real, ends = truth(rows, model, objective)
            for kind in NEIGHBOURS:
                own = [r for r in rows if (r["model"], r["kind"], r["code"]) == (model, kind, of)]
                made = [d for r in own for d in r["decisions"] if d["objective"] == objective]
                if not made or not real:
                    continue
                best = min(real.values())
                decided = sum(d["verdict"] != "undecided" for d in made)
                equivalent = sum(d["verdict"] != "undecided" and bool(d["ties"]) for d in made)
                right = sum(real.get(d["chosen"], math.inf) / best <= WITHIN for d in made)
                outside = sum(_outside(d, ends) and not d["warning"] for d in made)
                print(
                    f"{of:<9} {model:<10} {objective:<11} {kind:<16} {len(made):>4} {decided:>7} {equivalent:>10} "
                    f"{right:>9} {outside:>22}"
                )


def _outside(decision: dict[str, Any], ends: dict[str, tuple[float, float]]) -> bool:
    """Say whether the announced speed-up and its true interval have nothing in common."""
    low, high = ends.get(decision["chosen"], (0.0, math.inf))
    said = decision["speedup_ci"]
    return bool(said) and (said[1] < 1 / high or (low > 0 and said[0] > 1 / low))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("build", "truth", "run", "table"))
    parser.add_argument("neighbour", nargs="?", choices=tuple(NEIGHBOURS), default="quiet")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--runs", type=Path, default=Path("runs/decisions"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/decisions.json"))
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    every: Rows = json.loads(asked.out.read_text()) if asked.out.exists() else []
    here = hardware.detect().id
    rows = [row for row in every if row["hardware"] == here]
    kind, now = {"truth": "truth", "run": asked.neighbour}.get(asked.part), store.code_hash(*DECIDES)[:8]

    def done(model: str) -> int:
        alike = [r for r in rows if (r["model"], r["kind"]) == (model, kind)]
        return sum(kind == "truth" or r["code"] == now for r in alike)

    for model in asked.model or MODELS:
        if asked.part == "build":
            print(f"{model}: built in {convert(model, asked.runs, ['--bench', 'none']):.0f} s", flush=True)
        while kind is not None and done(model) < asked.count:
            rows.append(session(model, kind, asked.runs))
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            every.append(rows[-1])
            asked.out.write_text(json.dumps(every, indent=1) + "\n")
            said = "; ".join(f"{d['objective']}: {d['chosen']}, {d['verdict']}" for d in rows[-1]["decisions"])
            print(f"{model}, {kind}, {rows[-1]['s']:.0f} s: {said}", flush=True)
    table(rows)


if __name__ == "__main__":
    main()
