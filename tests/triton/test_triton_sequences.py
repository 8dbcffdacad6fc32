"""Stateful models: proved over whole streams, and answered as the framework does when sequences come interleaved."""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stateful import GRU, STATES, Framework, Stateful, streams

from accel.api.model import load
from accel.api.serving import Served
from accel.bench.expected import Expected, held_to
from accel.bench.load import Load
from accel.bench.request_pool import SequenceIds
from accel.bench.served import Method, sweep
from accel.builders import targets
from accel.core import environments
from accel.core.accuracy.sqnr import ratio_db
from accel.core.errors import CheckFailed, InputError, SampleError, UsageError
from accel.core.values import TensorSpec, from_json, to_json
from accel.exporters.request import SourceRequest
from accel.exporters.sources import recognise
from accel.exporters.streams import declared, proposed
from accel.run import load_test, tasks
from accel.triton import config as configs, manifest as manifests, settings
from accel.triton.lint import lint
from accel.triton.python_variant import write_python_variant
from accel.triton.reading import read_configs, read_initial, read_points
from accel.triton.sequences import Sequences, State, initial_file
from accel.triton.servers import server
from accel.triton.servers.answers import client, examine, infer
from accel.triton.verify import verify

FLOOR_DB = 80.0
SHAPES = {
    "min_shapes": {"x": (1, 6), "h": (1, 16), "deep": (2, 1, 16)},
    "max_shapes": {"x": (8, 6), "h": (8, 16), "deep": (2, 8, 16)},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Stateful:
    folder = tmp_path_factory.mktemp("recurrent")
    (folder / "model.py").write_text(GRU)
    return Stateful.make(folder, f"{folder / 'model.py'}:build", STATES, **SHAPES)


@pytest.fixture(scope="module")
def ort(made: Stateful) -> Path:
    artifact, files = made.build("ort")
    _, verdict = made.prove(artifact, files)
    assert verdict.passed
    return made.emit(artifact, files, verdict)


@pytest.fixture(scope="module")
def openvino(made: Stateful) -> Path:
    artifact, files = made.build("openvino-fp32")
    _, verdict = made.prove(artifact, files)
    assert verdict.passed, verdict.reasons
    assert re.search(r"streams of 256 and 44 steps.* dB in the last", verdict.notes[-1])
    return made.emit(artifact, files, verdict)


@pytest.fixture(scope="module")
def served(openvino: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    assert environments.installed("triton"), "the embedded server is not installed: make environments"
    log = tmp_path_factory.mktemp("server") / "log"
    with server.start(openvino, via="embedded", log=log) as running:
        yield running


def ask(calls: Any, x: np.ndarray, id: int | str, *, start: bool = False, end: bool = False) -> np.ndarray:
    outputs = (TensorSpec("y", "float32", ("batch", 3)),)
    return infer(calls, "recurrent", {"x": x}, outputs, sequence_id=id, sequence_start=start, sequence_end=end)["y"]


def close(found: Any, truth: Any) -> float:
    """Return the SQNR of answers in dB."""
    found, truth = np.concatenate(list(found)), np.concatenate(list(truth))
    return ratio_db(float(np.square(truth - truth.mean(0)).sum() / max(1e-30, np.square(found - truth).sum())))


# ------------------------------------------------------------------------------------------------ on the real server


def test_interleaved_sequences_answer_as_the_framework_does_over_whole_streams(served: Any, tmp_path: Path):
    sent, framework = streams(6, 80, seed=3), Framework(tmp_path)
    names: list[int | str] = [7, 2**40 + 1, "caller-é", 8, "9", 10]

    def play(number: int) -> list[np.ndarray]:
        with client(served.endpoint) as calls:
            steps = sent[number]
            return [
                ask(calls, s["x"], names[number], start=k == 0, end=k == len(steps) - 1) for k, s in enumerate(steps)
            ]

    with ThreadPoolExecutor(len(sent)) as pool:
        found = list(pool.map(play, range(len(sent))))
    for stream, answers in zip(sent, found, strict=True):
        truth = list(framework.answers(stream))
        assert close(answers, truth) > FLOOR_DB
        assert close(answers[-20:], truth[-20:]) > FLOOR_DB
    with client(served.endpoint) as calls:
        stats = calls.get_inference_statistics("recurrent").model_stats[0]
        assert stats.execution_count < stats.inference_count, "steps of different sequences were merged"


def test_start_begins_anew_and_an_end_forgets(served: Any, tmp_path: Path):
    (one,), framework = streams(1, 12, seed=4), Framework(tmp_path)
    truth, later = list(framework.answers(one)), list(framework.answers(one[4:]))
    with client(served.endpoint) as calls:
        first = [ask(calls, s["x"], 20, start=k == 0) for k, s in enumerate(one[:4])]
        again = [ask(calls, s["x"], 20, start=k == 0) for k, s in enumerate(one[4:])]  # no END before
        assert close(first, truth[:4]) > FLOOR_DB
        assert close(again, later) > FLOOR_DB
        assert close(again, truth[4:]) < 40, "the model does depend on its state"
        ask(calls, one[0]["x"], 20, end=True)
        with pytest.raises(InputError, match="must specify the START flag"):
            ask(calls, one[1]["x"], 20)
        alone = ask(calls, one[0]["x"], 20, start=True, end=True)
        np.testing.assert_allclose(alone, truth[0], atol=1e-5, rtol=0)


def test_a_step_without_a_beginning_or_an_id_is_refused(served: Any):
    (one,) = streams(1, 1, seed=5)
    with client(served.endpoint) as calls:
        with pytest.raises(InputError, match="must specify the START flag"):
            ask(calls, one[0]["x"], 4711)
        with pytest.raises(InputError, match="non-zero or non-empty correlation ID"):
            infer(calls, "recurrent", one[0], (TensorSpec("y", "float32", ("batch", 3)),))
        with pytest.raises(InputError, match="batch-size 1"):
            ask(calls, np.zeros((2, 6), np.float32), 4711, start=True)


def test_a_step_that_is_refused_leaves_the_state_as_it_was(served: Any, tmp_path: Path):
    (one,), framework = streams(1, 6, seed=6), Framework(tmp_path)
    found = []
    with client(served.endpoint) as calls:
        for k, step in enumerate(one):
            if k == 3:
                with pytest.raises(InputError, match="expected finite"):
                    ask(calls, np.full((1, 6), np.nan, np.float32), 30)
            found.append(ask(calls, step["x"], 30, start=k == 0, end=k == len(one) - 1))
    assert close(found, framework.answers(one)) > FLOOR_DB


def test_accel_serve_and_load_know_states(served: Any, openvino: Path, tmp_path: Path):
    (one,), framework = streams(1, 5, seed=8), Framework(tmp_path)
    truth = list(framework.answers(one))
    model = Served(served.endpoint, manifests.read(openvino))
    found = [model.step("api", start=k == 0, end=k == len(one) - 1, x=step["x"])["y"] for k, step in enumerate(one)]
    assert close(found, truth) > FLOOR_DB
    loaded, state = load(openvino), {"h": np.zeros((1, 16), np.float32), "deep": np.zeros((2, 1, 16), np.float32)}
    own = []
    for step in one:
        answer = loaded(**step, **state)
        state = {"h": np.array(answer["hn"]), "deep": np.array(answer["deep_out"])}
        own.append(np.array(answer["y"]))
    assert close(own, truth) > FLOOR_DB


def test_the_check_of_the_served_repository_plays_the_stored_stream(served: Any, openvino: Path):
    found = examine(served.endpoint, openvino)
    assert found.findings == ()
    assert [(a.point, a.output) for a in found.answers] == [("0 to 63", "y")]
    assert found.answers[0].served_db is not None
    assert found.answers[0].served_db > FLOOR_DB
    assert found.answers[0].least_db == FLOOR_DB - 1


def expected(root: Path) -> tuple[list[Any], Expected]:
    manifest = manifests.read(root)
    points = list(read_points(root, manifest).values())
    assert manifest.parity is not None
    gate = held_to(manifest.parity)
    return [p.inputs for p in points], Expected([p.outputs for p in points], manifest.outputs, gate)


CLOSED, OPEN = Load(concurrency=6), Load(rate_per_s=200.0, arrivals="poisson")


@pytest.mark.parametrize(("load", "protocol"), [(CLOSED, "grpc"), (OPEN, "grpc"), (CLOSED, "http")], ids=str)
def test_load_does_not_mix_up_sequences(served: Any, openvino: Path, tmp_path: Path, load: Load, protocol: Any):
    feeds, check = expected(openvino)
    method = Method(0.3, 2, protocol=protocol)
    (point,) = sweep(served.endpoint, "recurrent", feeds, [load], log=tmp_path / "log", method=method, check=check)
    assert point.failures == 0, point.error
    assert point.server is not None
    assert point.server.requests > 64


def test_sequences_that_are_mixed_up_are_found(served: Any, openvino: Path, tmp_path: Path, monkeypatch: Any):
    """The check of the test above can fail: feeds in an order that is none of a stream are answered otherwise."""
    feeds, check = expected(openvino)
    shuffled = [feeds[0], *feeds[:0:-1]]
    with pytest.raises(CheckFailed, match="not what it should be"):
        sweep(
            served.endpoint,
            "recurrent",
            shuffled,
            [Load(concurrency=2)],
            log=tmp_path / "log",
            method=Method(0.2),
            check=check,
        )


def test_bench_sends_sequences(openvino: Path, tmp_path: Path):
    shown: list[Any] = []
    asked = load_test.LoadTestRequest(
        target=str(openvino), concurrency="3", seconds=0.3, shared_memory=True, out=tmp_path / "bench.json"
    )
    load_test.bench(asked, shown.append, lambda text: None)
    (point,) = shown[0]["measurements"]
    assert point["failures"] == 0
    assert point["server"]["requests"] > 64


# ------------------------------------------------------------------------------------------------ proof

SLOW = """
import numpy as np, torch


class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.keep = torch.nn.Parameter(torch.full((1, 4), 0.998))

    def forward(self, x, memory):
        memory = self.keep * memory + x
        return {"y": torch.tanh(0.01 * memory), "memory_out": memory}


def x():
    return np.random.default_rng(0).standard_normal((256, 1, 4)).astype(np.float32) + 1


def build():
    return Slow(), [{"x": v, "memory": np.zeros((1, 4), np.float32)} for v in x()]


def steps():
    memory = np.zeros((1, 4))
    for v in x():
        memory = 0.998 * memory + v
        yield {"x": v, "loud": [int(memory.mean() > 147)]}


def told(outputs, labels, inputs):
    return float(np.mean([(o["memory_out"].mean() > 147) == label for o, label in zip(outputs, labels)]))
"""


PAIR = """
import numpy as np
import torch


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = torch.nn.LSTMCell(6, 16), torch.nn.Linear(16, 3)

    def forward(self, x, h, c):
        h, c = self.cell(x, (h, c))
        return {"y": self.head(h), "hn": h, "cn": c}


def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    zeros = {"h": np.zeros((1, 16), np.float32), "c": np.zeros((1, 16), np.float32)}
    return Pair(), [{"x": rng.standard_normal((1, 6)).astype(np.float32), **zeros} for _ in range(300)]
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stateful, Any, Path]:
    """A model with two states that are alike, built for ONNX Runtime."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "model.py").write_text(PAIR)
    shapes = {"min_shapes": {"x": (1, 6)}, "opt_shapes": {"x": (1, 6)}, "max_shapes": {"x": (8, 6)}}
    made = Stateful.make(folder, f"{folder / 'model.py'}:build", {"h": "hn", "c": "cn"}, **shapes)
    return made, *made.build("ort")


class Planted:
    """A session with an error around it: ``wrong`` changes the states of a feed, and is told which call it is."""

    def __init__(self, inner: Any, wrong: Any) -> None:
        self.inner, self.wrong, self.calls, self.left = inner, wrong, 0, {}

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.calls += 1
        given = {name: np.array(value) for name, value in feed.items()}
        self.wrong(given, self.calls, self.left)
        self.left = {name: np.array(value) for name, value in self.inner.run(given).items()}
        if self.calls == 270 and self.wrong is no_number:
            self.left["cn"][:] = np.nan
        return self.left

    def close(self) -> None:
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def no_number(given: dict[str, np.ndarray], call: int, left: dict[str, np.ndarray]) -> None:
    """Change nothing: the outputs are what is wrong."""


def forget(given: dict[str, np.ndarray], call: int, left: dict[str, np.ndarray]) -> None:
    if call > 200:
        given["h"][:] = given["c"][:] = 0


def forget_once(given: dict[str, np.ndarray], call: int, left: dict[str, np.ndarray]) -> None:
    if call % 300 == 299:
        given["h"][:] = given["c"][:] = 0


def another_stream(given: dict[str, np.ndarray], call: int, left: dict[str, np.ndarray]) -> None:
    if left and left["hn"].shape == given["h"].shape:
        given["h"], given["c"] = left["hn"], left["cn"]


def swapped(given: dict[str, np.ndarray], call: int, left: dict[str, np.ndarray]) -> None:
    given["h"], given["c"] = given["c"], given["h"]


def rows_rolled(given: dict[str, np.ndarray], call: int, left: dict[str, np.ndarray]) -> None:
    if len(given["h"]) == 7:
        given["h"], given["c"] = np.roll(given["h"], 1, 0), np.roll(given["c"], 1, 0)


def drift(given: dict[str, np.ndarray], call: int, left: dict[str, np.ndarray]) -> None:
    given["c"] *= np.float32(0.9998)


@pytest.mark.parametrize(
    "wrong",
    [forget, forget_once, another_stream, swapped, rows_rolled, drift, no_number, None],
    ids=lambda wrong: getattr(wrong, "__name__", "sound"),
)
def test_a_variant_that_loses_mixes_or_swaps_its_states_is_refused(
    pair: tuple[Stateful, Any, Path], monkeypatch: pytest.MonkeyPatch, wrong: Any
):
    made, artifact, files = pair
    builder = type(targets.discover()["ort"])
    sound = builder.open
    if wrong:
        monkeypatch.setattr(builder, "open", lambda *a, **k: Planted(sound(*a, **k), wrong))
    _, verdict = made.prove(artifact, files)
    assert verdict.passed is (wrong is None), verdict.reasons
    if wrong is no_number:
        assert any("the state 'cn' holds NaN" in reason for reason in verdict.reasons)


def test_a_variant_that_drifts_is_refused_though_every_step_alone_passes(tmp_path: Path):
    """Its state decays a little otherwise: with the source's state before each step nothing is seen of it."""
    import onnx

    (tmp_path / "slow.py").write_text(SLOW)
    slow = Stateful.make(tmp_path, f"{tmp_path / 'slow.py'}:build", {"memory": "memory_out"})
    gate = {"sqnr_db": 40.0, "shape_db": 30.0}
    right = slow.build("ort")
    assert all(v.passed for v in slow.prove(*right, gate))
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    model = onnx.load(tmp_path / "onnx" / "model.onnx")
    (keep,) = (t for t in model.graph.initializer if np.allclose(onnx.numpy_helper.to_array(t), 0.998, atol=1e-6))
    keep.CopyFrom(onnx.numpy_helper.from_array(np.full((1, 4), 0.9965, np.float32), keep.name))
    onnx.save(model, wrong / "model.onnx")
    (wrong / "model.onnx.data").touch()
    single, whole = slow.prove(*slow.build("ort", wrong), gate)
    assert single.passed, single.reasons
    assert not whole.passed
    assert "over streams of 256 steps" in whole.reasons[0]
    assert "sqnr_db" in whole.reasons[0]


def test_the_users_task_is_held_over_whole_streams(tmp_path: Path):
    """A state that decays a little faster: each step alone says the same, and the stream says it 30 steps later."""
    import onnx

    (tmp_path / "slow.py").write_text(SLOW)
    file = tmp_path / "slow.py"
    asked = {"samples": f"{file}:steps", "labels": "loud", "metric": f"{file}:told"}
    slow = Stateful.make(tmp_path, f"{file}:build", {"memory": "memory_out"}, **asked)
    assert set(slow.described.samples.labels) == {"calibration", "gate", "streams"}
    labels = json.loads((tmp_path / "samples" / slow.described.samples.labels["streams"].path).read_text())
    assert [labels[f"s0.{k}"] for k in (0, 100, 255)] == [[0], [0], [1]]
    gate = {"told": 0.99, "sqnr_db": 3.0, "shape_db": 3.0}
    single, whole = slow.prove(*slow.build("ort"), gate)
    assert single.scores["told"] == (1.0, 1.0)
    assert whole.passed, whole.reasons
    assert whole.notes[-1].endswith("; told 1 of the source's own")
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    model = onnx.load(tmp_path / "onnx" / "model.onnx")
    (keep,) = (t for t in model.graph.initializer if np.allclose(onnx.numpy_helper.to_array(t), 0.998, atol=1e-6))
    keep.CopyFrom(onnx.numpy_helper.from_array(np.full((1, 4), 0.9965, np.float32), keep.name))
    onnx.save(model, wrong / "model.onnx")
    (wrong / "model.onnx.data").touch()
    single, whole = slow.prove(*slow.build("ort", wrong), gate)
    assert single.passed, single.reasons
    assert not whole.passed
    assert "over streams of 256 steps" in whole.reasons[0]
    assert "told 0.8" in whole.reasons[0]


def test_what_looks_like_a_state_is_proposed_and_never_assumed(made: Stateful, tmp_path: Path):
    (tmp_path / "model.py").write_text(GRU)
    source = tasks.source_of(recognise(f"{tmp_path / 'model.py'}:build"))
    assert source.states == {}
    assert proposed(source) == {"h": "hn"}
    assert source.notice is not None
    assert "--state hn=h serves sequences" in source.notice
    assert made.described.source.states == STATES
    assert [s.name for s in made.described.source.client_inputs] == ["x"]


@pytest.mark.parametrize(
    ("input", "output", "found"),
    [
        ("state", "stateN", True),
        ("h0", "hn", True),
        ("c_in", "c_out", True),
        ("prev_hidden", "next_hidden", True),
        ("lstm.0.state", "lstm.0.state_out", True),
        ("lstm.0.state", "lstm.1.state", False),
        ("images", "images_out", False),
        ("h", "c", False),
    ],
)
def test_pairs_are_known_by_their_names(made: Stateful, input: str, output: str, found: bool):
    specs = [TensorSpec("x", "float32", ("batch", 6)), TensorSpec(input, "float32", ("batch", 16))]
    outputs = (TensorSpec("y", "float32", ("batch", 3)), TensorSpec(output, "float32", ("batch", 16)))
    source = replace(made.described.source, inputs=tuple(specs), outputs=outputs, states={})
    assert proposed(source) == ({input: output} if found else {})
    wider = replace(source, outputs=(outputs[0], TensorSpec(output, "float32", ("batch", 17))))
    assert proposed(wider) == {}


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ({"h": "nope"}, "no output 'nope'"),
        ({"nope": "hn"}, "no input 'nope'"),
        ({"h": "y"}, "the output has dims"),
        ({"h": "hn", "deep": "hn"}, "has dims|two inputs"),
        ({"x": "y", "h": "hn", "deep": "deep_out"}, "dims"),
    ],
)
def test_pairs_that_are_no_state_are_refused(made: Stateful, states: dict[str, str], why: str):
    request = SourceRequest("", "factory", "", states=states)
    with pytest.raises(UsageError, match=why):
        declared(replace(made.described.source, states={}), request)


