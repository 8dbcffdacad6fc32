"""What this machine would do for a release: build, take as it is, leave kits for, or leave to another machine.

    STORE/runs/<hardware id>/<model>-<source>/    run directory of a model on one machine, with its stored results
    STORE/runs/<hardware id>/<model>.json         what its last conversion was asked for, with what, how long it took
    STORE/<version>/                              a release

Several machines may share the store: each builds what it is a pool for, and a release takes what all of them made of
what it asks for.
"""

import functools
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from accel.builders.toolchain import toolchain
from accel.core import document
from accel.core.document import RunDocument, VariantRecord
from accel.core.errors import InputError, UsageError
from accel.core.files import read_value, write_text
from accel.core.hardware import Hardware
from accel.core.values import SCHEMA, Target, sha256_json, to_json
from accel.exporters.sources import files_key
from accel.release.release_file import MachinePool, ModelPlan, ReleasePlan
from accel.run import store as results

RUNS = "runs"
FINISHED = "-kits"
"""What the name of a run directory ends in that came of kits; also its record's hash, as nothing here can tell."""
ROOMS = ("core", "graph", "exporters", "builders", "bench", "triton", "run", "pipeline.py")
"""The code that a result depends on."""


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """What became of the last conversion of a model on a machine.

    Attributes:
        asked: hash of the source's content and the options, the same on every machine; None for a source that only
            loading can tell (a factory, a download).
        run: name of the run directory, which is another one where the model is taken from elsewhere.
        made_with: hash of the targets, the machine, the code and the toolchain.
        wall_s: how long converting took.
        error: why there is no run; a process that died twice is not tried again before something changes.
    """

    asked: str | None
    made_with: str
    run: str
    wall_s: float
    error: str | None = None
    fix: str | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class PlannedBuild:
    """What is to be done for one model on one pool.

    Attributes:
        doing: ``reuse``, ``build``, ``kits`` (made here, finished there) or ``wait`` (for a machine of the pool).
        seconds: how long the model's conversion took last time, which serves all of its pools here; None if never.
    """

    model: str
    pool: str
    doing: Literal["reuse", "build", "kits", "wait"]
    targets: tuple[str, ...]
    reason: str
    seconds: float | None


def roles(pools: Mapping[str, MachinePool], machine: Hardware) -> dict[str, str | None]:
    """Say of each pool what this machine lacks to be of it, or None.

    Raises:
        UsageError: it is of two pools with one device: which of them was meant?
    """
    lacking = {name: pool.lacks(machine) for name, pool in pools.items()}
    for device in ("cpu", "cuda"):
        own = [name for name, lack in lacking.items() if lack is None and pools[name].device == device]
        if len(own) > 1:
            raise UsageError(
                f"this machine ({machine.id}) is of the pools {' and '.join(own)}, both for {device}",
                fix="tell them apart by hardware, flags, gpu, threads or memory_gib",
            )
    return lacking


@dataclass(frozen=True, slots=True)
class Duties:
    """Who converts what for a release.

    Attributes:
        driver: hardware id of the machine that puts the release together.
        makers: model and pool → hardware id of the machine that converts it, or leaves kits of it.
        lacking: pool → why no machine at hand is of it; None where one is.
    """

    driver: str
    makers: Mapping[tuple[str, str], str]
    lacking: Mapping[str, str | None]

    def targets(self, asked: ModelPlan, machine: str) -> tuple[Target, ...]:
        """Return the targets that a machine converts a model to."""
        return wanted_here(asked, [p for p in asked.wanted if self.makers.get((asked.name, p)) == machine])


def duties_of(plan: ReleasePlan, machine: Hardware) -> Duties:
    """Return what one machine does by itself.

    Raises:
        UsageError: as ``roles``.
    """
    lacking = roles(plan.pools, machine)
    here = made_here(plan, lacking, machine)
    makers = {(asked.name, pool): machine.id for asked in plan.models for pool in asked.wanted if pool in here}
    why = {pool: lack and f"this machine is not of the pool: {lack}" for pool, lack in lacking.items()}
    return Duties(machine.id, makers, why)


def made_here(plan: ReleasePlan, lacking: Mapping[str, str | None], machine: Hardware) -> frozenset[str]:
    """Return the pools that this machine converts for: its own, and those of a device that it does not have.

    The latter's variants come out as kits where their precision is made in the ONNX file. What another machine with
    the same device builds is not begun here.
    """
    return frozenset(n for n, p in plan.pools.items() if lacking[n] is None or p.device not in machine.devices)


def wanted_here(asked: ModelPlan, pools: Collection[str]) -> tuple[Target, ...]:
    """Return the targets that a model is converted to for some pools."""
    return tuple(dict.fromkeys(t for pool, targets in asked.wanted.items() if pool in pools for t in targets))


