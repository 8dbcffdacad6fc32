"""What the user typed becomes a job, or one clear message."""

import pytest

from accel.core.errors import UsageError
from accel.run import options


def assemble(**given):
    return options.assemble({"source": "bert", "targets": "ort,openvino"} | given, None, command="accel convert bert")


def test_defaults():
    job = assemble()
    assert [str(t) for t in job.targets] == ["ort@cpu", "openvino@cpu"]
    assert job.objectives == ("latency", "throughput")
    assert job.rounds == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gate": ["int8=nan"]}, "NAME=VALUE"),
        ({"gate": ["int8=inf"]}, "NAME=VALUE"),
        ({"gate": ["int8"]}, "NAME=VALUE"),
        ({"rounds": 0}, "2 or more"),
        ({"rounds": 1}, "2 or more"),
        ({"threads": 0}, "1 or more"),
        ({"timeout": -1.0}, "above 0"),
        ({"max_p99_ms": float("nan")}, "above 0"),
        ({"min_throughput": float("inf")}, "above 0"),
        ({"device": "cdua"}, "did you mean cuda"),
        ({"require": ["ort@cuda"]}, "not among the targets"),
        ({"require": ["aoti"]}, "not among the targets"),
        ({"objective": "speed"}, "latency or throughput"),
        ({"bench": "tritn"}, r"inprocess, triton or both \(did you mean triton"),
        ({"via": "podman"}, "embedded, local or docker"),
        ({"ints": "all"}, "keep, io or interior"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(given, message):
    with pytest.raises(UsageError, match=message):
        assemble(**given)


def test_what_may_be_required():
    assert assemble(require=["ort", "openvino@cpu", "openvino@cpu+1x128"]).required[2] == "openvino@cpu+1x128"