# ------------------------------------------------------------------------------------------------ repositories


def test_a_backend_that_keeps_states_gets_them_from_the_server(ort: Path, tmp_path: Path):
    manifest, model = manifests.read(ort), read_configs(ort)["recurrent"]
    assert (manifest.backend, model.max_batch_size) == ("onnxruntime", 0), "one state has the batch behind its layers"
    assert [(s.input_name, s.output_name, list(s.dims)) for s in model.sequence_batching.state] == [
        ("h", "hn", [1, 16]),
        ("deep", "deep_out", [2, 1, 16]),
    ]
    assert all(s.initial_state[0].zero_data for s in model.sequence_batching.state)
    assert [t.name for t in (*model.input, *model.output)] == ["x", "y"]
    assert not model.model_warmup, "a warm-up request has no sequence, so none of its states is there"
    assert not [f for f in (*lint(ort, manifest.release), *verify(ort)) if f.severity == "error"]
    assert from_json(manifests.Manifest, to_json(manifest)) == manifest
    write_python_variant(ort, tmp_path / "variant", release="24.10")
    twin = read_configs(tmp_path / "variant")["recurrent"]
    assert (twin.backend, twin.default_model_filename, twin.max_batch_size) == ("python", "stateful.py", 8)
    assert twin.HasField("sequence_batching")
    assert not twin.sequence_batching.state
    assert twin.model_warmup
    assert not [
        f for f in (*lint(tmp_path / "variant", "24.10"), *verify(tmp_path / "variant")) if f.severity == "error"
    ]


