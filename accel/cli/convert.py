"""``accel convert``, whose flags are the fields of a job, and ``accel build``, which finishes what it deferred."""

import shlex
import sys
from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from accel.cli import complete
from accel.cli.output import Json, Quiet, Verbose, judge, print_run, watching

COMPLETE = {"source": complete.sources, "targets": complete.targets, "require": complete.targets}
SHORT = {"targets": ("-t",), "out": ("-o",)}


class JobCommand(TyperCommand):
    """``convert``, whose flags are made of ``Job`` when it is called: ``accel --help`` imports no pydantic."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Make the context of the command that has the flags."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(help=self.help)(_with_flags(_convert))
        return typer.main.get_command(app).make_context(info_name, args, parent, **extra)


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

    typed = {name: value for name, value in given.items() if value is not None}
    job = assemble(typed, config, command=shlex.join(["accel", *sys.argv[1:]]))
    with watching(quiet=quiet, verbose=verbose) as progress:
        run = pipeline.convert(job, progress)
    print_run(run, job.run_dir, as_json)
    judge(run, job.required)


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of ``Job`` that has a description, before its own."""
    from accel.run.job import Job, OptionTrait

    params = []
    for name, field in Job.model_fields.items():
        if field.description is None:
            continue
        key, text = field.alias or name, field.description
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            text += f"  [default: {field.default:g}]"
        arms = (field.annotation, *get_args(field.annotation))
        plain = [getattr(arm, "__origin__", arm) for arm in arms]  # ``float`` of ``Annotated[float, Field(gt=0)]``
        kind: Any = next((kind for kind in (bool, int, float, Path) if kind in plain), str)
        kind = (
            list[str]
            if OptionTrait.REPEATED in field.metadata
            else bool
            if OptionTrait.SWITCH in field.metadata
            else kind
        )
        choices = [word for arm in arms if get_origin(arm) is Literal for word in get_args(arm)]
        offers = COMPLETE.get(key) or (complete.words(*choices) if choices else None)
        option = (
            typer.Argument(help=text, autocompletion=offers)
            if key == "source"
            else typer.Option(f"--{key.replace('_', '-')}", *SHORT.get(key, ()), help=text, autocompletion=offers)
        )
        params.append(Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]))
    own = list(Signature.from_callable(command, eval_str=True).parameters.values())[:-1]
    config, *others = (p.replace(kind=Parameter.KEYWORD_ONLY) for p in own)
    params = [*params[:3], config, *params[3:], *others]  # it stands beside --targets and --out

    def with_flags(**given: Any) -> None:
        command(**given)

    with_flags.__signature__ = Signature(params)  # type: ignore[attr-defined]
    return with_flags


def build(
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
    sandbox: Annotated[
        bool,
        typer.Option("--sandbox", help="Run it without network, able to write to its output only (needs bubblewrap)"),
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads  [default: what this cgroup has]", min=1)] = None,
    timeout: Annotated[float | None, typer.Option(help="Limit per build and measurement, s", min=1)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Finish a deferred build on the machine that it is for: check, build, prove, package, measure."""
    from accel import pipeline
    from accel.core import signing
    from accel.run import kits

    folders = [path.resolve() for path in kits_of_a_model]
    if require_signature is not None:
        for folder in folders:
            signing.verify(folder, require_signature)
    found = {folder: kits.read(folder) for folder in folders}
    command = shlex.join(["accel", *sys.argv[1:]])
    job = kits.job(found, out=out, threads=threads, timeout_s=timeout, command=command, sandbox=sandbox)
    if toolchain is None:
        with watching(quiet=quiet, verbose=verbose) as progress:
            run = pipeline.finish(found, job, progress)
    else:
        words = ["--threads", str(job.threads), "--timeout", str(job.timeout_s)]
        words += ["--quiet"] if quiet or as_json else []
        run = kits.in_docker(kits.image_of(toolchain), folders, job.run_dir, words)
    print_run(run, job.run_dir, as_json)
    judge(run, ())
