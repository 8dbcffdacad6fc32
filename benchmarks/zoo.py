"""Write the zoo's figures down: docs/benchmarks/zoo/NAME.json, and the two tables of docs/zoo.md.

    .venv/bin/python benchmarks/zoo.py [MODEL...] [--check] [--runs runs/zoo]

Reads the run directories that `accel zoo check --full` left, those of the models named or all that are there, and keeps
each as one file; the tables hold every model that has such a file, so that models which were measured at different
times add up. With --check the named models are run first, each from nothing.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel.core import document
from accel.core.document import RunDocument
from accel.release import zoo_matrix
from accel.report import markdown
from accel.report.formats import figures, metric, seconds, times

Row = dict[str, Any]


def cold_s(folder: Path, run: RunDocument) -> float | None:
    """Return how long the run took from the command to the decision; None where parts of it were there already.

    A run that was repeated is in ``history/``: it is the first one on the same machine, where nothing was there yet.
    """
    past = [document.read(path) for path in sorted((folder / "history").glob("*.json"))]
    for one in (*past, run):
        if not any(v.cached for v in one.variants) and one.hardware.id == run.hardware.id:
            return one.timings_s["total"]
    return None


def collect(folder: Path) -> Row:
    """Reduce a model's run directory to its row, or take that of a model which never came to a run."""
    if not (folder / document.FILENAME).is_file():
        row: Row = json.loads(folder.with_name(f"{folder.name}.json").read_text())
        return row
    run = document.read(folder)
    return {**zoo_matrix.summary(run, folder.name), "cold_s": cold_s(folder, run)}


def winners(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the winners' table."""
    header = (
        "model",
        "weights",
        "its framework",
        "chosen",
        "speed-up",
        "p50 ms",
        "accuracy of the chosen",
        "decided in",
    )
    cells = []
    for row in rows:
        decision = next((d for d in row["decisions"] if (d["objective"], d["via"]) == ("latency", "inprocess")), None)
        chosen = next((v for v in row["variants"] if decision and v["id"] == decision["chosen"]), None)
        if decision is None or chosen is None:
            cells.append([row["model"], row.get("weights", ""), "", "none", "", "", "", ""])
            continue
        low_high = decision["speedup_ci"]
        interval = f" [{figures(low_high[0])}, {figures(low_high[1])}]" if low_high else ""
        accuracy = "; ".join(
            "exact" if value is None else f"{name.removesuffix('_db')} {metric(name, value)}"
            for name, value in chosen["found"].items()
            if name != "shape_db"
        )
        cells.append(
            [
                row["model"],
                "real" if row["accuracy"] == "proved" else "random",
                markdown.code(decision["baseline"] or "none"),
                markdown.code(chosen["id"]),
                f"{times(decision['speedup'])}{interval}",
                figures(chosen["p50_ms"]),
                markdown.escape(accuracy),
                seconds(row["cold_s"]),
            ]
        )
    yield from markdown.table(header, cells, align="llllrrlr")


def put(page: Path, marker: str, lines: list[str]) -> None:
    """Replace what stands between ``<!-- marker -->`` and ``<!-- /marker -->``."""
    text = page.read_text()
    body = "\n".join(lines)
    found, count = re.subn(
        rf"<!-- {marker} -->.*?<!-- /{marker} -->",
        lambda _: f"<!-- {marker} -->\n{body}\n<!-- /{marker} -->",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"{page} has {count} places marked {marker}, expected one")
    page.write_text(found)


def check(models: list[str], runs: Path) -> None:
    """Run the models as they are, one after another, each from nothing."""
    for name in models:
        shutil.rmtree(runs / name, ignore_errors=True)
        words = [sys.executable, "-m", "accel", "zoo", "check", "--full", name, "-o", str(runs)]
        code = subprocess.run(words).returncode
        if code:
            print(f"accel zoo check --full {name} ended with {code}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*")
    parser.add_argument("--runs", type=Path, default=Path("runs/zoo"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/zoo"))
    parser.add_argument("--page", type=Path, default=Path("docs/zoo.md"))
    parser.add_argument("--check", action="store_true", help="run the named models first")
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if asked.check:
        check(asked.models, asked.runs)
    named = asked.models or [row["model"] for row in zoo_matrix.read(asked.runs)]
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in named:
        row = collect(asked.runs / name)
        (asked.out / f"{name}.json").write_text(json.dumps(row, indent=1) + "\n")
    rows = zoo_matrix.read(asked.out)
    table = list(winners(rows))
    put(asked.page, "matrix", zoo_matrix.markdown(rows))
    put(asked.page, "winners", table)
    print("\n".join(table))


if __name__ == "__main__":
    main()
