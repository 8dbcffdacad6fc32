"""A release in an OCI registry, or in an image layout on disk, by digest.

    oci://HOST[:PORT]/REPOSITORY      a registry; by plain HTTP on this machine alone
    oci-layout:FOLDER                 the same content as an OCI image layout

    :<version>                        the release as an artifact: a layer for each file, by its path (``oras pull``)
    :<version>-<pool>-<model>         an image with a repository in /models: for image volumes, KServe's ``oci+native``

Blobs are stored by their content, so versions share what is the same in them.

Source: OCI Image Format 1.1 ("Image Manifest", "Guidelines for Artifact Usage", "Image Layout"), OCI Distribution 1.1,
https://oras.land/docs/concepts/artifact (``org.opencontainers.image.title``), and KServe, "Serving models with OCI
images" (/models).
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from accel.core import signing, temporary
from accel.core.errors import InputError, OutputError, UnavailableError, UsageError
from accel.core.files import load_json, lock, replacing, write_text, writing
from accel.core.values import sha256_file
from accel.release.archives import write_tar
from accel.release.document import FILENAME, Release

ARTIFACT = "application/vnd.accel.release.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
FILE, EMPTY = "application/octet-stream", "application/vnd.oci.empty.v1+json"
CONFIG, LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar"
ONE_REQUEST_BYTES, CHUNK_BYTES = 256 << 20, 64 << 20
"""Up to which size a blob goes in one request, from memory; larger ones in chunks of the second size."""
TAG_LENGTH = 128
CONNECT_S = 20
Described = dict[str, Any]


class BlobStore(Protocol):
    """Where blobs and manifests go."""

    url: str

    def digest(self, tag: str) -> str | None:
        """Return the digest of the manifest that a tag stands for; None where there is none."""

    def blob(self, path: Path, descriptor: Described) -> None:
        """Store a file, unless it is there."""

    def manifest(self, content: bytes, tag: str) -> None:
        """Store a manifest of which all blobs are there, and let a tag stand for it."""


def publish(folder: Path, release: Release, store: BlobStore) -> dict[str, str]:
    """Store a release and the images of its repositories; return the reference of each repository's image.

    Raises:
        OutputError: a tag is there with other content.
        UnavailableError: the registry cannot be reached or refuses.
    """
    made = {}
    with tempfile.TemporaryDirectory(prefix="oci-", dir=temporary.root()) as scratch:
        for entry in release.entries:
            if entry.repository is not None:
                tag = _tag(release.version, entry.pool, entry.model)
                digest = _image(folder / entry.repository, release, store, tag, Path(scratch))
                made[entry.repository] = f"{store.url.partition(':')[2].lstrip('/')}@{digest}"
        _artifact(folder, release, store, Path(scratch))  # last: whoever sees the version finds its images
    return made


def _tag(*parts: str) -> str:
    """Return a tag; one that would be too long is told apart by a hash."""
    tag = "-".join(parts)
    if len(tag) <= TAG_LENGTH:
        return tag
    return f"{tag[: TAG_LENGTH - 13]}-{hashlib.sha256(tag.encode()).hexdigest()[:12]}"


def _artifact(folder: Path, release: Release, store: BlobStore, scratch: Path) -> None:
    layers = []
    for name in (*(f.path for f in release.files), signing.SIGNATURE, FILENAME):
        layer = _described(folder / name, FILE)
        store.blob(folder / name, layer)
        layers.append(layer | {"annotations": {"org.opencontainers.image.title": name}})
    empty = scratch / "empty.json"
    empty.write_text("{}")
    store.blob(empty, config := _described(empty, EMPTY))
    _put(store, release, release.version, {"artifactType": ARTIFACT, "config": config, "layers": layers})


def _image(root: Path, release: Release, store: BlobStore, tag: str, scratch: Path) -> str:
    tar, config = scratch / "layer.tar", scratch / "config.json"
    write_tar(root, tar, below="models")
    store.blob(tar, layer := _described(tar, LAYER))
    content = {
        "created": release.created,
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    config.write_text(json.dumps(content))
    store.blob(config, described := _described(config, CONFIG))
    return _put(store, release, tag, {"config": described, "layers": [layer]})


def _described(path: Path, media_type: str) -> Described:
    return {"mediaType": media_type, "digest": f"sha256:{sha256_file(path)}", "size": path.stat().st_size}


def _put(store: BlobStore, release: Release, tag: str, parts: Mapping[str, Any]) -> str:
    """Store a manifest under a tag that stands for nothing else, and return its digest."""
    named = {"org.opencontainers.image.version": release.version, "org.opencontainers.image.created": release.created}
    content = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **parts, "annotations": named}).encode()
    digest, there = f"sha256:{hashlib.sha256(content).hexdigest()}", store.digest(tag)
    if there is None:
        store.manifest(content, tag)
    elif there != digest:
        raise OutputError(
            f"{store.url} has {tag} with other content, which stays", fix="give the release file another version"
        )
    return digest


class Layout:
    """An OCI image layout: a folder of blobs by digest, and an index of its manifests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"oci-layout:{folder}"

    def digest(self, tag: str) -> str | None:
        return next((m["digest"] for m in self._index() if self._tag_of(m) == tag), None)

    def blob(self, path: Path, descriptor: Described) -> None:
        place = self._at(descriptor["digest"])
        if place.is_file() and place.stat().st_size == descriptor["size"]:
            return
        with writing(place.parent):
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as new:
                shutil.copyfile(path, new)

    def manifest(self, content: bytes, tag: str) -> None:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        write_text(self._at(digest), content.decode())
        described = {"mediaType": MANIFEST, "digest": digest, "size": len(content)}
        described |= {"annotations": {"org.opencontainers.image.ref.name": tag}}
        with lock(self.folder, "accel release publish"):
            index = {"schemaVersion": 2, "manifests": [*self._index(), described]}
            write_text(self.folder / "oci-layout", '{"imageLayoutVersion": "1.0.0"}')
            write_text(self.folder / "index.json", json.dumps(index, indent=1) + "\n")

    def _at(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _index(self) -> list[Described]:
        path = self.folder / "index.json"
        try:
            found = list(load_json(path.read_text())["manifests"]) if path.exists() else []
            _ = [(described["digest"], self._tag_of(described)) for described in found]
            return found
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is not an index of an OCI layout: {error!r}", fix="give another folder"
            ) from error

    @staticmethod
    def _tag_of(described: Described) -> str | None:
        return (described.get("annotations") or {}).get("org.opencontainers.image.ref.name")


