"""The corpus of strangers' models: its list, its committed rows and table, and a sample of it, converted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.compatibility import listing, table  # noqa: E402
from benchmarks.compatibility.running import unexplained, verdict  # noqa: E402

BARS = {"onnx": 0.95, "torch": 0.90, "huggingface": 0.90, "tensorflow": 0.85}
"""Least share of a kind's sources that pass on two runtimes."""
SAMPLE = ("onnx/rank0-input", "onnx/qdq", "onnx/if", "onnx/strings")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "docs" / "benchmarks" / "compatibility.json").read_text())
    return found


def test_the_list_is_as_long_as_it_was_when_it_was_drawn_up() -> None:
    counts = {kind: rest for kind, *rest in listing.counts()}
    sources, architectures, operators = counts["all"]
    assert (sources, architectures, operators) >= (431, 80, 75)


def test_the_table_is_what_the_rows_say(rows: list[dict[str, Any]]) -> None:
    assert (ROOT / "docs" / "compatibility.md").read_text() == table.render(rows)


def test_the_rows_are_many_and_explained(rows: list[dict[str, Any]]) -> None:
    models = [row for row in rows if not row["operator"]]
    assert len(models) >= 150
    assert len({row["architecture"] for row in models}) >= 80
    assert [row["id"] for row in rows if row["traceback"]] == []
    assert [row["id"] for row in rows if unexplained(row)] == []


@pytest.mark.parametrize("kind", BARS)
def test_the_rows_meet_the_bars(rows: list[dict[str, Any]], kind: str) -> None:
    wanting = [r for r in rows if not r["operator"] and r["kind"] == kind and r["here"] and r["wants"] == "variants"]
    assert sum(verdict(row) == "passes" for row in wanting) >= BARS[kind] * len(wanting)


def test_what_does_not_pass_has_a_reason(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        for variant in row["variants"]:
            assert variant["status"] == "ok" or variant["reason"], row["id"]
        if not row["variants"] and row["here"]:
            assert row["error"], row["id"]
            assert row["fix"], row["id"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The sample in forked processes, and its first source in one of its own, too."""
    out = tmp_path_factory.mktemp("compatibility")
    command = [sys.executable, "-m", "benchmarks.compatibility", "run", "--targets", "ort,openvino-fp32"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for words in (["--warm", *SAMPLE, "--out", str(out / "warm")], [SAMPLE[0], "--out", str(out / "cold")]):
        subprocess.run([*command, *words], cwd=ROOT, env=environment, check=True, capture_output=True)
    return {f"{p.parents[1].name} {p.stem}": json.loads(p.read_text()) for p in sorted(out.glob("*/rows/*.json"))}


def test_a_sample_of_the_corpus_passes(converted: dict[str, dict[str, Any]]) -> None:
    found = {row["id"]: verdict(row) for row in converted.values()}
    assert found == dict.fromkeys(SAMPLE, "passes") | {"onnx/strings": "message"}


def test_a_forked_run_says_what_a_run_of_its_own_says(converted: dict[str, dict[str, Any]]) -> None:
    name = SAMPLE[0].replace("/", "__")
    warm, cold = converted[f"warm {name}"], converted[f"cold {name}"]
    assert {k for k in warm if warm[k] != cold[k]} <= {"warm", "seconds", "stderr"}  # variants end in any order
