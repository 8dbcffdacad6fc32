"""What ``accel tune`` keeps between calls: read again only under the same conditions, versions and code."""

import pytest

from accel.core import environments, imports
from accel.core.errors import UsageError
from accel.triton.servers import server
from accel.triton.tune import limits
from accel.triton.tune.limits import MeasuredStore

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