class Registry:
    """A repository of a registry, reached by oras with the credentials of docker's config.json.

    Args:
        url: ``oci://HOST[:PORT]/REPOSITORY``.

    Raises:
        UnavailableError: oras is not installed, or nothing answers there.
        UsageError: it is no such URL.
    """

    def __init__(self, url: str) -> None:
        try:
            import oras.container
            import oras.provider
        except ImportError as error:
            raise UnavailableError(f"{url} needs oras: {error}", fix="pip install 'accel[oci]'") from error
        match = re.fullmatch(r"oci://(([^/:@]+)(?::\d+)?)/([a-z0-9]+(?:[._/-]+[a-z0-9]+)*)", url.rstrip("/"))
        if match is None:
            raise UsageError(f"{url!r} is not a repository", fix="oci://HOST[:PORT]/NAME, in lower case, without a tag")
        self.url = url.rstrip("/")
        self._name = f"{match[1]}/{match[3]}"
        self._container = oras.container.Container(self._name)
        self._calls = oras.provider.Registry(match[1], insecure=match[2] in ("localhost", "127.0.0.1"))
        self._calls.auth.load_configs(self._container)
        # oras tries for two minutes what fails at once where the host is wrong
        self._ask(lambda: self._calls.session.get(f"{self._calls.prefix}://{match[1]}/v2/", timeout=CONNECT_S))

    def digest(self, tag: str) -> str | None:
        answer = self._ask(lambda: self._calls.do_request(self._manifest_url(tag), "GET", headers={"Accept": MANIFEST}))
        if answer.status_code == 404:
            return None
        self._check(answer, f"asking for {tag}")
        return f"sha256:{hashlib.sha256(answer.content).hexdigest()}"

    def blob(self, path: Path, descriptor: Described) -> None:
        large = descriptor["size"] > ONE_REQUEST_BYTES
        answer = self._ask(
            lambda: self._calls.upload_blob(
                str(path), self._container, descriptor, do_chunked=large, chunk_size=CHUNK_BYTES
            )
        )
        self._check(answer, f"storing {path.name}")

    def manifest(self, content: bytes, tag: str) -> None:
        headers = {"Content-Type": MANIFEST}
        answer = self._ask(
            lambda: self._calls.do_request(self._manifest_url(tag), "PUT", data=content, headers=headers)
        )
        self._check(answer, f"storing {tag}")

    def _manifest_url(self, tag: str) -> str:
        return f"{self._calls.prefix}://{self._container.manifest_url(tag)}"

    def _ask(self, call: Callable[[], Any]) -> Any:
        import requests

        try:
            return call()
        except (requests.RequestException, ValueError, OSError) as error:  # ValueError: refused credentials
            fix = "check its name, `docker login` and the network; the same command goes on"
            raise UnavailableError(f"{self.url} cannot be used: {error}", fix=fix) from error

    def _check(self, answer: Any, doing: str) -> None:
        if not 200 <= answer.status_code < 300:
            raise UnavailableError(
                f"{self.url}: {doing}: {answer.status_code} {answer.text[:500]}",
                fix="check that the registry takes OCI artifacts, and your rights; the same command goes on",
            )
