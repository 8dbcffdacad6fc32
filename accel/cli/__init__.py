"""The command line: parse, call one function, print.

Nothing heavy is imported here: each command imports what it calls. Results go to stdout, everything else to stderr;
``--json`` makes stdout one JSON document.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from accel.core.errors import AccelError, CheckFailed, InputError, UnavailableError, UsageError
from accel.core.files import write_text

app = typer.Typer(
    name="accel",
    help="Turn a trained model into the fastest variant that can be proved right here, packaged for Triton.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich's Markdown for its boxes takes longer than all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)
env_app = typer.Typer(help="Environments for packages that cannot share one with the rest.", no_args_is_help=True)
app.add_typer(env_app, name="env")
zoo_app = typer.Typer(help="The models that accel knows by name.")
app.add_typer(zoo_app, name="zoo")

INTERRUPTED = 130
"""What typer makes of Ctrl-C."""

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, all else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what each variant is doing.")]
Strings = list[str] | None


def main() -> None:
    """Run the command line and leave with the documented exit code."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            _complain("interrupted; nothing half-written is left, the same command goes on from here")
        sys.exit(code if isinstance(code, int) else 0)
    except AccelError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except Exception as error:
        shown = getattr(error, "format_message", None)  # click's own usage errors
        if shown is None:
            raise
        context = getattr(error, "ctx", None)
        _complain(f"{shown()}\n  fix: {context.command_path if context else 'accel'} --help lists the options")
        sys.exit(2)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"accel {installed('accel')}")
        raise typer.Exit


