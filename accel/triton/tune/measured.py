"""What ``accel tune`` measures: curves, every configuration as predicted, the best few proved beside what ships.

Whatever was measured is kept in ``measured.json`` as soon as it is known, and a call that repeats takes it from there.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel.bench import feeds as forms
from accel.bench.goodput import Probe
from accel.bench.machine_noise import Turn
from accel.bench.request_pool import NewContents, plain
from accel.core import document, hardware
from accel.core.errors import CheckFailed, InputError, StageError, UsageError
from accel.core.feeds import Feed
from accel.core.values import PYTHON_BACKEND, from_json, sha256_json, to_json
from accel.report.formats import figures
from accel.triton import manifest as manifests
from accel.triton.launch import CACHE_BYTES
from accel.triton.servers import server as servers
from accel.triton.settings import Settings
from accel.triton.tune import predict as model, search as searches
from accel.triton.tune.constraints import Judged, judge, keeps_memory, within
from accel.triton.tune.cost import TUNE_THERE, tuned_elsewhere
from accel.triton.tune.lab import Curve, Goal, Subject, subject, trial
from accel.triton.tune.limits import NO_TIME, Deadline, MeasuredStore
from accel.triton.tune.predict import Setup
from accel.triton.tune.proof import NEXT, ConfigurationRunner, calls, choose, most, prove, seen
from accel.triton.tune.repeats import MOST_HITS, answer_bytes, hits
from accel.triton.tune.request import TuneRequest
from accel.triton.tune.search import Mode, Option

FILENAME, MEASURED, REPOSITORY, REPORT = "tune.json", "measured.json", "repository", "report.html"
FINALISTS = 3
"""Configurations that are proved beside the one that ships."""
DIFFERS = 0.15
"""From this difference on between what was predicted and what was measured, it is said, and real load searched."""
BUDGET_S = 900.0
"""How long a call measures unless told otherwise; a brute sweep has no limit."""
CURVES, PROOF, SEARCH = 0.35, 0.6, 0.8
"""Shares of that time after which no further curve is begun, no load proves a prediction that another load has
contradicted, and no further trial of a search is begun."""


def where(asked: TuneRequest) -> dict[str, Any]:
    """Return what all that is measured belongs to: the machine, the server, and what requests are sent over."""
    over = {} if asked.protocol == "grpc" else {"protocol": asked.protocol}
    return {"hardware": to_json(hardware.detect()), "server": servers.identity(asked.via), **over}


def repositories(target: Path, via: str | None) -> Iterator[tuple[str, Path]]:
    """Yield name and root of what a target holds that the server here can answer: the one chosen by the run first.

    Of a run that is what passed on all feeds: what lost there was asked part of them, and here it could win.

    Raises:
        InputError: it is neither a run nor a repository, nothing in it can be served, or a repository's variant did not
            pass on all feeds.
    """
    if (target / manifests.FILENAME).is_file():
        if (why := manifests.read(target).unproved) is not None:
            raise InputError(f"{target}: {why}", fix=f"accel convert … --require {manifests.read(target).variant}")
        yield target.resolve().name, target
        return
    run = document.read(target)
    found = []
    for variant in run.variants:
        if variant.status != "ok" or variant.repository is None or not (variant.parity is None or variant.parity.whole):
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


class Measuring:
    """The measuring of one call of ``accel tune``."""

    def __init__(
        self,
        asked: TuneRequest,
        out: Path,
        scratch: Path,
        notice: Callable[[str], None],
        progress: Callable[[str, str], None],
        stage: Callable[[str], None],
    ) -> None:
        self._asked, self._out, self._scratch = asked, out, scratch
        self._notice, self._tell, self._stage = notice, progress, stage
        unlimited = asked.budget_s is None and asked.mode == "brute"
        self._deadline = Deadline(None if unlimited else asked.budget_s or BUDGET_S)
        self._noise: list[Turn] = []
        self._cores = hardware.cpu_threads()
        self._seconds: dict[str, float] = {}
        self._unfit: dict[str, str] = {}
        self._own: dict[str, list[Settings]] = {}
        self._curves: dict[str, dict[Setup, Curve]] = {}
        self._predicted: dict[Option, Probe | None] = {}
        self.runners: list[ConfigurationRunner] = []
        self.chosen: ConfigurationRunner | None = None
        self._verdict = ""
        self._cut = False
        self._warnings: list[str] = []
        self._elsewhere: list[tuple[str, str, float]] = []
        (out / "logs").mkdir(parents=True, exist_ok=True)
        self._abroad: list[tuple[Path, str]] = []
        self._subjects = self._take_subjects()
        self._goal = self._with_hits(asked)
        for run, made_on in self._abroad:
            self._take_elsewhere(run, made_on)
        self._kept = MeasuredStore(
            out / MEASURED,
            {**where(asked), "probe": [asked.probe_s, asked.least]},
        )
        self._known_as = {s.name: f"{s.name} {_identity(s)}" for s in self._subjects}
        self._in_all: dict[str, float] = dict(self._kept.get("seconds") or {})

    def _progress(self, name: str, doing: str, count: str = "") -> None:
        """Say what is done now, the how manieth of its kind it is, and how long all may take."""
        words = "; ".join(filter(None, (count, self._deadline.words())))
        self._tell(name, f"{doing} ({words})" if words else doing)

    def _take_subjects(self) -> list[Subject]:
        asked = self._asked
        found: list[Subject] = []
        for number, target in enumerate(asked.targets):
            if self._is_elsewhere(target):
                continue
            held = list(repositories(target, asked.via))
            fixed = [name for name, root in held if manifests.read(root).artifact.variant.static is not None]
            if len(fixed) < len(held):  # else the shape is the target's contract
                held = [one for one in held if one[0] not in fixed]
                self._unfit |= dict.fromkeys(fixed, "its requests have one shape, and those of the others any")
            for name, root in held:
                label = name if len(asked.targets) == 1 or name not in {s.name for s in found} else f"{name} {number}"
                self._progress(label, "starting a server as it ships")
                scratch, logs = self._scratch / f"{number}-{name}", self._out / "logs"
                try:
                    one = subject(
                        root,
                        name=label,
                        scratch=scratch,
                        logs=logs,
                        via=asked.via,
                        data=self._data(root),
                        protocol=asked.protocol,
                    )
                except StageError as error:
                    self._unfit[label] = error.message
                    continue
                self._fits_cache(one)
                contract = (one.manifest.inputs, one.manifest.outputs)
                if found and contract != (found[0].manifest.inputs, found[0].manifest.outputs):
                    raise UsageError(
                        f"{target} has another client contract than {asked.targets[0]}, and the same name",
                        fix="name the runs of one model, or models of several names, which share a server",
                    )
                found.append(one)
        if not found and not self._unfit:
            raise InputError(
                f"none of {', '.join(map(str, asked.targets))} was made on this machine ({hardware.detect().id})",
                fix="name a run of this machine among them, or tune them where they were made",
            )
        if not found:
            name, why = next(iter(self._unfit.items()))
            raise StageError(f"no repository could be served; {name}: {why}")
        return found

    def _is_elsewhere(self, target: Path) -> bool:
        """Say whether one of several runs is another machine's; what was tuned there joins the table of costs.

        A run that is named alone is tuned here, wherever it was made.
        """
        if len(self._asked.targets) == 1 or not (target / document.FILENAME).is_file():
            return False
        made_on = document.read(target).hardware.id
        if made_on in (None, hardware.detect().id):
            return False
        self._abroad.append((target, made_on))
        return True

    def _take_elsewhere(self, run: Path, made_on: str) -> None:
        """Let what was tuned on another machine join the table of costs."""
        path = run / "tuned" / FILENAME
        try:
            if not path.is_file():
                raise InputError(f"{run} was made on {made_on} and was not tuned there", fix=TUNE_THERE)
            self._elsewhere.append(tuned_elsewhere(path, self._goal, self._asked.protocol))
        except InputError as error:
            self._warnings.append(f"{error.message}: it has no row in the table of costs; {error.fix}")

    def _fits_cache(self, one: Subject) -> None:
        """Refuse what is sent, where it says nothing of a response cache that there is, or that is to be tried.

        Raises:
            InputError: it would repeat itself, or cannot be made to repeat in part.
        """
        if self._asked.repeats:
            NewContents([plain(feed) for feed in one.feeds], hit_rate=0.0)
        elif one.default.cached:
            raise InputError(
                f"{one.root} has a response cache, which would answer every request that tune sends but the first",
                fix="say how many requests repeat an earlier one: --hit-rate 0.3; or tune one without a cache",
            )

    def _with_hits(self, asked: TuneRequest) -> Goal:
        """Return the goal, with the share of the requests that a response cache would answer."""
        keys, first = asked.hit_rate_of, self._subjects[0]
        if keys is None:
            return asked.goal
        size = round(answer_bytes(first.root) * sum(first.sizes) / len(first.sizes))
        found = hits(keys, CACHE_BYTES // size)
        of = f"{len(set(keys))} different ones among {len(keys)} requests"
        room = f"a response cache of {CACHE_BYTES >> 20} MiB, for answers of {size} bytes"
        self._notice(f"{found:.1%} of the requests repeat what {room}, still has ({of})")
        if found > MOST_HITS:
            self._warnings.append(
                f"{found:.1%} of the requests repeat: it is tuned for {MOST_HITS:.0%}, beyond which the cache alone "
                "answers 99 % of them in time at any load"
            )
        return dataclasses.replace(asked.goal, hit_rate=min(found, MOST_HITS))

    def _data(self, root: Path) -> list[Feed] | None:
        if self._asked.data is None:
            return None
        manifest = manifests.read(root)
        return list(forms.read(self._asked.data, manifest.inputs, batched=manifest.max_batch_size > 0))

    def prepare(self) -> list[Option]:
        """Measure the curves, and predict every configuration; what ships comes first.

        Raises:
            StageError: nothing could be measured.
        """
        with self._timed("curves"):
            self._measure_curves()
        self._subjects = [s for s in self._subjects if self._curves.get(s.name)]
        if not self._subjects:
            name, why = next(iter(self._unfit.items()))
            raise StageError(f"no repository could be measured; {name}: {why}")
        budget_ms = self._goal.budget_ms
        curves = {s.name: self._curves[s.name].values() for s in self._subjects}
        cut = [name for name, those in curves.items() if not all(curve.serves(budget_ms) for curve in those)]
        if cut and not (self._asked.offline and self._asked.data is not None):
            self._cut = not self._asked.offline
            self._warnings.append(f"{', '.join(cut)}: larger requests were not timed, {NO_TIME}")
        if self._asked.offline and self._asked.data is None:
            self._subjects = [model.full(s, list(self._curves[s.name].values())) for s in self._subjects]
        options = self._options()
        with self._timed("predict"):
            self._predicted = dict(zip(options, self._predict(options), strict=True))
        return options

    def measure(self) -> None:
        """Measure what the mode asks for, and choose."""
        asked = self._asked
        begin = time.monotonic()
        options = self.prepare()
        best = self.shortlist(options) if asked.mode == "predict" else self._search(options, asked.mode)
        self._prove(options[0], best)
        if asked.mode == "predict" and (wrong := self._mispredicted()) and (best := self._fall_back(options, wrong)):
            self._prove(options[0], best)
        self._seconds["total"] = time.monotonic() - begin

    def _prove(self, default: Option, best: Sequence[Option]) -> None:
        """Put the best few and what ships under real load, in turns, and choose; less where a prediction fails.

        What was chosen by an earlier proof stays among them: the search after it need not have come across it.
        """
        asked = self._asked
        first = asked.mode == "predict" and "search" not in self._seconds
        before = [(self.chosen.subject.name, self.chosen.settings)] if self.chosen is not None else []

        def stop() -> bool:
            """Say whether to leave the rest of the time to a search, which needs some of it."""
            left = first and self._deadline.left(PROOF) <= 0 < self._deadline.left(SEARCH)
            return left and bool(self._mispredicted())

        finalists = list(dict.fromkeys([default, *before, *best[:FINALISTS]]))
        self.runners = [self._runner(option) for option in finalists]
        with self._timed("prove"):
            left = self._deadline.left()
            failed, noise = prove(
                self.runners,
                progress=self._progress,
                budget_s=None if math.isinf(left) else max(left, 0.0),
                stop=stop,
                fits=lambda runner: keeps_memory(runner, asked.limits),
            )
        self._noise += noise
        for name, error in failed.items():
            self._unfit[name] = error.message
        if len(failed) == len(self.runners):
            raise StageError(f"no configuration could be proved; {next(iter(failed.values())).message}")
        alive = [c for c in self.runners if c.name not in failed]
        kept = [c for c in alive if not c.held or within(self._judged(c))]
        if kept:
            self.chosen, self._verdict = choose(kept, self.runners[0])
        else:
            ended = all(c.search.next() is None for c in alive)
            self.chosen, self._verdict = None, "impossible" if ended else "undecided"
        left_out = self._cut or len(calls(kept)) > 1 or any(NO_TIME in why for why in self._unfit.values())
        if left_out and self._verdict in ("decided", "equivalent"):
            self._verdict = "undecided"

    @property
    def unfit(self) -> Mapping[str, str]:
        """What could not be measured, and why."""
        return self._unfit

    @property
    def warnings(self) -> Sequence[str]:
        """What limits what was found so far."""
        return self._warnings

    def _mispredicted(self) -> list[str]:
        """Return in words where real load contradicts a prediction: what held lies above it, or what broke below."""
        return [difference(c) for c in self.runners if c.name not in self._unfit and contradicts(c)]

    def _unended(self) -> list[str]:
        """Return whose search could go on."""
        return [c.name for c in self.runners if c.name not in self._unfit and c.search.next() is not None]

    def _fall_back(self, options: Sequence[Option], wrong: Sequence[str]) -> list[Option]:
        """Search under real load, since the prediction does not hold here; return what that finds, the best first."""
        why = f"prediction and measurement differ by more than {DIFFERS:.0%} ({wrong[0]})"
        if self._deadline.left(SEARCH) <= 0:
            self._warnings.append(f"{why}, and no time is left to search under real load: --mode optuna does")
            return []
        mode: Mode = "optuna" if importlib.util.find_spec("optuna") else "quick"
        self._warnings.append(f"{why}: --mode {mode} has searched under real load")
        self._notice(f"{why}: searching under real load (--mode {mode})")
        return self._search(options, mode, self.shortlist(options)[FINALISTS:])

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        self._stage(what)
        try:
            yield
        finally:  # a session that is interrupted adds its part
            self._seconds[what] = time.monotonic() - begin
            self._in_all[what] = self._in_all.get(what, 0.0) + self._seconds[what]
            self._kept.put("seconds", self._in_all)

    def _measure_curves(self) -> None:
        """Measure the curves, a setup of each repository in turn; a server that dies is a finding about that setup."""
        todo: list[tuple[Subject, Setup]] = []
        for one in self._subjects:
            # An AOTInductor package takes its threads from the environment alone.
            sayable = one.backend == PYTHON_BACKEND or one.default.threads is not None
            if self._asked.space is None:
                wanted = [Setup(*pair) for pair in model.setups(sayable, self._cores)]
            else:
                self._own[one.name] = list(dict.fromkeys([one.default, *self._asked.space.settings(one.config)]))
                wanted = list(dict.fromkeys(map(model.setup, self._own[one.name])))
            todo += [(one, setup) for setup in wanted]
        order = {one.name: itertools.count() for one in self._subjects}
        todo = [item for _, item in sorted(((next(order[t[0].name]), t) for t in todo), key=lambda pair: pair[0])]
        for number, (one, setup) in enumerate(todo):
            known = self._curves.setdefault(one.name, {})
            batching, (n, threads, fields, variables) = one.max_batch > 1, setup
            off = False if one.default.cached else None  # answers from a cache are no curve
            settings = Settings(n, threads, batching, fields=fields, variables=variables, cached=off)
            name = f"curve {self._known_as[one.name]} {setup.name}"
            kept = from_json(Curve, found) if (found := self._kept.get(name)) is not None else None
            if kept is not None and kept.serves(self._goal.budget_ms):
                known[setup] = kept
                continue
            left_s = self._deadline.left(CURVES)
            if left_s <= 0 and any(self._curves.values()):
                self._unfit[f"{one.name}: {settings}"] = f"not measured: {NO_TIME}"
                continue
            what = f"measuring {n} × {threads or 'its'} threads"
            self._progress(one.name, what, f"{number + 1} of {len(todo)}")
            with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
                try:
                    with trial(one, settings, Path(scratch)) as server:
                        longest_s = left_s / (len(todo) - number)
                        known[setup] = server.curve(settings, self._goal.budget_ms, longest_s=longest_s)
                except StageError as error:
                    self._unfit[f"{one.name}: {settings}"] = error.message
                    continue
            self._kept.put(name, known[setup])

    def _options(self) -> list[Option]:
        """Return all configurations: the one that ships of the first repository first."""
        found: list[Option] = []
        for one in self._subjects:
            curves = self._curves[one.name]
            fits = model.fits(list(curves.values()))
            if fits < max(1, one.max_batch):
                why = next((f"batch {b}: {why}" for c in curves.values() for b, why in c.failed.items()), "")
                self._unfit[f"{one.name}: batches above {fits}"] = why
            if one.name in self._own:
                settings = [s for s in self._own[one.name] if s == one.default or model.setup(s) in curves]
            elif self._asked.offline:
                settings = model.full_space(one, [(c.instances, c.threads) for c in curves])
            else:
                settings = model.space(one, [(c.instances, c.threads) for c in curves], fits=fits)
            if self._goal.hit_rate:
                off = False if one.default.cached else None
                settings += [dataclasses.replace(s, cached=cached) for s in settings for cached in (off, True)]
                settings = list(dict.fromkeys(settings))
            found += [(one.name, s) for s in settings]
        limits = self._asked.limits
        for what, limit, known, flag in (
            ("", limits.max_memory_mib, self._memory, "--max-memory-mib"),
            ("GPU ", limits.max_gpu_memory_mib, lambda o: self.curve(o).gpu_mib, "--max-gpu-memory-mib"),
        ):
            if limit is None:
                continue
            takes = {o: m for o in found if (m := known(o)) is not None}
            if not takes:
                raise CheckFailed(
                    f"the {what}memory of this server cannot be known, so that no configuration can keep {limit:g} MiB",
                    fix=f"leave {flag} out, or serve on this machine (--via local or embedded)",
                )
            fits_in = [o for o in takes if takes[o] <= limit]
            # What ships is measured all the same: it is what others are compared with, and is judged with them.
            found = [*found[:1], *(o for o in fits_in if o != found[0])]
            if not fits_in:
                least, name = min((m, f"{o[0]}: {o[1]}") for o, m in takes.items())
                raise CheckFailed(
                    f"no configuration keeps within {limit:g} MiB: the smallest server takes "
                    f"{least:.0f} MiB of {what}memory, {least - limit:.0f} more ({name})",
                    fix=f"raise {flag}",
                )
        return found

    def subject(self, option: Option) -> Subject:
        """Return the repository of a configuration."""
        return next(s for s in self._subjects if s.name == option[0])

    def curve(self, option: Option) -> Curve:
        """Return the curve of a configuration's instances and threads, or the nearest there is."""
        name, settings = option
        curves, wanted = self._curves[name], model.setup(settings)
        threads = settings.threads or max(1, self._cores // settings.instances)
        for key in (wanted, wanted._replace(threads=threads)):
            if key in curves:
                return curves[key]
        alike = [c for key, c in curves.items() if key[2:] == wanted[2:]] or list(curves.values())
        return min(alike, key=lambda c: abs(c.instances - settings.instances))

    def _memory(self, option: Option) -> float | None:
        """Return what the server takes: of a curve, which has no cache, and the cache."""
        taken = self.curve(option).rss_mib
        return taken if taken is None else taken + (CACHE_BYTES / 2**20 if option[1].cached else 0.0)

    def _predict(self, options: Sequence[Option]) -> list[Probe | None]:
        those = tuple(model.asked(self.subject(o), self.curve(o), o[1], self._goal) for o in options)
        log = self._out / "logs" / "predict.log"
        return model.predict_all(self._goal, those, log=log, processes=self._cores)

    def _expected(self, option: Option) -> float:
        found = self._predicted[option]
        return found.throughput_per_s if found else 0.0

    def shortlist(self, options: Sequence[Option]) -> list[Option]:
        """Return ``search.shortlist`` of what is predicted."""
        return searches.shortlist(options, self._expected)

    def _search(self, options: Sequence[Option], mode: Mode, first: Sequence[Option] = ()) -> list[Option]:
        """Return the options in the order of what they carry, measured one after another as the mode says.

        Args:
            first: what is promising, as of ``search.quick``.
        """
        asked = self._asked
        trials = len(options) if mode == "brute" else min(len(options), asked.trials or searches.few(options))
        found: dict[Option, float] = {}
        took: list[float] = []  # seconds of each that was not measured before

        def over(runner: ConfigurationRunner) -> bool:
            """Say whether a trial is left before its end: no time is left, or another option carries more already."""
            beaten = mode != "brute" and runner.most <= max(found.values(), default=0.0)
            return beaten or (bool(runner.search.probes) and self._deadline.left(SEARCH) <= 0)

        def evaluate(option: Option) -> float:
            if took:
                self._deadline.expected_s = sum(took) / len(took) * (trials - len(found))
            runner, begin = self._runner(option, confirm=1), time.monotonic()
            new = runner.search.next() is not None
            if new and found and self._deadline.left(SEARCH) <= 0:
                raise _TimeOver
            count = f"{len(found) + 1} of {trials}"
            try:
                if new:
                    self._progress(runner.name, "starting a server", count)
                    runner.open()
                while (load := runner.search.next()) is not None and not over(runner):
                    self._progress(runner.name, f"probing {load:.4g}", count)
                    runner.turn(NEXT)
            except StageError as error:
                self._unfit[runner.name] = error.message
            finally:
                runner.close()
                took.extend([time.monotonic() - begin] * new)
            found[option] = runner.held if keeps_memory(runner, asked.limits) else 0.0
            return found[option]

        with self._timed("search"), contextlib.suppress(_TimeOver):
            if mode == "brute":
                searches.brute(options, evaluate, seed=asked.seed)
            else:
                how = searches.quick if mode == "quick" else searches.optuna
                how(options, evaluate, trials=trials, seed=asked.seed, first=first)
        if len(found) < trials and self._deadline.left(SEARCH) <= 0:
            self._cut = True
            self._warnings.append(f"the search ended after {len(found)} of {trials} trials: {NO_TIME}")
        return sorted(found, key=lambda o: -found[o])

    def _runner(self, option: Option, confirm: int | None = None) -> ConfigurationRunner:
        one = self.subject(option)
        predicted = self._predicted.get(option)
        name = self._probes(option)
        before = self._kept.get(name) or {}
        kept = [from_json(Probe, p) for p in before.get("probes", [])]
        curve = self.curve(option)
        start = predicted.load if predicted else 1.0 if self._goal.arrivals is None else 0.2 / curve.alone_s[0]

        def keep(runner: ConfigurationRunner, probe: Probe) -> None:
            self._kept.put(name, seen(runner))

        made = ConfigurationRunner(
            one, option[1], self._goal, start, self._asked.probe_s, self._asked.least, predicted, keep, kept
        )
        made.call = self._kept.call
        made.memory_mib = most(curve.rss_mib, before.get("memory_mib"))
        made.gpu_memory_mib = most(curve.gpu_mib, before.get("gpu_memory_mib"))
        made.hit_share = before.get("hit_share")
        if confirm is not None:
            made.search.confirm = confirm
        return made

    def _probes(self, option: Option) -> str:
        goal = self._goal
        more = f" {sorted(goal.limits_ms.items())}" if goal.limits_ms else ""
        more += f" {self.subject(option).sizes}" if self._asked.offline else ""
        more += f" {goal.hit_rate}" if goal.hit_rate is not None else ""
        return (
            f"probes {self._known_as[option[0]]} {option[1]} {goal.limit_ms} {goal.arrivals} {hash(goal.gaps_s)}{more}"
        )

    def _judged(self, runner: ConfigurationRunner) -> tuple[Judged, ...]:
        return judge(runner, self._asked.limits, self._asked.prices, hardware.detect().id)


def feeds_hash(feeds: Sequence[Feed]) -> str:
    """Return the hash of what is sent: names, types, shapes and values."""
    found = hashlib.sha256()
    for name, value in (pair for feed in feeds for pair in feed.items()):
        found.update(repr((name, value.dtype.str, value.shape)).encode())
        found.update(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
    return found.hexdigest()


def _identity(one: Subject) -> str:
    """Return the hash of what measurements of a repository depend on: they say nothing of another one of that name."""
    files = [f.sha256 for f in one.manifest.artifact.files]
    known = [files, feeds_hash(one.feeds), str(one.config), to_json(one.manifest.grouping)]
    return sha256_json(known)[:12]


class _TimeOver(Exception):
    """No further trial is begun."""


def differs(runner: ConfigurationRunner) -> float:
    """Return by how much of what was measured the prediction differs from it; infinite where nothing was held."""
    predicted = runner.expected
    return predicted / runner.held - 1 if runner.held else math.inf if predicted else 0.0


def difference(runner: ConfigurationRunner) -> str:
    """Say what was predicted, as the table has it, and what was measured."""
    predicted = f"{runner.name}: predicted {figures(runner.predicted.throughput_per_s if runner.predicted else 0.0)}/s"
    if runner.held < runner.most < runner.expected:
        return f"{predicted}, {figures(runner.most)}/s did not hold"
    return f"{predicted}, measured {figures(runner.held)}/s"


def contradicts(runner: ConfigurationRunner) -> bool:
    """Say whether what held lies that far above the prediction, or what broke below it.

    What broke once, in a search that goes on, contradicts nothing: a stall of the machine may have broken it.
    """
    predicted = runner.expected
    broke = sum(p.count for p in runner.search.probes if not p.held and (1 + DIFFERS) * runner.sent(p) < predicted)
    below = (1 + DIFFERS) * runner.most < predicted and (broke > 1 or runner.search.next() is None)
    return below or runner.held > (1 + DIFFERS) * predicted
