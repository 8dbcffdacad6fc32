"""The chosen configuration as a repository of its own; the one it was made from stays as it is."""

import dataclasses
from pathlib import Path

from accel.core import hardware
from accel.core.errors import CheckFailed
from accel.core.files import replacing
from accel.triton import manifest as manifests, settings as schedules
from accel.triton.folders import describe, link_tree
from accel.triton.lint import lint
from accel.triton.settings import Settings
from accel.triton.verify import verify


def emit(root: Path, settings: Settings, out: Path, *, reason: str) -> None:
    """Write a copy of a repository with other settings, verified and linted, whole or not at all.

    Args:
        reason: why it has them; the manifest says so.

    Raises:
        CheckFailed: what was written does not verify, or the release it is for rejects it.
        OutputError: the folder cannot be written.
    """
    with replacing(out) as fresh:
        link_tree(root, fresh)
        manifest = manifests.read(fresh)
        worker, _ = manifests.holder(fresh, manifest)
        schedules.write(fresh, settings, cpu_threads=hardware.cpu_threads(), models=(worker,))
        (fresh / manifests.FILENAME).unlink()  # a link to the original's
        configs = {f.path for f in manifest.files if f.path.endswith(".pbtxt")}
        known = {f.path: f for f in manifest.files if f.path not in configs}
        files = describe(fresh, known)
        manifests.write(dataclasses.replace(manifest, files=files, tuned=reason), fresh)
        found = [*verify(fresh), *lint(fresh, manifest.release)]
        if errors := [f for f in found if f.severity == "error"]:
            raise CheckFailed(f"the tuned repository has an error: {errors[0].file} {errors[0].field}: {errors[0].why}")
