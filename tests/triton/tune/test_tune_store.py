"""What ``accel tune`` keeps between calls: read again only under the same conditions, versions and code."""

from types import SimpleNamespace

import pytest

from accel.core import environments, imports
from accel.core.errors import UsageError
from accel.triton.servers import server
from accel.triton.settings import Settings
from accel.triton.tune import limits
from accel.triton.tune.lab import Subject
from accel.triton.tune.limits import MeasuredStore
from accel.triton.tune.measured import Measuring
from accel.triton.tune.request import TuneRequest

MANIFEST = SimpleNamespace(artifact=SimpleNamespace(files=[]), grouping=None)
CONDITIONS = {"via": "embedded", "probe": [2.0, 20]}


@pytest.fixture
def path(tmp_path):
    MeasuredStore(tmp_path / "measured.json", CONDITIONS).put("curve", [1.0, 2.0])
    return tmp_path / "measured.json"


def test_what_was_measured_is_found_again(path):
    assert MeasuredStore(path, CONDITIONS).get("curve") == [1.0, 2.0]


def test_other_conditions_are_measured_anew(path):
    assert MeasuredStore(path, CONDITIONS | {"via": "local"}).get("curve") is None


def test_an_upgraded_runtime_is_measured_anew(path, monkeypatch):
    installed = limits.toolchain()
    monkeypatch.setattr(limits, "toolchain", lambda: installed | {"onnxruntime": "99.0"})
    assert MeasuredStore(path, CONDITIONS).get("curve") is None


def test_code_that_changed_measures_anew(path, monkeypatch):
    monkeypatch.setattr(imports, "code_hash", lambda module: "another")
    assert MeasuredStore(path, CONDITIONS).get("curve") is None


def test_another_server_is_another_condition(tmp_path, monkeypatch):
    program = tmp_path / "tritonserver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("TRITONSERVER", str(program))
    before = server.identity()
    assert before == server.identity("local") != server.identity("embedded")
    program.write_text("#!/bin/sh\n# of the next release\n")
    assert server.identity() != before
    with pytest.raises(UsageError, match="no server is called"):
        server.identity("elsewhere")


def test_the_version_of_the_embedded_server_is_part_of_the_code():
    measured = imports.modules_of("accel.triton.tune.measured")
    assert environments.__name__ in measured


def test_another_repository_in_the_call_leaves_what_was_measured_of_the_first(tmp_path, monkeypatch):
    """Of a, b is named as well, or did not start this time; what b is has changed since."""

    def session(**configs: str) -> Measuring:
        subjects = [
            Subject(name, None, None, MANIFEST, "m", "m", "python", (), (1,), 1, Settings(), config=config)
            for name, config in configs.items()
        ]
        monkeypatch.setattr(Measuring, "_take_subjects", lambda self: subjects)
        asked = TuneRequest(targets=(tmp_path,), max_p99_ms=10.0)
        return Measuring(asked, tmp_path, tmp_path, print, print, print)

    first = session(a="1", b="2")
    for name in ("a", "b"):
        first._kept.put(first._probes((name, Settings())), name)
    for one in (session(a="1"), session(a="1", b="3"), session(c="4", a="1")):
        assert one._kept.get(one._probes(("a", Settings()))) == "a"
        if "b" in one._known_as:
            assert one._kept.get(one._probes(("b", Settings()))) is None
