"""The model that groups requests for another one of the server, behind the real server.

That server has no native backend, so the core is served by the Python backend here: the model in front, which asks it
by way of the server, is the one that is emitted.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import (
    BERT,
    SENT,
    SIZES,
    asked,
    checked,
    hold,
    hold_mixed_load,
    hold_one_refusal,
    refusals,
)
from live import Live
from tritonclient import grpc

import accel
from accel.core import environments
from accel.core.files import write_text
from accel.core.values import PYTHON_BACKEND
from accel.triton import manifest as manifests
from accel.triton.config import parse, to_text
from accel.triton.folders import describe, link_tree
from accel.triton.reading import CONFIG, read_configs
from accel.triton.routing import write_routed
from accel.triton.servers import server
from accel.triton.servers.hosts import EMBEDDED_RELEASE
from accel.triton.verify import verify

OWN_IDS = (0, 49)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Live:
    return Live.make(tmp_path_factory.mktemp("bert"), BERT, SIZES)


@pytest.fixture(scope="module")
def single(bert: Live) -> dict[str, dict[str, np.ndarray]]:
    return bert.alone("ort", SENT)


@pytest.fixture(scope="module")
def root(bert: Live) -> Path:
    found, _ = checked(bert, "ort")
    native = bert.root("ort", release=EMBEDDED_RELEASE, grouping=found.grouping, mask="attention_mask")
    write_routed(native, bert.folder / "routed")
    return bert.folder / "routed"


def test_in_process_it_is_the_artifact_that_groups(bert: Live, root: Path, single: dict[str, dict[str, np.ndarray]]):
    with accel.load(root) as model:
        hold(bert, single, dict(zip(SENT, model.run_all(list(SENT.values())), strict=True)))


def test_a_server_without_the_native_backend_serves_both_as_one_model(
    bert: Live, root: Path, single: dict[str, dict[str, np.ndarray]], tmp_path: Path
):
    if not environments.installed("triton"):
        pytest.skip(f"no embedded server here: {environments.fix('triton')}")
    with server.start(root, via="embedded", log=tmp_path / "server.log") as running:
        assert running.python_models == {"tiny"}
        hold(bert, single, asked(bert, running))


@pytest.fixture(scope="module")
def served(bert: Live, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not environments.installed("triton"):
        pytest.skip(f"no embedded server here: {environments.fix('triton')}")
    folder = tmp_path_factory.mktemp("routed")
    twin = bert.root("ort", release=EMBEDDED_RELEASE, python=True)
    with_python_core(root, twin, folder / "repository", instances=2)
    with server.start(folder / "repository", via="embedded", log=folder / "server.log") as running:
        yield running


def with_python_core(root: Path, twin: Path, out: Path, *, instances: int, ids: tuple[int, int] = OWN_IDS) -> None:
    """Write a routed repository whose core is the model of ``twin``, warmed up as the native one is.

    Args:
        ids: values that the core takes.
    """
    link_tree(root, out)
    shutil.rmtree(out / "tiny_core")
    link_tree(twin / "tiny", out / "tiny_core")
    shutil.rmtree(out / "tiny_core" / "warmup")
    link_tree(root / "tiny_core" / "warmup", out / "tiny_core" / "warmup")
    native, core = read_configs(root)["tiny_core"], parse((out / "tiny_core" / CONFIG).read_text())
    core.name = native.name
    core.instance_group[0].count = instances
    for field in ("dynamic_batching", "model_warmup"):
        core.ClearField(field)
    if ids == OWN_IDS:  # else it would not load: its warm-up is checked as any request
        core.model_warmup.extend(native.model_warmup)
    about = out / "tiny_core" / "1" / "artifact.json"
    spec = json.loads(about.read_text())
    spec["inputs"][0]["range"] = ids
    write_text(out / "tiny_core" / CONFIG, to_text(core))  # not in place: links to the twin's files
    write_text(about, json.dumps(spec))
    manifest = manifests.read(out)
    (out / manifests.FILENAME).unlink()
    manifests.write(dataclasses.replace(manifest, backend=PYTHON_BACKEND, files=describe(out, {})), out)
    assert [f for f in verify(out) if f.severity == "error"] == []


def test_every_answer_under_a_mixed_load_is_that_of_the_single_request(
    bert: Live, served: Any, single: dict[str, dict[str, np.ndarray]]
):
    ran = executions(served)
    calls = hold_mixed_load(bert, served, single)
    assert executions(served) - ran == calls, "a group is one call of the core"


def executions(served: Any) -> int:
    """Return how often the server ran the core."""
    with grpc.InferenceServerClient(served.endpoint.grpc) as calls:
        [model] = calls.get_inference_statistics("tiny_core").model_stats
    return int(model.execution_count)


def test_the_core_has_met_every_length_when_the_server_is_ready(root: Path, served: Any):
    """What clients asked before is counted as well, so this is a lower bound."""
    wanted = read_configs(root)["tiny_core"].model_warmup
    assert len(wanted) >= len(manifests.read(root).grouping.lengths)
    assert executions(served) >= len(wanted)


def test_a_request_outside_the_contract_is_refused_alone(bert: Live, served: Any):
    hold_one_refusal(bert, served)


def test_what_the_core_refuses_is_sent_again_alone_and_its_message_is_the_answer(
    bert: Live, root: Path, served: Any, tmp_path: Path
):
    """A core that takes ids below 40 only, which the model in front does not know."""
    twin = bert.root("ort", release=EMBEDDED_RELEASE, python=True)
    out = tmp_path / "repository"
    with_python_core(root, twin, out, instances=1, ids=(0, 39))
    rng = np.random.default_rng(0)
    feeds = {}
    for number in range(12):
        ids = rng.integers(0, 40, (1, int(rng.integers(1, 50))))
        ids[0, 0] = 45 if number in (2, 7) else ids[0, 0]
        feeds[number] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    with server.start(out, via="embedded", log=tmp_path / "server.log") as running:
        found = refusals(bert, running, feeds)
    assert list(found) == [2, 7]
    assert all("expected values in [0, 39]" in message for message in found.values())