def test_states_with_the_batch_in_front_are_merged_by_the_server(tmp_path: Path):
    (tmp_path / "model.py").write_text(GRU)
    text = GRU.replace("h, deep)", "h, deep=None)").replace('"deep_out": deep', '"last": out[:, -1]')
    (tmp_path / "model.py").write_text(text.replace(', "deep": np.zeros((2, 1, 16), np.float32)', ""))
    begin = np.linspace(-1, 1, 16, dtype=np.float32)[None]
    np.save(tmp_path / "h.npy", begin)
    shapes = {k: {n: s for n, s in v.items() if n != "deep"} for k, v in SHAPES.items()}
    one = Stateful.make(
        tmp_path, f"{tmp_path / 'model.py'}:build", {"h": "hn"}, initial={"h": tmp_path / "h.npy"}, **shapes
    )
    artifact, files = one.build("ort")
    verdict = one.prove(artifact, files)[1]
    assert verdict.passed
    root = one.emit(artifact, files, verdict)
    model = read_configs(root)["recurrent"]
    assert model.max_batch_size == 8
    (state,) = model.sequence_batching.state
    assert (list(state.dims), state.initial_state[0].data_file) == ([16], "h.bin")
    assert (root / "recurrent" / "initial_state" / "h.bin").read_bytes() == begin.tobytes()
    assert not [f for f in lint(root, manifests.read(root).release) if f.severity == "error"]
    with np.load(root / manifests.REFERENCE) as file:
        assert np.array_equal(file["initial/h"], begin)


