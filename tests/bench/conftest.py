"""One real server for all tests here: the null model, fast and slow, and a model that echoes what it was sent."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import null_repository
import pytest

from accel.bench.load import Generator
from accel.core.values import TensorSpec
from accel.triton.config import BATCHING, model_config, to_text
from accel.triton.servers import server

ECHO = '''
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers twice each id; an id of 48 at the front makes it stall for half a second."""

    def execute(self, requests):
        responses = []
        for request in requests:
            ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
            if ids[0, 0] == 48:
                time.sleep(0.5)
            doubled = pb_utils.Tensor("doubled", (2 * ids).astype(np.float32))
            responses.append(pb_utils.InferenceResponse([doubled]))
        return responses
'''


def write_echo(root: Path) -> None:
    """Add the model ``echo`` to a repository root."""
    config = model_config(
        "echo",
        [TensorSpec("input_ids", "int64", ("seq",))],
        [TensorSpec("doubled", "float32", ("seq",))],
        max_batch_size=8,
        version=1,
        backend="python",
        default_model_filename="model.py",
        dynamic_batching=BATCHING,
    )
    (root / "echo" / "1").mkdir(parents=True)
    (root / "echo" / "1" / "model.py").write_text(ECHO)
    (root / "echo" / "config.pbtxt").write_text(to_text(config))


@pytest.fixture(scope="session")
def null_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the null model that answers after 2 ms."""
    return null_repository.write(tmp_path_factory.mktemp("null"), latency_ms=2.0)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Server]:
    """The embedded server with ``nothing`` (at once), ``slow`` (40 ms a call) and ``echo``."""
    folder = tmp_path_factory.mktemp("served")
    root = null_repository.write(folder)
    slow = null_repository.write(folder, name="slow", latency_ms=40.0)
    shutil.copytree(slow / "slow", root / "slow")
    write_echo(root)
    with server.start(root, via="embedded", log=folder / "server.log", allow_changed=True) as started:
        yield started


@pytest.fixture(scope="module")  # other tests here count the processes that run
def generator(running: server.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    """One process that sends to it."""
    log = tmp_path_factory.mktemp("load") / "load.log"
    with Generator(running.endpoint.grpc, log=log, timeout_s=20) as made:
        yield made


@pytest.fixture(scope="module")
def over_http(running: server.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    """One process that sends to it over HTTP."""
    log = tmp_path_factory.mktemp("http") / "load.log"
    with Generator(running.endpoint.grpc, http=running.endpoint.http, log=log, timeout_s=20) as made:
        yield made
