"""A whole run in a sandbox: the same results, and a hostile factory does no harm."""

import socket

import pytest
from tiny_run import FACTORY, convert

from accel.core import processes, sandbox
from accel.core.errors import AccelError, UnavailableError, UsageError
from accel.run import job


@pytest.fixture(autouse=True)
def bubblewrap():
    try:
        sandbox.prepare()
    except UnavailableError as error:
        pytest.skip(str(error))
    yield
    processes.start()


HOSTILE = (
    FACTORY
    + """
def hostile():
    import pathlib, socket
    try:
        pathlib.Path(__file__).with_name("was-here").touch()
    except OSError:
        pass
    try:
        socket.create_connection(("127.0.0.1", PORT), timeout=2).close()
    except OSError:
        return build()
    raise RuntimeError("there is a network")
"""
)


def test_a_run_in_a_sandbox_gives_what_a_run_gives(factory, tmp_path):
    document = convert(factory, tmp_path / "run", "torch,ort,openvino-fp32,aoti,trt-fp16", sandbox=True)
    found = {v["id"]: (v["status"], v["reason"]) for v in document["variants"]}
    assert found.pop("trt-fp16@cuda")[0] == "deferred"
    assert {status for status, _ in found.values()} == {"ok"}, found
    assert document["decisions"][0]["chosen"]


def test_a_hostile_factory_does_no_harm(tmp_path):
    file = tmp_path / "source" / "tiny.py"
    file.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        file.write_text(HOSTILE.replace("PORT", str(server.getsockname()[1])))
        document = convert(file, tmp_path / "run", "ort", function="hostile", sandbox=True)
        assert document["variants"][0]["status"] == "ok"
        assert not (file.parent / "was-here").exists()
        with pytest.raises(AccelError, match="there is a network"):
            convert(file, tmp_path / "open", "ort", function="hostile")
    assert (file.parent / "was-here").exists(), "without a sandbox it can"
    (file.parent / "was-here").unlink()
    processes.start()


def test_a_server_is_not_in_the_sandbox_and_it_says_so():
    with pytest.raises(UsageError, match="runs a server beside them"):
        job.assemble({"source": "bert", "targets": "ort", "sandbox": True, "bench": "both"}, None, command="")
