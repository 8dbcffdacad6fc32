"""A release of two tiny models, built by the command line; a test that changes it changes a copy, or has it lent."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloud_servers
import pytest
from tiny_release import accel, write_model, write_release

from accel.release import object_store


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of models, release file and store, and what ``accel release build --json`` printed."""
    folder = tmp_path_factory.mktemp("release")
    file = write_release(folder, {name: write_model(folder / f"{name}.onnx", seed) for seed, name in enumerate("ab")})
    done = accel("release", "build", file, "--store", folder / "store", "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Any]:
    """A real S3 server, in a process of its own."""
    from s3_server import S3Server

    made = S3Server()
    yield made
    made.end()


@pytest.fixture
def s3(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A real S3 server, and the variables by which AWS's tools find it."""
    for name, value in (("ENDPOINT_URL", s3_server.url), ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return s3_server


@pytest.fixture(scope="session")
def google_server() -> Iterator[str]:
    """URL of an emulator of Google Cloud Storage, in a process of its own."""
    for name in ("gcsfs", "gcp_storage_emulator"):
        pytest.importorskip(name, reason="pip install -e '.[dev]'")
    with cloud_servers.google() as url:
        yield url


@pytest.fixture
def google(google_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google Cloud Storage, found by the variable of Google's own tools."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google_server)
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture(scope="session")
def azure_server() -> Iterator[str]:
    """Connection string of azurite, in a process of its own."""
    pytest.importorskip("adlfs", reason="pip install -e '.[dev]'")
    if cloud_servers.AZURITE is None:
        pytest.skip("no azurite here: make azurite")
    with cloud_servers.azure() as connection:
        yield connection


@pytest.fixture
def azure(azure_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure Blob Storage, found by the variable of Azure's own tools."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_server)


@pytest.fixture
def empty_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Make an empty place of a kind (``cloud_servers.KINDS``), and its server run; returns the URL of it."""

    def make(kind: str) -> str:
        if kind == "file":
            return f"file://{tmp_path / 'place'}"
        request.getfixturevalue({"s3": "s3", "gs": "google", "abfs": "azure"}[kind])
        bucket = f"b{abs(hash(tmp_path))}"
        object_store.ObjectStore(f"{kind}://{bucket}").files.mkdir(bucket)
        return f"{kind}://{bucket}/prefix"

    return make


@pytest.fixture
def lent(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> Iterator[Path]:
    """The folder of ``built`` for a test that changes it, where it lies: other tests find it as it was."""
    kept = shutil.copytree(built[0], tmp_path / "kept", symlinks=True)
    yield built[0]
    shutil.rmtree(built[0])
    shutil.copytree(kept, built[0], symlinks=True)
