"""Measuring a model as a server serves it: load, windows until they agree, and the server's own account beside.

A point is warmed up until the median latency settles, then measured in windows. It is stable when the last three agree
within 10 % in throughput and in median latency; after ten it is reported as unstable, with all ten. Source: what
perf_analyzer does (docs/cli.md, ``--stability-percentage``, ``--max-trials``), which gives an unstable point no row.
A request counts in the window in which it ends.
"""

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from accel.bench import stability
from accel.bench.calls import ServedModel
from accel.bench.endpoint import Endpoint, InferenceProtocol
from accel.bench.expected import Expected
from accel.bench.load import FEED, Generator, Load, Window, fit_feeds
from accel.bench.timed_session import now_ns
from accel.bench.usage import gauges, use
from accel.core.errors import CheckFailed, StageError
from accel.core.feeds import Feed
from accel.core.values import Measurement, ServerSplit, TensorSpec

AGREEING, MOST_WINDOWS = 3, 10
AGREEMENT = 0.10
WARM_SPANS = 6
"""A warm-up ends after so many half windows, settled or not."""
LENGTHS = 4
"""Parts by length in which the latencies of requests are shown."""
SLICES = 5
"""Each window is cut into so many slices, which the intervals resample: three windows alone are too few."""
BUSY = 0.85
"""From this share of a CPU on, a generating process is a limit of what is measured."""


@dataclass(frozen=True, slots=True)
class Method:
    """How a point is measured.

    Attributes:
        seconds: length of a window.
        processes: how many processes send.
        shared_memory: pass tensors through system shared memory.
        protocol: what requests are sent over.
        seed: decides the order of the feeds and the gaps of Poisson arrivals.
        timeout_s: a request that takes longer counts as failed.
        hit_rate: as of ``Generator.open``.
    """

    seconds: float = 2.0
    processes: int = 1
    shared_memory: bool = False
    protocol: InferenceProtocol = "grpc"
    seed: int = 0
    timeout_s: float = 120.0
    hit_rate: float | None = None


@dataclass(frozen=True, slots=True)
class VariantLabels:
    """What a measurement says of the variant behind the model, which a server does not know.

    Attributes:
        backend: backend that answers; None to ask the server.
        repository: the repository served, relative to the run directory.
    """

    backend: str | None = None
    threads: int = 0
    precision: str = "unknown"
    repository: str | None = None


