"""A repository once more with what was measured of it: its memory, another schedule; what it was made from stays."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accel.core.errors import CheckFailed
from accel.core.files import replacing, write_text
from accel.triton import config as configs, manifest as manifests, settings as schedules
from accel.triton.folders import describe, link_tree
from accel.triton.launch import DEPLOYMENT, with_memory, with_more
from accel.triton.lint import lint
from accel.triton.reading import read_configs
from accel.triton.verify import verify


def emit(root: Path, change: Callable[[Any], None], out: Path, *, reason: str, variables: Sequence[str] = ()) -> None:
    """Write a copy of a repository, verified and linted, whole or not at all.

    Args:
        change: takes the ``ModelConfig`` of the model that does the work and sets what is to be another.
        reason: why; the manifest says so.
        variables: ``NAME=VALUE`` of the server's environment.

    Raises:
        CheckFailed: what was written does not verify, or the release it is for rejects it.
        OutputError: the folder cannot be written.
    """
    with replacing(out) as fresh:
        link_tree(root, fresh)
        manifest = manifests.read(fresh)
        worker, _ = manifests.holder(fresh, manifest)
        schedules.rewrite(fresh, change, models=(worker,))
        start(fresh, variables)
        _write(fresh, dataclasses.replace(manifest, tuned=reason))
        found = [*verify(fresh), *lint(fresh, manifest.release)]
        if errors := [f for f in found if f.severity == "error"]:
            raise CheckFailed(f"the new repository has an error: {errors[0].file} {errors[0].field}: {errors[0].why}")


def start(root: Path, variables: Sequence[str]) -> None:
    """Let a repository's ``launch.sh`` start its server with these variables, and the flags that its configs need."""
    script = root / "launch.sh"
    text = script.read_text(encoding="utf-8")
    changed = with_more(text, list(read_configs(root).values()), variables)
    if changed != text:
        write_text(script, changed)
        script.chmod(0o755)


def size(root: Path, peak_rss_mib: int, out: Path) -> None:
    """Write a copy of a repository whose ``kubernetes.yaml`` gives it the memory that was measured.

    Args:
        peak_rss_mib: what a process with one instance took at most.

    Raises:
        OutputError: the folder cannot be written.
    """
    with replacing(out) as fresh:
        link_tree(root, fresh)
        _write(fresh, dataclasses.replace(manifests.read(fresh), peak_rss_mib=peak_rss_mib))


def _write(root: Path, manifest: manifests.Manifest) -> None:
    """Write the manifest of a copy whose configs may be other ones, and the memory that follows from them."""
    worker, _ = manifests.holder(root, manifest)
    deployment = root / DEPLOYMENT
    if deployment.exists():
        model = configs.parse((root / worker / "config.pbtxt").read_text(encoding="utf-8"))
        needs = manifest.artifact, manifest.peak_rss_mib, schedules.read(model).instances
        write_text(deployment, with_memory(deployment.read_text(encoding="utf-8"), *needs))
    (root / manifests.FILENAME).unlink()  # a link to the original's
    known = {f.path: f for f in manifest.files if not f.path.endswith((".pbtxt", DEPLOYMENT, "launch.sh"))}
    manifests.write(dataclasses.replace(manifest, files=describe(root, known)), root)
