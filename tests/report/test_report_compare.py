"""Several runs in one comparison, and the reading of run files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import report_runs
from test_report_pages import Page

from accel.core.errors import InputError, OutputError, UsageError
from accel.report import merge_runs, write_comparison


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Three run directories: two machines, two models."""
    made = {
        "bert": report_runs.bert(),
        "minilm": report_runs.minilm(),
        "bert-there": report_runs.bert(factor=1.6, hardware="epyc-h100-77aa"),
    }
    for name, run in made.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(run, allow_nan=False))
    return [tmp_path / name for name in made]


def test_runs_are_grouped_by_hardware(runs: list[Path]) -> None:
    comparison = merge_runs([*runs, runs[0] / "run.json"])
    assert [t.id for t in comparison.targets] == ["epyc-h100-77aa", "xeon-2c-avx512vnni-8f3a"]
    assert comparison.count == 3
    there, here = comparison.targets
    assert here.labels == ("bert",)
    assert sorted(there.labels) == ["bert", "minilm"]
    assert len(there.choices) == 4
    row = next(r for r in there.rows if r.id == "openvino-int8@cpu")
    assert [c is not None for c in row.cells] == [True, True]
    alone = next(r for r in there.rows if r.id == "aoti@cpu")
    assert alone.cells[there.labels.index("minilm")] is None
    assert there.rows[0].id == "openvino-int8@cpu"


def test_two_runs_of_one_model_have_two_labels(runs: list[Path], tmp_path: Path) -> None:
    later = report_runs.bert() | {"created": "2026-11-21T08:00:00Z"}
    (tmp_path / "later.json").write_text(json.dumps(later))
    target = merge_runs([tmp_path / "later.json", runs[0]]).targets[0]
    assert target.labels == ("bert (2026-11-20 13:50 UTC)", "bert (2026-11-21 08:00 UTC)")


def test_golden_comparison(runs: list[Path], tmp_path: Path, golden: Any) -> None:
    out = write_comparison(runs, tmp_path / "all.md")
    golden("report/comparison.md", out.read_text(encoding="utf-8"))


def test_comparison_page(runs: list[Path], tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.json"
    hostile.write_text(json.dumps(report_runs.hostile()))
    text = write_comparison([*runs, hostile], tmp_path / "all.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not page.open
    assert "<script" not in text
    assert "NVIDIA H100 PCIe" in page.visible
    assert "UNPROVED" in page.visible
    assert "comparison of 4 runs on 3 hardware targets" in page.visible


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ('{"schema": NaN}', "NaN is not JSON"),
        ("[]", "expected an object, found list"),
        ("{}", "expected a field 'schema'"),
        ('{"schema": 2, "accel": "3.0"}', "schema 2, written by accel 3.0; this version reads up to 1"),
        ('{"schema": 2}', "schema 2, written by a later version of accel; this version"),
        ("[" * 100_000, "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_broken_run_files(content: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message) as caught:
        merge_runs([tmp_path])
    assert str(file) in caught.value.message


def test_bad_arguments(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the run"):
        merge_runs([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="no run"):
        merge_runs([])
    with pytest.raises(UsageError, match=r"\.html or \.md"):
        write_comparison(runs, tmp_path / "all.pdf")
    with pytest.raises(OutputError, match="cannot write"):
        write_comparison(runs, tmp_path / "no" / "all.md")


def test_importing_the_report_is_cheap() -> None:
    heavy = "{'plotly', 'jinja2', 'rich', 'numpy', 'torch', 'onnx'}"
    code = f"import sys, accel.report; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