def asked_key(asked: ModelPlan) -> str | None:
    """Hash what is asked of a model: the content of its source and samples, its options and tuning; None if nobody can.

    Files stand for themselves wherever they lie; the options name them as the release file does. All of them are read:
    ask once for a model, not once for each machine.
    """
    try:
        content = files_key(asked.request)
    except InputError:  # converting it says what is wrong
        return None
    return None if content is None else sha256_json([content, *asked.everything])


def left_kits(run: RunDocument) -> dict[str, VariantRecord]:
    """Return a run's variants of which it left a kit, by the seals of the kits."""
    return {v.typing.seal: v for v in run.variants if v.typing is not None and v.typing.kit and v.typing.seal}


def known_as(asked: ModelPlan, key: str | None, folder: Path) -> str | None:
    """Return what tells that another machine's run is of just this: its key, or of a factory the kits that it left.

    Args:
        key: ``asked_key`` of the model.
        folder: of this machine's runs.
    """
    record = read_record(folder, asked.name)
    if key is not None or record is None or record.error is not None:
        return key
    left = left_kits(document.read(folder / record.run))
    return sha256_json(sorted(left)) if left else None


def run_name(asked: ModelPlan) -> str:
    """Return the name of a model's run directory: the same on every machine."""
    return f"{asked.name}-{sha256_json(str(asked.options['source']))[:8]}"


def made_with(targets: tuple[Target, ...], machine: Hardware) -> str:
    """Hash what a conversion on this machine depends on beside what was asked."""
    return sha256_json([[str(t) for t in targets], machine.fingerprint, *_installed()])


def code() -> str:
    """Return the hash of the code that results depend on."""
    return _installed()[0]


@functools.cache
def _installed() -> tuple[str, dict[str, str]]:
    return results.code_hash(*ROOMS), toolchain()


def read_record(folder: Path, model: str) -> ConversionRecord | None:
    """Read a model's record below ``STORE/runs/<hardware id>``; None where there is none that can be read."""
    try:
        return read_value(folder / f"{model}.json", ConversionRecord, missing="", fix="")
    except InputError:
        return None


def write_record(folder: Path, model: str, record: ConversionRecord) -> None:
    """Write a model's record.

    Raises:
        OutputError: the folder cannot be written.
    """
    write_text(folder / f"{model}.json", json.dumps(to_json(record), indent=1) + "\n")


def current(record: ConversionRecord | None, asked: str | None, made: str) -> bool:
    """Say whether a record is of just this: there is nothing to do then."""
    return record is not None and asked is not None and (record.asked, record.made_with) == (asked, made)


def steps(plan: ReleasePlan, store: Path, machine: Hardware) -> Iterator[PlannedBuild]:
    """Yield what this machine would do for each model and pool.

    Raises:
        UsageError: as ``roles``.
    """
    lacking = roles(plan.pools, machine)
    here = made_here(plan, lacking, machine)
    for asked in plan.models:
        targets, key = wanted_here(asked, here), asked_key(asked)
        record = read_record(store / RUNS / machine.id, asked.name)
        known = known_as(asked, key, store / RUNS / machine.id)
        done = current(record, key, made_with(targets, machine))
        seconds = record.wall_s if record else None
        for pool, wanted in asked.wanted.items():
            lack, names = lacking[pool], tuple(map(str, wanted))
            if pool not in here:
                others = elsewhere(store, asked.name, known, plan.pools[pool], machine.id)
                where = ", ".join(others) or "a machine of the pool runs accel release build"
                yield PlannedBuild(asked.name, pool, "reuse" if others else "wait", names, f"{lack}; {where}", None)
            elif done:
                others = elsewhere(store, asked.name, known, plan.pools[pool], machine.id) if lack else {}
                where = f"finished on {', '.join(others)}" if others else "nothing changed"
                yield PlannedBuild(asked.name, pool, "reuse", names, where, 0.0)
            else:
                why = "never built here" if record is None else "its source, options, code or toolchain changed"
                if lack is not None:
                    why = f"{lack}: left as kits for `accel build`"
                yield PlannedBuild(asked.name, pool, "kits" if lack else "build", names, why, seconds)


def elsewhere(store: Path, model: str, asked: str | None, pool: MachinePool, machine: str) -> dict[str, Path]:
    """Return the run directories that other machines of a pool made of just what is asked, by their hardware id."""
    found = {}
    for folder in sorted((store / RUNS).glob("*")):
        record = read_record(folder, model) if folder.name != machine else None
        if record is None or asked is None or record.asked != asked or record.error is not None:
            continue
        ran = document.read(folder / record.run).hardware
        if pool.lacks(Hardware(ran.cpu, ran.gpus, ran.memory_bytes or 0, ran.system or "")) is None:
            found[folder.name] = folder / record.run
    return found
