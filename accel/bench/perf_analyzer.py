"""Load by Triton's own perf_analyzer, where it is found; what it says is read into the same ``Measurement``.

The binary is ``$PERF_ANALYZER``, the one on PATH, or the one of the environment ``perf-analyzer``. It is asked to judge
stability by the median, as ``served`` does; the windows it reports as passes give the intervals. What it does
otherwise: no warm-up, feeds in the order of the file, and in an open loop a latency that counts from when a request was
really sent. Of an unstable point it gives no row: then throughput and median are those of its passes, and the rest is
unknown.

Source: its docs/cli.md and docs/measurements_metrics.md.
"""

import csv
import io
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from accel.bench import feeds as forms, stability
from accel.bench.calls import ServedModel
from accel.bench.endpoint import Endpoint
from accel.bench.load import Generator, Load, fit_feeds
from accel.bench.served import AGREEING, MOST_WINDOWS, STANDARD, UNKNOWN, Method, VariantLabels, items
from accel.core import environments, temporary
from accel.core.errors import InputError, StageError, UnavailableError, UsageError
from accel.core.feeds import Feed
from accel.core.values import Measurement, ServerSplit, TensorSpec

ENVIRONMENT = environments.PERF_ANALYZER
PARTS = (
    "Client Send",
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
    "Client Recv",
)
"""Columns whose sum is the mean latency, in microseconds."""
WINDOW_SHARE = 1.5
"""Its windows last 1.2 times what they are asked to, and there is a pause between them."""


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """The binary, and the variables of its process."""

    path: Path
    environment: Mapping[str, str]


