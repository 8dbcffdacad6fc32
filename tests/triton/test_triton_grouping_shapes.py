"""A tiny detector behind the real server, under a mixed load of pictures of several sizes, which nothing may pad."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import counters
from live import THREADS, Live, answer_with

import accel
from accel.core import environments
from accel.core.errors import InputError
from accel.core.values import Target, Variant
from accel.exporters import verdict
from accel.run import load_test
from accel.run.group_check import GroupCheck, check_groups
from accel.run.tasks import Described
from accel.triton import manifest as manifests
from accel.triton.config import parse
from accel.triton.servers import server
from accel.triton.servers.answers import client, infer

DETECTOR = """
import numpy as np
import torch


class Detector(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, width), torch.nn.Linear(width, width)
        self.last = torch.nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.first(x.permute(0, 2, 3, 1)))
        hidden = self.second(hidden).permute(0, 3, 1, 2)
        return {"map": self.last(hidden), "score": hidden.mean((2, 3))}


def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    shapes = [(16, 16), (16, 24), (24, 16), (20, 20)]
    return Detector(), [
        {"x": (rng.uniform(0.2, 4) * rng.standard_normal((1, 3, *shapes[i % 4]))).astype(np.float32)}
        for i in range(160)
    ]
"""
SIZES = {"min": (1, 3, 8, 8), "opt": (1, 3, 16, 16), "max": (4, 3, 32, 32)}
GATE = {"sqnr_db": 80.0}


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Live:
    return Live.make(tmp_path_factory.mktemp("detector"), DETECTOR, SIZES, ["x"])


def checked(detector: Live, target: str, gate: dict[str, float]) -> GroupCheck:
    artifact = detector._build(Variant(Target(target, "cpu"), detector.source.profile))
    described, files = Described(detector.source, detector.samples), detector._files(artifact.variant)
    return check_groups(artifact, files, described, detector.folder / "samples", gate, THREADS)


def test_a_variant_whose_rows_are_independent_groups_rows_of_one_shape(detector: Live):
    how = checked(detector, "ort", GATE).grouping
    assert how is not None
    assert (how.mask, how.axis, how.lengths, how.rows) == (None, None, (), 4)
    assert {tuple(sizes.values()) for sizes in how.shapes or ()} == {(16, 16), (16, 24), (24, 16), (20, 20)}
    assert how.compared == 16
    assert how.found["sqnr_db"] is None or how.found["sqnr_db"] > 100, "None: every value is equal"


def test_one_whose_scale_is_taken_over_all_rows_may_not(detector: Live):
    found = checked(detector, "ort-int8-dynamic", {"sqnr_db": 40.0})
    assert found.grouping is None
    assert str(found.why_not).startswith("its answers depend on the other rows of a call: ")


def test_an_output_as_large_as_the_call_makes_it_is_refused(detector: Live, monkeypatch: pytest.MonkeyPatch):
    """As where rows of boxes are filled up to the most that any picture of the call has."""

    def filled(run: Any, feed: Any) -> dict[str, np.ndarray]:
        found = run(feed)
        return found | {"score": np.pad(found["score"], [(0, 0), (0, len(feed["x"]) - 1)])}

    answer_with(monkeypatch, "ort", filled)
    found = checked(detector, "ort", GATE)
    assert found.grouping is None
    assert "score" in str(found.why_not)


@pytest.fixture(scope="module")
def root(detector: Live) -> Path:
    if not environments.installed("triton"):
        pytest.skip(f"no embedded server here: {environments.fix('triton')}")
    return detector.root("ort", grouping=checked(detector, "ort", GATE).grouping, mask=None, python=True)


@pytest.fixture(scope="module")
def served(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with server.start(root, via="embedded", log=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


def picture(seed: int) -> dict[str, np.ndarray]:
    """Return a request as one of many clients sends it: of one or more pictures, of a usual size or another."""
    rng = np.random.default_rng(seed)
    shape = [(16, 16), (16, 24), (24, 16), (20, 20), (11, 29)][int(rng.integers(5))]
    rows = int(rng.choice([1, 1, 1, 2, 4]))
    return {"x": (rng.uniform(0.2, 4) * rng.standard_normal((rows, 3, *shape))).astype(np.float32)}


SENT = {str(i): picture(i) for i in range(120)}


def hold(detector: Live, found: dict[str, dict[str, np.ndarray]]) -> None:
    """Hold answers against the artifact's to each row alone."""
    single = detector.alone("ort", SENT)
    for name in SENT:
        assert {n: v.shape for n, v in found[name].items()} == {n: v.shape for n, v in single[name].items()}
    held = verdict.compare(detector.source, SENT, single, found, GATE)
    assert held.passed, held.reasons
    assert held.found["sqnr_db"] is None or held.found["sqnr_db"] > 100, "None: every value is equal"


