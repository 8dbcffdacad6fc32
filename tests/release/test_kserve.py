"""A release for KServe: YAML that says what the repository's own files say, and where it is fetched from."""

import copy
import math
import os
import re
import shutil

import published_schemas as published
import pytest
import yaml
from tiny_release import ask, wait_ready

from accel.core import environments, signing
from accel.core.errors import UsageError
from accel.release import document, forms, kserve
from accel.triton import launch, manifest, python_variant
from accel.triton.servers import hosts, processes

needs_schemas = pytest.mark.skipif(bool(published.MISSING), reason="no published schemas here: make schemas")


@pytest.fixture(scope="module")
def written(built, tmp_path_factory):
    """The release, the folder of its YAML, and its manifests by model."""
    folder = tmp_path_factory.mktemp("kserve")
    root, release = built[0] / "store" / "1", document.read(built[0] / "store" / "1")
    storage = {e.repository: f"s3://bucket/releases/1/abc/{e.repository}" for e in release.entries if e.repository}
    out = kserve.write(root, release, folder, storage)
    assert out == folder / "1"
    return root, {p.stem: list(yaml.safe_load_all(p.read_text())) for p in sorted(out.glob("here/*.yaml"))}


def test_the_runtime_starts_what_kubernetes_yaml_starts(written):
    root, found = written
    assert set(found) == {"a", "b"}
    for model, (runtime, service) in found.items():
        repository = root / "repositories/here" / model
        deployment, _ = yaml.safe_load_all((repository / "kubernetes.yaml").read_text())
        pod = deployment["spec"]["template"]["spec"]
        (own,), (container,) = pod["containers"], runtime["spec"]["containers"]
        predictor = service["spec"]["predictor"]
        asked = predictor["model"]
        assert (container["name"], container["image"]) == ("kserve-container", own["image"])
        assert container["command"] == ["bash", "/mnt/models/launch.sh"]
        assert asked["runtime"] == runtime["metadata"]["name"]
        assert asked["modelFormat"] in runtime["spec"]["supportedModelFormats"]
        assert asked["protocolVersion"] in runtime["spec"]["protocolVersions"]
        assert asked["storageUri"] == f"s3://bucket/releases/1/abc/repositories/here/{model}"
        assert asked["resources"] == own["resources"]
        assert container["securityContext"] == own["securityContext"]
        assert predictor["securityContext"] == pod["securityContext"]
        # every variable is one that launch.sh reads, every mount has its volume, every probe the port that is served
        script = (repository / "launch.sh").read_text()
        env = {e["name"]: e["value"] for e in container["env"]}
        assert all(f"${{{name}" in script for name in env if name != "HOME")
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in runtime["spec"]["volumes"]}
        assert {m["mountPath"] for m in container["volumeMounts"]} == {"/dev/shm", "/tmp"}
        ports = {asked[kind]["httpGet"]["port"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert ports == {int(env["HTTP_PORT"])} == {container["ports"][0]["containerPort"]}
        assert service["metadata"]["name"] == f"{model}-here"


def test_the_memory_is_what_was_measured(written):
    root, found = written
    for entry in document.read(root).entries:
        if entry.repository is None:
            continue
        (peak,) = (math.ceil(v.peak_rss_mib) for v in entry.variants if v.id == entry.chosen)
        assert peak > 10
        repository = root / entry.repository
        assert manifest.read(repository).peak_rss_mib == peak
        text = (repository / "kubernetes.yaml").read_text()
        assert f"# memory measured: a peak of {peak} MiB; and 3 GiB for the server, its shared memory and" in text
        limit = f"{math.ceil((launch.SERVER_BYTES + (peak << 20)) / 2**30)}Gi"
        for name in ("limits", "requests"):
            assert found[entry.model][1]["spec"]["predictor"]["model"]["resources"][name]["memory"] == limit


@needs_schemas
def test_it_is_what_kubernetes_and_kserve_publish(written):
    root, found = written
    releases = published.releases()
    for model, services in found.items():
        own = list(yaml.safe_load_all((root / "repositories/here" / model / "kubernetes.yaml").read_text()))
        assert [m["kind"] for m in (*own, *services)] == ["Deployment", "Service", "ServingRuntime", "InferenceService"]
        for release in (releases[0], releases[-1]):
            assert [published.errors(part, release) for part in own] == [[], []]
        assert [published.errors(part, releases[-1]) for part in services] == [[], []]


@needs_schemas
@pytest.mark.parametrize(
    ("kind", "place", "value", "why"),
    [
        ("Deployment", "spec.template.spec.containers.0.resources.limits.memory", [], "is not valid under any"),
        ("Deployment", "spec.template.spec.containers.0.startupProb", {}, "'startupProb' was unexpected"),
        ("Deployment", "spec.selector", None, "'selector' is a required property"),
        ("Service", "spec.ports.0.port", "http", "'http' is not of type 'integer'"),
        ("ServingRuntime", "spec.containers.0.image", 1, "1 is not of type"),
        ("ServingRuntime", "spec.supportedModelFormats.0.versions", "2", "'versions' was unexpected"),
        ("ServingRuntime", "spec.containers", None, "'containers' is a required property"),
        ("InferenceService", "spec.predictor.model.storageURI", "s3://x", "'storageURI' was unexpected"),
        ("InferenceService", "spec.predictor.model.readinessProbe.httpGet.port", None, "'port' is a required property"),
        ("InferenceService", "spec.predictor.minReplicas", "1", "'1' is not of type 'integer'"),
    ],
)
def test_those_schemas_refuse_what_is_wrong(written, kind, place, value, why):
    root, found = written
    parts = [*yaml.safe_load_all((root / "repositories/here/a/kubernetes.yaml").read_text()), *found["a"]]
    part = copy.deepcopy(next(p for p in parts if p["kind"] == kind))
    *above, last = place.split(".")
    inner = part
    for key in above:
        inner = inner[int(key)] if key.isdigit() else inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    (error,) = published.errors(part, published.releases()[-1])
    assert why in error


def test_names_are_dns_labels():
    assert kserve._label("bert-cpu") == "bert-cpu"
    assert re.fullmatch("my-model-v2-cpu-pool-[0-9a-f]{8}", kserve._label("My_Model.v2-cpu pool"))
    assert re.fullmatch("model-7b-cpu-[0-9a-f]{8}", kserve._label("7b-cpu"))
    assert len(kserve._label("m" * 200)) == 40
    long = "paraphrase-multilingual-minilm-l12-v2"
    assert len({kserve._label(f"{long}-{pool}") for pool in ("cpu-vnni", "cpu-amx")}) == 2
    assert kserve._label("a.b-cpu") != kserve._label("a-b-cpu")


@pytest.mark.skipif(not environments.installed("triton"), reason="the embedded server is not installed")
def test_the_command_and_variables_of_the_runtime_serve_the_model(written, tmp_path):
    """As the container would, but for the ports, the mount, and the only backend of the embedded server, Python's."""
    root, found = written
    runtime, service = found["b"]
    (container,) = runtime["spec"]["containers"]
    models = tmp_path / "mnt" / "models"
    models.parent.mkdir()
    python_variant.write_python_variant(root / "repositories/here/b", models, release=hosts.EMBEDDED_RELEASE)
    (tmp_path / "server").mkdir()
    host, ports = (
        hosts.embedded(models, None, tmp_path / "server"),
        processes.choose_ports({"http": None, "grpc": None}),
    )
    _, variables = hosts.command(host, models, name="kserve", ports={}, flags=(), cache_bytes=0)
    told = {e["name"]: e["value"] for e in container["env"] if e["name"] != "HOME"}
    told |= {"HTTP_PORT": str(ports["http"]), "GRPC_PORT": str(ports["grpc"]), "ADDRESS": "127.0.0.1"}
    command = [part.replace("/mnt/models", str(models)) for part in container["command"]]
    command += [*host.flags, "--allow-metrics=false"]
    name = f"accel-{os.getpid()}-kserve"
    running = processes.launch(command, variables | told, log=tmp_path / "log", name=name, scratch=tmp_path / "server")
    try:
        probe = service["spec"]["predictor"]["model"]["readinessProbe"]["httpGet"]["path"]
        url = f"http://127.0.0.1:{ports['http']}"
        wait_ready(f"{url}{probe}", running)
        assert ask(f"{url}/v2/models/b")["name"] == "b"
    finally:
        running.end()


def test_without_a_place_that_a_cluster_reads_nothing_is_written(built, tmp_path, key_pair):
    private, public = key_pair(tmp_path, "key")
    shutil.copytree(built[0] / "store" / "1", tmp_path / "1")
    signing.sign(tmp_path / "1", private)
    with pytest.raises(UsageError, match="reads models from a place that the cluster reaches"):
        forms.publish(tmp_path / "1", [f"kserve:{tmp_path / 'out'}"], key=public)
    assert not (tmp_path / "out").exists()