def resolve() -> PerfAnalyzer:
    """Find perf_analyzer.

    Raises:
        UnavailableError: it is nowhere, or the loader lacks a library that it needs.
    """
    named = os.environ.get("PERF_ANALYZER")
    if named and shutil.which(named) is None:
        raise UnavailableError(f"PERF_ANALYZER is {named}, which is not a program", fix="name the binary, or unset it")
    found = shutil.which(named or "perf_analyzer")
    environment: dict[str, str] = {}
    if found is None:
        if not environments.installed(ENVIRONMENT):
            raise UnavailableError("there is no perf_analyzer on PATH", fix=environments.fix(ENVIRONMENT))
        found = str(environments.python(ENVIRONMENT).parent / "perf_analyzer")
        libraries = environments.libraries_folder(ENVIRONMENT)
        given = os.environ.get("LD_LIBRARY_PATH")
        environment = {"LD_LIBRARY_PATH": f"{libraries}{os.pathsep}{given}" if given else str(libraries)}
    if missing := environments.missing_libraries(Path(found), environment):
        raise UnavailableError(f"{found} needs {missing[0]}, which is not here", fix="install the package that has it")
    return PerfAnalyzer(Path(found), environment)


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
    raw: Path | None = None,
    raw_name: str = "",
    on_point: Callable[[Load, Measurement], None] = lambda load, point: None,
    notice: Callable[[str], None] = lambda text: None,
) -> tuple[Measurement, ...]:
    """Measure a served model at several loads with perf_analyzer; arguments as ``served.sweep``.

    ``raw`` is a ``.csv`` here: perf_analyzer's own rows.

    Raises:
        UnavailableError: perf_analyzer is not here, or nothing answers at the endpoint.
        InputError: the server does not know the model, or the feeds are of several batch sizes.
        SampleError: a feed does not fit the contract.
        StageError: perf_analyzer failed; the message has the end of what it said.
        UsageError: arrivals are recorded ones.
    """
    if any(load.gaps_s for load in loads):
        raise UsageError("perf_analyzer sends no recorded arrivals", fix="leave --load perf_analyzer out")
    program = resolve()
    with Generator(endpoint.grpc, log=log) as generator:
        served = generator.describe(model)
        fitted = fit_feeds(feeds, inputs or served.inputs)
        generator.open(served.model, fitted, shared_memory=method.shared_memory)
    facts = Facts(
        batch=_batch(fitted, served),
        shapes={name: tuple(value.shape) for name, value in fitted[0].items()},
        first_ms=generator.first_ms,
        session=uuid.uuid4().hex[:12],
        raw=raw_name,
        labels=replace(labels, backend=labels.backend or served.backend),
    )
    points: list[Measurement] = []
    rows: list[str] = []
    with tempfile.TemporaryDirectory(prefix="perf-", dir=temporary.root()) as scratch:
        data, out = Path(scratch) / "data.json", Path(scratch) / "out.csv"
        forms.write(data, fitted, batched=served.max_batch_size > 0)
        url = endpoint.http_for(method.protocol) or endpoint.grpc
        command = [str(program.path), "-m", served.model, "-u", url, "-i", method.protocol]
        command += ["-b", str(facts.batch if served.max_batch_size else 1), "--input-data", str(data), "-f", str(out)]
        command += ["-p", str(int(method.seconds * 1000)), "-r", str(MOST_WINDOWS), "--percentile", "50", "-v"]
        if method.shared_memory:
            size = str(generator.largest_output_bytes)
            command += ["--shared-memory", "system", "--output-shared-memory-size", size]
        for load in loads:
            out.unlink(missing_ok=True)
            said = _run([*command, *_load(load)], program, method, log)
            rows.append(out.read_text(encoding="utf-8") if out.exists() else "")
            points.append(read(rows[-1], said, load, facts))
            on_point(load, points[-1])
            if raw is not None:
                raw.parent.mkdir(parents=True, exist_ok=True)
                raw.write_text("".join(rows), encoding="utf-8")
    return tuple(points)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a measurement says that perf_analyzer does not."""

    batch: int
    shapes: Mapping[str, tuple[int, ...]]
    first_ms: float
    session: str
    raw: str
    labels: VariantLabels


def read(row: str, said: str, load: Load, facts: Facts) -> Measurement:
    """Read one point.

    Args:
        row: the CSV that it wrote; empty for an unstable point.
        said: its stdout with ``-v``: the passes (windows), and the server's counters of a stable point.

    Raises:
        StageError: there is neither a row nor a pass.
    """
    passes = re.findall(r"Pass \[\d+\] throughput: ([0-9.e+]+) infer/sec\. p50 latency: (\d+) usec", said)
    if not passes:
        raise StageError(f"perf_analyzer measured nothing at {load}; the end of what it said:\n{_end(said)}")
    table = list(csv.DictReader(io.StringIO(row)))
    if table:
        passes = passes[-AGREEING:]
    rates = [float(rate) for rate, _ in passes]
    medians = [int(median) / 1e3 for _, median in passes]

    def column(name: str) -> float | None:
        return float(table[0][name]) / 1e3 if table else None

    parts = [column(name) for name in PARTS]
    samples = int((re.search(r"Request count: (\d+)", said) or [0, 0])[1])
    return Measurement(
        scenario="sweep",
        via="triton",
        backend=facts.labels.backend or "",
        batch=facts.batch,
        concurrency=load.concurrency or 0,
        threads=facts.labels.threads,
        shapes=facts.shapes,
        p50_ms=column("p50 latency") if table else float(np.median(medians)),
        p90_ms=column("p90 latency"),
        p95_ms=column("p95 latency"),
        p99_ms=column("p99 latency") if samples * 0.01 >= stability.BEYOND else None,
        mean_ms=sum(part or 0.0 for part in parts) if table else float(np.mean(medians)),
        p50_ci_ms=(min(medians), max(medians)),
        throughput_per_s=float(table[0]["Inferences/Second"]) if table else float(np.mean(rates)),
        throughput_ci_per_s=(min(rates), max(rates)),
        stable=bool(table),
        samples=samples,
        raw=facts.raw,
        peak_rss_mib=0.0,
        load_ms=0.0,
        first_ms=facts.first_ms,
        effective_precision=facts.labels.precision,
        rounds_ms=tuple(medians),
        session=facts.session,
        rate_per_s=load.rate_per_s,
        server=_split(said, parts[2:6]) if table else None,
        repository=facts.labels.repository,
    )


def _split(said: str, parts: Sequence[float | None]) -> ServerSplit:
    """Read where the server's time went; of an ensemble the first counters are the ensemble's own."""

    def counted(name: str) -> int:
        found = re.search(rf"{name}: (\d+)", said)
        return int(found[1]) if found else 0

    queue, copied_in, infer, copied_out = (part or 0.0 for part in parts)
    return ServerSplit(
        queue_ms=queue,
        input_ms=copied_in,
        infer_ms=infer,
        output_ms=copied_out,
        requests=counted("Successful request count"),
        inferences=counted("Inference count"),
        executions=counted("Execution count"),
        cache_hits=counted("Cache hit count"),
        cache_misses=counted("Cache miss count"),
    )


def _run(command: Sequence[str], program: PerfAnalyzer, method: Method, log: Path) -> str:
    """Run it and return its stdout; stderr goes to the log, too.

    Raises:
        StageError: it ended with an error other than an unstable point, or did not end.
    """
    limit_s = MOST_WINDOWS * method.seconds * WINDOW_SHARE + method.timeout_s
    try:
        done = subprocess.run(
            command,
            env=os.environ | program.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StageError(f"perf_analyzer did not end within {limit_s:.0f} s", fix="look at the server's log") from error
    with log.open("a", encoding="utf-8") as sink:
        sink.write(f"{shlex.join(command)}\n{done.stdout}\n")
    if done.returncode != 0 and "Failed to obtain stable measurement" not in done.stdout:
        raise StageError(
            f"perf_analyzer ended with exit code {done.returncode}; the end of what it said:\n{_end(done.stdout)}",
            log=str(log),
        )
    return done.stdout


def _load(load: Load) -> list[str]:
    if load.concurrency is not None:
        return ["--concurrency-range", str(load.concurrency)]
    # Its synchronous mode has four threads, and so at most four requests under way: no open loop.
    rate = ["--request-rate-range", f"{load.rate_per_s:g}", "--request-distribution", load.arrivals]
    return [*rate, "--async"]


def _batch(feeds: Sequence[Feed], served: ServedModel) -> int:
    found = {items(feed, served) for feed in feeds}
    if len(found) > 1:
        raise InputError(f"perf_analyzer sends one batch size, the feeds have {sorted(found)}", fix="give --batch")
    return found.pop()


def _end(said: str) -> str:
    return "\n".join(f"    {line}" for line in said.strip().splitlines()[-8:])
