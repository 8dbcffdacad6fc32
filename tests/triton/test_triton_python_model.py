"""The Python-backend model: run as the stub runs it, and by the real server."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import embedding
import numpy as np
import pytest

from accel.builders.targets import discover
from accel.core import environments, hardware
from accel.core.errors import InputError
from accel.core.imports import modules_of
from accel.triton import python_model
from accel.triton.config import parse
from accel.triton.servers import server
from accel.triton.servers.answers import client, infer

STANDIN = Path(__file__).with_name("standin")


def drive(
    root: Path, tmp_path: Path, requests: list[dict[str, np.ndarray]], *, refused: int = 0
) -> tuple[dict, dict[str, np.ndarray]]:
    """Send requests in one execute call to the model of ``root``, in a process of its own.

    Args:
        refused: answers for which the server finds no room.
    """
    from google.protobuf import json_format

    config = parse((root / "embedding/config.pbtxt").read_text())
    text = json_format.MessageToJson(config, preserving_proto_field_name=True)
    sent, got = tmp_path / "requests.npz", tmp_path / "answers.npz"
    np.savez(sent, **{f"{i}/{k}": v for i, r in enumerate(requests) for k, v in r.items()})
    run = subprocess.run(
        [sys.executable, STANDIN / "drive.py", root / "embedding/1", text, sent, got, str(refused)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    with np.load(got) as file:
        return json.loads(run.stdout), {key: file[key] for key in file.files}


def expected(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return embedding.compute(embedding.table(), feed["input_ids"], feed["attention_mask"])


def test_requests_are_merged_split_and_refused_one_by_one(bench, tmp_path):
    artifact = bench.artifact("python")
    bench.emit(artifact)
    feeds = [embedding.feed(shape, seed=i) for i, shape in enumerate([(1, 6), (2, 6), (1, 4), (1, 6), (3, 6), (1, 6)])]
    feeds[3]["input_ids"][0, 2] = 50
    result, answers = drive(bench.root(artifact), tmp_path, feeds)
    assert [e is None for e in result["errors"]] == [True, True, True, False, True, True]
    assert "holds 50 at index (0, 2), expected values in [0, 49]" in result["errors"][3]
    assert result["codes"][3] == 3
    assert result["calls"] == [[7, 6], [1, 4]]
    assert Path(result["accel"]) == bench.root(artifact) / "embedding/1/accel"
    for i in (0, 1, 2, 4):
        for name, value in expected(feeds[i]).items():
            np.testing.assert_array_equal(answers[f"{i}/{name}"], value)
    assert [key for key in answers if key.startswith("5/")] == ["5/pooled"]


def test_without_batching_every_request_runs_alone(bench, tmp_path):
    artifact = bench.artifact("python")
    served = replace(embedding.SERVED["python"], dynamic_batching=False)
    bench.emit(artifact, builder=embedding.EmbeddingBuilder(served))
    feeds = [embedding.feed((2, 3)), embedding.feed((1, 3))]
    result, answers = drive(bench.root(artifact), tmp_path, feeds)
    assert result["calls"] == [[2, 3], [1, 3]]
    np.testing.assert_array_equal(answers["0/hidden"], expected(feeds[0])["hidden"])


def test_a_request_that_fails_does_not_take_those_it_was_merged_with_along(bench, tmp_path):
    artifact = bench.artifact("python")
    source = replace(embedding.source(), inputs=tuple(replace(s, range=None) for s in embedding.INPUTS))
    bench.emit(artifact, source=source)
    feeds = [embedding.feed((1, 3), seed=i) for i in range(3)]
    feeds[1]["input_ids"][0, 0] = 49 + 1
    result, answers = drive(bench.root(artifact), tmp_path, feeds)
    assert [e is None for e in result["errors"]] == [True, False, True]
    assert "the model failed on this request: input 'input_ids' holds 50" in result["errors"][1]
    assert result["codes"][1] == 3, "the client's fault"
    assert result["calls"] == [[1, 3], [1, 3]], "the merged call failed, and each was tried alone"
    np.testing.assert_array_equal(answers["0/hidden"], expected(feeds[0])["hidden"])


def test_a_shape_beyond_the_profile_is_refused(bench, tmp_path):
    artifact = bench.artifact("python")
    bench.emit(artifact)
    result, _ = drive(bench.root(artifact), tmp_path, [embedding.feed((1, 13)), embedding.feed((1, 12))])
    assert result["errors"] == ["input 'input_ids' has shape (1, 13), served are (1, 1) to (8, 12)", None]


def test_a_size_that_is_no_multiple_is_refused(bench, tmp_path):
    artifact = bench.artifact("python")
    profile = {n: replace(s, multiple=(1, 3)) for n, s in artifact.variant.profile.items()}
    bench.emit(replace(artifact, variant=replace(artifact.variant, profile=profile)))
    result, _ = drive(bench.root(artifact), tmp_path, [embedding.feed((1, 7)), embedding.feed((1, 6))])
    assert result["errors"] == ["input 'input_ids' has shape (1, 7), expected multiples of (1, 3)", None]


RECORDING = """
import embedding


