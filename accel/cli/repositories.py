"""Triton repositories: ``accel verify``, ``lint``, ``serve`` and ``bench``."""

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from accel.cli import complete
from accel.cli.options import command_of
from accel.cli.output import Json, note, print_json, show
from accel.core.errors import CheckFailed, InputError, UsageError

Repository = Annotated[Path, typer.Argument(autocompletion=complete.repositories)]
AllowChanged = Annotated[
    bool, typer.Option("--allow-changed", help="Run the launch.sh of a folder that differs from its manifest")
]

BackendDirectory = Annotated[
    Path | None, typer.Option(help="Backends beside the server's own, such as a compiled onnxruntime backend")
]


def verify(
    repository: Repository,
    serve: Annotated[bool, typer.Option("--serve", help="Also serve it, and check the answers")] = False,
    accept_configs: Annotated[
        bool,
        typer.Option("--accept-configs", help="List new configs/*.pbtxt in the manifest, if they fit the contract"),
    ] = False,
    via: Annotated[
        str | None, typer.Option(help="embedded, local, docker or grpc://HOST:PORT  [default: as for serve]")
    ] = None,
    backend_directory: BackendDirectory = None,
    as_json: Json = False,
) -> None:
    """Check every hash and the manifest of a Triton repository that accel wrote; with --serve its answers, too."""
    from accel.triton import verify as checks

    if not repository.is_dir():
        raise InputError(f"{repository} is not a folder", fix="name a repository root, such as runs/bert/best/cpu")
    if via is not None and not serve:
        raise UsageError("--via names a server, and nothing is to be served", fix="add --serve")
    if backend_directory is not None and (not serve or ":" in (via or "")):
        raise UsageError("--backend-directory is for a server that is started here", fix="add --serve, without a URL")
    for name in checks.accept_configs(repository) if accept_configs else ():
        note(f"{name} is listed in the manifest now")
    findings = checks.verify(repository)
    document: dict[str, Any] = {}
    if serve and not any(f.severity == "error" for f in findings):
        from accel.triton.servers import answers

        found = answers.verify_served(repository, via=via, backend_directory=backend_directory)
        findings += found.findings
        document = {"served": {n: getattr(found, n) for n in ("endpoint", "native", "twins", "answers")}}
        if not as_json:
            _print_served(found)
    errors = [f for f in findings if f.severity == "error"]
    if as_json:
        print_json({"findings": findings, **document})
    else:
        show(findings, False, "findings", ("severity", "file", "field", "why", "fix"))
    if errors:
        raise CheckFailed(f"{repository} has {len(errors)} errors", fix="emit it again: accel convert")
    if not as_json:
        served = ", and its answers are those of the manifest" if serve else ""
        typer.echo(f"{repository} is as it was emitted{served}", err=True)


def run_server(
    repository: Repository,
    via: Annotated[
        str | None, typer.Option(help="embedded, local or docker  [default: local where there is one, else embedded]")
    ] = None,
    http_port: Annotated[int | None, typer.Option(help="[default: a free one]")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="[default: a free one]")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="[default: a free one]")] = None,
    triton_release: Annotated[str | None, typer.Option(help="Release of the docker image")] = None,
    backend: Annotated[str | None, typer.Option(help="python: serve the Python-backend variant")] = None,
    backend_directory: BackendDirectory = None,
    cache_mib: Annotated[int, typer.Option(min=0, help="Size of the response cache")] = 0,
    allow_changed: AllowChanged = False,
    log: Annotated[Path | None, typer.Option(help="File for what the server prints")] = None,
    as_json: Json = False,
) -> None:
    """Serve a repository with a real Triton server, on this machine only, until Ctrl-C."""
    from accel.core.values import PYTHON_BACKEND
    from accel.triton import manifest
    from accel.triton.servers import server

    if backend not in (None, PYTHON_BACKEND):
        raise UsageError(f"--backend {backend}: expected python", fix="leave it out for the backend of the repository")
    if via is not None and ":" in via:
        raise UsageError(f"--via {via} is a server that runs already", fix="accel verify --serve --via takes it")
    started = server.start(
        repository,
        via=via,
        log=log or server.fresh_log(),
        release=triton_release,
        python_backend=backend == PYTHON_BACKEND,
        cache_bytes=cache_mib << 20,
        allow_changed=allow_changed,
        backend_directory=backend_directory,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
    )
    with started as running, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, from the first line on
        native = manifest.read(repository).backend if running.python_models else ""
        server.wait(running, lambda: _print_server(running, native, as_json))


