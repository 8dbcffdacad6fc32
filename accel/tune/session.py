"""``accel tune``: from runs or repositories to the configuration that carries the most within a latency budget.

Curves are measured, every configuration is predicted, the best few are proved beside the one that ships. Whatever was
measured is kept in ``measured.json`` as soon as it is known, and a call that repeats takes it from there.
"""

import contextlib
import datetime
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accel.bench import feeds as forms
from accel.bench.goodput import WITHIN, Probe
from accel.core import document, hardware, temporary
from accel.core.errors import AccelError, CheckFailed, InputError, StageError, UsageError
from accel.core.feeds import Feed
from accel.core.files import write_text
from accel.core.values import SCHEMA, from_json, to_json
from accel.triton import manifest as manifests
from accel.triton.servers import server as servers
from accel.triton.settings import Settings
from accel.tune import predict as model, search as searches
from accel.tune.cost import Cost, Price, cost
from accel.tune.emit import emit
from accel.tune.lab import LEAST, Curve, Goal, Subject, subject, trial
from accel.tune.proof import Contender, prove, verdict
from accel.tune.search import Mode, Option

FILENAME, MEASURED, REPOSITORY, REPORT = "tune.json", "measured.json", "repository", "report.html"
FINALISTS = 3
"""Configurations that are proved beside the one that ships."""
DIFFERS = 0.15
"""From this difference on between what was predicted and what was measured, it is said."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What ``accel tune`` was asked for.

    Attributes:
        targets: run directories or repositories, all of one client contract.
        trials: how many configurations ``quick`` and ``optuna`` measure at most; None: an eighth of them.
        headroom: share of the rate that is kept free.
        max_memory_mib: what the server's processes may take.
        probe_s / least: a probe lasts so long, and until so many requests have ended.
    """

    targets: tuple[Path, ...]
    goal: Goal
    mode: Mode = "predict"
    out: Path | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    headroom: float = 0.2
    max_memory_mib: float | None = None
    trials: int | None = None
    data: Path | None = None
    via: str | None = None
    probe_s: float = 1.5
    least: int = LEAST
    budget_s: float | None = None
    seed: int = 0


class Kept:
    """What was measured, on disk as soon as it is known."""

    def __init__(self, path: Path, conditions: Any) -> None:
        self._path, self._key = path, hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
        self._found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(read, dict) and read.get("key") == self._key:
                self._found = read["found"]

    def get(self, name: str) -> Any:
        """Return what is known under a name, or None."""
        return self._found.get(name)

    def put(self, name: str, value: Any) -> None:
        """Keep a value."""
        self._found[name] = to_json(value)
        write_text(self._path, json.dumps({"key": self._key, "found": self._found}, indent=1) + "\n")


def repositories(target: Path, via: str | None) -> Iterator[tuple[str, Path]]:
    """Yield name and root of what a target holds that the server here can answer: the one chosen by the run first.

    Raises:
        InputError: it is neither a run nor a repository, or nothing in it can be served.
    """
    if (target / manifests.FILENAME).is_file():
        yield target.resolve().name, target
        return
    run = document.read(target)
    found = []
    for variant in run.variants:
        if variant.status != "ok" or variant.repository is None:
            continue
        root = target / variant.repository
        if variant.twin is None or not servers.lacking(root, via=via):
            found.append((variant.id, root))
        if variant.twin is not None:
            found.append((f"{variant.id}.python", target / variant.twin))
    if not found:
        raise InputError(f"{target} has no repository of a variant that passed", fix="accel convert makes them")
    chosen = {d.repository or f"repositories/{d.chosen}" for d in run.decisions if d.chosen}
    yield from sorted(found, key=lambda one: one[1].relative_to(target).as_posix() not in chosen)


