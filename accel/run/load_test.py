"""``accel bench``: load on a repository, for which a server is started, or on a server that runs already.

Knows where feeds come from and what becomes of the figures; the load itself is the matter of ``bench``.
"""

import datetime
import functools
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from accel.bench import ranges
from accel.bench.endpoint import InferenceProtocol
from accel.bench.load import ARRIVALS, Generator, Load, Window
from accel.bench.phases import PhaseLimits, carried_at_most, parse_phases
from accel.bench.served import STANDARD, Method, VariantLabels
from accel.core import hardware, temporary
from accel.core.buckets import own_lengths
from accel.core.errors import InputError, UsageError
from accel.core.feeds import Feed
from accel.core.files import write_text
from accel.core.options import Options, OptionTrait
from accel.core.values import SCHEMA, Measurement, TensorSpec, to_json
from accel.triton import manifest as manifests, settings
from accel.triton.folders import link_tree
from accel.triton.manifest import Manifest
from accel.triton.reading import read_points
from accel.triton.servers import Via, server
from accel.triton.servers.server import Server

OUTSIDE = 0.2
"""From this share of requests on that are not as long as those of the conversion, the user is told."""
BATCHING_SWEEP_CONCURRENCY = 10
"""Concurrency of the batching sweep: dynamic batching without and with, one and two instances."""


