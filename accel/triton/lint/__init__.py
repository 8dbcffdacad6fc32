"""The linter: what a release of Triton would reject, ignore or overwrite in a model repository, found offline.

It takes any repository, not only accel's own, and runs nothing of it. An error fails the load or gives wrong answers on
a server of that release, or leads out of the repository; a warning names what is ignored, overwritten, works only with
a certain server flag, or could not be checked. The rules lie by theme in the modules of this package, the facts about
releases and backends in ``rules`` and ``releases``.
"""

from collections.abc import Iterator
from pathlib import Path

from accel.core import hardware
from accel.core.errors import InputError
from accel.triton import releases
from accel.triton.lint import auto_complete, backends, config, ensembles, files, plans, tensors
from accel.triton.lint.model import LintedModel, folders, load
from accel.triton.manifest import FILENAME, Finding, Manifest, read
from accel.triton.releases import TritonRelease

__all__ = ["lint"]

RULES = (
    *config.RULES,
    *backends.RULES,
    *files.RULES,
    *auto_complete.RULES,
    *tensors.RULES,
)
"""Rules on one model; those of ``ensembles`` are for ensembles alone."""


def lint(root: Path, release: str) -> tuple[Finding, ...]:
    """Find what ``release`` would reject, ignore or overwrite in a repository.

    Args:
        root: folder that holds the model folders.
        release: a row of ``releases``, such as ``26.05``.

    Returns:
        Errors first, then warnings, by file and field; empty when all is well.

    Raises:
        InputError: ``root`` is not a folder.
        UsageError: an unknown release.
    """
    row = releases.release(release)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder", fix="name the root of a Triton model repository")
    root = root.resolve()
    manifest, unread = _manifest(root)
    models, found = load(root, row, manifest)
    found += unread
    found += files.links(root)
    found += files.unsafe_names(root)
    if not folders(root):
        found.append(Finding("error", ".", "", "holds no model folder", "name the folder above the models"))
    for model in models:
        for rule in (*RULES, *(ensembles.RULES if model.ensemble else ())):
            found += rule(model)
    found += _toolchain(manifest, row, models) if manifest is not None else ()
    return tuple(dict.fromkeys(sorted(found, key=lambda f: (f.severity, f.file, f.field, f.why))))


def _multiples(manifest: Manifest) -> Iterator[Finding]:
    """Tell of sizes that the config cannot exclude and only accel's own Python-backend model refuses with a reason."""
    if manifest.backend == "python" or manifest.core is not None:
        return
    for name, shapes in manifest.artifact.variant.profile.items():
        if shapes.multiple:
            why = f"takes multiples of {list(shapes.multiple)} only, and the {manifest.backend} backend does not say so"
            fix = "have clients pad their inputs, or serve the repository of the Python backend"
            yield Finding("warning", FILENAME, f"artifact.variant.profile.{name}", why, fix)


def _manifest(root: Path) -> tuple[Manifest | None, list[Finding]]:
    """Read accel's account of the repository, which others have none of."""
    if not (root / FILENAME).exists():
        return None, []
    try:
        return read(root), []
    except InputError as error:
        why = f"{error.message}; what it says of the model was not compared"
        return None, [Finding("warning", FILENAME, "", why, "emit the repository again")]


def _toolchain(manifest: Manifest, row: TritonRelease, models: list[LintedModel]) -> Iterator[Finding]:
    """Compare what accel built with against what the release carries."""
    if manifest.release == row.name:
        found = manifest.unverified
    else:
        accelerators = tuple(
            a.name
            for m in models
            for group in (m.config.optimization.execution_accelerators,)
            for a in (*group.gpu_execution_accelerator, *group.cpu_execution_accelerator)
        )
        versions = manifest.artifact.built.versions
        found = releases.differences(versions, row, backend=manifest.backend, accelerators=accelerators)
    yield from plans.findings(manifest, row, hardware.detect().gpus)
    yield from _multiples(manifest)
    for text in found:
        yield Finding("warning", FILENAME, "unverified", text, "build with the release's versions, or test on it")
