"""What the user typed becomes a job, or one clear message."""

import pytest

from accel.core.errors import InputError, UsageError
from accel.run import job
from accel.run.job import Job


def assemble(**given):
    return job.assemble({"source": "bert", "targets": "ort,openvino"} | given, None, command="accel convert bert")


def test_defaults():
    made = assemble()
    assert [str(t) for t in made.wanted] == ["ort@cpu", "openvino@cpu"]
    assert made.objectives == ("latency", "throughput")
    assert (made.rounds, made.budget_s) == (60, 120)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gate": ["int8=nan"]}, "NAME=VALUE"),
        ({"gate": ["int8=inf"]}, "NAME=VALUE"),
        ({"gate": ["int8"]}, "NAME=VALUE"),
        ({"rounds": 0}, "2 or more"),
        ({"rounds": 1}, "2 or more"),
        ({"rounds": 5, "min_rounds": 6}, "--min-rounds 6 is more than --rounds 5"),
        ({"threads": 0}, "1 or more"),
        ({"timeout": -1.0}, "above 0"),
        ({"max_p99_ms": float("nan")}, "above 0"),
        ({"min_throughput": float("inf")}, "above 0"),
        ({"device": "cdua"}, "did you mean cuda"),
        ({"require": ["ort@cuda"]}, "not among the targets"),
        ({"require": ["aoti"]}, "not among the targets"),
        ({"objective": "speed"}, "latency, throughput or traffic"),
        ({"bench": "tritn"}, r"inprocess, triton, both or none \(did you mean triton"),
        ({"via": "podman"}, "embedded, local or docker"),
        ({"ints": "all"}, "keep, io or interior"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(given, message):
    with pytest.raises(UsageError, match=message):
        assemble(**given)


def test_what_may_be_required():
    assert assemble(require=["ort", "openvino@cpu", "openvino@cpu+1x128"]).required[2] == "openvino@cpu+1x128"


def test_a_wrong_value_is_named_as_it_was_given(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("rounds: 1\nbench: tritn\n")
    given = {"source": "bert", "targets": "ort"}
    with pytest.raises(InputError, match=r"job\.yaml: bench is 'tritn': .*triton\?\); rounds is 1: expected 2"):
        job.assemble(given, file, command="")
    with pytest.raises(InputError, match=r"job\.yaml: bench is 'tritn'"):
        job.assemble(given | {"rounds": 3}, file, command="")
    with pytest.raises(UsageError, match=r"--round-s is 0: expected a number above 0"):
        job.assemble(given | {"round_s": 0}, None, command="")
    with pytest.raises(UsageError, match=r"^round_s is 0: expected a number above 0"):
        Job(source="bert", targets="ort", round_s=0)


def test_an_unknown_key_of_a_job_file_has_a_nearest_one(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("source: bert\ntarget: ort\n")
    with pytest.raises(InputError, match=r"unknown key 'target' \(did you mean targets\?\)"):
        job.assemble({}, file, command="")
    file.write_text("source: bert\ntargets: ort\ncommand: rm\n")
    with pytest.raises(InputError, match="unknown key 'command'"):
        job.assemble({}, file, command="")


def test_every_form_of_a_job_is_the_same_job(tmp_path):
    """One field: a flag with its text, a key with its YAML value, a keyword with its Python value."""
    file = tmp_path / "job.yaml"
    file.write_text(
        "source: bert\ntargets: [ort, openvino@cpu]\nrange: [input_ids=0:9]\nmax_shape: input_ids:1x8\n"
        "gate: [int8=25]\ntimeout: 60\nobjective: latency\nmax_p99_ms: 5\nrequire: [ort]\nthreads: 1\n"
    )
    typed = {
        "source": "bert", "targets": "ort,openvino@cpu", "range": ["input_ids=0:9"], "max_shape": ["input_ids:1x8"],
        "gate": ["int8=25"], "timeout": 60.0, "objective": "latency", "max_p99_ms": 5.0, "require": ["ort"],
        "threads": 1,
    }  # fmt: skip
    made = Job(
        source="bert", targets=("ort", "openvino@cpu"), ranges={"input_ids": (0, 9)}, max_shapes={"input_ids": (1, 8)},
        gates={"int8": 25.0}, timeout_s=60.0, objectives=("latency",), max_p99_ms=5.0, required=("ort",), threads=1,
    )  # fmt: skip
    assert job.assemble({}, file, command="") == job.assemble(typed, None, command="") == made
    assert made.request.ranges == {"input_ids": (0, 9)}
    assert (made.ints, made.constraints.max_p99_ms) == ("io", 5.0)


def test_the_flags_of_convert_are_the_keys_of_a_job_file(monkeypatch):
    """``options`` and ``triton`` stand in the file alone, since they have no form of one line."""
    from typer.main import get_command

    from accel import cli

    context = get_command(cli.app).commands["convert"].make_context("convert", ["bert"])
    flags = {p.name for p in context.command.params} - {"config", "as_json", "quiet", "verbose"}
    assert flags == set(job.KEYS) - {"options", "triton"}
