"""``--bench none``: build, prove and package, and measure nothing."""

import io
import json

import pytest
from rich.console import Console
from tiny_run import convert

from accel import report
from accel.cli.output import judge
from accel.core.errors import CheckFailed


@pytest.fixture(scope="module")
def unmeasured(factory, tmp_path_factory):
    out = tmp_path_factory.mktemp("unmeasured") / "tiny"
    (out / "best" / "cpu").mkdir(parents=True)
    return convert(factory, out, "ort,null", bench="none"), out


def test_what_passes_is_proved_and_packaged_and_nothing_is_measured(unmeasured):
    document, out = unmeasured
    assert {v["id"]: v["status"] for v in document["variants"]} == {"ort@cpu": "ok", "null@cpu": "gate_failed"}
    ort = document["variants"][0]
    assert ort["parity"]["passed"]
    assert (out / ort["repository"]).is_dir()
    assert all(v["measurements"] == [] for v in document["variants"])
    assert document["decisions"] == []
    assert document["settings"]["bench"] == "none"
    assert "measure" not in document["timings_s"]
    assert not (out / "best").exists()  # nothing was chosen, whatever an earlier run chose


def test_the_reports_say_that_nothing_was_measured(unmeasured):
    document, out = unmeasured
    for name in ("report.html", "report.md"):
        text = (out / name).read_text()
        assert "nothing was measured, as asked (--bench none)" in text
        assert "interleaved" not in text
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(report.terminal_table(document))
    shown = console.export_text()
    assert "nothing was measured" in shown
    assert "ort@cpu" in shown


def test_the_exit_code_is_that_of_the_proofs(unmeasured):
    document, _ = unmeasured
    judge(document, ("ort",))
    failed = json.loads(json.dumps(document))
    failed["variants"] = failed["variants"][1:]
    with pytest.raises(CheckFailed):
        judge(failed, ())
