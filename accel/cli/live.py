"""What a person sees while a command runs: rich progress on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import threading
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from accel.core.progress import Progress


class LiveProgress(Progress):
    """A line per finished stage and variant, and a live block of what is running now. Thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._running: dict[str, tuple[str, float]] = {}
        self._stage: tuple[str, float] | None = None
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def __enter__(self) -> LiveProgress:
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
            if self._stage and self._stage[0] == "measure":
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


class PlainProgress(Progress):
    """One line per event, for logs and pipes.

    Args:
        every: also print what each variant is doing (``--verbose``).
    """

    def __init__(self, console: Console, *, every: bool = False) -> None:
        self._console = console
        self._every = every

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stage(self, name: str) -> None:
        self._line(f"accel: {name}")

    def variant(self, id: str, doing: str) -> None:
        if self._every:
            self._line(f"accel:   {id}: {doing}")

    def done(self, id: str, outcome: str, *, ok: bool) -> None:
        self._line(f"accel:   {'ok ' if ok else 'NOT'} {id}: {outcome}")

    def notice(self, text: str) -> None:
        self._line(f"accel: NOTE: {text}")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