class LoadTestRequest(Options, BaseModel):
    """What ``accel bench`` is asked for. A field with a description is a flag of it, under its alias where it has one.

    Attributes:
        target: repository root, or the address of a running server.
        model: empty for the one that clients of the repository call, or the server's only one.
        batch: None keeps a file's feeds as they are, and means 1 elsewhere.
        data: None takes the stored samples of the repository, or random values where none can be wrong.
        mixed: not the typical shape alone.
        via / allow_changed: see ``accel.triton.servers.server.start``.
        out: JSON file.

    Raises:
        UsageError: an option that is missing, unknown or out of its limits, or both kinds of load.
        InputError: a file of arrival times is broken.
    """

    MISSING: ClassVar = {"target": "name a repository root, or the HOST:PORT of a server's gRPC"}

    target: Annotated[
        str, OptionTrait.ARGUMENT, Field(description="Repository, or HOST:PORT of a running server's gRPC")
    ]
    model: Annotated[str, Field(description="Name on the server  [default: the one clients call]")] = ""
    concurrency: Annotated[
        str | None, Field(description="Closed loop: N, 1:16 (powers of two) or START:END:STEP  [default: 1:16]")
    ] = None
    request_rate: Annotated[str | None, Field(description="Open loop, per second: RATE or START:END:STEP")] = None
    arrivals: Annotated[
        str, Field(description="Gaps of an open loop: constant, poisson, or a file of times or recorded requests")
    ] = ARRIVALS
    phases: Annotated[
        str | None,
        Field(description="Users that come one by one: USERS:MORE_PER_MINUTE:SECONDS, several after commas"),
    ] = None
    flat: Annotated[
        Literal["stop", "continue"], Field(description="Phases where more users carry no more: stop or continue")
    ] = "stop"
    max_p95_ms: Annotated[float | None, Field(gt=0, description="Phases end where 95 % take longer")] = None
    max_p99_ms: Annotated[float | None, Field(gt=0, description="Phases end where 99 % take longer")] = None
    table: Annotated[
        bool, Field(description="Without and with dynamic batching, 1 and 2 instances, concurrency 10")
    ] = False
    batch: Annotated[int | None, Field(ge=1, description="Items of each request  [default: 1]")] = None
    data: Annotated[Path | None, Field(description="perf_analyzer's .json, or .npz  [default: stored samples]")] = None
    mixed: Annotated[bool, Field(alias="mixed_lengths", description="Send all stored shapes")] = False
    shared_memory: Annotated[bool, Field(description="Tensors in system shared memory")] = False
    protocol: Annotated[InferenceProtocol, Field(description="What requests are sent over: grpc or http")] = "grpc"
    hit_rate: Annotated[
        float | None,
        Field(gt=0, lt=1, description="Share of requests that repeat an earlier one  [default: as they are drawn]"),
    ] = None
    tool: Annotated[
        Literal["accel", "perf_analyzer"], Field(alias="load", description="Who generates it: accel or perf_analyzer")
    ] = "accel"
    processes: Annotated[int, Field(ge=1, description="Processes that send")] = STANDARD.processes
    via: Annotated[Via | None, Field(description="Server: embedded, local or docker")] = None
    seconds: Annotated[float, Field(ge=0.05, description="Length of a window")] = STANDARD.seconds
    seed: Annotated[int, Field(description="Decides the order of samples and Poisson gaps")] = STANDARD.seed
    allow_changed: Annotated[
        bool, Field(description="Run the launch.sh of a folder that differs from its manifest")
    ] = False
    out: Annotated[Path | None, Field(description=".json for figures; raw samples beside it")] = None

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The points to measure."""
        if self.phases is not None:
            return parse_phases(self.phases)
        kind, gaps_s = ranges.arrivals(self.arrivals)
        if self.request_rate is None and self.concurrency is None and gaps_s:
            return (Load(rate_per_s=len(gaps_s) / sum(gaps_s), arrivals=kind, gaps_s=gaps_s),)
        if self.request_rate is not None:
            return ranges.rates(self.request_rate, kind, gaps_s)
        return ranges.concurrencies(self.concurrency or "1:16")

    @property
    def limits(self) -> PhaseLimits:
        """Where phases end."""
        most_ms = {"p95": self.max_p95_ms, "p99": self.max_p99_ms}
        return PhaseLimits(self.flat == "stop", {name: ms for name, ms in most_ms.items() if ms is not None})

    @property
    def method(self) -> Method:
        """How each of them is measured."""
        return Method(
            self.seconds, self.processes, self.shared_memory, self.protocol, self.seed, hit_rate=self.hit_rate
        )

    def _ignored(self) -> Iterator[tuple[bool, str, str]]:
        """Yield whether something was asked that would change nothing, why, and what to do."""
        given, closed = self.model_fields_set, self.concurrency is not None or self.phases is not None or self.table
        recorded = not closed and bool(ranges.arrivals(self.arrivals)[1]) if "arrivals" in given else False
        yield (
            "arrivals" in given and self.request_rate is None and not recorded,
            "--arrivals says when the requests of an open loop come, and this load is of clients",
            "give --request-rate, or leave --arrivals out",
        )
        yield (
            self.table and (self.concurrency is not None or self.request_rate is not None),
            "--table has a load of its own, concurrency 10",
            "leave --concurrency and --request-rate out, or --table",
        )
        yield (
            self.phases is not None and "seconds" in given,
            "--phases says how long each phase lasts",
            "leave --seconds out",
        )
        yield (
            self.mixed and self.data is not None,
            "--mixed-lengths sends all stored shapes, and --data what it holds",
            "give one of the two",
        )
        yield (
            self.tool == "perf_analyzer" and bool(given & {"processes", "seed"}),
            "perf_analyzer has processes and a seed of its own",
            "leave --processes and --seed out, or --load",
        )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.concurrency is not None and self.request_rate is not None:
            raise UsageError("--concurrency is a closed loop and --request-rate an open one", fix="give one of the two")
        if self.phases is None and (self.limits.most_ms or self.flat != "stop"):
            raise UsageError("--max-p95-ms, --max-p99-ms and --flat say where phases end", fix="give --phases")
        if self.phases is not None and (self.concurrency or self.request_rate or self.table):
            raise UsageError("--phases is a load of its own", fix="leave --concurrency, --request-rate, --table out")
        if self.phases is not None and self.tool == "perf_analyzer":
            raise UsageError("perf_analyzer knows no phases", fix="leave --load out")
        if self.hit_rate is not None and (self.shared_memory or self.tool == "perf_analyzer"):
            raise UsageError(
                "requests of new contents go inline, and from accel's own load alone",
                fix="leave --shared-memory and --load out, or --hit-rate",
            )
        if self.shared_memory and self.protocol == "http" and self.tool == "accel":
            raise UsageError("--shared-memory goes over gRPC here", fix="leave --protocol out, or --load perf_analyzer")
        for ignored, what, fix in self._ignored():
            if ignored:
                raise UsageError(what, fix=fix)
        _ = self.loads  # wrong ones are refused at once
        return self


def bench(asked: LoadTestRequest, show: Callable[[dict[str, Any]], None], notice: Callable[[str], None]) -> None:
    """Measure all loads on one server.

    Args:
        show: takes the document once, also where a failure leaves only the points before it.
        notice: takes a sentence the user should read.

    Raises:
        AccelError: as ``server.start``, ``feeds`` and ``served.sweep``; what was measured before was shown and written.
    """
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=temporary.root()) as logs,
        _server(asked, asked.target, logs) as running,
    ):
        for text in running.notices:
            notice(text)
        subject = _subject(asked, running, logs)
        with _document(asked, running, subject, show) as document:
            found = _measure(asked, running, subject, asked.loads, logs, document["measurements"], notice)
            if asked.phases is not None:
                document["phases"] = carried_at_most(found, asked.limits)
        if "phases" in document:  # after the table
            notice(document["phases"])


def batching_sweep(
    asked: LoadTestRequest, show: Callable[[dict[str, Any]], None], notice: Callable[[str], None]
) -> None:
    """Measure a repository without and with dynamic batching, with one and two instances, at concurrency 10.

    The repository stays as it is: servers run on temporary copies of it with the config changed.

    Raises:
        UsageError: the target is a server that runs already, or a repository that routes requests.
        AccelError: as ``bench``.
    """
    if not Path(asked.target).is_dir():
        raise UsageError(
            f"--table changes configs, and {asked.target} is not a repository", fix="name a repository root"
        )
    root = Path(asked.target)
    if (root / manifests.FILENAME).exists() and (core := manifests.read(root).core) is not None:
        raise UsageError(
            f"--table changes how one model is scheduled, and {root} has one that groups requests for {core}",
            fix="leave --table out",
        )
    load = Load(concurrency=BATCHING_SWEEP_CONCURRENCY)
    with tempfile.TemporaryDirectory(prefix="table-", dir=temporary.root()) as scratch:
        served = Path(scratch) / "repository"
        with _server(asked, asked.target, scratch) as running:
            for text in running.notices:
                notice(text)
            link_tree(running.root, served)  # the Python-backend variant, where one is served: it is made once
            subject = _subject(asked, running, scratch)
        changing = asked.model_copy(update={"allow_changed": True})  # the copies, whose original was checked
        with _document(asked, running, subject, show) as document:
            for batching, instances in itertools.product((False, True), (1, 2)):
                root = Path(scratch) / f"{'with' if batching else 'without'}-{instances}"
                link_tree(served, root)
                asked_for = settings.Settings(instances, batching=batching)
                if not settings.write(root, asked_for, cpu_threads=hardware.cpu_threads()):
                    notice("max_batch_size is 0: this server cannot batch requests of this model")
                    break
                with _server(changing, str(root), scratch) as changed:
                    facts = {"dynamic_batching": batching, "instances": instances}
                    _measure(asked, changed, subject, (load,), scratch, document["measurements"], notice, facts)


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Subject:
    """The model that is measured, what it takes, what it is sent, and what is known of the variant behind it."""

    model: str
    inputs: tuple[TensorSpec, ...]
    feeds: Sequence[Feed]
    labels: VariantLabels
    manifest: Manifest | None

    def lengths(self) -> list[list[int]]:
        """Return how long the rows of each feed are, by their mask; empty where none says."""
        mask = self.manifest.mask if self.manifest is not None else None
        if mask is None or any(mask not in feed or feed[mask].ndim != 2 for feed in self.feeds):
            return []
        return [own_lengths(feed[mask]).tolist() for feed in self.feeds]


def _server(asked: LoadTestRequest, target: str, logs: str) -> Server:
    if Path(target).is_dir():
        log = Path(logs) / "server.log"
        return server.start(Path(target), via=asked.via, log=log, allow_changed=asked.allow_changed, grace_s=0)
    if "/" in target.removeprefix("grpc://").removeprefix("http://").rstrip("/") or ":" not in target:
        raise InputError(f"{target} is not a folder", fix="name a repository root, or the HOST:PORT of a server's gRPC")
    return server.connect(target)


def _subject(asked: LoadTestRequest, running: Server, logs: str) -> _Subject:
    from accel.bench import feeds as forms

    manifest = manifests.read(running.root) if (running.root / manifests.FILENAME).exists() else None
    if manifest is not None and asked.model in ("", manifest.models[0]):
        model, inputs, batched = manifest.models[0], manifest.inputs, manifest.max_batch_size > 0
        labels = VariantLabels(
            manifest.backend, hardware.cpu_threads(), manifest.artifact.built.precision, repository=asked.target
        )
    else:
        manifest, labels = None, VariantLabels(threads=hardware.cpu_threads())
        if asked.mixed:
            raise UsageError(
                "--mixed-lengths sends the shapes that a repository stores, and a server shows none",
                fix="give the repository, or --data",
            )
        with Generator(running.endpoint.grpc, log=Path(logs) / "load.log") as generator:
            served = generator.describe(asked.model)
        model, inputs, batched = served.model, served.inputs, served.max_batch_size > 0
    stateful = manifest is not None and manifest.states is not None
    if stateful and asked.tool == "perf_analyzer":
        raise UsageError(
            "a stateful model is asked in sequences, which accel's own load keeps apart", fix="--load accel"
        )
    # Of a repository it is known which axis counts items; a server says that it batches, or that an axis varies.
    named = ("batch",) if manifest is not None else (*{d for s in inputs for d in s.dims[:1] if isinstance(d, str)},)
    own_axis = all(spec.dims[:1] and spec.dims[0] in named for spec in inputs)
    if (asked.batch or 1) > 1 and stateful:
        raise UsageError("a request of a stateful model is one step of one sequence", fix="leave --batch out")
    if (asked.batch or 1) > 1 and not own_axis:
        dims = {spec.name: spec.dims for spec in inputs}
        raise UsageError(f"{model!r} has no batch axis: its inputs are {dims}", fix="leave --batch out")
    feeds: Sequence[Feed]
    if asked.data is not None:
        feeds = forms.read(asked.data, inputs, batched=batched)
    elif manifest is not None:
        points = read_points(running.root, manifest)
        every = asked.mixed or manifest.states
        feeds = [point.inputs for name, point in points.items() if every or name == "opt"]
    else:
        feeds = forms.random_feeds(inputs, batch=asked.batch or 1)
    if own_axis and (asked.batch is not None or asked.data is None):
        feeds = forms.rebatch(feeds, asked.batch or 1)
    return _Subject(model, inputs, feeds, labels, manifest)


def _measure(
    asked: LoadTestRequest,
    running: Server,
    subject: _Subject,
    loads: Sequence[Load],
    logs: str,
    points: list[dict[str, Any]],
    notice: Callable[[str], None],
    facts: Mapping[str, Any] | None = None,
) -> tuple[Measurement, ...]:
    """Return each measured load, and add it to ``points``, with ``facts`` that tell its server from others."""
    from accel.bench import perf_analyzer, served

    lengths = [max(rows) for rows in subject.lengths()]
    seen: list[Sequence[Window]] = []

    def add(load: Load, point: Measurement) -> None:
        made = {"load": str(load), **(facts or {}), **to_json(point)}
        if seen and lengths and (parts := served.by_length(seen[-1], lengths)):
            made["by_length"] = parts
        points.append(made)
        answered = point.server.cache_hits if point.server is not None else 0
        if asked.hit_rate is None and answered and asked.tool == "accel":
            notice(f"{load}: the response cache answered {answered} requests; --hit-rate says how many of yours repeat")

    ends = asked.limits.ends if asked.phases else served.never
    own = functools.partial(served.sweep, on_windows=seen.append, ends=ends)
    sweep = perf_analyzer.sweep if asked.tool == "perf_analyzer" else own
    raw = None
    if asked.out is not None:
        ending = "-".join(str(value) for value in (facts or {}).values())
        suffix = ".csv" if asked.tool == "perf_analyzer" else ".npz"
        raw = asked.out.with_name(f"{asked.out.stem}{'-' if ending else ''}{ending}{suffix}")
    if asked.data is not None and (said := _shifted(subject)) is not None:
        notice(said)
    return sweep(
        running.endpoint,
        subject.model,
        subject.feeds,
        loads,
        log=Path(logs) / "load.log",
        inputs=subject.inputs,
        method=asked.method,
        labels=subject.labels,
        raw=raw,
        raw_name=raw.name if raw else "",
        on_point=add,
        notice=notice,
    )


def _shifted(subject: _Subject) -> str | None:
    """Say where requests are not as long as those for which the lengths of the groups were chosen."""
    grouping = subject.manifest.grouping if subject.manifest is not None and subject.manifest.groups else None
    own = [n for rows in subject.lengths() for n in rows]
    if grouping is None or not grouping.usual or not own or (share := grouping.outside(own)) <= OUTSIDE:
        return None
    return (
        f"{share:.0%} of the requests fall outside the lengths that {subject.model} was prepared for "
        f"({', '.join(map(str, grouping.usual))}; here {min(own)} to {max(own)}): accel convert "
        "--traffic FILE chooses anew"
    )


@contextmanager
def _document(
    asked: LoadTestRequest, running: Server, subject: _Subject, show: Callable[[dict[str, Any]], None]
) -> Iterator[dict[str, Any]]:
    """Give the document, whose list of points is filled; whatever happens, what is in it at the end is shown."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "accel": version("accel"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "target": asked.target,
        "model": subject.model,
        "load": asked.tool,
        "protocol": asked.protocol,
        **({} if asked.hit_rate is None else {"hit_rate": asked.hit_rate}),
        "via": running.endpoint.via,
        "release": running.endpoint.release,
        "twin": bool(running.python_models),
        "hardware": {"id": (found := hardware.detect()).id, **to_json(found)},
        "measurements": [],
    }
    try:
        yield document
    finally:
        if document["measurements"]:
            if asked.out is not None:
                write_text(asked.out, json.dumps(document, indent=1, allow_nan=False) + "\n")
            show(document)