STANDARD, UNKNOWN = Method(), VariantLabels()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was read at one moment, between two windows.

    Attributes:
        counters: the server's own counters of the model.
        cpu_s: CPU time of the server's processes; None where they are not on this machine.
        rss_mib: their resident memory.
        gauges: values of ``/metrics`` by name, over all GPUs: the mean of a utilisation, the sum of the rest.
    """

    at_ns: int
    counters: dict[str, int]
    cpu_s: float | None
    rss_mib: float
    gauges: dict[str, float]


Span = tuple[Snapshot, Snapshot]
"""What was read before a window and after it. Windows in a row share a mark; others have time between them."""


class Sent(Protocol):
    """What became of the requests of a load, as a ``Generator`` has it; see there."""

    failures: int
    error: str | None
    first_ms: float


def never(points: Sequence[Measurement]) -> str | None:
    """Go on with the loads, whatever was measured."""
    return None


def sweep(
    endpoint: Endpoint,
    model: str,
    feeds: Sequence[Feed],
    loads: Sequence[Load],
    *,
    log: Path,
    inputs: Sequence[TensorSpec] | None = None,
    method: Method = STANDARD,
    labels: VariantLabels = UNKNOWN,
    check: Expected | None = None,
    raw: Path | None = None,
    raw_name: str = "",
    on_point: Callable[[Load, Measurement], None] = lambda load, point: None,
    on_windows: Callable[[Sequence[Window]], None] = lambda windows: None,
    ends: Callable[[Sequence[Measurement]], str | None] = never,
    notice: Callable[[str], None] = lambda text: None,
) -> tuple[Measurement, ...]:
    """Measure a served model at several loads, one after another.

    Args:
        feeds: what is sent, in an order drawn anew for each load from the same seed.
        log: file for what the generating processes print.
        inputs: the client contract with its ranges; None takes what the server says, which has none.
        check: hold every response against what its feed should give.
        raw: ``.npz`` for the raw samples: for each load ``<n>/rows`` (see ``Window.rows``) and ``<n>/windows`` (begin
            and end of the windows that count, ns).
        raw_name: that file's path as the measurements shall name it.
        on_point: called with each point as soon as it is measured, so that a failure later on loses nothing.
        on_windows: called before that with the windows that count.
        ends: called after that with all points; where it says why, the loads that come are left out.
        notice: takes a sentence the user should read.

    Raises:
        SampleError: a feed does not fit the contract.
        InputError: the server does not know the model or refuses the first request.
        UnavailableError: nothing answers at the endpoint, or shared memory cannot be used.
        StageError: the server went away, or every request of a point failed.
        CheckFailed: a response lies below the gate.
    """
    session = uuid.uuid4().hex[:12]
    points: list[Measurement] = []
    kept: dict[str, np.ndarray] = {}
    http = endpoint.http_for(method.protocol)
    with Generator(
        endpoint.grpc, http=http, log=log, processes=method.processes, timeout_s=method.timeout_s
    ) as generator:
        served = generator.describe(model)
        fitted = fit_feeds(feeds, inputs or served.inputs)
        generator.open(
            served.model,
            fitted,
            slots=max(64, *(load.concurrency or 0 for load in loads)),
            shared_memory=method.shared_memory,
            check=check.for_load(fitted) if check else None,
            seed=method.seed,
            hit_rate=method.hit_rate,
        )
        try:
            for number, load in enumerate(loads):
                windows, spans = observe(generator, endpoint, served.model, load, method)
                point = summarise(
                    load, windows, spans, fitted, served, generator, labels=labels, raw=raw_name, session=session
                )
                if _busy(windows, method.processes) > BUSY:
                    notice(f"{load}: the load generator itself was busy all the time; more --processes may send more")
                kept[f"{number}/rows"] = np.concatenate([w.rows for w in windows])
                kept[f"{number}/windows"] = np.array([[w.begin_ns, w.end_ns] for w in windows])
                points.append(point)
                on_windows(windows)
                on_point(load, point)
                if check is not None and not (verdict := check.judge(fitted, generator.worst()[1])).passed:
                    raise CheckFailed(f"{load}: a response is not what it should be: {'; '.join(verdict.reasons)}")
                if ends(points) is not None:
                    break
        finally:
            if raw is not None and kept:
                raw.parent.mkdir(parents=True, exist_ok=True)
                np.savez_compressed(raw, **kept)  # type: ignore[arg-type]
    return tuple(points)


def observe(
    generator: Generator, endpoint: Endpoint, model: str, load: Load, method: Method
) -> tuple[list[Window], list[Span]]:
    """Put one load on the server and watch it until three windows agree, or ten have passed.

    A load that lasts so long is watched in three windows of a third of it, without a warm-up: what goes before it is.

    Returns:
        The windows that count, and the span of each.
    """
    generator.start(load)
    try:
        each_s, most = method.seconds, MOST_WINDOWS
        if load.seconds is None:
            _warm(generator, each_s)
        else:
            each_s, most = load.seconds / AGREEING, AGREEING
        windows: list[Window] = []
        spans: list[Span] = []
        before = mark(generator, endpoint, model)
        generator.window(0.0, least=0)  # what ended while the mark was read belongs to no window
        while len(windows) < most:
            windows.append(generator.window(each_s))
            after = mark(generator, endpoint, model)
            spans.append((before, after))
            before = after
            if agree(windows[-AGREEING:]):
                return windows[-AGREEING:], spans[-AGREEING:]
        return windows, spans
    finally:
        with contextlib.suppress(StageError):
            generator.stop()


def _warm(generator: Generator, seconds: float) -> None:
    before = None
    for _ in range(WARM_SPANS):
        latency = generator.window(seconds / 2).latency_ms
        median = float(np.median(latency)) if len(latency) else None
        if median is not None and before is not None and abs(median - before) <= AGREEMENT * before:
            return
        before = median


def agree(windows: Sequence[Window]) -> bool:
    """Say whether three windows agree within 10 %, largest over smallest, in throughput and in median latency."""
    if len(windows) < AGREEING or any(len(w.answered) == 0 for w in windows):
        return False
    rates = [len(w.answered) / w.seconds for w in windows]
    medians = [float(np.median(w.latency_ms)) for w in windows]
    return all(max(values) <= (1 + AGREEMENT) * min(values) for values in (rates, medians))


def summarise(
    load: Load,
    windows: Sequence[Window],
    spans: Sequence[Span],
    feeds: Sequence[Feed],
    served: ServedModel,
    sent: Sent,
    *,
    labels: VariantLabels,
    raw: str,
    session: str,
) -> Measurement:
    """Reduce one point to its figures.

    Raises:
        StageError: no request was answered.
    """
    sizes = np.array([items(feed, served) for feed in feeds])
    pooled = np.concatenate([w.latency_ms for w in windows])
    if not len(pooled):
        raise StageError(
            f"{load}: none of {sent.failures} requests was answered; the first error: {sent.error}",
            fix="look at the server's log",
        )
    slices = [part for window in windows for part in _slices(window)]
    latencies = [part.latency_ms for part in slices if len(part.answered)]
    rates = [np.array([sizes[part.answered[:, FEED]].sum() / part.seconds]) for part in slices]
    largest = feeds[int(sizes.argmax())]
    seconds = sum(w.seconds for w in windows)
    return Measurement(
        **stability.latency_figures(pooled, latencies),
        scenario="sweep",
        via="triton",
        backend=labels.backend or served.backend,
        batch=int(sizes.max()),
        concurrency=load.concurrency or most_at_once(np.concatenate([w.rows for w in windows])),
        threads=labels.threads,
        shapes={name: tuple(value.shape) for name, value in largest.items()},
        throughput_per_s=sum(float(sizes[w.answered[:, FEED]].sum()) for w in windows) / seconds,
        throughput_ci_per_s=stability.interval(rates, lambda v: float(v.mean())),
        stable=agree(windows[-AGREEING:]),
        raw=raw,
        peak_rss_mib=max(m.rss_mib for span in spans for m in span),
        load_ms=0.0,
        first_ms=sent.first_ms,
        effective_precision=labels.precision,
        rounds_ms=tuple(float(w.latency_ms.mean()) for w in windows if len(w.answered)),
        session=session,
        rate_per_s=load.rate_per_s,
        failures=sent.failures,
        error=sent.error,
        server=split(spans),
        repository=labels.repository,
    )


def by_length(windows: Sequence[Window], lengths: Sequence[int]) -> list[dict[str, float | None]]:
    """Return the latencies (ms) of short and of long requests apart, shortest first; empty where all are of one length.

    Args:
        lengths: how long each feed is.
    """
    rows = np.concatenate([window.answered for window in windows])
    latency_ms, of_row = np.concatenate([window.latency_ms for window in windows]), np.array(lengths)[rows[:, FEED]]
    known = np.unique(of_row)
    found = []
    for part in np.array_split(known, min(LENGTHS, len(known))) if len(known) > 1 else []:
        chosen = latency_ms[np.isin(of_row, part)]
        times = {f"p{q}_ms": stability.percentile(chosen, q) for q in (50, 90, 99)}
        found.append({"length": int(part[-1]), "requests": len(chosen), **times})
    return found


def split(spans: Sequence[Span]) -> ServerSplit:
    """Return where the server's time went during the spans, and what it used meanwhile."""
    spent = {key: sum(b.counters[key] - a.counters[key] for a, b in spans) for key in spans[0][0].counters}
    each = 1e6 * max(1, spent["requests"])
    seconds = sum(b.at_ns - a.at_ns for a, b in spans) / 1e9
    used = [None if a.cpu_s is None or b.cpu_s is None else b.cpu_s - a.cpu_s for a, b in spans]
    known = [cpu_s for cpu_s in used if cpu_s is not None]
    marks = [m for span in spans for m in span]
    gauges = {name: [m.gauges[name] for m in marks if name in m.gauges] for name in marks[-1].gauges}

    def mean(name: str, scale: float = 1.0) -> float | None:
        return float(np.mean(gauges[name])) * scale if name in gauges else None

    return ServerSplit(
        queue_ms=spent["queue_ns"] / each,
        input_ms=spent["input_ns"] / each,
        infer_ms=spent["infer_ns"] / each,
        output_ms=spent["output_ns"] / each,
        requests=spent["requests"],
        inferences=spent["inferences"],
        executions=spent["executions"],
        cache_hits=spent["cache_hits"],
        cache_misses=spent["cache_misses"],
        cpus=sum(known) / seconds if len(known) == len(spans) else None,
        gpu_utilization=mean("nv_gpu_utilization"),
        gpu_memory_mib=mean("nv_gpu_memory_used_bytes", 1 / 2**20),
        gpu_power_w=mean("nv_gpu_power_usage"),
    )


