"""``accel tune``: from runs or repositories to the configuration that carries the most within a latency budget.

What is measured is the matter of ``measured``; here it is told, and what was chosen is written as a repository.
"""

import contextlib
import datetime
import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accel.bench import machine_noise
from accel.bench.goodput import SHARE_LATE, WITHIN, Probe
from accel.core import document, hardware, temporary
from accel.core.errors import CheckFailed
from accel.core.files import write_text
from accel.core.values import SCHEMA, MachineNoise, to_json
from accel.report.formats import figures
from accel.triton import settings as schedules
from accel.triton.rescheduled import emit
from accel.triton.settings import Settings
from accel.triton.tune import predict as model
from accel.triton.tune.constraints import within
from accel.triton.tune.cost import Cost, cheapest, cost
from accel.triton.tune.lab import Subject
from accel.triton.tune.limits import NO_TIME
from accel.triton.tune.measured import DIFFERS, FILENAME, MEASURED, REPORT, REPOSITORY, Measuring, difference, differs
from accel.triton.tune.proof import OTHER_CALL, ConfigurationRunner, apart
from accel.triton.tune.request import TuneRequest
from accel.triton.tune.search import Option

MISSED_HITS = 0.05
"""Where the share of requests that the cache answered differs by more from the one that was asked for, it is said."""


def tune(
    asked: TuneRequest,
    *,
    notice: Callable[[str], None],
    progress: Callable[[str, str], None],
    stage: Callable[[str], None] = lambda name: None,
) -> tuple[dict[str, Any], Path]:
    """Find the configuration, and write it as a repository beside ``tune.json`` and a report.

    Args:
        notice / progress / stage: told what a user must read, what is done with which configuration, and what begins.

    Returns:
        The document, and the folder.

    Raises:
        InputError: a target is neither a run nor a repository, or they differ in their contract.
        CheckFailed: nothing holds the budget; the document, which is written first, says what came nearest.
        StageError: nothing could be measured.
    """
    asked.limits.check(asked.prices, hardware.detect().id)
    out = asked.out or _folder(asked.targets[0])
    with tempfile.TemporaryDirectory(prefix="tune-", dir=temporary.root()) as scratch:
        stage("start")
        session = _Session(asked, out, Path(scratch), notice, progress, stage)
        with told_where(notice, f"in {out / MEASURED}"):
            session.measure()
    found = session.document()
    chosen = session.chosen
    if chosen is not None:
        write_repository(chosen.subject, chosen.settings, out / REPOSITORY, reason=found["decision"]["reason"])
    write_document(found, out)
    if found["cheapest"]:
        notice(found["cheapest"])
    if chosen is None:
        over = found["decision"]["verdict"] == "undecided"
        fix = "raise --budget-s" if over else "raise the limit that is named, or ask for a faster variant"
        raise CheckFailed(found["decision"]["reason"], fix=fix)
    return found, out


