"""Whether a TensorRT plan runs where it is to be served: it is tied to one TensorRT version and one kind of GPU.

What a plan was built with stands in the manifest, in the artifact's facts; the rules are those of
``accel.builders.tensorrt.fit``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from accel.builders.tensorrt import fit
from accel.core import hardware
from accel.core.errors import StageError
from accel.triton import manifest as manifests
from accel.triton.manifest import Finding, Manifest
from accel.triton.releases import RELEASES, TritonRelease

BACKEND = "tensorrt"


def findings(manifest: Manifest, row: TritonRelease, gpus: Sequence[hardware.Gpu]) -> Iterator[Finding]:
    """Hold a plan against a release, and against the GPUs of this machine, which need not be the server's.

    Yields:
        An error for a TensorRT version that does not run the plan; warnings for what is not known, and for the GPUs.
    """
    if manifest.backend != BACKEND:
        return
    facts = manifest.artifact.built.facts
    field = "artifact.built.facts"
    built = str(facts.get("tensorrt", ""))
    if row.tensorrt is not None and (why := fit.version_mismatch(facts, row.tensorrt)) is not None:
        yield Finding("error", manifests.FILENAME, field, f"the plan was built {why}", _fix(row))
    elif not facts.get("version_compatible") and row.tensorrt != built:
        known = f"TensorRT {row.tensorrt}" if row.tensorrt else "no TensorRT version that is known"
        why = f"the plan runs on TensorRT {built} alone; Triton {row.name} carries {known}, and no more is known of it"
        yield Finding("warning", manifests.FILENAME, field, why, _fix(row))
    for why in _gpu_mismatch(manifest, gpus):
        yield Finding("warning", manifests.FILENAME, field, f"this machine: the plan was built {why}", fit.FIX)


def check(root: Path, release: str | None) -> None:
    """Refuse to serve a plan on this machine that cannot run here.

    Args:
        root: a repository; one that accel did not emit is let through.
        release: of the server; None where it is not known, which lets any TensorRT version through.

    Raises:
        StageError: the release's TensorRT or this machine's GPU does not run it.
    """
    if not (root / manifests.FILENAME).exists():
        return
    manifest = manifests.read(root)
    if manifest.backend != BACKEND:
        return
    row = RELEASES.get(release or "")
    facts = manifest.artifact.built.facts
    version = row.tensorrt if row is not None else None
    if row is not None and version is not None and (why := fit.version_mismatch(facts, version)) is not None:
        raise StageError(f"{manifest.variant} cannot be served by Triton {row.name}: built {why}", fix=_fix(row))
    for why in _gpu_mismatch(manifest, hardware.detect().gpus):
        raise StageError(f"{manifest.variant} cannot be served on this machine: built {why}", fix=fit.FIX)


def _gpu_mismatch(manifest: Manifest, gpus: Sequence[hardware.Gpu]) -> Iterator[str]:
    """Yield the first GPU that does not run the plan, unless another one does."""
    reasons = [fit.gpu_mismatch(manifest.artifact.built.facts, gpu.compute_capability) for gpu in gpus]
    if reasons and all(reasons):
        yield str(reasons[0])


def _fix(row: TritonRelease) -> str:
    return (
        f"build the plan with that TensorRT (`accel build KIT --toolchain docker:IMAGE`, IMAGE from Dockerfile.gpu for "
        f"Triton {row.name}), or emit it for a release that carries the plan's (--triton-release)"
    )
