"""Lay out the main table for the terminal, in as many columns as fit, readable without colour.

What was not measured stands below the table with its reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from accel.core.values import Measurement as Point
from accel.report.formats import NONE, between, figures, mebibytes, size, times
from accel.report.view import WORDS, DecisionView, RunView, VariantView

WIDE = 110
"""Columns of the terminal from which on the table also shows p90 and memory."""
LEAST_WHY = 40
"""Columns that must be left over for the reasons to stand in the table."""
_ASCII = str.maketrans({"×": "x", "—": "-", "–": "-", "±": "~", "★": "*", "✗": "x", "·": "-"})


@dataclass(frozen=True, slots=True)
class RunTable:
    """The headline, the table and the reasons of one run, as a renderable of rich."""

    run: RunView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        say = _ascii if options.ascii_only else str
        yield Text("")
        for decision in self.run.decisions:
            yield from _headline(self.run, decision, say)
        if not self.run.measures:
            yield Text(say(f"no decision: {self.run.why_no_decision}"), "dim")
        notice = self.run.document.model.notice
        if notice or not self.run.proved:
            yield Text(self.run.accuracy_line, "bold yellow")
        if notice:
            yield Text(say(notice), "yellow")
        for device, rows in self.run.by_device:
            wanted = self.run.measures
            shown = [v for v in rows if v.latency or v.best or v.traffic or (v.status == "ok" and not wanted)]
            if shown:
                yield Text(f"\non {say(device)}\n" if device else "", "bold")
                wide = options.max_width >= WIDE
                plain = _table(shown, say, wide=wide)
                room = options.max_width - Measurement.get(console, options, plain).maximum - 3
                yield _table(shown, say, wide=True, why=room) if wide and room >= LEAST_WHY else plain
        yield Text("")
        yield from _remarks(self.run, say)


def _ascii(text: str) -> str:
    """Write text for a terminal whose encoding knows nothing else."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _headline(run: RunView, decision: DecisionView, say: Callable[[str], str]) -> Iterator[Text]:
    best = decision.row
    how = ", as served by Triton" if decision.via == "triton" else ""
    yield Text(say(f"best {decision.objective} on {decision.device}{how}"), "dim")
    if best is None:
        yield Text(say(f"nothing qualified: {decision.reason or 'no reason recorded'}"), "bold red")
        return
    line = Text(say(best.id), "bold" if decision.doubt else "bold green")
    if best.baseline:
        line.append("  the source framework itself: nothing that passed beats it", "not bold default")
    elif decision.speedup is not None:
        word = "faster than" if decision.faster else "the speed of"
        style = "not bold default" if decision.doubt else "default"
        line.append(say(f"  {times(decision.speedup)} {word} {run.framework}"), style)
        if decision.speedup_ci:
            line.append(say(f"  ({between(decision.speedup_ci, '×')})"), "not bold default")
        line.append(f", {decision.doubt}" if decision.doubt else "", "yellow")
    point = {"throughput": decision.best, "traffic": decision.traffic}.get(decision.objective, decision.latency)
    if point is not None:
        said = f"{_settled(point.stable, point.throughput_per_s)} /s"
        if decision.objective == "latency":
            said = f"p50 {_settled(point.stable, point.p50_ms)} ms"
        elif (tokens := point.tokens_per_s) is not None:
            said = f"{said} of their own lengths, {figures(tokens)} tokens /s"
        line.append(say(f"  {said}"), "not bold default")
    yield line
    if decision.undecided:
        others = ", ".join(decision.undecided)
        yield Text(say(f"not decided: {others} may be as fast; measure longer with --budget-s and --rounds"), "yellow")
    if decision.warning:
        yield Text(say(decision.warning), "yellow")


def _table(rows: list[VariantView], say: Callable[[str], str], *, wide: bool, why: int = 0) -> Table:
    """Build the table; ``why`` is the width of a last column with the reasons, 0 for none."""
    frame = box.ASCII if say is _ascii else box.SIMPLE_HEAD
    table = Table(box=frame, show_edge=False, pad_edge=False, padding=(0, 1 if wide else 0, 0, 0))
    table.add_column("", width=1)
    table.add_column("variant", overflow="fold", min_width=18)
    traffic = ("traffic /s",) if any(v.traffic for v in rows) else ()
    for name in ("speed-up", "p50 ms", *(("p90 ms",) if wide else ()), "p99 ms", "best /s", *traffic):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("accuracy", "size", *(("memory",) if wide else ())):
        table.add_column(name, justify="right", no_wrap=True)
    if why:
        table.add_column("why", no_wrap=True, overflow="ellipsis", width=why)
    for v in rows:
        style = "bold green" if v.chosen else "dim" if v.status != "ok" else ""
        cells = [
            "★" if v.chosen else "✗" if v.status != "ok" else "=" if v.tied else " ",
            v.id,
            times(v.speedup),
            _settled(v.latency is None or v.latency.stable, v.latency.p50_ms if v.latency else None),
            *((figures(v.latency.p90_ms if v.latency else None),) if wide else ()),
            figures(v.latency.p99_ms if v.latency else None),
            *(_per_s(point) for point in (v.best, *((v.traffic,) if traffic else ()))),
            v.accuracy or NONE,
            size(v.bytes),
            *((mebibytes(v.peak_rss_mib),) if wide else ()),
            *((v.note or "",) if why else ()),
        ]
        table.add_row(*(Text(say(cell)) for cell in cells), style=style)
    return table


def _per_s(point: Point | None) -> str:
    return _settled(point is None or point.stable, point.throughput_per_s if point else None)


def _settled(stable: bool, value: float | None) -> str:
    return ("" if stable else "~") + figures(value)


def _remarks(run: RunView, say: Callable[[str], str]) -> Iterator[Text]:
    """Say of every variant that did not pass why, and how to fix it."""
    for v in run.variants:
        if v.status == "ok":
            continue
        color = "red" if v.status in ("failed", "gate_failed") else "yellow"
        line = Text.assemble((say(WORDS.get(v.status, v.status)), color), " ", (say(v.id), "bold"))
        line.append(say(f": {v.reason}") if v.reason else "")
        yield line
        if v.fix:
            yield Text(say(f"  fix: {v.fix}"), "dim")
    if any(v.unstable for v in run.variants):
        yield Text("~ this point did not settle", "dim")
