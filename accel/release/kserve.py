"""A release for KServe: an InferenceService for each repository, and the ServingRuntime that starts it.

    FOLDER/<version>/<pool>/<model>.yaml       kubectl apply -f

What the container needs (image, memory, probes, rights) is taken from the repository's ``kubernetes.yaml``, and the
server is started by its ``launch.sh``, with the flags that it was measured with.

Source: KServe, "Serving Runtimes", "InferenceService" (v1beta1) and its CRDs: models are mounted at /mnt/models, the
container is called kserve-container.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from accel.core.files import write_text
from accel.release.document import Release, ReleaseEntry
from accel.triton import launch

MOUNT, HTTP_PORT, GRPC_PORT = "/mnt/models", 8080, 9000
LONGEST = 40
"""Letters of a name, with room for what KServe adds."""
HEAD = """\
# {model} of release {version}, for {pool}: kubectl apply -f this file. KServe brings what storageUri names to {mount};
# where that needs credentials, name their service account as spec.predictor.serviceAccountName.
"""
MEMORY = "# The limit of {known}.\n"


def write(folder: Path, release: Release, out: Path, storage: Mapping[str, str]) -> Path:
    """Write the YAML of every repository of a release, and return the folder that holds it.

    Args:
        storage: repository in the release → what KServe fetches it from.

    Raises:
        OutputError: the folder cannot be written.
    """
    for entry in release.entries:
        if entry.repository is not None:
            head = HEAD.format(model=entry.model, version=release.version, pool=entry.pool, mount=MOUNT)
            deployment = (folder / entry.repository / launch.DEPLOYMENT).read_text(encoding="utf-8")
            if known := launch.memory_of(deployment):
                head += MEMORY.format(known=known)
            parts = _manifests(release, entry, deployment, storage[entry.repository])
            text = head + yaml.safe_dump_all(parts, sort_keys=False, width=120)
            write_text(out / release.version / entry.pool / f"{entry.model}.yaml", text)
    return out / release.version


def _manifests(release: Release, entry: ReleaseEntry, text: str, uri: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return runtime and service of a repository.

    Args:
        text: of its ``kubernetes.yaml``.
        uri: what KServe fetches it from.
    """
    deployment, _ = yaml.safe_load_all(text)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name = _label(f"{entry.model}-{entry.pool}")
    own = {"ADDRESS", "HTTP_PORT", "GRPC_PORT"}
    env = [e for e in container["env"] if e["name"] not in own]
    env += [
        {"name": "ADDRESS", "value": "0.0.0.0"},
        {"name": "HTTP_PORT", "value": str(HTTP_PORT)},
        {"name": "GRPC_PORT", "value": str(GRPC_PORT)},
    ]
    # the repository's own volume is KServe's to mount
    kept = [v for v in pod["volumes"] if v["name"] != "repository"]
    mounts = [m for m in container["volumeMounts"] if m["name"] != "repository"]
    probes = {kind: _probe(container[kind]) for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    server = {
        "name": "kserve-container",
        "image": container["image"],
        "command": ["bash", f"{MOUNT}/launch.sh"],
        "env": env,
        "ports": [{"containerPort": HTTP_PORT, "protocol": "TCP"}],
        "securityContext": container["securityContext"],
        "volumeMounts": mounts,
    }
    said = {"accel/release": release.version, "accel/model": entry.model, "accel/pool": entry.pool}
    return (
        {
            "apiVersion": "serving.kserve.io/v1alpha1",
            "kind": "ServingRuntime",
            "metadata": {"name": name},  # its own: another image may be put into it
            "spec": {
                "supportedModelFormats": [{"name": "triton", "version": "2"}],
                "protocolVersions": ["v2"],
                "containers": [server],
                "volumes": kept,
            },
        },
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {
                "name": name,
                "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment", **said},
            },
            "spec": {
                "predictor": {
                    "minReplicas": 1,
                    "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
                    "securityContext": pod["securityContext"],
                    "model": {
                        "modelFormat": {"name": "triton", "version": "2"},
                        "runtime": name,
                        "protocolVersion": "v2",
                        "storageUri": uri,
                        "resources": container["resources"],
                        **probes,
                    },
                }
            },
        },
    )


def _probe(probe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a probe that names its port by number: KServe's container has no names for them."""
    return {**probe, "httpGet": {**probe["httpGet"], "port": HTTP_PORT}}


def _label(text: str) -> str:
    """Return a DNS label, as the names of InferenceServices are.

    What had to be changed for it ends in a hash of the whole: two models must not get one name.
    """
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"model-{name}"
    if name == text and len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
