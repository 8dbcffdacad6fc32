"""The matrix: every model of the zoo through the main job, for every target, and what became of each cell.

A model takes its reduced form (``NAME@small``) unless a full run is asked for. Each has a run directory of its own
below one folder, so that a check that was stopped goes on where it was, and a row of figures beside it
(``NAME.json``), so that models which are checked one at a time add up to one matrix (``zoo.json``, ``zoo.md``).
"""

import datetime
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

import model_zoo
from accel import pipeline
from accel.core import document, hardware
from accel.core.errors import AccelError, InputError, UsageError, nearest
from accel.core.files import load_json, write_text
from accel.core.progress import Progress
from accel.core.values import SCHEMA, to_json
from accel.report import layout
from accel.report.formats import figures, seconds
from accel.run.job import Job, assemble

Row = dict[str, Any]

WORDS = {"ok": "ok", "gate_failed": "gate failed", "skipped": "skipped", "deferred": "deferred", "failed": "failed"}
"""How a cell's status reads."""
STYLES = {"ok": "green", "gate failed": "yellow", "failed": "bold red", "skipped": "dim", "deferred": "dim"}
ROUNDS, ROUND_S = 2, 0.1
"""How shortly a reduced model is measured: its times only show that there are some."""


def check(
    models: Sequence[str] = (),
    *,
    folder: Path,
    targets: str,
    full: bool = False,
    progress: Progress | None = None,
) -> list[Row]:
    """Run the main job on every model and write what came of it; returns a row per model checked.

    A model that cannot be loaded or exported has a row with ``error``, and the next one goes on.

    Args:
        models: names of the zoo; all of them where none is given.
        folder: of the run directories and figures.
        targets: targets of every model.
        full: take the models as they are, and measure latency as ``accel convert`` does.

    Raises:
        UsageError: an unknown model, one without a reduced form, or an unknown target.
        OutputError: the folder cannot be written.
    """
    progress = progress or Progress()
    wanted = [(name, _job(name, folder, full, targets)) for name in _names(models)]
    rows = []
    for name, job in wanted:
        progress.stage(name)
        try:
            row = summary(document.parse(pipeline.convert(job, progress)), name)
        except AccelError as error:
            row = _broken(name, job, error)
            progress.notice(f"{name}: {error}")
        write_text(folder / f"{name}.json", json.dumps(row, indent=1, allow_nan=False) + "\n")
        rows.append(row)
    write(folder)
    return rows


def _names(models: Sequence[str]) -> list[str]:
    known = model_zoo.entries()
    for name in models:
        if name not in known:
            raise UsageError(f"unknown model {name!r}{nearest(name, known)}", fix="`accel zoo` lists the names")
    return list(dict.fromkeys(models)) or list(known)


def _job(name: str, folder: Path, full: bool, targets: str) -> Job:
    given: dict[str, Any] = {
        "source": name if full or model_zoo.entry(name).small is None else name + model_zoo.SMALL,
        "targets": targets,
        "out": folder / name,
        "objective": "latency",
    }
    if not full:
        given |= {"rounds": ROUNDS, "round_s": ROUND_S}
    words = [given["source"], *(f"--{k.replace('_', '-')}={v}" for k, v in given.items() if k != "source")]
    given["exhaustive"] = True  # every cell of the matrix
    return assemble(given, None, command=shlex.join(["accel", "convert", *words, "--exhaustive"]))


def summary(run: document.RunDocument, name: str) -> Row:
    """Reduce a run to a model's row: its variants with their figures, its decisions, hardware and versions."""
    written = to_json(run)
    kept = ("source", "framework", "weights", "accuracy", "samples")
    told = ("device", "objective", "via", "chosen", "baseline", "speedup", "speedup_ci", "ties")
    return {
        "schema": SCHEMA,
        "model": name,
        **{k: written["model"][k] for k in kept},
        **{k: written[k] for k in ("accel", "created", "command", "hardware", "settings", "timings_s")},
        "error": None,
        "variants": to_json([_cell(v) for v in run.variants]),
        "decisions": [{k: d[k] for k in told} for d in written["decisions"]],
    }


def _cell(variant: document.VariantRecord) -> Row:
    built, parity = variant.artifact, variant.parity
    timed = [m for m in variant.measurements if m.scenario == "latency" and m.via == "inprocess"]
    return {
        "id": variant.id,
        "target": variant.target,
        "static": variant.static,
        "status": variant.status,
        "reason": variant.reason,
        "fix": variant.fix,
        "build_s": built.build_s if built else None,
        "bytes": built.bytes if built else None,
        "effective_precision": built.effective_precision if built else None,
        "gate": parity.gate if parity else None,
        "found": parity.found if parity else None,
        "p50_ms": timed[-1].p50_ms if timed else None,
        "p50_ci_ms": timed[-1].p50_ci_ms if timed else None,
    }