def tune(
    asked: Asked, *, notice: Callable[[str], None], progress: Callable[[str, str], None]
) -> tuple[dict[str, Any], Path]:
    """Find the configuration, and write it as a repository beside ``tune.json`` and a report.

    Returns:
        The document, and the folder.

    Raises:
        InputError: a target is neither a run nor a repository, or they differ in their contract.
        CheckFailed: nothing holds the budget; the document, which is written first, says what came nearest.
        StageError: nothing could be measured.
    """
    from accel.report.tuning import write_tuning

    out = asked.out or _folder(asked.targets[0])
    with tempfile.TemporaryDirectory(prefix="tune-", dir=temporary.root()) as scratch:
        session = _Session(asked, out, Path(scratch), notice, progress)
        try:
            session.measure()
        except KeyboardInterrupt:
            notice(f"what was measured is kept in {out / MEASURED}; the same command goes on from here")
            raise
    found = session.document()
    chosen = session.chosen
    if chosen is not None:
        emit(chosen.subject.root, chosen.settings, out / REPOSITORY, reason=found["decision"]["reason"])
    write_text(out / FILENAME, json.dumps(found, indent=1, allow_nan=False) + "\n")
    write_tuning(found, out / REPORT)
    if chosen is None:
        raise CheckFailed(found["decision"]["reason"], fix="raise --max-p99-ms, or ask for a faster variant")
    return found, out


