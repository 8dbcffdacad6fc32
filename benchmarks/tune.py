"""Every configuration of a model measured once, and what each mode of `accel tune` would have made of it.

    python -m benchmarks.tune sweep runs/minilm --max-p99-ms 200 -o sweeps/minilm     # all of them, on real servers
    python -m benchmarks.tune live sweeps/minilm                                      # the modes on real servers
    python -m benchmarks.tune replay sweeps/minilm --seeds 20                         # the modes on what was recorded
    python -m benchmarks.tune compare sweeps/minilm [--curves LATER/tune.json]        # prediction against measurement

`sweep` is `accel tune --mode brute`: it goes on where it was stopped, and its raw figures (each load probed, with the
requests and how many were late) stay in measured.json and tune.json of the folder. `live` gives each mode the share of
the sweep's time that it may take (`LIVE`), from nothing, and counts its whole call; then the choices of all, the best
three of the sweep and what ships search their greatest loads side by side, in turns, since the best of hundreds of
single measurements was lucky. `replay` gives each mode the
recorded figures in place of servers: `predict` has the shortlist, the race of its proof, the choice and, where
recorded loads contradict the prediction, the search of a real call. What it needs is counted in seconds of the sweep:
its curves, the simulation, and each probe as long as one of the sweep took on average, or as long as what confirms
lasts at least. A server of the replay carries what the sweep found, every time: noise in the proof, and the budget of
time, are left out. `compare` simulates every load that was probed and sets it beside what was measured there.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from accel.bench.goodput import Probe, search as greatest
from accel.core.values import from_json, to_json
from accel.triton.settings import Settings
from accel.triton.tune import measured, predict as model, search
from accel.triton.tune.lab import Curve, Goal, Subject
from accel.triton.tune.measured import FINALISTS, contradicts
from accel.triton.tune.proof import Bracketing, ConfigurationRunner, choose
from accel.triton.tune.request import TuneRequest
from accel.triton.tune.scheduler import QueuePolicy
from accel.triton.tune.search import Option
from accel.triton.tune.session import tune

SHARES = (0.05, 0.10, 0.15, 0.25)
"""Shares of the configurations that quick and optuna may measure."""
LIVE = {"predict": 0.10, "quick": 0.15, "optuna": 0.15}
"""Shares of the sweep's time that the modes have on real servers."""
BEST = 3


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
    sweep.add_argument("--budget-s", type=float, help="end here, with what was measured until then")
    live_parser = commands.add_parser("live")
    live_parser.add_argument("folder", type=Path)
    for one in (sweep, live_parser):
        one.add_argument("--data", type=Path, help="what is sent, as of `accel tune --data`")
    live_parser.add_argument("--modes", nargs="+", choices=LIVE, default=list(LIVE))
    replay_parser = commands.add_parser("replay")
    replay_parser.add_argument("folder", type=Path)
    replay_parser.add_argument("--seeds", type=int, default=20)
    compare_parser = commands.add_parser("compare")
    compare_parser.add_argument("folder", type=Path)
    compare_parser.add_argument("--curves", type=Path, help="a tune.json whose curves of the same run are taken")
    given = parser.parse_args()
    if given.command == "sweep":
        asked = TuneRequest(
            targets=(given.target,),
            max_p99_ms=given.max_p99_ms,
            mode="brute",
            out=given.out,
            probe_s=given.seconds,
            least=given.requests,
            budget_s=given.budget_s,
            data=given.data,
        )
        found, _ = tune(asked, notice=print, progress=lambda name, doing: print(f"{name}: {doing}", flush=True))
        print(json.dumps(found["decision"], indent=1))
        return
    recorded = json.loads((given.folder / "tune.json").read_text(encoding="utf-8"))
    if given.command == "compare" and given.curves:
        recorded["curves"] = json.loads(given.curves.read_text(encoding="utf-8"))["curves"]
        again(recorded)
    if given.command == "live":
        found = live(recorded, given.folder, given.modes, given.data)
    else:
        found = replay(recorded, given.seeds) if given.command == "replay" else compare(recorded)
    (given.folder / f"{given.command}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in found.items() if k not in ("points", "judged")}, indent=1))


def live(recorded: dict[str, Any], folder: Path, modes: Sequence[str], data: Path | None) -> dict[str, Any]:
    """Return for each mode what it chose on real servers, how long it took, and what that carries beside the best."""
    goal, sweep_s = from_json(Goal, recorded["goal"]), recorded["seconds_in_all"]["search"]
    chosen: dict[str, Option] = {}
    found: dict[str, Any] = {"sweep_s": sweep_s, "configurations": len(recorded["tried"]), "modes": {}}

    def asked(name: str, **more: Any) -> TuneRequest:
        how = {"max_p99_ms": goal.limit_ms, "out": folder / name, "data": data, **more}
        return TuneRequest(targets=tuple(map(Path, recorded["targets"])), **how)

    def told(name: str, doing: str) -> None:
        print(f"{name}: {doing}", flush=True)

    for mode in modes:
        share = LIVE[mode]
        shutil.rmtree(folder / mode, ignore_errors=True)
        begin = time.monotonic()
        made, _ = tune(asked(mode, mode=mode, budget_s=share * sweep_s), notice=print, progress=told)
        took_s = time.monotonic() - begin
        row = next(row for row in made["tried"] if row["chosen"])
        chosen[mode] = row["repository"], from_json(Settings, row["settings"])
        found["modes"][mode] = {
            "seconds": took_s,
            "share_of_sweep_s": took_s / sweep_s,
            "chosen": made["decision"]["chosen"],
            "verdict": made["decision"]["verdict"],
            "warnings": made["decision"]["warnings"],
            "measured_configurations": sum(bool(row["probes"]) for row in made["tried"]),
        }
    known = [row for row in recorded["tried"] if row["measured"]]
    known.sort(key=lambda row: -row["measured"]["throughput_per_s"])
    best = [(row["repository"], from_json(Settings, row["settings"])) for row in known[:BEST]]
    judged = folder / "judged"
    shutil.rmtree(judged, ignore_errors=True)
    judged.mkdir()
    kept = json.loads((folder / measured.MEASURED).read_text(encoding="utf-8"))["found"]
    first = asked("judged", budget_s=7200.0)
    with tempfile.TemporaryDirectory() as scratch:
        one = measured.Measuring(first, judged, Path(scratch), print, told, print)
        for name in filter(lambda name: name.startswith("curve "), kept):
            one._kept.put(name, kept[name])
        options = one.prepare()
        measured.FINALISTS = len(chosen) + BEST
        one._prove(options[0], list(dict.fromkeys([*chosen.values(), *best])))
    carried = {(r.subject.name, r.settings): r.held for r in one.runners}
    most = max(carried.values())
    for mode, option in chosen.items():
        found["modes"][mode] |= {"carries_per_s": carried[option], "of_best": carried[option] / most}
    found["ships_of_best"] = carried[options[0]] / most
    found["judged"] = {r.name: {"held": r.held, "probes": [to_json(p) for p in r.search.probes]} for r in one.runners}
    return found


class RecordedServer:
    """A server that does what a sweep found of its configuration.

    Args:
        row: of the sweep's document.
        each_s: what a probe of the sweep took on average, its part in the start of servers included.

    Attributes:
        spent_s: what its probes would have taken.
    """

    def __init__(self, row: dict[str, Any], each_s: float) -> None:
        points = sorted((p["load"], p["throughput_per_s"]) for p in row["probes"])
        self._loads, self._carried = zip((0.0, 0.0), *points, strict=True)
        self._most, self._each_s, self.spent_s = row["measured"]["load"] if row["measured"] else 0.0, each_s, 0.0

    def probe(self, goal: Goal, level: float, *, seconds: float, least: int, seed: int) -> Probe:
        """Return what it does under a load."""
        self.spent_s += max(self._each_s, seconds)
        carried = float(np.interp(level, self._loads, self._carried))
        return Probe(level, carried, 1000, 0 if level <= self._most else 1000)

    def memory_mib(self) -> None:
        """Return nothing: no limit of memory is replayed."""

    gpu_memory_mib = hit_share = memory_mib


class RecordedRunner(ConfigurationRunner):
    """A configuration that is proved on what was recorded of it."""

    def serve(self, server: RecordedServer) -> None:
        """Take this for its server."""
        self._trial = cast(Any, server)


class Replay:
    """A sweep's document, in place of servers."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        rows = [((r["repository"], from_json(Settings, r["settings"])), r) for r in recorded["tried"] if r["probes"]]
        self._rows, self._goal, self._shapes = dict(rows), from_json(Goal, recorded["goal"]), recorded["subjects"]
        self.measured = {o: r["measured"]["throughput_per_s"] if r["measured"] else 0.0 for o, r in rows}
        self.predicted = {o: r["predicted"]["throughput_per_s"] if r["predicted"] else 0.0 for o, r in rows}
        self.options = list(self.measured)
        self.spent = recorded["seconds_in_all"]
        self._each_s = self.spent.get("search", 0.0) / sum(map(self._probes, self.options))

    def _probes(self, option: Option) -> int:
        return sum(p.get("count", 1) for p in self._rows[option]["probes"])

    def predict(self, seed: int) -> tuple[Option, float, bool]:
        """Return what ``--mode predict`` chooses, the seconds that it needs, and whether it had to search."""
        self._servers: dict[Option, RecordedServer] = {}
        self._runners: dict[Option, RecordedRunner] = {}
        best = search.shortlist(self.options, self.predicted.__getitem__)
        chosen = self._prove(best[:FINALISTS])
        more = 0
        if searched := any(contradicts(one) for one in self._runners.values()):
            how = search.optuna if importlib.util.find_spec("optuna") else search.quick
            trials = min(len(self.options), search.few(self.options))
            known = set(self._runners)
            first = best[FINALISTS:]
            tried = how(self.options, self.measured.__getitem__, trials=trials, seed=seed, first=first)
            more = sum(self._probes(o) for o in tried if o not in known)
            chosen = self._prove([chosen, *sorted(tried, key=lambda o: -tried[o])[:FINALISTS]])
        seconds = self.spent["curves"] + self.spent["predict"] + self._each_s * more
        return chosen, seconds + sum(server.spent_s for server in self._servers.values()), searched

    def _prove(self, best: list[Option]) -> Option:
        """Race these and what ships; return what is chosen."""
        finalists = list(dict.fromkeys([self.options[0], *best]))
        runners = [self._runner(option) for option in finalists]
        race = Bracketing((), None, runners=runners)
        for number in itertools.count(1):
            for one in runners:
                one.turn(race.racing(one.name))
            if not race.after_round(number, {}, 0.0):
                break
        chosen, _ = choose(runners, runners[0])
        return next((o for o, one in zip(finalists, runners, strict=True) if one is chosen), finalists[0])

    def _runner(self, option: Option) -> RecordedRunner:
        if option not in self._runners:
            row, shape = self._rows[option], self._shapes[option[0]]
            nothing: Any = None
            one = Subject(
                *(option[0], Path(), Path(), nothing, "", "", "", ()),
                *(tuple(shape["sizes"]), shape["max_batch"], option[1]),
            )
            predicted = from_json(Probe, row["predicted"]) if row["predicted"] else None
            made = RecordedRunner(one, option[1], self._goal, row["probes"][0]["load"], 0.0, 1, predicted)
            self._servers[option] = RecordedServer(row, self._each_s)
            made.serve(self._servers[option])
            self._runners[option] = made
        return self._runners[option]


def replay(recorded: dict[str, Any], seeds: int) -> dict[str, Any]:
    """Return for each mode the share of the best that it finds, over the seeds."""
    sweep = Replay(recorded)
    options, measured = sweep.options, sweep.measured
    best, spent = max(measured.values()), sweep.spent
    calls = [sweep.predict(seed) for seed in range(seeds)]
    found: dict[str, Any] = {
        "configurations": len(options),
        "best_per_s": best,
        "default_of_best": measured[options[0]] / best,
        "sweep_s": spent.get("search"),
        "predict": _spread([measured[chosen] / best for chosen, _, _ in calls])
        | {
            "share_of_sweep_s": median(s for _, s, _ in calls) / spent["search"] if spent.get("search") else None,
            "searched": sum(searched for _, _, searched in calls) / seeds,
        },
    }
    for name, how in (("quick", search.quick), ("optuna", search.optuna)):
        for share in SHARES:
            trials = max(1, round(share * len(options)))
            reached = [
                max(how(options, measured.__getitem__, trials=trials, seed=s).values()) / best for s in range(seeds)
            ]
            found[f"{name} {share:.0%}"] = _spread(reached)
    return found


def _spread(shares: list[float]) -> dict[str, float]:
    low, middle, high = map(float, np.percentile(shares, (2.5, 50, 97.5)))
    return {"median": middle, "from": low, "to": high, "mean": float(np.mean(shares))}


def compare(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return how prediction and measurement differ at every load that was probed and at the greatest one held."""
    goal = from_json(Goal, recorded["goal"])
    points = []
    for row in recorded["tried"]:
        settings = from_json(Settings, row["settings"])
        curve = _curve(recorded, row["repository"], settings)
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
    signed = [r["differs"] for r in recorded["tried"] if r["differs"] is not None]
    goodput = [abs(r["differs"]) for r in recorded["tried"] if r["differs"] is not None]
    return {
        "configurations": len(goodput),
        "goodput_median_error": median(goodput) if goodput else None,
        "goodput_median_difference": median(signed) if signed else None,
        "loads": len(points),
        **{f"{key}_median_error_where_held": _middle(held, key) for key in ("throughput", "p50", "p99")},
        **{f"{key}_median_error": _middle(points, key) for key in ("throughput", "p50", "p99")},
        "worst": sorted((p for p in held if p["p99"] is not None), key=lambda p: -abs(math.log(1 + p["p99"])))[:5],
        "points": points,
    }


def _curve(recorded: dict[str, Any], repository: str, settings: Settings) -> Curve | None:
    curves = [from_json(Curve, c) for c in recorded["curves"][repository]]
    return next(
        (c for c in curves if c.instances == settings.instances and settings.threads in (None, c.threads)), None
    )


def again(recorded: dict[str, Any]) -> None:
    """Predict the greatest load of every configuration anew, over the curves that the document has now."""
    goal = from_json(Goal, recorded["goal"])
    for row in recorded["tried"]:
        settings, shape = from_json(Settings, row["settings"]), recorded["subjects"][row["repository"]]
        if row["measured"] is None or (curve := _curve(recorded, row["repository"], settings)) is None:
            row["differs"] = None
            continue
        subject: Any = SimpleNamespace(sizes=shape["sizes"], max_batch=shape["max_batch"])
        sent = {"max_batch": shape["max_batch"], "sizes": shape["sizes"], "kinds": shape["kinds"]}
        probe = functools.partial(
            model.probe, curve, settings, goal, **sent, queue=from_json(QueuePolicy, row.get("queue", {}))
        )
        start = 1 if goal.arrivals is None else model.capacity(subject, curve, settings)
        best = greatest(probe, start, whole=goal.arrivals is None).best
        row["differs"] = (best.throughput_per_s if best else 0.0) / row["measured"]["throughput_per_s"] - 1


def _ratio(told: float | None, found: float | None) -> float | None:
    return told / found - 1 if told and found else None


def _middle(points: list[dict[str, Any]], key: str) -> float | None:
    known = [abs(p[key]) for p in points if p[key] is not None]
    return median(known) if known else None


if __name__ == "__main__":
    main()