@pytest.mark.parametrize(
    ("text", "why"),
    [("dynamic_batching { }", "give it dynamic_batching"), ("sequence_batching { direct { } }", "strategy direct")],
)
def test_overrides_that_would_forget_the_states_are_refused(made: Stateful, openvino: Path, text: str, why: str):
    manifest = manifests.read(openvino)
    assert manifest.parity is not None
    files = made.folder / "openvino-fp32"
    with pytest.raises(InputError, match=why):
        made.emit(manifest.artifact, files, manifest.parity, overrides=text)


def test_a_reference_without_the_initial_states_is_named(ort: Path, tmp_path: Path):
    shutil.copytree(ort, tmp_path / "copy")
    with np.load(ort / manifests.REFERENCE) as file:
        np.savez(tmp_path / "copy" / "reference.npz", **{k: file[k] for k in file.files if k != "initial/h"})
    with pytest.raises(InputError, match=r"reference\.npz cannot be read"):
        read_initial(tmp_path / "copy", manifests.read(ort))


def test_tuning_changes_how_sequences_are_merged_and_keeps_them(openvino: Path):
    model = configs.parse((openvino / "recurrent" / "config.pbtxt").read_text())
    assert settings.read(model).batching
    settings.apply(model, settings.Settings(2, 1, True, (4,), 500), cpu_threads=2)
    assert list(model.sequence_batching.oldest.preferred_batch_size) == [4]
    assert model.sequence_batching.oldest.max_queue_delay_microseconds == 500
    settings.apply(model, settings.Settings(1, 1, False), cpu_threads=2)
    assert list(model.sequence_batching.oldest.preferred_batch_size) == [1]
    assert not settings.read(model).batching
    assert not model.HasField("dynamic_batching")
    settings.limit_batches(model, 2)
    assert model.sequence_batching.oldest.max_candidate_sequences == 1024