def row(point: Mapping[str, Any]) -> dict[str, str]:
    """Return what a terminal's table shows of one point; times in ms, intervals as the larger half in percent."""
    served = point["server"] or {}
    compute = sum(served.get(key, 0.0) for key in ("input_ms", "infer_ms", "output_ms"))
    shown = {
        "load": point["load"].removeprefix("concurrency "),
        "items/s": _figure(point["throughput_per_s"], point["throughput_ci_per_s"]),
        "p50": _figure(point["p50_ms"], point["p50_ci_ms"]),
        "p95": _figure(point["p95_ms"], point["p95_ci_ms"]),
        "p99": _figure(point["p99_ms"], point["p99_ci_ms"]),
        "queue": _figure(served.get("queue_ms")),
        "compute": _figure(compute if served else None),
        "batch": _figure(served["inferences"] / served["executions"]) if served.get("executions") else "—",
        "failed": str(point["failures"]),
        "stable": "yes" if point["stable"] else "no",
    }
    if parts := point.get("by_length"):
        shown["p99 by length"] = ", ".join(f"≤{p['length']}: {_figure(p.get('p99_ms'))}" for p in parts)
    if "instances" in point:
        batching = "with" if point["dynamic_batching"] else "without"
        return {"batching": batching, "instances": str(point["instances"]), **shown}
    return shown


def _figure(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Return three digits: ``5.41``, ``0.052``, ``1280``; with an interval ``5.41 ±1%``."""
    if value is None:
        return "—"
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    shown = f"{value:.{min(digits, 3)}f}"
    if interval is None or value == 0:
        return shown
    return f"{shown} ±{100 * max(interval[1] - value, value - interval[0]) / value:.0f}%"
