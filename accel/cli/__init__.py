"""The command line: parse, call one function, print. One file a group of commands.

Nothing heavy is imported here: each command imports what it calls. Results go to stdout, everything else to stderr;
``--json`` makes stdout one JSON document.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from accel.cli import complete, convert, machine, models, release, repositories, tuning, zoo
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is kept is said, and all ended
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
    except OSError as error:  # a file that a command was given, or the disk; what a worker meets is told by its run
        _complain(f"{error.filename or 'a file'}: {error.strerror or error}\n  fix: {_remedy(error)}")
        sys.exit(2)
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
    runs: Annotated[list[Path], typer.Argument(help="Run directories or run.json files", autocompletion=complete.runs)],
    out: Annotated[Path, typer.Option("--out", "-o", help=".html or .md")] = Path("comparison.html"),
) -> None:
    """Merge several runs into one comparison per hardware target."""
    from accel import report

    typer.echo(report.write_comparison(runs, out))


COMMANDS: dict[str, Callable[..., None]] = {
    "convert": convert.convert,
    "targets": machine.list_targets,
    "doctor": machine.check_machine,
    "inspect": models.inspect,
    "narrow": models.narrow,
    "build": convert.build,
    "verify": repositories.verify,
    "serve": repositories.run_server,
    "lint": repositories.lint,
    "bench": repositories.bench,
    "tune": tuning.tune,
    "report": compare_runs,
}
DERIVED = {
    "convert": convert.JobCommand,
    "build": convert.BuildCommand,
    "bench": repositories.BenchCommand,
    "tune": tuning.TuneCommand,
}
"""Commands whose options are the fields of a model."""
for _name, _command in COMMANDS.items():
    app.command(_name, cls=DERIVED.get(_name))(_command)
app.add_typer(machine.env_app, name="env")
app.add_typer(zoo.zoo_app, name="zoo")
app.add_typer(release.release_app, name="release")


def _remedy(error: OSError) -> str:
    from accel.core.files import FULL, FULL_FIX

    return FULL_FIX if error.errno in FULL else "check that the path is right, and that you may read and write there"


def _complain(message: str) -> None:
    typer.echo(f"accel: error: {message}", err=True)