# ------------------------------------------------------------------------------------------------ the states kept


def kept(most: int, idle_s: float = 60.0) -> Sequences:
    states = (State(TensorSpec("h", "float32", ("batch", 2)), "hn"),)
    return Sequences(states, {"h": np.zeros((1, 2), np.float32)}, most=most, idle_s=idle_s)


def test_states_are_bounded_and_the_one_that_waits_longest_goes_first():
    sequences = kept(2)
    for id in (1, 2, 1, 3):
        sequences.after(id, {"hn": np.full((1, 2), id, np.float32)}, end=False)
    assert len(sequences) == 2
    assert sequences.before(1, start=False)["h"].tolist() == [[1, 1]]
    with pytest.raises(SampleError, match="sequence 2 has no state here"):
        sequences.before(2, start=False)


def test_an_idle_sequence_is_forgotten_and_a_warm_up_leaves_nothing():
    sequences = kept(9, idle_s=0.0)
    sequences.after(1, {"hn": np.ones((1, 2), np.float32)}, end=False)
    sequences.after(2, {"hn": np.ones((1, 2), np.float32)}, end=True)
    sequences.after(0, {"hn": np.ones((1, 2), np.float32)}, end=False)
    assert len(sequences) == 0
    assert sequences.before(0, start=False)["h"].tolist() == [[0, 0]]


