"""Every configuration of a model measured once, and what each mode of `accel tune` would have made of it.

    python -m benchmarks.tune sweep runs/minilm --max-p99-ms 200 -o sweeps/minilm     # all of them, on real servers
    python -m benchmarks.tune replay sweeps/minilm --seeds 20                         # the modes on what was recorded
    python -m benchmarks.tune compare sweeps/minilm                                   # prediction against measurement

`sweep` is `accel tune --mode brute`: it goes on where it was stopped, and its raw figures (each load probed, with the
requests and how many were late) stay in measured.json and tune.json of the folder. `replay` gives each mode the
recorded figures in place of servers. What `predict` needs is counted in seconds of the sweep: its curves, the
simulation, and the probes of what it proves. `compare` simulates every load that was probed and sets it beside what was
measured there.
"""

import argparse
import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from accel.core.values import from_json
from accel.triton.settings import Settings
from accel.triton.tune import predict as model, search
from accel.triton.tune.lab import Curve, Goal
from accel.triton.tune.measured import FINALISTS
from accel.triton.tune.request import TuneRequest
from accel.triton.tune.scheduler import QueuePolicy
from accel.triton.tune.search import Option
from accel.triton.tune.session import tune

SHARES = (0.05, 0.10, 0.15, 0.25)
"""Shares of the configurations that quick and optuna may measure."""


def main() -> None:
    """Read the command line and do one of the three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sweep = commands.add_parser("sweep")
    sweep.add_argument("target", type=Path)
    sweep.add_argument("--max-p99-ms", type=float, required=True)
    sweep.add_argument("-o", "--out", type=Path, required=True)
    sweep.add_argument("--seconds", type=float, default=1.0)
    sweep.add_argument("--requests", type=int, default=200)
    replay_parser = commands.add_parser("replay")
    replay_parser.add_argument("folder", type=Path)
    replay_parser.add_argument("--seeds", type=int, default=20)
    commands.add_parser("compare").add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "sweep":
        asked = TuneRequest(
            targets=(given.target,),
            max_p99_ms=given.max_p99_ms,
            mode="brute",
            out=given.out,
            probe_s=given.seconds,
            least=given.requests,
        )
        found, _ = tune(asked, notice=print, progress=lambda name, doing: print(f"{name}: {doing}", flush=True))
        print(json.dumps(found["decision"], indent=1))
        return
    recorded = json.loads((given.folder / "tune.json").read_text(encoding="utf-8"))
    found = replay(recorded, given.seeds) if given.command == "replay" else compare(recorded)
    (given.folder / f"{given.command}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in found.items() if k != "points"}, indent=1))


def surface(recorded: dict[str, Any]) -> tuple[dict[Option, float], dict[Option, float]]:
    """Return what each configuration carried, and what was predicted of it; 0 where nothing held."""
    measured, predicted = {}, {}
    for row in recorded["tried"]:
        option = (row["repository"], from_json(Settings, row["settings"]))
        if row["probes"]:
            measured[option] = row["measured"]["throughput_per_s"] if row["measured"] else 0.0
            predicted[option] = row["predicted"]["throughput_per_s"] if row["predicted"] else 0.0
    return measured, predicted


def replay(recorded: dict[str, Any], seeds: int) -> dict[str, Any]:
    """Return for each mode the share of the best that it finds, over the seeds."""
    measured, predicted = surface(recorded)
    options = list(measured)
    best, spent = max(measured.values()), recorded["seconds_in_all"]
    probes = {
        o: len(r["probes"])
        for r in recorded["tried"]
        if (o := (r["repository"], from_json(Settings, r["settings"]))) in measured
    }
    proved = [options[0], *sorted(options, key=lambda o: -predicted[o])[:FINALISTS]]
    each = spent.get("search", 0.0) / sum(probes.values())
    seconds = spent["curves"] + spent["predict"] + each * sum(probes[o] for o in dict.fromkeys(proved))
    found: dict[str, Any] = {
        "configurations": len(options),
        "best_per_s": best,
        "default_of_best": measured[options[0]] / best,
        "sweep_s": spent.get("search"),
        "predict": {
            "share_of_best": max(measured[o] for o in proved) / best,
            "share_of_sweep_s": seconds / spent["search"] if spent.get("search") else None,
        },
    }
    for name, how in (("quick", search.quick), ("optuna", search.optuna)):
        for share in SHARES:
            trials = max(1, round(share * len(options)))
            reached = [
                max(how(options, measured.__getitem__, trials=trials, seed=s).values()) / best for s in range(seeds)
            ]
            low, middle, high = np.percentile(reached, (2.5, 50, 97.5))
            found[f"{name} {share:.0%}"] = {"median": middle, "from": low, "to": high, "mean": float(np.mean(reached))}
    return found


def compare(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return how prediction and measurement differ at every load that was probed and at the greatest one held."""
    goal = from_json(Goal, recorded["goal"])
    points = []
    for row in recorded["tried"]:
        settings = from_json(Settings, row["settings"])
        curves = [from_json(Curve, c) for c in recorded["curves"][row["repository"]]]
        curve = next(
            (c for c in curves if c.instances == settings.instances and settings.threads in (None, c.threads)), None
        )
        if curve is None:
            continue
        shape = recorded["subjects"][row["repository"]]
        for probe in row["probes"]:
            told = model.probe(
                curve,
                settings,
                goal,
                probe["load"],
                max_batch=shape["max_batch"],
                sizes=shape["sizes"],
                kinds=shape["kinds"],
                queue=from_json(QueuePolicy, row.get("queue", {})),
            )
            points.append(
                {
                    "repository": row["repository"],
                    "settings": row["label"],
                    "load": probe["load"],
                    "held": probe["late"] <= 0.01 * probe["requests"],
                    "throughput": told.throughput_per_s / probe["throughput_per_s"] - 1
                    if probe["throughput_per_s"]
                    else None,
                    "p50": _ratio(told.p50_ms, probe["p50_ms"]),
                    "p99": _ratio(told.p99_ms, probe["p99_ms"]),
                }
            )
    held = [p for p in points if p["held"]]
    goodput = [abs(r["differs"]) for r in recorded["tried"] if r["differs"] is not None]
    return {
        "configurations": len(goodput),
        "goodput_median_error": median(goodput) if goodput else None,
        "loads": len(points),
        **{f"{key}_median_error_where_held": _middle(held, key) for key in ("throughput", "p50", "p99")},
        **{f"{key}_median_error": _middle(points, key) for key in ("throughput", "p50", "p99")},
        "worst": sorted((p for p in held if p["p99"] is not None), key=lambda p: -abs(math.log(1 + p["p99"])))[:5],
        "points": points,
    }


def _ratio(told: float | None, found: float | None) -> float | None:
    return told / found - 1 if told and found else None


def _middle(points: list[dict[str, Any]], key: str) -> float | None:
    known = [abs(p[key]) for p in points if p[key] is not None]
    return median(known) if known else None


if __name__ == "__main__":
    main()