def _broken(name: str, job: Job, error: AccelError) -> Row:
    """Return the row of a model that never came to its variants: every cell failed."""
    machine = hardware.detect()
    cell = {"static": None, "status": "failed", "reason": error.message, "fix": error.fix}
    return {
        "schema": SCHEMA,
        "model": name,
        "source": job.request.reference,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "command": job.command,
        "hardware": {"id": machine.id},
        "timings_s": {},
        "error": str(error),
        "variants": [{"id": str(t), "target": t.name, **cell} for t in job.wanted],
        "decisions": [],
    }


def failures(rows: Sequence[Row]) -> list[str]:
    """Name every cell that failed, as ``model: variant: reason``."""
    cells = ((row["model"], v) for row in rows for v in row["variants"] if v["status"] == "failed")
    return [f"{model}: {v['id']}: {v['reason']}" for model, v in cells]


# ---------------------------------------------------------------------------------------------------------------------
# The matrix


def read(folder: Path) -> list[Row]:
    """Read the rows that ``check`` left in a folder, by name.

    Raises:
        InputError: a file is not a row.
    """
    rows = []
    for path in sorted(folder.glob("*.json")):
        if path.name == "zoo.json":
            continue
        try:
            row = load_json(path.read_text())
            row["model"], row["variants"], row["hardware"]["id"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} is not a row of the matrix: {error!r}", fix="delete it, and check that model again"
            ) from error
        rows.append(row)
    return rows


def write(folder: Path) -> None:
    """Write the matrix of all rows in a folder: ``zoo.json`` and ``zoo.md``."""
    rows = read(folder)
    write_text(folder / "zoo.json", json.dumps({"schema": SCHEMA, "models": rows}, indent=1) + "\n")
    write_text(folder / "zoo.md", markdown(rows))


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the matrix's columns: targets in the order of first appearance, a fixed shape's beside its target's."""
    found = dict.fromkeys(_column(v) for row in rows for v in row["variants"])
    order = list(dict.fromkeys(column.partition("+")[0] for column in found))
    return sorted(found, key=lambda column: (order.index(column.partition("+")[0]), column))


def _column(variant: Row) -> str:
    target = variant["id"].partition("+")[0].removesuffix("@cpu")
    return f"{target}+static" if variant["static"] else target


def lines(row: Row, column: str) -> tuple[str, ...]:
    """Return a cell's lines: its status, seconds of the build and p50; none where the model has no such variant."""
    found = next((v for v in row["variants"] if _column(v) == column), None)
    if found is None:
        return ()
    built, p50 = found.get("build_s"), found.get("p50_ms")
    times = (seconds(built) if built is not None else "", f"{figures(p50)} ms" if p50 is not None else "")
    return (WORDS[found["status"]], *(t for t in times if t))


def table(rows: Sequence[Row]) -> Table:
    """Lay the matrix out for the terminal, its longer side downwards."""
    models, targets = [row["model"] for row in rows], columns(rows)
    cells = {(row["model"], c): lines(row, c) for row in rows for c in targets}
    wide = len(models) < len(targets)
    laid = Table("target" if wide else "model", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in models if wide else targets:
        laid.add_column(name, overflow="fold")
    for first in targets if wide else models:
        found = [cells[(second, first) if wide else (first, second)] for second in (models if wide else targets)]
        shown = ((", " if wide else "\n").join(cell) for cell in found)
        laid.add_row(first, *(Text(t, STYLES.get(c[0], "") if c else "") for t, c in zip(shown, found, strict=True)))
    return laid


def markdown(rows: Sequence[Row]) -> str:
    """Lay the matrix out as Markdown: the cells, then why each one that is not ok is not, equal reasons together."""
    machines = sorted({(row["hardware"]["id"], row["created"][:10]) for row in rows})
    found = list(remarks(rows))
    text = layout.render(
        "zoo.md.j2", rows=rows, columns=columns(rows), lines=lines, machines=machines, remarks=found, words=WORDS
    )
    return text.rstrip() + "\n"


def remarks(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield (status, variants, models, reason) for everything that is not ok, failures first."""
    whose: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in rows:
        for v in row["variants"]:
            if v["status"] != "ok":
                reason = (v["reason"] or "").splitlines()[0] if v["reason"] else ""
                whose.setdefault((v["status"], reason), []).append((_column(v), row["model"]))
    order = ("failed", "gate_failed", "deferred", "skipped")
    for (status, reason), cells in sorted(whose.items(), key=lambda item: order.index(item[0][0])):
        variants = ", ".join(dict.fromkeys(column for column, _ in cells))
        yield status, variants, list(dict.fromkeys(model for _, model in cells)), reason