@app.command()
def convert(
    source: Annotated[
        str | None,
        typer.Argument(help="Zoo name, HF folder or hub id, file.py:factory, .pt2, .onnx, SavedModel, .keras, .pb"),
    ] = None,
    targets: Annotated[str | None, typer.Option("--targets", "-t", help="Comma-separated, or cpu, gpu, all")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run directory  [default: runs/<model>]")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML job file; options given here win")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device: cpu or cuda")] = None,
    weights: Annotated[str | None, typer.Option(help="auto, pretrained or random")] = None,
    task: Annotated[str | None, typer.Option(help="Hugging Face task or class, over the one in the config")] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a hub id")] = None,
    signature: Annotated[
        str | None, typer.Option(help="Signature of a SavedModel  [default: serving_default, or the only one]")
    ] = None,
    input_tensors: Annotated[
        Strings, typer.Option(help="x:0,…  of a frozen graph  [default: its placeholders]")
    ] = None,
    output_tensors: Annotated[Strings, typer.Option(help="y:0,…  of a frozen graph  [default: its only end]")] = None,
    inputs_as_nchw: Annotated[
        Strings, typer.Option(help="Inputs of a TensorFlow model that clients give with channels first")
    ] = None,
    samples: Annotated[
        str | None, typer.Option(help=".npz, .jsonl or file.py:generator for calibration and gate")
    ] = None,
    random_samples: Annotated[
        bool | None, typer.Option("--random-samples", help="Accept random values as samples")
    ] = None,
    range: Annotated[Strings, typer.Option(help="NAME=LO:HI of an integer input")] = None,
    min_shape: Annotated[Strings, typer.Option(help="input_ids:1x1,…")] = None,
    shape: Annotated[Strings, typer.Option(help="input_ids:1x128,…  the typical (opt) shape")] = None,
    max_shape: Annotated[Strings, typer.Option(help="input_ids:16x512,…")] = None,
    ints: Annotated[str | None, typer.Option(help="INT64 → INT32: keep, io or interior  [default: io or keep]")] = None,
    allow_unproved_int64: Annotated[
        bool | None, typer.Option("--allow-unproved-int64", help="Let OpenVINO wrap what is not proved to fit int32")
    ] = None,
    static: Annotated[bool | None, typer.Option("--static", help="Also build for the one typical shape")] = None,
    model_name: Annotated[str | None, typer.Option(help="Name on the server")] = None,
    model_version: Annotated[int | None, typer.Option(help="Version folder on the server")] = None,
    objective: Annotated[
        str | None, typer.Option(help="latency or throughput  [default: one decision for each]")
    ] = None,
    max_p99_ms: Annotated[float | None, typer.Option(help="Constraint on the p99's upper bound")] = None,
    min_throughput: Annotated[float | None, typer.Option(help="Constraint, items per second")] = None,
    max_memory_mib: Annotated[float | None, typer.Option(help="Constraint on peak memory")] = None,
    gate: Annotated[Strings, typer.Option(help="NAME=VALUE: int8=25 (dB), sqnr_db=40, or a task metric")] = None,
    require: Annotated[Strings, typer.Option(help="Target that must end ok")] = None,
    timeout: Annotated[float | None, typer.Option(help="Limit per build and measurement, s")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads  [default: what this cgroup has]")] = None,
    triton_release: Annotated[
        str | None, typer.Option(help="Release that repositories are for  [default: newest]")
    ] = None,
    triton_config: Annotated[
        Path | None, typer.Option(help=".pbtxt with fields that override those of every emitted config")
    ] = None,
    ensemble: Annotated[
        bool | None, typer.Option("--ensemble", help="Also serve text or pictures in, answers out")
    ] = None,
    bench: Annotated[
        str | None, typer.Option(help="Measure inprocess, as triton serves it, or both  [default: inprocess]")
    ] = None,
    via: Annotated[
        str | None, typer.Option(help="Server to measure on: embedded, local or docker  [default: what is here]")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Interleaved rounds of the latency scenario  [default: 8]")] = None,
    round_s: Annotated[float | None, typer.Option(help="Least seconds of each round  [default: 0.5]")] = None,
    opset: Annotated[int | None, typer.Option(help="ONNX opset  [default: 18]")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Build, prove, package, measure and choose: the main job."""
    given = {k: v for k, v in locals().items() if k not in ("config", "as_json", "quiet", "verbose") and v is not None}
    from accel import pipeline
    from accel.run import options

    job = options.assemble(given, config, command=shlex.join(["accel", *sys.argv[1:]]))
    with _progress(quiet=quiet, verbose=verbose) as progress:
        run = pipeline.convert(job, progress)
    if as_json:
        _print_json(run)
    else:
        _print_run(run, job.run_dir)
    _judge(run, job.required)


@app.command("targets")
def list_targets(as_json: Json = False) -> None:
    """List what can be built, and what cannot be built here and why."""
    from accel.run import doctor

    rows = doctor.targets_here()
    if as_json:
        _print_json({"targets": rows})
        return
    _show([row for row in rows if row["available"]], False, "targets", ("target", "device", "about"))
    for reason, fix in dict.fromkeys((row["reason"], row["fix"]) for row in rows if not row["available"]):
        names = ", ".join(f"{row['target']}@{row['device']}" for row in rows if row["reason"] == reason)
        typer.echo(f"\nnot here: {reason}\n  {names}\n  fix: {fix}")


@zoo_app.callback(invoke_without_command=True)
def zoo(context: typer.Context, as_json: Json = False) -> None:
    """List the models that accel knows by name, or check them."""
    if context.invoked_subcommand is not None:
        return
    from accel.run import doctor

    _show(doctor.zoo(), as_json, "models", ("name", "parameters", "licence", "weights", "inputs"))


@zoo_app.command("check")
def zoo_check(
    models: Annotated[list[str] | None, typer.Argument(help="Names of the zoo  [default: all]")] = None,
    full: Annotated[bool, typer.Option("--full", help="The models as they are, not their reduced forms")] = False,
    targets: Annotated[str, typer.Option("--targets", "-t", help="Comma-separated, or cpu, gpu, all")] = "cpu",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the runs  [default: runs/zoo-small, runs/zoo]")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run the main job on every model for every target, and show what became of each."""
    from accel.release import zoo_matrix

    asked = zoo_matrix.Asked(tuple(models or ()), full=full, targets=targets, out=out)
    with _progress(quiet=quiet, verbose=verbose) as progress:
        rows = zoo_matrix.check(asked, progress)
    if as_json:
        _print_json({"models": rows})
    else:
        _print_matrix(rows, asked.folder)
    if failed := zoo_matrix.failures(rows):
        raise CheckFailed("these cells failed:\n  " + "\n  ".join(failed), fix=f"see the logs below {asked.folder}")


@app.command("doctor")
def check_machine(as_json: Json = False) -> None:
    """Say what is here, what is missing, and the command that brings it."""
    from accel.run import doctor

    rows = doctor.examine()
    _show(rows, as_json, "checks", ("what", "found", "fix"))
    if any(row["needed"] and not row["ok"] for row in rows):
        raise UnavailableError("something that every run needs is missing", fix="see the table above")


def _environments() -> Any:
    """Return the module of environments, which knows those of builders once these are imported."""
    from accel.builders import targets
    from accel.core import environments

    targets.discover()
    return environments


@env_app.command("list")
def env_list(as_json: Json = False) -> None:
    """List the environments."""
    environments = _environments()

    rows = [
        {
            "name": e.name,
            "installed": environments.installed(e.name),
            "packages": " ".join(e.requirements),
            "why": e.why,
        }
        for e in environments.ENVIRONMENTS.values()
    ]
    _show(rows, as_json, "environments", ("name", "installed", "packages", "why"))


@env_app.command("install")
def env_install(name: str, quiet: Quiet = False) -> None:
    """Make an environment and install its packages."""
    environments = _environments()

    environments.install(name, report=(lambda _: None) if quiet else (lambda line: typer.echo(line, err=True)))


@env_app.command("remove")
def env_remove(name: str) -> None:
    """Delete an environment."""
    environments = _environments()

    typer.echo(f"{name} removed" if environments.remove(name) else f"{name} is not installed", err=True)


@app.command()
def inspect(file: Path, as_json: Json = False) -> None:
    """Show inputs, outputs, operators and precision of an ONNX file, an IR or a run."""
    from accel.run import inspection

    found = inspection.inspect(file)
    if as_json:
        _print_json(found)
    else:
        _print_tree(found)


@app.command()
def narrow(
    source: Annotated[Path, typer.Argument(help="ONNX file")],
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write")],
    range: Annotated[Strings, typer.Option(help="NAME=LO:HI of an integer input")] = None,
    min_shape: Annotated[Strings, typer.Option(help="input_ids:1x1,…")] = None,
    max_shape: Annotated[Strings, typer.Option(help="input_ids:16x512,…")] = None,
    level: Annotated[str, typer.Option(help="keep, io or interior")] = "io",
    runtime: Annotated[str, typer.Option(help="Whose kernels limit the interior: ort, openvino or tensorrt")] = "ort",
    report: Annotated[Path | None, typer.Option(help="Also write the report as JSON")] = None,
    as_json: Json = False,
) -> None:
    """Make INT64 values INT32 where they are proved to fit, and say why the others stay."""
    from accel.builders.narrow import narrow_file
    from accel.core.values import to_json
    from accel.run import options

    asked = options.narrowing(range or [], min_shape or [], max_shape or [], level)
    found = narrow_file(source, out, **asked, runtime=runtime)
    document = to_json(found)
    if report is not None:
        write_text(report, json.dumps(document, indent=1) + "\n")
    if as_json:
        _print_json(document)
        return
    rows = [{**v, "interval": "{}..{}".format(*v["interval"]) if v["interval"] else ""} for v in document["values"]]
    _show(rows, False, "values", ("name", "role", "decision", "interval", "reason"))
    for given in found.inputs:
        typer.echo(f"assumes {given.name} in [{given.lo}, {given.hi}]: {given.reason}")
    typer.echo(f"{out}: {found.count('narrowed')} narrowed, {found.count('kept')} kept, {found.casts} casts added")


@app.command("build")
def finish(
    kit: Annotated[Path, typer.Argument(help="variants/<id>/kit of a run with a deferred variant")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run directory  [default: runs/<model>-<target>]")
    ] = None,
    toolchain: Annotated[
        str | None, typer.Option(help="docker:IMAGE builds inside an image made from Dockerfile.gpu")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads  [default: what this cgroup has]", min=1)] = None,
    timeout: Annotated[float | None, typer.Option(help="Limit per build and measurement, s", min=1)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Finish a deferred build on the machine that it is for: check, build, prove, package, measure."""
    from accel import pipeline
    from accel.core import hardware
    from accel.run import kits

    command = shlex.join(["accel", *sys.argv[1:]])
    cores = threads or hardware.cpu_threads()
    folder = kit.resolve()
    found = kits.read(folder)
    job = pipeline.kit_job(found, folder, run_dir=out, threads=cores, timeout_s=timeout, command=command)
    if toolchain is None:
        with _progress(quiet=quiet, verbose=verbose) as progress:
            run = pipeline.finish(found, folder, job, progress)
    else:
        words = ["--threads", str(cores), "--timeout", str(job.timeout_s), *(["--quiet"] if quiet or as_json else [])]
        run = kits.in_docker(kits.image_of(toolchain), folder, job.run_dir, words)
    if as_json:
        _print_json(run)
    else:
        _print_run(run, job.run_dir)
    _judge(run, ())


@app.command()
def verify(
    repository: Path,
    serve: Annotated[bool, typer.Option("--serve", help="Also serve it, and check the answers")] = False,
    via: Annotated[
        str | None, typer.Option(help="embedded, local, docker or grpc://HOST:PORT  [default: as for serve]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every hash and the manifest of a Triton repository that accel wrote; with --serve its answers, too."""
    from accel.core.values import to_json
    from accel.triton.verify import verify as check

    if not repository.is_dir():
        raise InputError(f"{repository} is no folder", fix="name a repository root, such as runs/bert/best/cpu")
    if via is not None and not serve:
        raise UsageError("--via names a server, and nothing is to be served", fix="add --serve")
    findings = check(repository)
    document: dict[str, Any] = {}
    if serve and not any(f.severity == "error" for f in findings):
        from accel.triton.servers import answers

        found = answers.verify_served(repository, via=via)
        findings += found.findings
        document = {"served": {k: v for k, v in to_json(found).items() if k != "findings"}}
        if not as_json:
            _print_served(found)
    errors = [f for f in findings if f.severity == "error"]
    if as_json:
        _print_json({"findings": [to_json(f) for f in findings], **document})
    else:
        _show([to_json(f) for f in findings], False, "findings", ("severity", "file", "field", "why", "fix"))
    if errors:
        raise CheckFailed(f"{repository} has {len(errors)} errors", fix="emit it again: accel convert")
    if not as_json:
        served = ", and its answers are those of the manifest" if serve else ""
        typer.echo(f"{repository} is as it was emitted{served}", err=True)


@app.command("serve")
def run_server(
    repository: Path,
    via: Annotated[
        str | None, typer.Option(help="embedded, local or docker  [default: local where there is one, else embedded]")
    ] = None,
    http_port: Annotated[int | None, typer.Option(help="[default: a free one]")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="[default: a free one]")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="[default: a free one]")] = None,
    triton_release: Annotated[str | None, typer.Option(help="Release of the docker image")] = None,
    backend: Annotated[str | None, typer.Option(help="python: serve the Python-backend twin")] = None,
    cache_mib: Annotated[int, typer.Option(min=0, help="Size of the response cache")] = 0,
    log: Annotated[Path | None, typer.Option(help="File for what the server prints")] = None,
    as_json: Json = False,
) -> None:
    """Serve a repository with a real Triton server, on this machine only, until Ctrl-C."""
    import shutil

    from accel.triton import manifest
    from accel.triton.servers import server

    if backend not in (None, "python"):
        raise UsageError(f"--backend {backend}: expected python", fix="leave it out for the backend of the repository")
    if via is not None and ":" in via:
        raise UsageError(f"--via {via} is a server that runs already", fix="accel verify --serve --via takes it")
    fresh = server.fresh_log()  # stays where the server fails
    with server.start(
        repository,
        via=via,
        log=log or fresh,
        release=triton_release,
        python_backend=backend == "python",
        cache_bytes=cache_mib << 20,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
    ) as running:
        native = manifest.read(repository).backend if running.twins else ""
        _print_server(running, native, as_json)
        server.wait(running)
    shutil.rmtree(fresh.parent, ignore_errors=True)


@app.command()
def lint(
    repository: Path,
    triton_release: Annotated[str | None, typer.Option(help="Release to hold it against  [default: newest]")] = None,
    as_json: Json = False,
) -> None:
    """Find what a Triton release rejects, ignores or overwrites in a model repository, offline."""
    from accel.core.values import to_json
    from accel.triton.lint import lint as check
    from accel.triton.releases import NEWEST

    release = triton_release or NEWEST
    findings = check(repository, release)
    errors = [f for f in findings if f.severity == "error"]
    _show([to_json(f) for f in findings], as_json, "findings", ("severity", "file", "field", "why", "fix"))
    if errors:
        raise CheckFailed(f"{repository} has {len(errors)} errors for Triton {release}", fix="see the fix of each")
    if not as_json:
        typer.echo(f"{repository}: nothing that Triton {release} rejects", err=True)


@app.command()
def bench(
    target: Annotated[str, typer.Argument(help="Repository, or HOST:PORT of a running server's gRPC")],
    model: Annotated[str, typer.Option(help="Name on the server  [default: the one clients call]")] = "",
    concurrency: Annotated[
        str | None, typer.Option(help="Closed loop: N, 1:16 (powers of two) or START:END:STEP  [default: 1:16]")
    ] = None,
    request_rate: Annotated[str | None, typer.Option(help="Open loop, per second: RATE or START:END:STEP")] = None,
    arrivals: Annotated[str, typer.Option(help="Gaps of an open loop: constant or poisson")] = "constant",
    table: Annotated[
        bool, typer.Option("--table", help="Without and with dynamic batching, 1 and 2 instances, concurrency 10")
    ] = False,
    batch: Annotated[int | None, typer.Option(help="Items of each request  [default: 1]")] = None,
    data: Annotated[Path | None, typer.Option(help="perf_analyzer's .json, or .npz  [default: stored samples]")] = None,
    mixed_lengths: Annotated[bool, typer.Option("--mixed-lengths", help="Send all stored shapes")] = False,
    shared_memory: Annotated[bool, typer.Option("--shared-memory", help="Tensors in system shared memory")] = False,
    load: Annotated[str, typer.Option(help="Who generates it: accel or perf_analyzer")] = "accel",
    processes: Annotated[int, typer.Option(help="Processes that send", min=1)] = 1,
    via: Annotated[str | None, typer.Option(help="Server: embedded, local or docker")] = None,
    seconds: Annotated[float, typer.Option(help="Length of a window", min=0.05)] = 2.0,
    seed: Annotated[int, typer.Option(help="Decides the order of samples and Poisson gaps")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help=".json for figures; raw samples beside it")] = None,
    as_json: Json = False,
) -> None:
    """Put load on a real Triton server and measure what it does."""
    from accel.bench.served import Method
    from accel.run import load_test

    asked = load_test.Asked(
        target,
        load_test.loads(concurrency, request_rate, arrivals),
        model=model,
        batch=batch,
        data=data,
        mixed=mixed_lengths,
        tool=load_test.tool(load),
        via=via,
        method=Method(seconds=seconds, processes=processes, shared_memory=shared_memory, seed=seed),
        out=out,
    )

    def show(document: dict[str, Any]) -> None:
        rows = [load_test.row(point) for point in document["measurements"]]
        if as_json:
            _print_json(document)
        else:
            _show(rows, False, "measurements", tuple(rows[0]), width=None if sys.stdout.isatty() else 120)

    (load_test.classic if table else load_test.bench)(asked, show, _note)


@app.command("report")
def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Run directories or run.json files")],
    out: Annotated[Path, typer.Option("--out", "-o", help=".html or .md")] = Path("comparison.html"),
) -> None:
    """Merge several runs into one comparison per hardware target."""
    from accel import report

    typer.echo(report.write_comparison(runs, out))


# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def _progress(*, quiet: bool, verbose: bool) -> Iterator[Any]:
    from accel.core.progress import Progress

    if quiet:
        yield Progress()
        return
    from rich.console import Console

    from accel.cli.live import LiveProgress, PlainProgress

    console = Console(stderr=True)
    shown = LiveProgress(console) if console.is_terminal and not verbose else PlainProgress(console, every=verbose)
    with shown:
        yield shown


def _print_run(run: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    from accel import report

    console = Console()
    console.print(report.terminal_table(run))
    console.print(f"report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def _print_matrix(rows: list[dict[str, Any]], folder: Path) -> None:
    from rich.console import Console

    from accel.release import zoo_matrix

    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(zoo_matrix.table(rows))
    for status, variants, models, reason in zoo_matrix.remarks(rows):
        console.print(
            f"{zoo_matrix.WORDS[status]} {variants}: {', '.join(models)}: {reason}", markup=False, highlight=False
        )
    console.print(f"figures: {folder / 'zoo.json'}, matrix: {folder / 'zoo.md'}", highlight=False, soft_wrap=True)


def _print_server(running: Any, native: str, as_json: bool) -> None:
    """Print where a server answers, as one line of JSON or for people."""
    from accel.core.values import to_json
    from accel.triton.reading import read_configs

    endpoint, twins, models = running.endpoint, sorted(running.twins), sorted(read_configs(running.root))
    if as_json:
        typer.echo(json.dumps({**to_json(endpoint), "models": models, "twins": twins, "log": str(running.log)}))
        return
    typer.echo(f"gRPC     {endpoint.grpc}\nHTTP     {endpoint.http}\nmetrics  http://{endpoint.metrics}/metrics")
    typer.echo(f"models   {', '.join(models)}")
    for model in twins:
        typer.echo(f"{model}: served by the Python-backend twin of {native}")
    for notice in running.notices:
        typer.echo(f"notice: {notice}", err=True)
    typer.echo(f"Triton {endpoint.release} ({endpoint.via}); log: {running.log}; Ctrl-C stops it", err=True)


def _print_served(found: Any) -> None:
    """Print the answers of a served repository, each beside what the gate found in process."""
    how = f"Triton {found.endpoint.release} ({found.endpoint.via})"
    typer.echo("; ".join([how, *(f"{t} by the Python-backend twin of {found.native}" for t in found.twins)]))
    columns = ("point", "output", "served dB", "in process dB", "least dB", "ok")
    figures = [(a.served_db, a.inprocess_db, a.least_db) for a in found.answers]
    rows = [
        dict(zip(columns, (a.point, a.output, *map(_decibels, three), not a.problem), strict=True))
        for a, three in zip(found.answers, figures, strict=True)
    ]
    _show(rows, False, "answers", columns)


def _decibels(value: float | None) -> str:
    return "exact" if value is None else f"{value:.1f}"


def _judge(written: dict[str, Any], required: tuple[str, ...]) -> None:
    """Leave with the exit code that the outcomes ask for."""
    from accel.core import document

    run = document.parse(written)
    for text in required:
        named = [v for v in run.variants if text in (v.id, v.target, f"{v.target}@{v.device}")]
        if not named:
            raise CheckFailed(f"required variant {text} is not in this run", fix="--static asks for static twins")
        for v in named:
            if v.status != "ok":
                raise CheckFailed(f"required variant {v.id} is {v.status}: {v.reason}", fix=v.fix)
    statuses = {v.status for v in run.variants}
    if statuses <= {"skipped", "deferred"}:
        first = run.variants[0]
        raise UnavailableError(f"nothing could be built here: {first.id}: {first.reason}", fix=first.fix)
    if "ok" not in statuses:
        raise CheckFailed("no variant passed", fix="the report says why for each: report.html in the run directory")


def _show(
    rows: list[dict[str, Any]], as_json: bool, name: str, columns: tuple[str, ...], *, width: int | None = None
) -> None:
    if as_json:
        _print_json({name: rows})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    if rows:
        Console(width=width).print(table)


def _cell(value: Any) -> str:
    return {True: "yes", False: "no", None: ""}.get(value, str(value)) if isinstance(value, bool | None) else str(value)


def _print_tree(value: Any, indent: int = 0) -> None:
    for key, item in value.items():
        if isinstance(item, dict):
            typer.echo(f"{'  ' * indent}{key}:")
            _print_tree(item, indent + 1)
        elif isinstance(item, list):
            typer.echo(f"{'  ' * indent}{key}:")
            for entry in item:
                typer.echo(f"{'  ' * (indent + 1)}- {json.dumps(entry) if isinstance(entry, dict | list) else entry}")
        else:
            typer.echo(f"{'  ' * indent}{key}: {item}")


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def _note(text: str) -> None:
    typer.echo(f"accel: {text}", err=True)


def _complain(message: str) -> None:
    typer.echo(f"accel: error: {message}", err=True)
