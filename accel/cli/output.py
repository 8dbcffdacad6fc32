"""What all commands print with, and the flags that all of them take. Results go to stdout, all else to stderr."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from accel.core.errors import CheckFailed, UnavailableError

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, all else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what each variant is doing.")]


@contextmanager
def watching(*, quiet: bool, verbose: bool) -> Iterator[Any]:
    from accel.core.progress import Progress

    if quiet:
        yield Progress()
        return
    from rich.console import Console

    from accel.api.live import LiveProgress, plain

    console = Console(stderr=True)
    live = console.is_terminal and not verbose
    with LiveProgress(console) if live else nullcontext(plain(console, every=verbose)) as shown:
        yield shown


def print_run(run: dict[str, Any], folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(run)
        return
    from rich.console import Console

    from accel import report

    console = Console()
    console.print(report.terminal_table(run))
    console.print(f"report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def judge(written: dict[str, Any], required: tuple[str, ...]) -> None:
    """Leave with the exit code that the outcomes ask for."""
    from accel.core import document

    run = document.parse(written)
    for text in required:
        named = [v for v in run.variants if text in (v.id, v.target, f"{v.target}@{v.device}")]
        if not named:
            raise CheckFailed(
                f"required variant {text} is not in this run", fix="--static asks for builds of one fixed shape"
            )
        for v in named:
            if v.status != "ok":
                raise CheckFailed(f"required variant {v.id} is {v.status}: {v.reason}", fix=v.fix)
    statuses = {v.status for v in run.variants}
    if statuses <= {"skipped", "deferred"}:
        first = run.variants[0]
        raise UnavailableError(f"nothing could be built here: {first.id}: {first.reason}", fix=first.fix)
    if "ok" not in statuses:
        raise CheckFailed("no variant passed", fix="the report says why for each: report.html in the run directory")
    ships = document.shipping(run.decisions).values()
    if ships and all(decision.chosen is None for decision in ships):
        why = "; ".join(f"{d.device}: {d.reason}" for d in ships)
        raise CheckFailed(f"nothing was chosen: {why}", fix="the report says why for each: report.html")


def show(rows: Sequence[Any], as_json: bool, name: str, columns: tuple[str, ...], *, width: int | None = None) -> None:
    """Print values or rows as a table of some of their fields, or as JSON with all of them."""
    from accel.core.values import to_json

    if as_json:
        print_json({name: rows})
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in to_json(rows):
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    if rows:
        Console(width=width).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no", None: ""}.get(value, str(value)) if isinstance(value, bool | None) else str(value)


def print_json(value: Any) -> None:
    """Print a value, or what is made of values, as one JSON document."""
    from accel.core.values import to_json

    typer.echo(json.dumps(to_json(value), indent=1, allow_nan=False))


def note(text: str) -> None:
    typer.echo(f"accel: {text}", err=True)
