"""A repository once more with another schedule, by what was measured; the one it was made from stays as it is."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accel.core.errors import CheckFailed
from accel.core.files import replacing
from accel.triton import manifest as manifests, settings as schedules
from accel.triton.folders import describe, link_tree
from accel.triton.lint import lint
from accel.triton.verify import verify


def emit(root: Path, change: Callable[[Any], None], out: Path, *, reason: str) -> None:
    """Write a copy of a repository, verified and linted, whole or not at all.

    Args:
        change: takes the ``ModelConfig`` of the model that does the work and sets what is to be another.
        reason: why; the manifest says so.

    Raises:
        CheckFailed: what was written does not verify, or the release it is for rejects it.
        OutputError: the folder cannot be written.
    """
    with replacing(out) as fresh:
        link_tree(root, fresh)
        manifest = manifests.read(fresh)
        worker, _ = manifests.holder(fresh, manifest)
        schedules.rewrite(fresh, change, models=(worker,))
        (fresh / manifests.FILENAME).unlink()  # a link to the original's
        configs = {f.path for f in manifest.files if f.path.endswith(".pbtxt")}
        known = {f.path: f for f in manifest.files if f.path not in configs}
        files = describe(fresh, known)
        manifests.write(dataclasses.replace(manifest, files=files, tuned=reason), fresh)
        found = [*verify(fresh), *lint(fresh, manifest.release)]
        if errors := [f for f in found if f.severity == "error"]:
            raise CheckFailed(f"the new repository has an error: {errors[0].file} {errors[0].field}: {errors[0].why}")
