"""A release as OCI artifact and images: a layout on disk, and a real registry from which a stock client takes it."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest
from tiny_release import accel, ask, unpack, write_signed

from accel.core import environments, signing
from accel.core.errors import InputError, OutputError, UnavailableError, UsageError
from accel.core.values import sha256_file
from accel.release import checking, document, forms, oci
from accel.triton.servers import answers, processes

REGISTRY = shutil.which("docker-registry") or shutil.which("registry")
SKOPEO = shutil.which("skopeo")
needs_skopeo = pytest.mark.skipif(SKOPEO is None, reason="no skopeo here: apt-get install skopeo")
needs_server = pytest.mark.skipif(not environments.installed("triton"), reason="the embedded server is not installed")
needs_registry = pytest.mark.skipif(REGISTRY is None, reason="no registry here: apt-get install docker-registry")


@pytest.fixture(scope="module")
def signed(built, tmp_path_factory, key_pair):
    """A signed release of two models, and its public key."""
    folder = tmp_path_factory.mktemp("oci")
    private, public = key_pair(folder, "key")
    shutil.copytree(built[0] / "store" / "1", folder / "1")
    signing.sign(folder / "1", private)
    return folder / "1", public


@pytest.fixture(scope="module")
def layout(signed, tmp_path_factory):
    """The release as an image layout."""
    out = tmp_path_factory.mktemp("layout") / "out"
    done = forms.publish(signed[0], [f"oci-layout:{out}"], key=signed[1])
    assert done["published"] == [f"oci-layout:{out}:1"]
    return out


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """The address of a real registry, and its configuration."""
    folder, port = tmp_path_factory.mktemp("registry"), processes.choose_ports({"http": None})["http"]
    config = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (folder / "config.yml").write_text(json.dumps(config))
    env = {k: v for k, v in os.environ.items() if not k.startswith("REGISTRY_")}
    with (folder / "log").open("w") as log:
        running = subprocess.Popen([REGISTRY, "serve", folder / "config.yml"], stdout=log, stderr=log, env=env)
    try:
        ask(f"http://127.0.0.1:{port}/v2/")
        yield f"127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait()


def content(folder):
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: sha256_file(path) for name, path in found.items() if name != ".lock"}


def blob(folder, digest):
    data = (folder / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
    return data


def test_a_layout_holds_the_release_and_an_image_for_each_repository(signed, layout, tmp_path):
    root, _ = signed
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout / "index.json").read_text())["manifests"]
    named = {
        m["annotations"]["org.opencontainers.image.ref.name"]: json.loads(blob(layout, m["digest"])) for m in index
    }
    assert set(named) == {"1", "1-here-a", "1-here-b"}
    artifact = named["1"]
    assert artifact["artifactType"] == "application/vnd.accel.release.v1+json"
    assert blob(layout, artifact["config"]["digest"]) == b"{}"
    files = {layer["annotations"]["org.opencontainers.image.title"]: layer for layer in artifact["layers"]}
    assert {name: layer["digest"].removeprefix("sha256:") for name, layer in files.items()} == content(root)
    assert all(len(blob(layout, layer["digest"])) == layer["size"] for layer in files.values())
    for name in "ab":
        manifest = named[f"1-here-{name}"]
        config, (layer,) = json.loads(blob(layout, manifest["config"]["digest"])), manifest["layers"]
        assert config["rootfs"]["diff_ids"] == [layer["digest"]]
        unpack(layout / "blobs/sha256" / layer["digest"].removeprefix("sha256:"), tmp_path / name)
        assert content(tmp_path / name / "models") == content(root / "repositories/here" / name)
        assert (tmp_path / name / "models/launch.sh").stat().st_mode & 0o111


def test_the_same_release_is_the_same_layout_and_versions_share_blobs(signed, layout, tmp_path, key_pair):
    root, public = signed
    forms.publish(root, [f"oci-layout:{tmp_path / 'again'}"], key=public)
    before = content(layout)
    assert content(tmp_path / "again") == before
    forms.publish(root, [f"oci-layout:{layout}"], key=public)
    assert content(layout) == before
    private, other = key_pair(tmp_path, "other")
    forms.publish(write_signed(tmp_path, "2", private), [f"oci-layout:{tmp_path / 'again'}"], key=other)
    index = json.loads((tmp_path / "again/index.json").read_text())["manifests"]
    tags = [m["annotations"]["org.opencontainers.image.ref.name"] for m in index]
    assert tags == ["1-here-a", "1-here-b", "1", "2"]
    assert sum(p.read_bytes() == b"{}" for p in (tmp_path / "again/blobs/sha256").iterdir()) == 1
    with pytest.raises(OutputError, match="has 1 with other content"):
        forms.publish(write_signed(tmp_path, "1", private), [f"oci-layout:{tmp_path / 'again'}"], key=other)


@needs_registry
@needs_server
def test_a_stock_client_takes_it_from_a_real_registry_and_it_is_served(signed, layout, registry, tmp_path):
    import oras.client
    import oras.provider

    root, public = signed
    url = f"oci://{registry}/models/tiny"
    done = accel("release", "publish", root, "--to", url, "--key", public, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["published"] == [f"{url}:1"]
    client = oras.client.OrasClient(hostname=registry, insecure=True)
    client.pull(target=f"{registry}/models/tiny:1", outdir=str(tmp_path / "pulled"))
    assert content(tmp_path / "pulled") == content(root)
    assert not [f for f in checking.verify(tmp_path / "pulled", key=public) if f.severity == "error"]
    on_disk = oci.Layout(layout)
    for tag in ("1", "1-here-a", "1-here-b"):  # the same bytes as on disk
        assert oci.Registry(url).digest(tag) == on_disk.digest(tag)
    assert oci.Registry(url).digest("2") is None
    reference = f"{registry}/models/tiny@{on_disk.digest('1-here-b')}"
    provider = oras.provider.Registry(registry, insecure=True)
    (layer,) = provider.get_manifest(reference)["layers"]
    provider.download_blob(reference, layer["digest"], str(tmp_path / "layer.tar"))
    unpack(tmp_path / "layer.tar", tmp_path / "image")
    assert not [f for f in answers.verify_served(tmp_path / "image/models").findings if f.severity == "error"]


def skopeo(*words):
    """Run skopeo, which knows no more of accel than the addresses; it pulls and pushes by plain HTTP."""
    home = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run([SKOPEO, *map(str, words)], capture_output=True, env=home, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@needs_registry
@needs_skopeo
@needs_server
def test_another_client_takes_image_and_artifact_by_digest_and_the_image_is_served(signed, layout, registry, tmp_path):
    root, public = signed
    forms.publish(root, [f"oci://{registry}/models/skopeo"], key=public)
    on_disk, place = oci.Layout(layout), f"docker://{registry}/models/skopeo"
    listed = json.loads(skopeo("list-tags", "--tls-verify=false", place))["Tags"]
    assert sorted(listed) == ["1", "1-here-a", "1-here-b"]
    for tag in listed:
        digest = on_disk.digest(tag)
        raw = skopeo("inspect", "--raw", "--tls-verify=false", f"{place}@{digest}")
        assert f"sha256:{hashlib.sha256(raw).hexdigest()}" == digest
        copy = ["--insecure-policy", "copy", "--preserve-digests"]
        skopeo(*copy, "--src-tls-verify=false", f"{place}@{digest}", f"oci:{tmp_path}/{tag}:{tag}")
        assert oci.Layout(tmp_path / tag).digest(tag) == digest
        # the layout on disk is one that it takes and pushes as it is
        skopeo(*copy, "--dest-tls-verify=false", f"oci:{layout}:{tag}", f"docker://{registry}/models/pushed:{tag}")
        assert oci.Registry(f"oci://{registry}/models/pushed").digest(tag) == digest
    artifact = json.loads(blob(tmp_path / "1", on_disk.digest("1")))
    for part in artifact["layers"]:
        path = tmp_path / "release" / part["annotations"]["org.opencontainers.image.title"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob(tmp_path / "1", part["digest"]))
    assert not [f for f in checking.verify(tmp_path / "release", key=public) if f.severity == "error"]
    (layer,) = json.loads(blob(tmp_path / "1-here-b", on_disk.digest("1-here-b")))["layers"]
    tar = tmp_path / "1-here-b/blobs/sha256" / layer["digest"].removeprefix("sha256:")
    unpack(tar, tmp_path / "image")
    assert not [f for f in answers.verify_served(tmp_path / "image/models").findings if f.severity == "error"]


@needs_registry
def test_a_large_blob_goes_in_chunks_and_a_tag_is_not_moved(registry, tmp_path, key_pair, monkeypatch):
    import oras.client

    private, public = key_pair(tmp_path, "key")
    url = f"oci://{registry}/other"
    monkeypatch.setattr(oci, "ONE_REQUEST_BYTES", 1000)
    monkeypatch.setattr(oci, "CHUNK_BYTES", 700)
    first = write_signed(tmp_path, "1", private)
    assert max(f.bytes for f in document.read(first).files) > 5000
    forms.publish(first, [url], key=public)
    client = oras.client.OrasClient(hostname=registry, insecure=True)
    client.pull(target=f"{registry}/other:1", outdir=str(tmp_path / "pulled"))
    assert content(tmp_path / "pulled") == content(first)
    changed = write_signed(tmp_path / "changed", "1", private, created="2026-11-21T00:00:00Z")
    with pytest.raises(OutputError, match="has 1 with other content"):
        forms.publish(changed, [url], key=public)


def test_a_registry_that_is_not_there_and_a_name_that_is_none(tmp_path, key_pair):
    private, public = key_pair(tmp_path, "key")
    root, port = write_signed(tmp_path, "1", private), processes.choose_ports({"http": None})["http"]
    with pytest.raises(UnavailableError, match=r"cannot be used.*"):
        forms.publish(root, [f"oci://127.0.0.1:{port}/models"], key=public)
    for wrong in ("oci://host", "oci://host/Name", "oci://host/name:tag"):
        with pytest.raises(UsageError, match="is not a repository"):
            oci.Registry(wrong)


def test_long_names_have_tags_of_their_own():
    tags = {oci._tag("1", "p" * 100, "m" * 100 + end) for end in "ab"}
    assert len(tags) == 2
    assert all(len(tag) <= 128 for tag in tags)


@pytest.mark.parametrize("index", ['{"manifests": ["x"]}', '{"manifests": [{}]}', "[]", "[" * 100_000])
def test_an_index_of_something_else_is_an_error(tmp_path, index):
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(InputError, match=r"is not an index of an OCI layout"):
        oci.Layout(tmp_path).digest("1")
