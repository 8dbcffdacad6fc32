"""``accel zoo``: the models known by name, and the check of each for every target."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from accel.cli import complete
from accel.cli.output import Json, Quiet, Verbose, print_json, show, watching
from accel.core.errors import CheckFailed

zoo_app = typer.Typer(help="The models that accel knows by name.")


@zoo_app.callback(invoke_without_command=True)
def zoo(context: typer.Context, as_json: Json = False) -> None:
    """List the models that accel knows by name, or check them."""
    if context.invoked_subcommand is not None:
        return
    from accel.run import doctor

    show(doctor.zoo(), as_json, "models", ("name", "parameters", "licence", "weights", "inputs"))


@zoo_app.command("check")
def zoo_check(
    models: Annotated[
        list[str] | None, typer.Argument(help="Names of the zoo  [default: all]", autocompletion=complete.zoo_names)
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The models as they are, not their reduced forms")] = False,
    targets: Annotated[
        str,
        typer.Option("--targets", "-t", help="Comma-separated, or cpu, gpu, all", autocompletion=complete.targets),
    ] = "cpu",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the runs  [default: runs/zoo-small, runs/zoo]")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run the main job on every model for every target, and show what became of each."""
    from accel.release import zoo_matrix

    folder = out or Path("runs") / ("zoo" if full else "zoo-small")
    with watching(quiet=quiet, verbose=verbose) as progress:
        rows = zoo_matrix.check(models or (), folder=folder, full=full, targets=targets, progress=progress)
    if as_json:
        print_json({"models": rows})
    else:
        _print_matrix(rows, folder)
    if failed := zoo_matrix.failures(rows):
        raise CheckFailed("these cells failed:\n  " + "\n  ".join(failed), fix=f"see the logs below {folder}")


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
