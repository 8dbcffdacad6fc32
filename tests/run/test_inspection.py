"""``accel inspect`` on sources, before they are converted."""

import json
import shlex
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accel.cli import app
from accel.core import temporary
from accel.core.errors import AccelError, StageError
from accel.exporters.sources import recognise
from accel.run.inspection import inspect_source

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)

    def forward(self, ids):
        return {"rows": self.embed(ids), "many": ids[ids > 0]}

def build():
    return Net()
"""


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("inspected") / "net.py"
    file.write_text(NET)
    return f"{file}:build"


def test_a_source_is_shown_with_what_will_be_hard_and_the_command(factory: str) -> None:
    found = CliRunner().invoke(app, ["inspect", factory, "--shape", "ids:1x6", "--range", "ids=1:8", "--json"])
    assert found.exit_code == 0, found.output
    shown = json.loads(found.stdout)
    assert (shown["kind"], shown["framework"], shown["batch"]) == ("factory", "torch", True)
    assert shown["axes"] == {"batch": [1, 1, 16]}
    assert shown["inputs"] == [{"name": "ids", "dtype": "int64", "dims": ["batch", 6], "range": [1, 8]}]
    hard = " ".join(shown["hard"])
    assert "--samples FILE" in hard
    assert "64-bit integers: --ints io" in hard
    words = shlex.split(shown["command"])
    assert words[:3] == ["accel", "convert", factory]
    assert words[5:9] == ["--shape", "ids:1x6", "--range", "ids=1:8"]


def test_ids_without_a_range_end_with_the_option_that_says_so(factory: str) -> None:
    """A factory's input without samples or range is taken for floats, which an embedding refuses."""
    with pytest.raises(StageError, match=r"indices(.|\n)*integers with --range"):
        inspect_source(recognise(factory, opt_shapes={"ids": (1, 6)}))


def test_what_nothing_says_is_asked_for(factory: str) -> None:
    found = CliRunner().invoke(app, ["inspect", factory])
    assert "nothing says what shape input 'ids' has" in str(found.exception or found.output)
    assert "--shape ids:" in str(getattr(found.exception, "fix", "")) + found.output


def test_what_it_writes_meanwhile_goes_also_when_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the marked folder, which the next command removes, lies in the temporary directory."""
    scratch, seen = tmp_path / "scratch", tmp_path / "seen"
    scratch.mkdir()
    file = tmp_path / "looking.py"
    look = f"open({str(seen)!r}, 'w').write(' '.join(os.listdir({str(scratch)!r})))"
    file.write_text(f"import os\n{look}\nbuild = None\n")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(temporary, "_own", None)
    with pytest.raises(AccelError):
        inspect_source(recognise(f"{file}:build"))
    assert all(name.startswith(temporary.PREFIX) for name in seen.read_text().split())
