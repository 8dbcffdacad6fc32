"""The command line: parse, call one function, print. One file a group of commands.

Nothing heavy is imported here: each command imports what it calls. Results go to stdout, everything else to stderr;
``--json`` makes stdout one JSON document.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from accel.cli import convert, machine, models, repositories, zoo
from accel.core.errors import AccelError

app = typer.Typer(
    name="accel",
    help="Turn a trained model into the fastest variant that can be proved right here, packaged for Triton.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich's Markdown for its boxes takes longer than all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)
INTERRUPTED = 130
"""What typer makes of Ctrl-C."""


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


def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Run directories or run.json files")],
    out: Annotated[Path, typer.Option("--out", "-o", help=".html or .md")] = Path("comparison.html"),
) -> None:
    """Merge several runs into one comparison per hardware target."""
    from accel import report

    typer.echo(report.write_comparison(runs, out))


app.command("convert", cls=convert.JobCommand)(convert.convert)
app.command("targets")(machine.list_targets)
app.command("doctor")(machine.check_machine)
app.command("inspect")(models.inspect)
app.command("narrow")(models.narrow)
app.command("build")(convert.build)
app.command("verify")(repositories.verify)
app.command("serve")(repositories.run_server)
app.command("lint")(repositories.lint)
app.command("bench")(repositories.bench)
app.command("report")(compare_runs)
env_app = typer.Typer(help="Environments for packages that cannot share one with the rest.", no_args_is_help=True)
env_app.command("list")(machine.env_list)
env_app.command("install")(machine.env_install)
env_app.command("remove")(machine.env_remove)
app.add_typer(env_app, name="env")
zoo_app = typer.Typer(help="The models that accel knows by name.")
zoo_app.callback(invoke_without_command=True)(zoo.zoo)
zoo_app.command("check")(zoo.zoo_check)
app.add_typer(zoo_app, name="zoo")


def _complain(message: str) -> None:
    typer.echo(f"accel: error: {message}", err=True)
