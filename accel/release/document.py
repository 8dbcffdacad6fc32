"""``release.json``: what a release holds, what was measured of it and where, and every file by its sha256."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accel.core.document import VariantRecord
from accel.core.errors import InputError
from accel.core.files import read_value, stays_inside
from accel.core.values import Decision, FileRef, Status

FILENAME = "release.json"
Held = Literal["ready", "kits", "waiting", "unchosen", "failed"]
Verdict = Literal["better", "same", "worse", "changed", "not comparable", "new"]
WORDS: Mapping[str, str] = {
    "ready": "ready",
    "kits": "kits",
    "waiting": "waiting for hardware",
    "unchosen": "nothing chosen",
    "failed": "failed",
}
"""How the state of a model on a pool reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One variant of a model on a pool, as its run has it.

    Attributes:
        found / gate: metric → what the proof found, and what it had to reach.
        files: of the artifact, with paths relative to it.
        kit: folder in the release that finishes the variant on its hardware.
    """

    id: str
    status: Status
    reason: str | None
    fix: str | None
    precision: str | None
    bytes: int | None
    gate: Mapping[str, float]
    found: Mapping[str, float | None]
    p50_ms: float | None
    p50_ci_ms: tuple[float, float] | None
    throughput_per_s: float | None
    peak_rss_mib: float | None
    files: tuple[FileRef, ...]
    kit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEntry:
    """One model on one pool.

    Attributes:
        held: ``ready`` (a repository to mount), ``kits`` (to be finished on the pool), ``waiting`` (no machine of the
            pool has built it), ``unchosen`` (built, and nothing qualified or nothing was measured) or ``failed``.
        hardware: id of the machine that built, proved and measured it.
        run: the run's ``run.json`` in the release.
        repository: root of the chosen variant's model repository in the release.
        usd_per_hour: what an hour of that machine costs; None where the release file has none.
    """

    model: str
    pool: str
    held: Held
    reason: str | None = None
    fix: str | None = None
    hardware: str | None = None
    run: str | None = None
    chosen: str | None = None
    repository: str | None = None
    decisions: tuple[Decision, ...] = ()
    variants: tuple[Line, ...] = ()
    usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """Where a model of the release comes from; nothing but its licence for one that could not be loaded.

    Attributes:
        accepted: why it is released although its licence is unknown or denied; None where that is not so.
    """

    name: str
    source: str | None = None
    framework: str | None = None
    weights: str | None = None
    revision: str | None = None
    accuracy: str | None = None
    licence: str | None = None
    accepted: str | None = None
    samples: str | None = None
    onnx: FileRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLine:
    """A pool: the device, the targets, and what a machine must have to be of it."""

    name: str
    device: str
    targets: tuple[str, ...]
    needs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """One thing of one model on one pool, in an earlier release and in this one.

    Attributes:
        what: ``release``, ``contract``, ``accuracy``, ``answers``, ``size``, ``lint``, ``latency``, ``memory``,
            ``throughput`` or ``cost``.
        verdict: how this one compares; ``not comparable`` where that could not be found out.
        blocks: whether the release may not ship for it.
        accepted: why it may all the same.
    """

    model: str
    pool: str
    what: str
    before: str
    after: str
    verdict: Verdict
    blocks: bool = False
    reason: str = ""
    accepted: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A release against an earlier one, by whose version it is called, on one machine."""

    before: str
    hardware: str
    created: str
    rows: tuple[DiffRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A whole release.

    Attributes:
        missing: required variants that are not ``ok``, each with its reason; a complete release has none.
        margins: what may be worse than before, and by how much.
        compared: what changed since the release before, where that was looked at.
        compare_again: the release that what stood here was compared with before this was built in its place.
        toolchains: hardware id → package → version.
        files: every file of the release but this one and the signature.
    """

    version: str
    accel: str
    created: str
    asked_sha256: str
    pools: tuple[PoolLine, ...]
    models: tuple[ModelLine, ...]
    entries: tuple[ReleaseEntry, ...]
    missing: tuple[str, ...]
    toolchains: Mapping[str, Mapping[str, str]]
    files: tuple[FileRef, ...]
    schema: int
    margins: Mapping[str, float] = field(default_factory=dict)
    compared: Compared | None = None
    compare_again: str | None = None


def read(folder: Path) -> Release:
    """Read a release's ``release.json``.

    Raises:
        InputError: it is missing, is not JSON, lacks a field, is of a newer accel, or names what lies outside of it.
    """
    release = read_value(
        folder / FILENAME,
        Release,
        missing="name the folder of a release, as `accel release build` prints it",
        fix="build the release again",
    )
    named = [release.version, *(text for e in release.entries for text in (e.run, e.repository) if text)]
    named += [v.kit for e in release.entries for v in e.variants if v.kit] + [f.path for f in release.files]
    for text in named:
        if not stays_inside(text):
            raise InputError(f"{folder / FILENAME} names {text!r}, outside of the release", fix="do not use it")
    return release


def line(variant: VariantRecord, kit: str | None) -> Line:
    """Reduce a variant of a run to what a release says of it."""
    made, parity = variant.artifact, variant.parity or (variant.typing.parity if variant.typing else None)
    latency = [m for m in variant.measurements if m.scenario == "latency"]
    fastest = max((m.throughput_per_s for m in variant.measurements), default=None)
    return Line(
        id=variant.id,
        status=variant.status,  # type: ignore[arg-type]
        reason=variant.reason,
        fix=variant.fix,
        precision=made.effective_precision if made else None,
        bytes=made.bytes if made else None,
        gate=parity.gate if parity else {},
        found=parity.found if parity else {},
        p50_ms=latency[-1].p50_ms if latency else None,
        p50_ci_ms=latency[-1].p50_ci_ms if latency else None,
        throughput_per_s=fastest,
        peak_rss_mib=max((m.peak_rss_mib for m in variant.measurements), default=None),
        files=made.files if made else (),
        kit=kit,
    )