def lint(
    repository: Repository,
    triton_release: Annotated[str | None, typer.Option(help="Release to hold it against  [default: newest]")] = None,
    as_json: Json = False,
) -> None:
    """Find what a Triton release rejects, ignores or overwrites in a model repository, offline."""
    from accel.triton.lint import lint as check
    from accel.triton.releases import NEWEST

    release = triton_release or NEWEST
    findings = check(repository, release)
    errors = [f for f in findings if f.severity == "error"]
    show(findings, as_json, "findings", ("severity", "file", "field", "why", "fix"))
    if errors:
        raise CheckFailed(f"{repository} has {len(errors)} errors for Triton {release}", fix="see the fix of each")
    if not as_json:
        typer.echo(f"{repository}: nothing that Triton {release} rejects", err=True)


def bench() -> None:
    """Put load on a real Triton server and measure what it does."""


def _bench(as_json: Json = False, **given: Any) -> None:
    from accel.run import load_test

    asked = load_test.LoadTestRequest.typed(given)

    def report(document: dict[str, Any]) -> None:
        rows = [load_test.row(point) for point in document["measurements"]]
        if as_json:
            print_json(document)
        else:
            if document["protocol"] != "grpc":
                note(f"over {document['protocol'].upper()}")
            show(rows, False, "measurements", tuple(rows[0]), width=None if sys.stdout.isatty() else 120)

    (load_test.batching_sweep if asked.table else load_test.bench)(asked, report, note)


BenchCommand = command_of("accel.run.load_test:LoadTestRequest", _bench, offers={"target": complete.repositories})


def _print_server(running: Any, native: str, as_json: bool) -> None:
    """Print where a server answers, as one line of JSON or for people."""
    from accel.triton.reading import read_configs

    endpoint, python, models = running.endpoint, sorted(running.python_models), sorted(read_configs(running.root))
    if as_json:
        typer.echo(json.dumps({**asdict(endpoint), "models": models, "twins": python, "log": str(running.log)}))
        return
    for notice in running.notices:  # before the lines that a caller may wait for and then stop it
        typer.echo(f"notice: {notice}", err=True)
    typer.echo(f"gRPC     {endpoint.grpc}\nHTTP     {endpoint.http}\nmetrics  http://{endpoint.metrics}/metrics")
    typer.echo(f"models   {', '.join(models)}")
    for model in python:
        typer.echo(f"{model}: served by the Python-backend variant of {native}")
    typer.echo(f"Triton {endpoint.release} ({endpoint.via}); log: {running.log}; Ctrl-C stops it", err=True)


def _print_served(found: Any) -> None:
    """Print the answers of a served repository, each beside what the gate found in process."""
    how = f"Triton {found.endpoint.release} ({found.endpoint.via})"
    typer.echo("; ".join([how, *(f"{t} by the Python-backend variant of {found.native}" for t in found.twins)]))
    columns = ("point", "output", "served dB", "in process dB", "least dB", "ok")
    rows = []
    for a in found.answers:
        figures = ("exact" if db is None else f"{db:.1f}" for db in (a.served_db, a.inprocess_db, a.least_db))
        rows.append(dict(zip(columns, (a.point, a.output, *figures, not a.problem), strict=True)))
    show(rows, False, "answers", columns)
