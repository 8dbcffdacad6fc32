"""``--bench none``: build, prove and package, and measure nothing."""

import io
import json

import pytest
from rich.console import Console
from tiny_run import convert

from accel import pipeline, report
from accel.cli.output import judge
from accel.core.errors import CheckFailed
from accel.run.job import assemble


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
    choice = {
        "device": "cpu",
        "objective": "latency",
        "constraints": {},
        "via": "inprocess",
        "ties": [],
        "rejected": [],
    }
    none = choice | {"chosen": None, "reason": "no variant passed its gate and the constraints"}
    with pytest.raises(CheckFailed, match="nothing was chosen: cpu: no variant passed its gate"):
        judge(document | {"decisions": [none]}, ())
    judge(document | {"decisions": [none, none | {"device": "cuda", "chosen": "ort@cuda"}]}, ())
    failed = json.loads(json.dumps(document))
    failed["variants"] = failed["variants"][1:]
    with pytest.raises(CheckFailed):
        judge(failed, ())


BATCHES = """import torch
class Styled(torch.nn.Module):
    # One set of weights for each item: the number of groups is a number to ONNX.
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4, 3, 3))
    def forward(self, x):
        n = x.shape[0]
        weight = (self.weight * x.mean((1, 2, 3)).reshape(n, 1, 1, 1, 1)).flatten(0, 1)
        return torch.conv2d(x.reshape(1, n * 4, 8, 8), weight, padding=1, groups=n).reshape(n, 4, 8, 8)
def styled(): return Styled()
"""


def test_what_exports_at_one_batch_only_is_converted_at_one(tmp_path):
    """torch.onnx cannot write a convolution whose groups are the items: at a batch of 1 it can."""
    (tmp_path / "net.py").write_text(BATCHES)
    asked = {"source": f"{tmp_path / 'net.py'}:styled", "targets": "ort", "out": tmp_path / "run", "threads": 1}
    shapes = {"opt_shapes": {"x": (1, 4, 8, 8)}, "bench": "none"}
    document = pipeline.convert(assemble({**asked, **shapes}, None, command="accel convert"))
    assert document["variants"][0]["status"] == "ok"
    assert document["model"]["inputs"][0]["dims"] == [1, 4, 8, 8]
    assert "does not let these sizes vary: batch (1)" in document["model"]["notice"]