def test_states_whose_names_differ_in_odd_characters_have_files_of_their_own():
    names = ["h", "h/1", "h_1", "h 1", "../h", "é", "x" * 300, "x" * 301]
    files = [initial_file(name) for name in names]
    assert len(set(files)) == len(names)
    assert (files[0], files[2]) == ("h.bin", "h_1.bin")
    assert all("/" not in file and len(file.encode()) < 255 for file in files)


def test_slots_never_share_an_id():
    one, other = SequenceIds(3), SequenceIds(3)
    assert [one.step(0) for _ in range(4)] == [0, 1, 2, 0]
    assert one.step(1) == 0
    assert len({ids.of(1, slot).id for ids in (one, other) for slot in range(3)}) == 6


# ------------------------------------------------------------------------------------------------ silero-vad


def voice(seconds: float, seed: int) -> np.ndarray:
    """Return syllables of a synthetic voice among noise, float32 at 16 kHz: pulses through three resonances."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * 16_000)) / 16_000
    phase = np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * t + seed)) / 16_000
    sound = np.fft.rfft((np.diff(np.floor(phase), prepend=0) > 0).astype(float))
    hertz = np.fft.rfftfreq(len(t), 1 / 16_000)
    for centre, width in ((600, 80), (1100, 100), (2500, 160)):
        sound /= 1 - (hertz / centre) ** 2 + 1j * hertz * width / centre**2
    wave = np.fft.irfft(sound, len(t))
    speaking = np.repeat(rng.random(len(t) // 3200 + 1) < 0.6, 3200)[: len(t)]
    loud = wave / np.abs(wave).max() * 0.5 * speaking * (0.6 + 0.4 * np.sin(8 * np.pi * t))
    return (loud + 0.003 * rng.standard_normal(len(t))).astype(np.float32)


def windows(sound: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Cut a sound as silero-vad takes it: 512 samples, behind the last 64 before them."""
    parts = sound[: len(sound) // 512 * 512].reshape(-1, 512)
    before = np.concatenate([np.zeros((1, 64), np.float32), parts[:-1, -64:]])
    return [
        {"input": np.concatenate([b, p])[None], "sr": np.array([16_000])} for b, p in zip(before, parts, strict=True)
    ]


def test_silero_vad_answers_as_its_own_package_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Real weights: four voices at once on the real server, each as ``silero_vad.OnnxWrapper`` answers it alone.

    The package is that of the weights' environment.
    """
    import torch

    monkeypatch.setattr(sys, "path", [*sys.path, str(environments.site_packages(environments.WEIGHTS))])
    wrapper = pytest.importorskip(
        "silero_vad.utils_vad", reason=f"silero-vad is not here: {environments.fix(environments.WEIGHTS)}"
    )
    file = Path(wrapper.__file__).parent / "data" / "silero_vad.onnx"
    np.savez(
        tmp_path / "voices.npz",
        **{f"{k}/{n}": v for k, step in enumerate(windows(voice(12, 1))) for n, v in step.items()},  # type: ignore[arg-type]
    )
    made = Stateful.make(
        tmp_path,
        str(file),
        {"state": "stateN"},
        samples=str(tmp_path / "voices.npz"),
        ranges={"sr": (16_000, 16_000)},
        opt_shapes={"input": (1, 576), "sr": (1,)},
    )
    artifact, files = made.build("openvino-fp32")
    verdict = made.prove(artifact, files)[1]
    assert verdict.passed, verdict.reasons
    root = made.emit(artifact, files, verdict, name="silero")
    sounds = [voice(4, seed) for seed in range(2, 6)]
    outputs = (TensorSpec("output", "float32", ("batch", 1)),)

    with server.start(root, via="embedded", log=tmp_path / "log") as running:

        def play(number: int) -> list[np.ndarray]:
            steps = windows(sounds[number])
            with client(running.endpoint) as calls:
                return [
                    infer(
                        *(calls, "silero", step, outputs),
                        sequence_id=100 + number,
                        sequence_start=k == 0,
                        sequence_end=k == len(steps) - 1,
                    )["output"]
                    for k, step in enumerate(steps)
                ]

        with ThreadPoolExecutor(len(sounds)) as pool:
            found = list(pool.map(play, range(len(sounds))))
    for sound, answers in zip(sounds, found, strict=True):
        own = wrapper.OnnxWrapper(str(file), force_onnx_cpu=True)
        chunks = torch.from_numpy(sound[: len(sound) // 512 * 512]).reshape(-1, 1, 512)
        truth = [own(chunk, 16_000).numpy() for chunk in chunks]
        assert np.ptp(np.concatenate(truth)) > 0.5, "the voice is heard"
        assert close(answers, truth) > FLOOR_DB
        assert close(answers[-30:], truth[-30:]) > FLOOR_DB
    assert json.loads((root / "manifest.json").read_text())["states"][0]["output"] == "stateN"