class _Session:
    """One call of ``accel tune``."""

    def __init__(
        self,
        asked: Asked,
        out: Path,
        scratch: Path,
        notice: Callable[[str], None],
        progress: Callable[[str, str], None],
    ) -> None:
        self._asked, self._out, self._scratch, self._notice, self._progress = asked, out, scratch, notice, progress
        self._cores = hardware.cpu_threads()
        self._seconds: dict[str, float] = {}
        self._unfit: dict[str, str] = {}
        self._curves: dict[str, dict[tuple[int, int | None], Curve]] = {}
        self._predicted: dict[Option, Probe | None] = {}
        self.contenders: list[Contender] = []
        self.chosen: Contender | None = None
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self._subjects = self._take_subjects()
        self._kept = Kept(
            out / MEASURED,
            {
                "hardware": to_json(hardware.detect()),
                "data": str(asked.data),
                "via": asked.via,
                "artifacts": {s.name: [f.sha256 for f in s.manifest.artifact.files] for s in self._subjects},
                "probe": [asked.probe_s, asked.least],
            },
        )
        self._in_all: dict[str, float] = dict(self._kept.get("seconds") or {})

    def _take_subjects(self) -> list[Subject]:
        asked = self._asked
        found: list[Subject] = []
        for number, target in enumerate(asked.targets):
            for name, root in repositories(target, asked.via):
                label = name if len(asked.targets) == 1 or name not in {s.name for s in found} else f"{name} {number}"
                self._progress(label, "starting a server as it ships")
                scratch, logs = self._scratch / f"{number}-{name}", self._out / "logs"
                try:
                    one = subject(root, name=label, scratch=scratch, logs=logs, via=asked.via, data=self._data(root))
                except StageError as error:
                    self._unfit[label] = error.message
                    continue
                contract = (one.manifest.inputs, one.manifest.outputs)
                if found and contract != (found[0].manifest.inputs, found[0].manifest.outputs):
                    raise UsageError(
                        f"{target} has another client contract than {asked.targets[0]}",
                        fix="tune each model in a call of its own: models that share a server are not tuned together",
                    )
                found.append(one)
        if not found:
            name, why = next(iter(self._unfit.items()))
            raise StageError(f"no repository could be served; {name}: {why}")
        return found

    def _data(self, root: Path) -> list[Feed] | None:
        if self._asked.data is None:
            return None
        manifest = manifests.read(root)
        return list(forms.read(self._asked.data, manifest.inputs, batched=manifest.max_batch_size > 0))

    # ------------------------------------------------------------------------------------------------ what is measured

    def measure(self) -> None:
        """Measure what the mode asks for, and choose."""
        asked = self._asked
        begin = time.monotonic()
        with self._timed("curves"):
            for one in self._subjects:
                self._measure_curves(one)
        self._subjects = [s for s in self._subjects if self._curves.get(s.name)]
        if not self._subjects:
            name, why = next(iter(self._unfit.items()))
            raise StageError(f"no repository could be measured; {name}: {why}")
        options = self._options()
        with self._timed("predict"):
            for option in options:
                self._predicted[option] = self._predict(option)
        if asked.mode != "predict":
            with self._timed("search"):
                best = self._search(options)
        else:
            best = self._shortlist(options)
        finalists = list(dict.fromkeys([options[0], *best[:FINALISTS]]))
        self.contenders = [self._contender(option) for option in finalists]
        with self._timed("prove"):
            failed = prove(self.contenders, progress=self._progress, budget_s=asked.budget_s)
        for name, error in failed.items():
            self._unfit[name] = error.message
        if len(failed) == len(self.contenders):
            raise StageError(f"no configuration could be proved; {next(iter(failed.values())).message}")
        alive = [c for c in self.contenders if c.name not in failed]
        first = max(alive, key=lambda c: c.held)
        self.chosen = first if first.held > 0 else None
        self._seconds["total"] = time.monotonic() - begin

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:  # a session that is interrupted adds its part
            self._seconds[what] = time.monotonic() - begin
            self._in_all[what] = self._in_all.get(what, 0.0) + self._seconds[what]
            self._kept.put("seconds", self._in_all)

    def _measure_curves(self, one: Subject) -> None:
        """Measure the curves of a repository; a server that dies is a finding about that setup."""
        known = self._curves.setdefault(one.name, {})
        # An AOTInductor package takes its threads from the environment alone.
        sayable = one.backend == "python" or one.default.threads is not None
        for n, threads in model.setups(sayable, self._cores):
            name = f"curve {one.name} {n}x{threads}"
            if (kept := self._kept.get(name)) is not None:
                known[n, threads] = from_json(Curve, kept)
                continue
            self._progress(one.name, f"measuring {n} × {threads or 'its'} threads")
            settings = Settings(n, threads, batching=one.max_batch > 1)
            with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
                try:
                    with trial(one, settings, Path(scratch)) as server:
                        known[n, threads] = server.curve(settings)
                except StageError as error:
                    self._unfit[f"{one.name}: {settings}"] = error.message
                    continue
            self._kept.put(name, known[n, threads])

    def _options(self) -> list[Option]:
        """Return all configurations: the one that ships of the first repository first."""
        found: list[Option] = []
        for one in self._subjects:
            curves = self._curves[one.name]
            fits = model.fits(list(curves.values()))
            if fits < max(1, one.max_batch):
                why = next((f"batch {b}: {why}" for c in curves.values() for b, why in c.failed.items()), "")
                self._unfit[f"{one.name}: batches above {fits}"] = why
            found += [(one.name, s) for s in model.space(one, list(curves), fits=fits)]
        limit = self._asked.max_memory_mib
        kept = [o for o in found if limit is None or (self._memory(o) or 0.0) <= limit]
        if not kept:
            least = min(m for o in found if (m := self._memory(o)) is not None)
            raise CheckFailed(
                f"no configuration keeps within {limit:g} MiB: the smallest server takes {least:.0f} MiB",
                fix="raise --max-memory-mib",
            )
        return kept

    def _curve(self, option: Option) -> Curve:
        """Return the curve of a configuration's instances and threads, or the nearest there is."""
        name, settings = option
        curves = self._curves[name]
        threads = settings.threads or max(1, self._cores // settings.instances)
        for key in ((settings.instances, settings.threads), (settings.instances, threads)):
            if key in curves:
                return curves[key]
        return min(curves.values(), key=lambda c: abs(c.instances - settings.instances))

    def _memory(self, option: Option) -> float | None:
        return self._curve(option).rss_mib

    def _predict(self, option: Option) -> Probe | None:
        one = next(s for s in self._subjects if s.name == option[0])
        return model.predict(one, self._curve(option), option[1], self._asked.goal).best

    def _expected(self, option: Option) -> float:
        found = self._predicted[option]
        return found.throughput_per_s if found else 0.0

    def _shortlist(self, options: Sequence[Option]) -> list[Option]:
        """Return the most promising option of each repository, instances and threads, the most promising first.

        What is predicted alike within 3 % behaves alike: of those the plainest stands for all.
        """
        leaders: dict[Any, Option] = {}
        for option in sorted(options, key=lambda o: -self._expected(o)):
            leader = leaders.setdefault(searches.coordinates(option)[:2], option)
            alike = self._expected(option) * (1 + WITHIN) >= self._expected(leader)
            if alike and _plainness(option[1]) < _plainness(leader[1]):
                leaders[searches.coordinates(option)[:2]] = option
        return sorted(leaders.values(), key=lambda o: -self._expected(o))

    def _search(self, options: Sequence[Option]) -> list[Option]:
        """Return the options in the order of what they carry, measured one after another as the mode says."""
        asked = self._asked
        trials = asked.trials or max(8, len(options) // 8)

        def evaluate(option: Option) -> float:
            contender = self._contender(option, confirm=1)
            try:
                contender.open()
                while contender.search.next() is not None:
                    self._progress(contender.name, f"probing {contender.search.next():.4g}")
                    contender.turn(())
            except StageError as error:
                self._unfit[contender.name] = error.message
            finally:
                contender.close()
            return contender.held

        if asked.mode == "brute":
            found = searches.brute(options, evaluate)
        else:
            how = searches.quick if asked.mode == "quick" else searches.optuna
            found = how(options, evaluate, trials=trials, seed=asked.seed)
        return sorted(found, key=lambda o: -found[o])

    def _contender(self, option: Option, confirm: int | None = None) -> Contender:
        one = next(s for s in self._subjects if s.name == option[0])
        predicted = self._predicted.get(option)
        name = self._probes(option)
        kept = [from_json(Probe, p) for p in self._kept.get(name) or []]
        curve = self._curve(option)
        start = predicted.load if predicted else 1.0 if self._asked.goal.arrivals is None else 0.2 / curve.alone_s[0]

        def keep(contender: Contender, probe: Probe) -> None:
            self._kept.put(name, contender.search.probes)

        made = Contender(
            one, option[1], self._asked.goal, start, self._asked.probe_s, self._asked.least, predicted, keep, kept
        )
        if confirm is not None:
            made.search.confirm = confirm
        return made

    def _probes(self, option: Option) -> str:
        goal = self._asked.goal
        return f"probes {option[0]} {option[1]} {goal.limit_ms} {goal.arrivals} {hash(goal.gaps_s)}"

    # ---------------------------------------------------------------------------------------------- what is said of it

    def document(self) -> dict[str, Any]:
        """Return what was found, as ``tune.json`` has it."""
        asked, chosen = self._asked, self.chosen
        shown = {(c.subject.name, c.settings): c for c in self.contenders}
        for option in self._predicted:
            if option not in shown and self._kept.get(self._probes(option)):
                shown[option] = self._contender(option)
        tried = [self._row(option, shown.get(option)) for option in self._predicted]
        return {
            "schema": SCHEMA,
            "accel": version("accel"),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "targets": [str(t) for t in asked.targets],
            "model": self._subjects[0].model,
            "via": asked.via or "local or embedded",
            "hardware": {"id": (found := hardware.detect()).id, **to_json(found)},
            "goal": to_json(asked.goal),
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
            "decision": self._decision(),
            "costs": [to_json(c) for c in self._costs()],
            "repository": REPOSITORY if chosen is not None else None,
        }

    def _row(self, option: Option, contender: Contender | None) -> dict[str, Any]:
        predicted = self._predicted[option]
        best = contender.search.best if contender else None
        differs = None
        if predicted and best and best.throughput_per_s:
            differs = predicted.throughput_per_s / best.throughput_per_s - 1
        return {
            "repository": option[0],
            "settings": to_json(option[1]),
            "label": str(option[1]),
            "default": option == next(iter(self._predicted)),
            "chosen": contender is not None and contender is self.chosen,
            "predicted": to_json(predicted) if predicted else None,
            "measured": to_json(best) if best else None,
            "probes": [to_json(p) for p in contender.search.probes] if contender else [],
            "differs": differs,
            "memory_mib": self._memory(option),
        }

    def _decision(self) -> dict[str, Any]:
        default, chosen = self.contenders[0], self.chosen
        limit = f"p99 within {self._asked.goal.limit_ms:g} ms"
        if chosen is None:
            return {"verdict": "impossible", "chosen": None, "reason": self._nearest_miss(), "warnings": []}
        others = [c for c in self.contenders if c is not chosen and c.name not in self._unfit]
        how = verdict(chosen, others)
        if how == "equivalent" and default in others and chosen.held < default.held * (1 + WITHIN):
            self.chosen = chosen = default  # what ships stays where nothing is better
            others = [c for c in self.contenders if c is not chosen and c.name not in self._unfit]
        gain = chosen.held / default.held if default.held else None
        reason = f"{chosen.name} carries {chosen.held:.4g}/s with {limit}"
        if chosen is default:
            reason += ", and nothing that was proved carries more than 3 % beyond it"
        elif gain is not None:
            reason += f", {gain:.2f} times what ships ({default.settings}: {default.held:.4g}/s)"
        else:
            reason += "; what ships does not hold the budget at any rate"
        second = max(others, key=lambda c: c.held, default=None)
        if how == "undecided" and second is not None:
            reason += f"; undecided between it and {second.name} ({second.held:.4g}/s), which may carry more"
        warnings = [
            f"{row['repository']}: {row['label']}: predicted {row['predicted']['throughput_per_s']:.4g}/s, "
            f"measured {row['measured']['throughput_per_s']:.4g}/s ({row['differs']:+.0%})"
            for row in (self._row((c.subject.name, c.settings), c) for c in self.contenders)
            if row["differs"] is not None and abs(row["differs"]) > DIFFERS
        ]
        if warnings:
            warnings.append("prediction and measurement differ by more than 15 %: --mode optuna searches on real load")
        return {
            "verdict": how,
            "chosen": chosen.name,
            "default": default.name,
            "runner_up": second.name if second else None,
            "gain": gain,
            "reason": reason,
            "warnings": warnings,
        }

    def _nearest_miss(self) -> str:
        """Say which configuration came nearest to the budget, and what it lacks."""
        limit = self._asked.goal.limit_ms
        probes = [(p.late / max(1, p.requests), c, p) for c in self.contenders for p in c.search.probes]
        share, near, probe = min(probes, key=lambda one: (one[0], one[2].load))
        alone = min((1e3 * (c.alone_s[0] + c.overhead_s), n) for n, cs in self._curves.items() for c in cs.values())
        return (
            f"nothing holds p99 within {limit:g} ms: nearest is {near.name}, where at {probe.load:.4g}"
            f"{'/s' if self._asked.goal.arrivals else ' clients'} {share:.0%} of the requests take longer; "
            f"a request to an idle server takes {alone[0]:.4g} ms at best ({alone[1]})"
        )

    def _costs(self) -> list[Cost]:
        """Return the cost on this machine, and on others where a run that was given has been tuned there."""
        asked, here = self._asked, hardware.detect().id
        found = {here: self.chosen.held} if self.chosen is not None else {}
        for target in asked.targets:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AccelError):
                other = json.loads((_folder(target) / FILENAME).read_text(encoding="utf-8"))
                best = next(row for row in other["tried"] if row["chosen"])
                if other["goal"] == to_json(asked.goal):
                    found.setdefault(other["hardware"]["id"], best["measured"]["throughput_per_s"])
        rate, room = asked.goal.rate_per_s, asked.headroom
        costs = [cost(id, held, asked.prices, rate_per_s=rate, headroom=room) for id, held in found.items()]
        for one in costs:
            if asked.prices and one.usd_per_million is None:
                self._notice(f"the price list has no {one.hardware}: it has {sorted(asked.prices)}")
        return sorted(costs, key=lambda c: (c.usd_per_hour is None, c.usd_per_hour or 0.0))


def _plainness(settings: Settings) -> tuple[int, bool, int]:
    """Order settings by how little they ask of who reads them."""
    return settings.delay_us, settings.batching and bool(settings.preferred), len(settings.preferred)


def _folder(target: Path) -> Path:
    """Return where the results of a target lie: in a run, or beside a repository."""
    if (target / document.FILENAME).is_file():
        return target / "tuned"
    return target.resolve().with_name(f"{target.resolve().name}-tuned")
