"""What a person sees while a run goes on: rich progress on a terminal, plain lines elsewhere. All on stderr."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from accel.core.progress import Progress

ONE_AT_A_TIME = ("measure", "curves", "search", "prove")
"""Stages in which only one variant is worked on."""


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a run.

    Attributes:
        kind: a ``stage`` begins, a ``variant`` is worked on, is ``done``, or there is a ``notice``.
        id: of the variant; empty for a stage and a notice.
        text: what happens.
        ok: whether a variant that is done is good so far; None for other kinds.
    """

    kind: Literal["stage", "variant", "done", "notice"]
    text: str
    id: str = ""
    ok: bool | None = None


Watcher = Progress | Callable[[Event], None] | bool | None
"""Who is told of a run: None for whoever looks on, False for nobody, or a function of events."""


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[Progress]:
    """Give the progress of a run to whoever is to be told: by default a terminal or a notebook, and no log file."""
    if watcher is None or watcher is True:
        console = Console(stderr=True)
        if console.is_terminal and not console.is_jupyter:
            with LiveProgress(console) as shown:
                yield shown
            return
        yield plain(console) if console.is_jupyter or watcher else Progress()
    elif isinstance(watcher, Progress):
        yield watcher
    else:
        yield CalledProgress(watcher) if watcher else Progress()


class CalledProgress(Progress):
    """Gives each event to a function; what that raises ends the run."""

    def __init__(self, function: Callable[[Event], None]) -> None:
        self._function = function

    def stage(self, name: str) -> None:
        self._function(Event("stage", name))

    def variant(self, id: str, doing: str) -> None:
        self._function(Event("variant", doing, id))

    def done(self, id: str, outcome: str, *, ok: bool) -> None:
        self._function(Event("done", outcome, id, ok))

    def notice(self, text: str) -> None:
        self._function(Event("notice", text))


class LiveProgress(Progress):
    """A line per finished stage and variant, and a live block of what is running now. Thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._running: dict[str, tuple[str, float]] = {}
        self._stage: tuple[str, float] | None = None
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def __enter__(self) -> "LiveProgress":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finish_stage()
        self._live.stop()

    def stage(self, name: str) -> None:
        self._finish_stage()
        with self._lock:
            self._running.clear()
            self._stage = (name, time.monotonic())

    def variant(self, id: str, doing: str) -> None:
        with self._lock:
            previous = self._running.get(id)
            if self._stage and self._stage[0] in ONE_AT_A_TIME:
                self._running.clear()
            self._running[id] = (doing, previous[1] if previous else time.monotonic())

    def done(self, id: str, outcome: str, *, ok: bool) -> None:
        with self._lock:
            _, began = self._running.pop(id, ("", time.monotonic()))
        mark = "[green]✓[/]" if ok else "[red]✗[/]"
        took = time.monotonic() - began
        self._console.print(f"    {mark} {id:<28} [dim]{took:6.1f} s[/]  {escape(outcome)}", highlight=False)

    def notice(self, text: str) -> None:
        self._console.print(f"[bold yellow]![/] [bold]{escape(text)}[/]", highlight=False)

    def _finish_stage(self) -> None:
        with self._lock:
            stage, self._stage = self._stage, None
        if stage is not None:
            took = time.monotonic() - stage[1]
            self._console.print(f"[green]●[/] {stage[0]} [dim]{took:.1f} s[/]", highlight=False)

    def _render(self) -> RenderableType:
        with self._lock:
            stage, running = self._stage, dict(self._running)
        if stage is None:
            return Text("")
        now = time.monotonic()
        rows = Table.grid(padding=(0, 2))
        for id, (doing, began) in running.items():
            rows.add_row("   ", id, Text(doing, style="dim"), Text(f"{now - began:.0f} s", style="dim"))
        return Group(Spinner("dots", text=f" {stage[0]}  {now - stage[1]:.0f} s"), rows)


def plain(console: Console, *, every: bool = False) -> Progress:
    """Return a progress that prints one line per event, for logs and pipes.

    Args:
        every: also print what each variant is doing (``--verbose``).
    """

    def line(event: Event) -> None:
        end = "ok " if event.ok else "NOT"
        mark = {"variant": f"  {event.id}: ", "done": f"  {end} {event.id}: ", "notice": "NOTE: "}
        if every or event.kind != "variant":
            text = f"accel: {mark.get(event.kind, '')}{event.text}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    return CalledProgress(line)