@contextlib.contextmanager
def told_where(notice: Callable[[str], None], where: str) -> Iterator[None]:
    """Say where what was measured is kept, if the user interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        notice(f"what was measured is kept {where}; the same command goes on from here")
        raise


def write_repository(subject: Subject, settings: Settings, out: Path, *, reason: str) -> None:
    """Write a repository once more with these settings; raises as ``rescheduled.emit``."""
    change = functools.partial(schedules.apply, settings=settings, cpu_threads=hardware.cpu_threads())
    emit(subject.root, change, out, reason=reason, variables=settings.variables)


def write_document(found: dict[str, Any], out: Path) -> None:
    """Write ``tune.json`` and the report."""
    from accel.report.tuning import write_tuning

    write_text(out / FILENAME, json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_tuning(found, out / REPORT)


def head(targets: Sequence[Path], model: str, asked: TuneRequest) -> dict[str, Any]:
    """Return what every document begins with: when, of what and where it was made."""
    found = hardware.detect()
    return {
        "schema": SCHEMA,
        "accel": version("accel"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "targets": [str(t) for t in targets],
        "model": model,
        "via": asked.via or "local or embedded",
        "protocol": asked.protocol,
        "hardware": {"id": found.id, **to_json(found)},
    }


class _Session(Measuring):
    """One call of ``accel tune``: what is said of what was measured."""

    def document(self) -> dict[str, Any]:
        """Return what was found, as ``tune.json`` has it."""
        asked, chosen, costs = self._asked, self.chosen, self._costs()
        shown = {(c.subject.name, c.settings): c for c in self.runners}
        for option in self._predicted:
            if option not in shown and self._kept.get(self._probes(option)):
                shown[option] = self._runner(option)
        tried = [self._row(option, shown.get(option)) for option in self._predicted]
        return {
            **head(asked.targets, self._subjects[0].model, asked),
            "goal": to_json(self._goal),
            "words": self._goal.words,
            "mode": asked.mode,
            "seconds": self._seconds,
            "seconds_in_all": self._in_all,
            "subjects": {
                s.name: {
                    "repository": str(s.root),
                    "backend": s.backend,
                    "max_batch": s.max_batch,
                    "default": str(s.default),
                }
                | {"sizes": list(s.sizes), "kinds": list(s.kinds)}
                for s in self._subjects
            },
            "curves": {n: [to_json(c) for c in curves.values()] for n, curves in self._curves.items()},
            "tried": tried,
            "unfit": self._unfit,
            "noise": to_json(self._seen_noise()),
            "limits": [to_json(j) for j in self._judged(chosen)] if chosen is not None else [],
            "decision": self._decision(),
            "costs": [to_json(c) for c in costs],
            "cheapest": self._cheapest(costs),
            "repository": REPOSITORY if chosen is not None else None,
        }

    def _row(self, option: Option, runner: ConfigurationRunner | None) -> dict[str, Any]:
        predicted = self._predicted[option]
        best = runner.search.best if runner else None
        return {
            "repository": option[0],
            "settings": to_json(option[1]),
            "label": str(option[1]),
            "queue": to_json(model.policy(self.subject(option).config, option[1])),
            "default": option == next(iter(self._predicted)),
            "chosen": runner is not None and runner is self.chosen,
            "predicted": to_json(predicted) if predicted else None,
            "measured": to_json(best) if best else None,
            "carries_per_s": runner.held if runner and best else None,
            "probes": [to_json(p) for p in runner.search.probes] if runner else [],
            "differs": differs(runner) if runner and predicted and best else None,
            "memory_mib": runner.memory_mib if runner else self._memory(option),
            "gpu_memory_mib": runner.gpu_memory_mib if runner else self.curve(option).gpu_mib,
            "hit_share": runner.hit_share if runner else None,
            "start_s": self.curve(option).start_s,
            "simulated": [to_json(self._simulated(option, p.load)) for p in runner.search.probes] if runner else [],
        }

    def _simulated(self, option: Option, load: float) -> Probe:
        """Return what the prediction says of a load that was probed."""
        shape = model.shape(self.subject(option), option[1])
        return model.probe(self.curve(option), option[1], self._goal, load, **shape)

    def _decision(self) -> dict[str, Any]:
        default, chosen = self.runners[0], self.chosen
        limit = self._goal.words
        if chosen is None:
            return {
                "verdict": self._verdict,
                "chosen": None,
                "reason": self._nearest_miss(),
                "warnings": self._warned(),
            }
        others = [c for c in self.runners if c is not chosen and c.name not in self._unfit]
        others = [c for c in others if not c.held or within(self._judged(c))]
        other_call = chosen is not default and apart(chosen, default)
        gain = chosen.held / default.held if default.held and not other_call else None
        reason = f"{chosen.name} carries {figures(chosen.held)}/s with {limit}"
        if self._asked.offline and (best := chosen.search.best) is not None:
            items = sum(chosen.subject.sizes) / len(chosen.subject.sizes)
            clients = f"{best.load:g} client{'s' * (best.load > 1)}"
            reason = f"{chosen.name} carries {figures(chosen.held)} items/s in requests of {items:g} from {clients}"
        if chosen is default:
            beyond = "nothing that was proved carries more than 3 % beyond it"
            if self._verdict != "undecided":
                reason += f", and {beyond if others else 'no other configuration was proved'}"
        elif gain is not None:
            reason += f", {gain:.2f} times what ships ({default.settings}: {figures(default.held)}/s)"
        elif other_call:
            reason += f"; what ships ({default.settings}) carried {figures(default.held)}/s {OTHER_CALL}"
        elif default.name in self._unfit:
            reason += f"; what ships ({default.settings}) could not be measured: {self._unfit[default.name]}"
        elif default.search.next() is None:
            reason += "; what ships does not hold the budget at any rate"
        else:
            reason += f"; what ships held no load of the {len(default.search.probes)} that were tried in the time"
        second = max(others, key=lambda c: c.held, default=None)
        rivals = [c for c in others if c.most > (1 + WITHIN) ** 2 * chosen.held]
        if rivals and self._verdict == "undecided":
            named = ", ".join(f"{c.name} ({so_far(c)})" for c in rivals)
            reason += f"; undecided between it and {named}, which may carry more"
        elif self._verdict == "undecided":
            reason += "; undecided, since not all was measured in the time"
        return {
            "verdict": self._verdict,
            "chosen": chosen.name,
            "default": default.name,
            "runner_up": second.name if second else None,
            "gain": gain,
            "reason": reason,
            "warnings": self._warned(),
        }

    def _seen_noise(self) -> MachineNoise | None:
        """Return what else the machine did during the proof; None where all was known already."""
        return machine_noise.summary(self._noise, self._cores, 0) if self._noise else None

    def _warned(self) -> list[str]:
        """Return what limits the decision: predictions that failed, time that was over, other work on the machine."""
        found = list(self._warnings)
        if self._asked.mode != "predict":
            found += [difference(c) for c in self.runners if c.held and abs(differs(c)) > DIFFERS]
        unended = self._unended() if self._verdict == "undecided" else []
        if unended and self._deadline.left() <= 0:
            found.append(f"{NO_TIME}: not ended is the search of {', '.join(unended)}; the same command goes on")
        chosen = self.chosen
        if (
            chosen is not None
            and not chosen.settings.batching
            and model.policy(chosen.subject.config, chosen.subject.default).limited
        ):
            found.append("without dynamic batching its queue has no limit, as that of what ships has")
        wanted, answered = self._goal.hit_rate, chosen.hit_share if chosen is not None else None
        if wanted is not None and answered is not None and abs(answered - wanted) > MISSED_HITS:
            found.append(
                f"the response cache answered {answered:.1%} of what was sent to prove it, where {wanted:.1%} repeat"
            )
        if left_out := [name for name, why in self._unfit.items() if NO_TIME in why]:
            found.append(f"{', '.join(left_out)}: not measured, {NO_TIME}")
        found += [f"{name}: {why}" for name, why in self._unfit.items() if NO_TIME not in why]
        noise = self._seen_noise()
        if noise is not None and noise.disturbed_rounds > len(self._noise) / 4:
            found.append(
                f"the machine was busy during the proof: {machine_noise.taker(noise)} in {noise.disturbed_rounds} of "
                f"{len(self._noise)} probes: figures of a quiet hour are higher"
            )
        return found

    def _nearest_miss(self) -> str:
        """Say which configuration came nearest to the budget, and what it lacks."""
        if held := [c for c in self.runners if c.held and c.name not in self._unfit]:
            near = min(held, key=lambda c: (sum(j.lacks for j in self._judged(c)), -c.held))
            missed = "; ".join(str(j) for j in self._judged(near) if j.lacks)
            return f"nothing keeps every limit: nearest is {near.name} at {figures(near.held)}/s: {missed}"
        limit = self._goal.words
        tried = [c for c in self.runners if c.search.probes]
        alone = min((1e3 * (c.alone_s[0] + c.overhead_s), n) for n, cs in self._curves.items() for c in cs.values())
        idle = f"a request to an idle server takes {alone[0]:.4g} ms at best ({alone[1]})"
        if not tried or self._verdict == "undecided":
            return f"no load held {limit} in the time there was; {idle}"
        probes = [(p.late / max(1, p.requests), c, p) for c in self.runners for p in c.search.probes]
        share, near, probe = min(probes, key=lambda one: (one[0], len(one[2].over), one[2].load))
        unit = "/s" if self._goal.arrivals else " clients"
        lacks = [f"{share:.0%} of the requests take longer"] if share > SHARE_LATE else []
        lacks += [
            f"{name} is {by:.3g} ms beyond its budget" if by is not None else f"{name} is not answered at all"
            for name, by in probe.over.items()
        ]
        return (
            f"nothing holds {limit}: nearest is {near.name}, where at {probe.load:.4g}{unit} {', '.join(lacks)}; {idle}"
        )

    def _costs(self) -> list[Cost]:
        """Return the cost on this machine, if anything was chosen for it, and on those whose runs were named."""
        asked, chosen = self._asked, self.chosen
        carried = list(self._elsewhere)
        if chosen is not None:
            carried.insert(0, (hardware.detect().id, chosen.name, chosen.held))
        sizes = (self._subjects[0] if chosen is None else chosen.subject).sizes
        items = sum(sizes) / len(sizes)
        rate, room = self._goal.rate_per_s, asked.headroom
        return [cost(*one, asked.prices, rate_per_s=rate, headroom=room, items=items) for one in carried]

    def _cheapest(self, costs: Sequence[Cost]) -> str | None:
        """Say what costs the least, and which hardware the price list lacks; None where no prices were given."""
        asked = self._asked
        if not asked.prices:
            return None
        lacking = [c.hardware for c in costs if c.usd_per_hour is None]
        words = []
        if (best := cheapest(costs)) is not None and best.machines:
            rate = f"{self._goal.rate_per_s:g}/s with {asked.headroom:.0%} headroom"
            words.append(f"cheapest for {rate}: {best.machines} × {best.hardware}, {best.usd_per_hour:.3g} USD an hour")
        elif best is not None:
            words.append(f"cheapest: {best.hardware}, {best.usd_per_million:.3g} USD per million inferences")
        if lacking:
            words.append(f"the price list has no {', '.join(lacking)}: it has {', '.join(sorted(asked.prices))}")
        return "; ".join(words) or None


def so_far(runner: ConfigurationRunner) -> str:
    """Say what is known of one whose search has not ended."""
    if runner.held:
        return f"{figures(runner.held)}/s so far"
    return "no load held so far" if runner.search.probes else "not measured"


def _folder(target: Path) -> Path:
    """Return where the results of a target lie: in a run, or beside a repository."""
    if (target / document.FILENAME).is_file():
        return target / "tuned"
    return target.resolve().with_name(f"{target.resolve().name}-tuned")
