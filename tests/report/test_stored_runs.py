"""The runs that lie in ``docs/benchmarks`` are read and shown by every version of accel, whole."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from accel.core import document
from accel.core.values import to_json
from accel.release import zoo_matrix
from accel.report import terminal_table, write_reports
from accel.run.inspection import inspect

STORED = sorted((Path(__file__).parents[2] / "docs" / "benchmarks").glob("*/run.json"))
every_run = pytest.mark.parametrize("file", [pytest.param(file, id=file.parent.name) for file in STORED])


def test_there_are_stored_runs() -> None:
    assert {file.parent.name for file in STORED} >= {"bert", "bert-served", "minilm-served"}


def assert_holds(read: Any, written: Any, where: str = "run") -> None:
    """Every field that was written was read, with its value; later fields may stand beside it."""
    if isinstance(written, dict):
        assert written.keys() <= read.keys(), where
        for key, value in written.items():
            assert_holds(read[key], value, f"{where}.{key}")
    elif isinstance(written, list):
        assert len(read) == len(written), where
        for i, value in enumerate(written):
            assert_holds(read[i], value, f"{where}[{i}]")
    else:
        assert read == written, where


@every_run
def test_a_stored_run_is_read_whole(file: Path) -> None:
    assert_holds(to_json(document.read(file)), json.loads(file.read_text()))


@every_run
def test_a_stored_run_is_shown(file: Path, tmp_path: Path) -> None:
    run = json.loads(file.read_text())
    page, text = write_reports(run, tmp_path)
    screen = io.StringIO()
    Console(file=screen, width=120).print(terminal_table(run))
    chosen = {d["chosen"] for d in run["decisions"]} - {None}
    assert chosen
    for variant in run["variants"]:
        assert variant["id"] in page.read_text()
        assert variant["id"] in text.read_text()
        assert variant["id"] in screen.getvalue()
    assert inspect(file)["model"]["name"] == run["model"]["name"]


@every_run
def test_a_stored_run_makes_a_row_of_the_matrix(file: Path) -> None:
    run = json.loads(file.read_text())
    row = zoo_matrix.summary(document.read(file), "bert")
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert_holds(row, {k: run[k] for k in ("accel", "created", "command", "hardware", "settings", "timings_s")})
    assert [v["id"] for v in row["variants"]] == [v["id"] for v in run["variants"]]
    for cell, variant in zip(row["variants"], run["variants"], strict=True):
        alone = [m for m in variant["measurements"] if (m["scenario"], m["via"]) == ("latency", "inprocess")]
        shown = (alone[-1]["p50_ms"], alone[-1]["p50_ci_ms"]) if alone else (None, None)
        assert (cell["p50_ms"], cell["p50_ci_ms"]) == shown
    assert row["decisions"][0]["chosen"] == run["decisions"][0]["chosen"]
