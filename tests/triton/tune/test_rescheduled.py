"""A repository whose batches are limited by what was measured: on the real server, with the contract it had."""

import null_repository
import pytest
import yaml

from accel.bench.load import Generator, Load
from accel.core.values import sha256_file
from accel.triton import manifest as manifests, settings
from accel.triton.config import parse
from accel.triton.launch import memory_of
from accel.triton.rescheduled import emit, size
from accel.triton.servers import server as servers
from accel.triton.verify import verify

pytestmark = pytest.mark.slow


def test_memory_follows_what_was_measured_and_the_number_of_instances(tmp_path):
    root = null_repository.write(tmp_path, latency_ms=5.0)
    size(root, 1500, sized := tmp_path / "sized")
    four = settings.Settings(instances=4)
    emit(sized, lambda model: settings.apply(model, four, cpu_threads=2), tuned := tmp_path / "tuned", reason="x")
    found = {}
    for folder in (root, sized, tuned):
        assert not [f for f in verify(folder) if f.severity == "error"]
        text = (folder / "kubernetes.yaml").read_text()
        deployment, _ = yaml.safe_load_all(text)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        found[folder.name] = container["resources"]["limits"]["memory"], memory_of(text).partition(",")[0]
    assert found == {
        root.name: ("4Gi", "memory not measured: four copies of the artifact"),
        "sized": ("5Gi", "memory measured: a peak of 1500 MiB; and 3 GiB for the server"),
        "tuned": ("9Gi", "memory measured: a peak of 1500 MiB for each of 4 instances; and 3 GiB for the server"),
    }
    assert (manifests.read(root).peak_rss_mib, manifests.read(tuned).peak_rss_mib) == (None, 1500)


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
