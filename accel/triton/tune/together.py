"""Models that share one server: a configuration of each, chosen together, so that they carry the most of their mix.

Curves are measured of each model alone. The prediction runs the queues of all on the cores that they share, for the
most promising configurations of each in every combination, and the best few combinations are proved beside what ships:
one server, loads on all models at once, each held against its own budget.
"""

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.bench import goodput
from accel.bench.goodput import Probe
from accel.builders import targets
from accel.core import document, environments, hardware, temporary
from accel.core.errors import CheckFailed, StageError, UsageError
from accel.core.files import replacing
from accel.core.values import from_json, sha256_json, to_json
from accel.report.formats import figures
from accel.triton import manifest as manifests
from accel.triton.tune import predict as model
from accel.triton.tune.constraints import TuneLimits
from accel.triton.tune.lab import Share, Subject
from accel.triton.tune.limits import NO_TIME, MeasuredStore
from accel.triton.tune.measured import (
    BUDGET_S,
    DIFFERS,
    FINALISTS,
    MEASURED,
    REPOSITORY,
    Measuring,
    difference,
    differs,
    feeds_hash,
    where,
)
from accel.triton.tune.proof import OTHER_CALL, ConfigurationRunner, apart, calls, choose, prove, seen
from accel.triton.tune.request import TuneRequest
from accel.triton.tune.scheduler import Requests, simulate_together
from accel.triton.tune.search import Option
from accel.triton.tune.session import head, told_where, write_document, write_repository

COMBINATIONS = 100
"""Most combinations that are predicted."""
LEAST_REQUESTS, MOST_REQUESTS = 400, 20_000
"""Requests of a simulation: of the model that gets the fewest, and of all together at most."""
LAUNCH = "launch.sh"


@dataclass(frozen=True, slots=True)
class SharedModel:
    """What is asked of one model.

    Attributes:
        asked: its repositories, its budget, and how it is measured.
        share: its share of all requests.
    """

    asked: TuneRequest
    share: float


def model_of(target: Path) -> str:
    """Return the name under which clients call the model of a run or a repository.

    Raises:
        InputError: it is neither.
    """
    if (target / manifests.FILENAME).is_file():
        return manifests.read(target).models[0]
    return str(document.read(target).model.name)


def tune_together(
    models: Mapping[str, SharedModel],
    out: Path,
    *,
    notice: Callable[[str], None],
    progress: Callable[[str, str], None],
    stage: Callable[[str], None] = lambda name: None,
) -> tuple[dict[str, Any], Path]:
    """Find a configuration of each model, and write them as repositories and what starts one server on all.

    Args:
        models: by the name that clients call them.
        out: folder; ``<model>/repository`` and ``launch.sh`` go into it.
        notice / progress / stage: as of ``session.tune``.

    Returns:
        The document, and the folder.

    Raises:
        UsageError: a closed loop or another mode than ``predict``, which know one model alone.
        InputError: a target is neither a run nor a repository.
        CheckFailed: nothing holds every budget; the document, which is written first, says what came nearest.
        StageError: nothing could be measured.
    """
    first = next(iter(models.values())).asked
    if any(one.asked.goal.arrivals is None for one in models.values()):
        raise UsageError(
            "models that share a server are tuned under an open loop", fix="leave --arrivals closed and --offline out"
        )
    of_one = first.space, first.prices, first.data, first.repeats
    if first.mode != "predict" or first.limits != TuneLimits() or any(of_one):
        raise UsageError(
            "models that share a server are tuned by prediction, within budgets of latency alone, on their own samples",
            fix="leave --mode, --space, --prices, --data, --hit-rate and the limits out, or tune one model",
        )
    with tempfile.TemporaryDirectory(prefix="tune-", dir=temporary.root()) as scratch:
        session = _Together(models, out, Path(scratch), notice, progress, stage)
        with told_where(notice, f"below {out}"):
            session.measure()
    found, chosen = session.document(), session.chosen
    if chosen is not None:
        session.write(chosen, found["decision"]["reason"])
    write_document(found, out)
    if chosen is None:
        raise CheckFailed(found["decision"]["reason"], fix="raise a budget or --budget-s, or use a machine for each")
    return found, out


