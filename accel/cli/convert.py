"""``accel convert``, whose flags are the fields of a job, and ``accel build``, which finishes what it deferred."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from accel.cli import complete
from accel.cli.options import command_of
from accel.cli.output import Json, Quiet, Verbose, judge, print_run, watching


def convert() -> None:
    """Build, prove, package, measure and choose: the main job."""


def _convert(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML job file; options given here win")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    **given: Any,
) -> None:
    from accel import pipeline
    from accel.run.job import assemble

    job = assemble(given, config, command=shlex.join(["accel", *sys.argv[1:]]))
    with watching(quiet=quiet, verbose=verbose) as progress:
        run = pipeline.convert(job, progress)
    print_run(run, job.run_dir, as_json)
    judge(run, job.required)


OFFERS = {"source": complete.sources, "targets": complete.targets, "require": complete.targets}
JobCommand = command_of("accel.run.job:Job", _convert, offers=OFFERS, own_at=3)
"""``convert``: --config stands beside --targets and --out."""


def build() -> None:
    """Finish a deferred build on the machine that it is for: check, build, prove, package, measure."""


def _build(
    kits_of_a_model: Annotated[
        list[Path],
        typer.Argument(
            help="variants/<id>/kit of a run with a deferred variant; several of one model are measured side by side",
            metavar="KIT...",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run directory  [default: runs/<model>-<target>]")
    ] = None,
    toolchain: Annotated[
        str | None, typer.Option(help="docker:IMAGE builds inside an image made from Dockerfile.gpu")
    ] = None,
    require_signature: Annotated[
        Path | None, typer.Option(help="Public key (PEM): take only a kit that its owner signed")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    **given: Any,
) -> None:
    from accel import pipeline
    from accel.core import signing
    from accel.run import kits

    folders = [path.resolve() for path in kits_of_a_model]
    if require_signature is not None:
        for folder in folders:
            signing.verify(folder, require_signature)
    found = {folder: kits.read(folder) for folder in folders}
    command = shlex.join(["accel", *sys.argv[1:]])
    job = kits.job(found, given, out=out, command=command)
    if toolchain is None:
        with watching(quiet=quiet, verbose=verbose) as progress:
            run = pipeline.finish(found, job, progress)
    else:
        words = ["--threads", str(job.threads), "--timeout", str(job.timeout_s)]
        words += ["--quiet"] if quiet or as_json else []
        run = kits.in_docker(kits.image_of(toolchain), folders, job.run_dir, words)
    print_run(run, job.run_dir, as_json)
    judge(run, ())


BuildCommand = command_of("accel.run.job:Job", _build, only=("sandbox", "threads", "timeout"))