def test_every_answer_under_a_mixed_load_is_that_of_the_single_picture(detector: Live, served: Any):
    def ask(name: str) -> dict[str, np.ndarray]:
        with client(served.endpoint) as calls:
            return infer(calls, "tiny", SENT[name], detector.source.outputs)

    before = counters(served)
    with ThreadPoolExecutor(16) as clients:
        found = dict(zip(SENT, clients.map(ask, SENT), strict=True))
    after = counters(served)
    hold(detector, found)
    calls, rows, tokens, places = (after[name] - before[name] for name in after)
    assert rows == sum(len(feed["x"]) for feed in SENT.values())
    assert calls < len(SENT), "requests share calls"
    assert tokens == places == sum(feed["x"].size for feed in SENT.values()), "nothing is padded"


def test_a_wrong_picture_of_a_call_is_refused_alone(detector: Live, served: Any):
    def ask(number: int) -> str:
        size = 33 if number == 3 else 16
        with client(served.endpoint) as calls:
            try:
                infer(calls, "tiny", {"x": np.zeros((1, 3, size, 16), np.float32)}, detector.source.outputs)
            except InputError as error:
                return error.message
        return "answered"

    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(ask, range(8)))
    assert [n for n, said in enumerate(found) if said != "answered"] == [3]
    assert "has shape (1, 3, 33, 16), served are" in found[3]


def test_many_pictures_in_process_share_calls_by_shape(detector: Live, root: Path, monkeypatch: pytest.MonkeyPatch):
    calls = list[tuple[int, ...]]()
    with accel.load(root) as model:
        run = model.run
        monkeypatch.setattr(model, "run", lambda feed: (calls.append(feed["x"].shape), run(feed))[1])
        found = dict(zip(SENT, model.run_all(list(SENT.values())), strict=True))
    hold(detector, found)
    rows = sum(len(feed["x"]) for feed in SENT.values())
    assert sum(shape[0] for shape in calls) == rows
    assert max(shape[0] for shape in calls) == 4
    assert len(calls) <= rows / 4 + 5, "all but the last call of each of five shapes are full"


def test_the_samples_shapes_are_met_before_the_server_is_ready(root: Path):
    config = parse((root / "tiny/config.pbtxt").read_text())
    assert config.default_model_filename == "grouped.py"
    assert [spec.allow_ragged_batch for spec in config.input] == [True]
    met = {(s.batch_size, *s.inputs["x"].dims) for s in config.model_warmup}
    assert {(n, 3, *shape) for n in (1, 4) for shape in [(16, 16), (16, 24), (24, 16), (20, 20)]} <= met
    assert manifests.read(root).groups
    assert not manifests.read(root).trims


def test_bench_says_nothing_of_lengths_where_there_are_none(root: Path, tmp_path: Path):
    data, told, seen = tmp_path / "sent.npz", list[str](), list[dict[str, Any]]()
    np.savez(data, **{f"{i}/x": SENT[str(i)]["x"] for i in range(6)})
    asked = load_test.LoadTestRequest(target=str(root), concurrency="8", data=data, via="embedded", seconds=0.3)
    load_test.bench(asked, seen.append, told.append)
    assert not [said for said in told if "outside" in said]
    assert "by_length" not in seen[0]["measurements"][0]
