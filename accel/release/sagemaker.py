"""A release for Amazon SageMaker: archives that its Triton container reads, and the JSON that creates models of them.

    URL/<version>/<digest>/<pool>/<model>.tar.gz             a repository: <model>/config.pbtxt, <model>/1/… at its top
    URL/<version>/<digest>/<pool>.json                       create-model of a multi-model endpoint over all of a pool's
    URL/<version>/<digest>/<pool>/<model>.json               create-model of one
    URL/<version>/<digest>/<pool>/<model>.endpoint.json      create-endpoint-config

``${ACCOUNT}``, ``${REGION}``, ``${ROLE_ARN}``, ``${INSTANCE_TYPE}`` and, where URL is a folder, ``${S3_URL}`` are the
user's to fill in (envsubst). Nothing is
asked of AWS here but to store the files, where URL is a bucket.

Source: Amazon SageMaker Developer Guide, "Model deployment with Triton Inference Server" and "Create a Multi-Model
Endpoint"; triton-inference-server/server, docker/sagemaker/serve and src/sagemaker_server.cc.
"""

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel.core import temporary
from accel.core.values import sha256_file
from accel.release.archives import write_tar
from accel.release.document import FILENAME, Release, ReleaseEntry
from accel.release.object_store import ObjectStore
from accel.release.publishing import claim
from accel.triton import launch, manifest
from accel.triton.releases import release as triton_release

IMAGE = "${ACCOUNT}.dkr.ecr.${REGION}.amazonaws.com/sagemaker-tritonserver:%s-py3"
STARTUP_S = 600
"""How long a container may take to load its models and warm them up."""


def publish(folder: Path, release: Release, place: ObjectStore) -> str:
    """Write a release's chosen variants as SageMaker takes them, and return where they lie.

    Raises:
        OutputError: that version is there with other content.
    """
    base = claim(place, release.version, digest := sha256_file(folder / FILENAME))
    url = f"{'${S3_URL}' if place.local else place.url}/{base}"
    pools: dict[str, list[ReleaseEntry]] = {}
    with tempfile.TemporaryDirectory(prefix="sagemaker-", dir=temporary.root()) as scratch:
        packed = Path(scratch) / "model.tar.gz"
        for entry in release.entries:
            if entry.repository is None:
                continue
            pools.setdefault(entry.pool, []).append(entry)
            name = f"{entry.pool}/{entry.model}"
            write_tar(folder / entry.repository, packed, compressed=True)
            place.upload(packed, f"{base}/{name}.tar.gz")
            model, endpoint = _one(release, folder, entry, f"{url}/{name}.tar.gz", digest)
            _put(place, f"{base}/{name}.json", model)
            _put(place, f"{base}/{name}.endpoint.json", endpoint)
    for pool, entries in pools.items():
        _put(place, f"{base}/{pool}.json", _many(release, folder, pool, entries, f"{url}/{pool}/", digest))
    return f"{place.url}/{base}"


def _put(place: ObjectStore, name: str, content: Mapping[str, Any]) -> None:
    place.create(name, (json.dumps(content, indent=1) + "\n").encode())


def _one(
    release: Release, folder: Path, entry: ReleaseEntry, url: str, digest: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what creates a model, and an endpoint's configuration with it."""
    root = folder / str(entry.repository)
    served = manifest.read(root)
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": served.models[0]} | _environment([root])
    name = _name(release.version, entry.pool, entry.model)
    container = {"Image": _image(root), "ModelDataUrl": url, "Environment": environment}
    endpoint = {
        "EndpointConfigName": name,
        "ProductionVariants": [
            {
                "VariantName": "all",
                "ModelName": name,
                "InstanceType": "${INSTANCE_TYPE}",
                "InitialInstanceCount": 1,
                "ContainerStartupHealthCheckTimeoutInSeconds": STARTUP_S,
            }
        ],
    }
    return _model(name, container, digest), endpoint


def _many(
    release: Release, folder: Path, pool: str, entries: list[ReleaseEntry], url: str, digest: str
) -> dict[str, Any]:
    """Return what creates a multi-model endpoint's model: ``TargetModel`` is an archive's name."""
    roots = [folder / str(e.repository) for e in entries]
    container = {"Image": _image(roots[0]), "Mode": "MultiModel", "ModelDataUrl": url}
    return _model(_name(release.version, pool), container | {"Environment": _environment(roots)}, digest)


def _model(name: str, container: Mapping[str, Any], digest: str) -> dict[str, Any]:
    tags = [{"Key": "accel:release.json", "Value": digest}]
    return {"ModelName": name, "ExecutionRoleArn": "${ROLE_ARN}", "PrimaryContainer": container, "Tags": tags}


def _image(root: Path) -> str:
    """Return the image of the Triton release that a repository is for."""
    return IMAGE % triton_release(manifest.read(root).release).name


def _environment(roots: list[Path]) -> dict[str, str]:
    """Return the variables with which the container serves as ``launch.sh`` does.

    Its start script has no variable for further flags, so they go with one whose value it does not quote.
    Source: docker/sagemaker/serve (``SAGEMAKER_TRITON_LOG_INFO`` becomes a part of an unquoted command line).
    """
    scripts = [(root / "launch.sh").read_text(encoding="utf-8") for root in roots]
    flags = dict.fromkeys(flag for text in scripts for flag in launch.flags_of(text))
    variables = {"SAGEMAKER_TRITON_LOG_INFO": " ".join(["true", *flags])}
    return variables | {name: value for text in scripts for name, value in launch.exports_of(text)}


def _name(*parts: str) -> str:
    """Return a name as SageMaker takes it: at most 63 letters, digits and hyphens."""
    text = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(("accel", *parts))).strip("-")
    return text[:63].strip("-")
