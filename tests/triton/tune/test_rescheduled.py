"""A repository whose batches are limited by what was measured: on the real server, with the contract it had."""

import null_repository
import pytest

from accel.bench.load import Generator, Load
from accel.core.values import sha256_file
from accel.triton import manifest as manifests, settings
from accel.triton.config import parse
from accel.triton.rescheduled import emit
from accel.triton.servers import server as servers

pytestmark = pytest.mark.slow


def test_limited_batches_keep_the_queue_policy_and_the_largest_request(tmp_path):
    root = null_repository.write(tmp_path, latency_ms=5.0)
    before = {p: sha256_file(p) for p in sorted(root.rglob("*")) if p.is_file()}
    made = tmp_path / "limited"
    emit(root, lambda model: settings.limit_batches(model, 1), made, reason="larger batches gain 6 %")
    assert {p: sha256_file(p) for p in sorted(root.rglob("*")) if p.is_file()} == before
    assert manifests.read(made).tuned == "larger batches gain 6 %"
    config, shipped = (parse((r / "nothing" / "config.pbtxt").read_text()) for r in (made, root))
    assert list(config.dynamic_batching.preferred_batch_size) == [1]
    assert config.dynamic_batching.default_queue_policy == shipped.dynamic_batching.default_queue_policy
    assert config.max_batch_size == shipped.max_batch_size == 8
    merged = {}
    for name, folder in (("shipped", root), ("limited", made)):
        with (
            servers.start(folder, via="embedded", log=tmp_path / f"{name}.log") as server,
            Generator(server.endpoint.grpc, log=tmp_path / "load.log") as generator,
        ):
            generator.open("nothing", [null_repository.feed((8, 16))])  # as large as clients may send
            generator.open("nothing", [null_repository.feed((1, 16))])
            begin = generator.statistics("nothing")
            generator.start(Load(concurrency=8))
            generator.window(0.5, least=50)
            generator.stop()
            end = generator.statistics("nothing")
            assert not generator.failures
        merged[name] = (end["inferences"] - begin["inferences"]) / (end["executions"] - begin["executions"])
    assert merged["limited"] == 1.0
    assert merged["shipped"] > 2
