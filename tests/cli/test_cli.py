"""The command line: what is wrong is one message with a fix and the documented exit code, never a traceback."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from accel.cli import app


def accel(*words, cwd=None):
    return subprocess.run([sys.executable, "-m", "accel", *words], capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["convert", "brt", "-t", "cpu"], 2, "did you mean bert?"),
        (["convert", "bert", "-t", "openvin"], 2, "did you mean openvino?"),
        (["convert", "bert"], 2, "no targets given"),
        (["convert", "-t", "cpu"], 2, "no source given"),
        (["convert", "bert", "-t", "cpu", "--nope"], 2, "--help lists the options"),
        (["convert", "gone.onnx", "-t", "ort"], 2, "gone.onnx"),
        (["convert", "bert", "-t", "cpu", "--range", "input_ids=5"], 2, "range"),
        (["convert", "bert", "-t", "cpu", "--range", "input_ids=9:1"], 2, "input_ids"),
        (["convert", "bert", "-t", "cpu", "--gate", "int8"], 2, "NAME=VALUE"),
        (["convert", "bert", "-t", "cpu", "--objective", "speed"], 2, "latency, throughput or traffic"),
        (["convert", "bert", "-t", "cpu", "--triton-release", "26.60"], 2, "26.60"),
        (["convert", "bert", "-t", "ort", "--require", "openvino"], 2, "not among the targets"),
        (["convert", "bert", "-t", "cpu", "-c", "gone.yaml"], 2, "gone.yaml"),
        (["convert", "bert", "-t", "cpu", "--model-name", "../up"], 2, "model name"),
        (["verify", "gone"], 2, "gone"),
        (["report", "gone"], 2, "gone"),
        (["inspect", "gone.onnx"], 2, "gone.onnx"),
        (["env", "install", "ort-openvin"], 2, "did you mean ort-openvino?"),
        (["no-such-command"], 2, "no-such-command"),
    ],
)
def test_bad_input_is_one_message_and_the_documented_code(words, code, said, tmp_path):
    done = accel(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_nothing_that_can_run_here_is_exit_code_3(tmp_path):
    done = accel("convert", "minilm", "-t", "ort-cuda,ort-trt", "-o", str(tmp_path / "run"))
    assert done.returncode == 3, done.stderr
    assert "GPU" in done.stderr
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {v["status"] for v in document["variants"]} == {"skipped"}
    assert (tmp_path / "run" / "report.html").exists()


def test_a_required_target_that_is_skipped_is_exit_code_1(tmp_path):
    done = accel("convert", "minilm", "-t", "ort-cuda", "--require", "ort-cuda", "-o", str(tmp_path / "run"))
    assert done.returncode == 1, done.stderr
    assert "required variant ort-cuda@cuda is skipped" in done.stderr


def test_an_output_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    done = accel("convert", "minilm", "-t", "null", "-o", str(tmp_path / "file" / "run"))
    assert done.returncode == 2
    assert "cannot write to" in done.stderr


def test_a_job_file_is_read_and_the_command_line_wins(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("source: minilm\ntargets: [ort-cuda]\nout: never\noptions:\n  ort: {}\n")
    done = accel("convert", "-c", str(job), "-o", str(tmp_path / "run"), "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["model"]["name"] == "minilm"
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sauce: bert", "sauce"),
        ("threads: -1", "threads"),
        ("shape: 5\nsource: minilm\ntargets: ort", "shape: "),
        ("gate: {int8: much}\nsource: minilm\ntargets: ort", "gate.int8: "),
        ("objective: []\nsource: minilm\ntargets: ort", "objective: "),
        ("- minilm", "expected keys and values"),
        ("{", "cannot be read"),
        ("options: {ort: {nope: 1}}\nsource: minilm\ntargets: ort", "nope"),
    ],
)
def test_a_bad_job_file(tmp_path, text, said):
    job = tmp_path / "job.yaml"
    job.write_text(text)
    done = accel("convert", "-c", str(job))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["targets"], ["zoo"], ["doctor"], ["env", "list"]])
def test_lists_are_json_on_stdout(command):
    done = accel(*command, "--json")
    assert done.returncode == 0, done.stderr
    rows = next(iter(json.loads(done.stdout).values()))
    assert rows
    assert accel(*command).returncode == 0


def test_the_zoo_is_checked(tmp_path):
    words = ("zoo", "check", "autoencoder", "--targets", "null", "-o", str(tmp_path / "zoo"), "--quiet")
    done = accel(*words, "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["models"]
    assert [(v["id"], v["status"]) for v in row["variants"]] == [("null@cpu", "gate_failed")]
    again = accel(*words)
    assert again.returncode == 0
    assert "gate failed null: autoencoder: " in again.stdout
    assert json.loads((tmp_path / "zoo" / "autoencoder" / "run.json").read_text())["variants"][0]["cached"]


def test_a_check_of_what_is_not_in_the_zoo():
    done = accel("zoo", "check", "no-such-model")
    assert done.returncode == 2
    assert "unknown model 'no-such-model'" in done.stderr


def test_version_and_help():
    assert accel("--version").stdout.startswith("accel ")
    done = accel("--help")
    assert done.returncode == 0
    for command in ("convert", "targets", "zoo", "doctor", "env", "inspect", "verify", "report"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["convert", "bench", "tune"])
def test_an_options_default_is_said_once_and_plainly(command):
    text = " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
    options = re.split(r" (?=--[a-z])", text)
    assert not [option for option in options if option.count("[default:") > 1]
    assert not re.search(r"\[default: \d+\.0\]", text)