class Recording(embedding.EmbeddingBuilder):
    def open(self, artifact, folder, *, threads, mode):
        (folder / "opened").write_text(f"{threads} {mode}")
        return super().open(artifact, folder, threads=threads, mode=mode)


BUILDER = Recording()
"""


@pytest.mark.parametrize(
    ("overrides", "opened"),
    [
        ("instance_group { count: 2 kind: KIND_CPU }", "{half} latency"),
        ('parameters { key: "threads" value { string_value: "7" } }', "7 latency"),
        ('parameters { key: "mode" value { string_value: "throughput" } }', "{all} throughput"),
    ],
)
def test_threads_are_divided_among_instances(bench, tmp_path, overrides, opened):
    artifact = bench.artifact("python")
    bench.emit(artifact, overrides=overrides)
    folder = bench.root(artifact) / "embedding/1"
    spec = json.loads((folder / "artifact.json").read_text())
    (folder / "artifact.json").write_text(json.dumps({**spec, "builder": "recording"}))
    (folder / "recording.py").write_text(RECORDING)
    drive(bench.root(artifact), tmp_path, [embedding.feed((1, 3))])
    cpus = hardware.cpu_threads()
    assert (folder / "artifact/opened").read_text() == opened.format(half=max(1, cpus // 2), all=cpus)


def test_a_release_that_cannot_take_numpy_2_refuses_to_load(bench, tmp_path):
    artifact = bench.artifact("python")
    bench.emit(artifact, release="24.10")
    if int(np.__version__.split(".")[0]) < 2:
        pytest.skip("this environment has NumPy 1, with which that release works")
    with pytest.raises(AssertionError, match="empty outputs under NumPy 2"):
        drive(bench.root(artifact), tmp_path, [embedding.feed((1, 3))])


def test_a_builder_the_server_could_not_find_is_refused(bench, monkeypatch):
    artifact = bench.artifact("python")
    monkeypatch.delattr(embedding, "BUILDER")
    with pytest.raises(InputError, match="not a module's BUILDER"):
        bench.emit(artifact)


@pytest.mark.parametrize("module", sorted({type(b).__module__ for b in discover().values()}))
def test_shipped_modules_import_without_the_rest_of_accel(module, tmp_path):
    for name, path in modules_of(module, *python_model.ALWAYS).items():
        parts = name.split(".")
        target = tmp_path.joinpath(*parts, "__init__.py") if path.name == "__init__.py" else tmp_path.joinpath(*parts)
        target = target if target.suffix else target.with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    run = subprocess.run(
        [sys.executable, "-I", STANDIN / "bare_import.py", tmp_path, module], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout) == tmp_path.joinpath(*module.split(".")).with_suffix(".py")


def test_relative_imports_are_followed(tmp_path, monkeypatch):
    package = tmp_path / "some_plugin"
    package.mkdir()
    (package / "__init__.py").write_text("from . import first\n")
    (package / "first.py").write_text("def f():\n    from .second import X\n    import numpy\n    return X\n")
    (package / "second.py").write_text("X = 1\n")
    (package / "unused.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    found = modules_of("some_plugin.first", *python_model.ALWAYS)
    assert {"some_plugin", "some_plugin.first", "some_plugin.second", *python_model.ALWAYS} <= set(found)
    assert not {"some_plugin.unused", "numpy"} & set(found)


def test_the_real_server_loads_and_serves_it(bench, tmp_path):
    assert environments.installed("triton"), "the embedded server is not installed: make environments"
    artifact = bench.artifact("python")
    bench.emit(artifact, release="24.10")
    root, log = bench.root(artifact), tmp_path / "server.log"
    with server.start(root, via="embedded", log=log) as running, client(running.endpoint) as calls:
        assert running.root == root, "a repository for this very release is served as it is"

        def ask(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return infer(calls, "embedding", feed, embedding.OUTPUTS)

        warm = calls.get_inference_statistics("embedding").model_stats[0]
        assert (warm.inference_count, warm.execution_count) == (12, 5)
        for shape in embedding.SHAPES.values():
            feed = embedding.feed(shape)
            found = ask(feed)
            for name, value in expected(feed).items():
                np.testing.assert_array_equal(found[name], value)
        bad = embedding.feed((1, 3))
        bad["input_ids"][0, 1] = -1
        with pytest.raises(InputError, match="expected values in"):
            ask(bad)
        ask(embedding.feed((1, 3)))