class _Together:
    """One call."""

    def __init__(
        self,
        models: Mapping[str, SharedModel],
        out: Path,
        scratch: Path,
        notice: Callable[[str], None],
        progress: Callable[[str, str], None],
        stage: Callable[[str], None],
    ) -> None:
        self._models, self._out, self._scratch, self._notice = models, out, scratch, notice
        self._progress, self._stage = progress, stage
        self._first = next(iter(models.values())).asked
        self._budget_s, self._begin = self._first.budget_s or BUDGET_S, time.monotonic()
        self._seconds: dict[str, float] = {}
        self._unfit: dict[str, str] = {}
        self._warnings: list[str] = []
        self._measured: dict[str, Measuring] = {}
        self._predicted: dict[tuple[Option, ...], Probe | None] = {}
        self._runners: list[ConfigurationRunner] = []
        self.chosen: ConfigurationRunner | None = None
        self._verdict = ""
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self._kept = MeasuredStore(out / MEASURED, where(self._first))

    def measure(self) -> None:
        """Measure each model alone, predict all combinations, and prove the best few."""
        begin, options = time.monotonic(), []
        for name, one in self._models.items():
            mine = one.asked.model_copy(update={"budget_s": self._budget_s / len(self._models)})
            scratch, place = self._scratch / name, self._out / name
            session = Measuring(mine, place, scratch, self._notice, self._progress, self._stage)
            every = session.prepare()
            self._unfit |= {f"{name}/{what}": why for what, why in session.unfit.items()}
            self._warnings += [f"{name}: {warning}" for warning in session.warnings]
            fit = [o for o in every if self._fits(name, session.subject(o))]
            if not fit:
                why = [why for what, why in self._unfit.items() if what.startswith(f"{name}/")]
                raise StageError(f"no repository of {name} can share a server; {why[-1]}")
            self._measured[name] = session
            most = max(2, int(COMBINATIONS ** (1 / len(self._models))))
            options.append(list(dict.fromkeys([fit[0], *session.shortlist(fit)]))[:most])
        self._seconds["curves"] = time.monotonic() - begin
        self._stage("predict")
        combinations = list(itertools.product(*options))
        for number, combination in enumerate(combinations, 1):
            self._progress("prediction", f"{number} of {len(combinations)} combinations")
            self._predicted[combination] = self._predict(combination)
        self._seconds["predict"] = time.monotonic() - begin - self._seconds["curves"]
        best = sorted(combinations, key=lambda c: -self._expected(c))[:FINALISTS]
        self._prove(list(dict.fromkeys([combinations[0], *best])))
        self._seconds["total"] = time.monotonic() - begin

    def _fits(self, name: str, one: Subject) -> bool:
        """Say whether a repository can be served beside others: by the environment that accel itself runs in."""
        target = one.manifest.artifact.variant.target
        own = targets.discover()[target.name].environment(target)
        if own != environments.MAIN:
            self._unfit[f"{name}/{one.name}"] = f"it runs in environment {own!r}, and a server has one"
        return own == environments.MAIN

    def _shares(self, combination: Sequence[Option]) -> tuple[Share, ...]:
        found = []
        for (name, one), option in zip(self._models.items(), combination, strict=True):
            found.append(Share(self._measured[name].subject(option), option[1], one.asked.goal, one.share))
        return tuple(found)

    def _predict(self, combination: Sequence[Option]) -> Probe | None:
        """Search the greatest load that a combination holds, by simulation alone."""
        at, start = self._simulated(combination)
        return goodput.search(at, start).best

    def _simulated(self, combination: Sequence[Option]) -> tuple[Callable[[float], Probe], float]:
        """Return what simulates a load on a combination, and the load that it could compute, busy all the time."""
        cores, lanes, start = hardware.cpu_threads(), [], 0.0
        for share, option, session in zip(self._shares(combination), combination, self._measured.values(), strict=True):
            curve, one, settings = session.curve(option), share.subject, share.settings
            threads = settings.threads or max(1, cores // settings.instances)
            queue = model.policy(one.config, settings)
            lanes.append((share, model.simulated(curve, settings, one.max_batch, queue, threads=threads)))
            start += share.share / model.capacity(one, curve, settings)

        def at(level: float) -> Probe:
            seconds = LEAST_REQUESTS / (level * min(share.share for share, _ in lanes))
            seconds = min(seconds, MOST_REQUESTS / level)
            sent = []
            for share, server in lanes:
                rate = level * share.share
                due = model.due(share.goal, rate, max(20, int(rate * seconds)))
                sent.append((server, Requests(due, items=share.subject.sizes, kinds=share.subject.kinds)))
            outcomes = simulate_together(sent, cores=cores)
            probes = {
                share.subject.model: model.held_against(outcome, share.goal, level * share.share)
                for (share, _), outcome in zip(lanes, outcomes, strict=True)
            }
            return model.sustained(goodput.combined(level, probes), 1 / start)

        return at, 1 / start

    def _expected(self, combination: tuple[Option, ...]) -> float:
        found = self._predicted[combination]
        return found.throughput_per_s if found else 0.0

    def _prove(self, finalists: Sequence[tuple[Option, ...]]) -> None:
        self._stage("prove")
        begin = time.monotonic()
        self._runners = [self._runner(combination) for combination in finalists]
        left = max(0.0, self._begin + self._budget_s - begin)
        failed, _ = prove(self._runners, progress=self._progress, budget_s=left)
        self._seconds["prove"] = time.monotonic() - begin
        self._unfit |= {name: error.message for name, error in failed.items()}
        alive = [c for c in self._runners if c.name not in failed]
        if not alive:
            raise StageError(f"no configuration could be proved; {next(iter(failed.values())).message}")
        self.chosen, self._verdict = choose(alive, self._runners[0])
        left_out = [name for name, why in self._unfit.items() if NO_TIME in why]
        if left_out:
            self._warnings.append(f"{', '.join(left_out)}: not measured, {NO_TIME}")
        self._warnings += [f"{name}: {why}" for name, why in self._unfit.items() if NO_TIME not in why]
        cut = len(calls(alive)) > 1 or any(NO_TIME in w for w in self._warnings)
        if cut and self._verdict in ("decided", "equivalent"):
            self._verdict = "undecided"
        unended = [c.name for c in alive if c.search.next() is not None]
        if unended and self._verdict == "undecided":
            self._warnings.append(f"{NO_TIME}: not ended is the search of {', '.join(unended)}")
        for c in alive:
            if c.held and abs(differs(c)) > DIFFERS:
                self._warnings.append(difference(c))

    def _runner(self, combination: tuple[Option, ...]) -> ConfigurationRunner:
        shares, predicted = self._shares(combination), self._predicted[combination]
        artifacts = [[f.sha256 for f in s.subject.manifest.artifact.files] for s in shares]
        artifacts += [[feeds_hash(s.subject.feeds), str(s.subject.config)] for s in shares]
        known = [(s.subject.model, s.subject.name, str(s.settings), s.share, to_json(s.goal)) for s in shares]
        name = f"together {sha256_json([known, artifacts, self._first.probe_s, self._first.least])}"

        def keep(runner: ConfigurationRunner, probe: Probe) -> None:
            self._kept.put(name, seen(runner))

        first = shares[0]
        start = predicted.load if predicted else 0.2 * self._simulated(combination)[1]
        before = self._kept.get(name) or {}
        made = ConfigurationRunner(
            *(first.subject, first.settings, first.goal, start),
            *(self._first.probe_s, self._first.least, predicted, keep),
            [from_json(Probe, p) for p in before.get("probes", [])],
            shares=shares,
        )
        made.call = self._kept.call
        made.memory_mib, made.gpu_memory_mib = before.get("memory_mib"), before.get("gpu_memory_mib")
        return made

    def write(self, chosen: ConfigurationRunner, reason: str) -> None:
        """Write the repositories, and the script that starts one server on all of them."""
        places = []
        for share in chosen.shares:
            place = self._out / share.subject.model / REPOSITORY
            write_repository(share.subject, share.settings, place, reason=reason)
            places.append(f'"$here/{share.subject.model}/{REPOSITORY}"')
        names = ", ".join(share.subject.model for share in chosen.shares)
        beside = " ".join(f"--model-repository={place}" for place in places[1:])
        text = (
            "#!/usr/bin/env bash\n"
            f"# One Triton server for {names}. Variables and further arguments: as of the launch.sh of {places[0]}.\n"
            "set -euo pipefail\n"
            'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"\n'
            'if [[ "${1:-}" == --docker ]]; then\n'
            '  echo "launch.sh: copy the model folders of all repositories into the first one for docker" >&2\n'
            "  exit 2\n"
            "fi\n"
            f'exec {places[0][:-1]}/launch.sh" {beside} "$@"\n'
        )
        with replacing(self._out / LAUNCH) as fresh:
            fresh.write_text(text, encoding="utf-8")
            fresh.chmod(0o755)

    def document(self) -> dict[str, Any]:
        """Return what was found, as ``tune.json`` has it."""
        shown = {tuple((s.subject.name, s.settings) for s in c.shares): c for c in self._runners}
        rows = [self._row(combination, shown.get(combination)) for combination in self._predicted]
        goals = {name: one.asked.goal for name, one in self._models.items()}
        named = [target for one in self._models.values() for target in one.asked.targets]
        return {
            **head(named, " + ".join(self._models), self._first),
            "goal": to_json(next(iter(goals.values()))),
            "words": "; ".join(f"{name} {goal.words}" for name, goal in goals.items()),
            "models": {
                name: {"goal": to_json(one.asked.goal), "share": one.share} for name, one in self._models.items()
            },
            "mode": "predict",
            "seconds": self._seconds,
            "tried": rows,
            "unfit": self._unfit,
            "limits": [],
            "decision": self._decision(),
            "costs": [],
            "cheapest": None,
            "repository": LAUNCH if self.chosen is not None else None,
        }

    def _row(self, combination: tuple[Option, ...], runner: ConfigurationRunner | None) -> dict[str, Any]:
        predicted, best = self._predicted[combination], runner.search.best if runner else None
        probes, at = runner.search.probes if runner else [], self._simulated(combination)[0]
        curves = [s.curve(option) for s, option in zip(self._measured.values(), combination, strict=True)]
        parts = [
            {"model": s.subject.model, "repository": s.subject.name, "settings": to_json(s.settings)}
            for s in self._shares(combination)
        ]
        label = "; ".join(
            f"{name} {option[0]}: {option[1]}" for name, option in zip(self._models, combination, strict=True)
        )
        return {
            "repository": " + ".join(self._models),
            "settings": None,
            "parts": parts,
            "label": label,
            "default": combination == next(iter(self._predicted)),
            "chosen": runner is not None and runner is self.chosen,
            "predicted": to_json(predicted) if predicted else None,
            "measured": to_json(best) if best else None,
            "carries_per_s": runner.held if runner and best else None,
            "probes": [to_json(p) for p in probes],
            "differs": differs(runner) if runner and predicted and best else None,
            "memory_mib": runner.memory_mib if runner else None,
            "gpu_memory_mib": runner.gpu_memory_mib if runner else None,
            "start_s": max(curve.start_s for curve in curves),
            "simulated": [to_json(at(p.load)) for p in probes],
        }

    def _decision(self) -> dict[str, Any]:
        default, chosen = self._runners[0], self.chosen
        if chosen is None:
            words = "; ".join(f"{name} {one.asked.goal.words}" for name, one in self._models.items())
            tried = [(p.late / max(1, p.requests), c.name, p) for c in self._runners for p in c.search.probes]
            reason = f"nothing holds {words}"
            if self._verdict == "undecided":
                reason = f"no load held {words} in the time there was"
            if tried:
                share, near, probe = min(tried, key=lambda t: (t[0], len(t[2].over), t[2].load))
                at = f"{figures(probe.load)}/s"
                reason += f": nearest is {near}, where at {at} {share:.0%} of one model's requests are late"
            return {"verdict": self._verdict, "chosen": None, "reason": reason, "warnings": self._warnings}
        best = chosen.search.best
        assert best is not None
        each = ", ".join(f"{name} {figures(found['throughput_per_s'])}/s" for name, found in best.by_model.items())
        other_call = chosen is not default and apart(chosen, default)
        gain = chosen.held / default.held if default.held and not other_call else None
        reason = f"{chosen.name} carries {figures(chosen.held)}/s ({each}) with every budget kept"
        if chosen is default:
            reason += ", and nothing that was proved carries more than 3 % beyond what ships"
        elif gain is not None:
            reason += f", {gain:.2f} times what ships ({figures(default.held)}/s)"
        elif other_call:
            reason += f"; what ships carried {figures(default.held)}/s {OTHER_CALL}"
        elif default.name in self._unfit:
            reason += f"; what ships could not be measured: {self._unfit[default.name]}"
        else:
            reason += "; what ships held no load that was tried"
        others = [c for c in self._runners if c is not chosen and c.name not in self._unfit]
        second = max(others, key=lambda c: c.held, default=None)
        return {
            "verdict": self._verdict,
            "chosen": chosen.name,
            "default": default.name,
            "runner_up": second.name if second else None,
            "gain": gain,
            "reason": reason,
            "warnings": self._warnings,
        }


def mix(rates: Mapping[str, float], models: Sequence[str]) -> dict[str, float]:
    """Return each model's share of the requests, from the rates that were given; equal ones without.

    Raises:
        UsageError: a rate of a model that is not there, or of some models only.
    """
    if not rates:
        return dict.fromkeys(models, 1 / len(models))
    if unknown := sorted(rates.keys() ^ set(models)):
        raise UsageError(
            f"--rate and the models differ in {', '.join(unknown)}", fix=f"a rate for each of {list(models)}"
        )
    total = math.fsum(rates.values())
    return {name: rates[name] / total for name in models}