def mark(generator: Generator, endpoint: Endpoint, model: str) -> Snapshot:
    """Read the server's counters, the use of its processes and its ``/metrics``."""
    cpu_s, rss_mib = use(endpoint)
    return Snapshot(now_ns(), generator.statistics(model), cpu_s, rss_mib, gauges(endpoint))


def most_at_once(rows: np.ndarray) -> int:
    """Return how many requests were under way at once, at most."""
    moments = np.concatenate([rows[:, 2], rows[:, 3]])
    steps = np.concatenate([np.ones(len(rows)), -np.ones(len(rows))])
    order = np.lexsort((steps, moments))  # of equal moments the end comes first
    return int(np.cumsum(steps[order]).max())


def items(feed: Feed, served: ServedModel) -> int:
    """Return the batch items of a request: its leading size, where the model has a batch axis."""
    leading = {value.shape[0] if value.ndim else 0 for value in feed.values()}
    dynamic = all(spec.dims and isinstance(spec.dims[0], str) for spec in served.inputs)
    return leading.pop() if dynamic and len(leading) == 1 else 1


def _slices(window: Window) -> Iterator[Window]:
    edges = np.linspace(window.begin_ns, window.end_ns, SLICES + 1).astype(np.int64)
    ends = window.rows[:, 3]
    for begin, end in itertools.pairwise(edges):
        yield Window(int(begin), int(end), window.rows[(ends > begin) & (ends <= end)])


def _busy(windows: Sequence[Window], processes: int) -> float:
    return sum(w.cpu_s for w in windows) / sum(w.seconds for w in windows) / processes
