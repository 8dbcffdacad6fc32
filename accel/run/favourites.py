"""Which targets to try first: those that together came closest to the fastest in earlier runs like this one.

Earlier runs are the run directories beside this one, and what is shipped with accel (``winners.json``, which
``benchmarks/winners.py`` writes). Of those the ones on this very hardware and of this kind of network are asked; where
there are none, those of this kind of network on other hardware, then all.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accel.core import document
from accel.core.errors import InputError
from accel.core.values import from_json
from accel.run.store import PACKAGE

SHIPPED = PACKAGE / "run" / "winners.json"
FIRST = 2
"""Targets that are tried."""
AS_FAST = 1.03
MISSING = 10.0
"""How many times the fastest's time a target counts that was not there, or failed its gate."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """One earlier run on one device: p50 at batch 1 (ms) of each target that passed its gate.

    Attributes:
        hardware: id of the machine; ``family`` the kind of network.
        kept: whether it lies beside this run; False for what is shipped.
    """

    hardware: str
    family: str
    device: str
    ms: Mapping[str, float]
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Favourites:
    """Targets, the best first, and in words how that is known."""

    targets: tuple[str, ...]
    why: str


def choose(
    candidates: Collection[str], *, hardware: str, family: str, device: str, runs: Path, this: Path
) -> Favourites | None:
    """Choose up to ``FIRST`` of the candidates for a device; None where no earlier run says anything of them.

    Args:
        runs: folder of run directories; ``this`` one of them, which is left out.
    """
    records = [r for r in (*_kept(runs, this), *_shipped()) if r.device == device and r.ms.keys() & set(candidates)]
    alike = [r for r in records if r.family == family]
    same = [r for r in alike if r.hardware == hardware]
    asked = same or alike or records
    if not asked:
        return None
    known = {name for r in asked for name in r.ms} & set(candidates)
    chosen: list[str] = []

    def cost(names: Sequence[str]) -> float:
        return sum(math.log(_behind(r, names)) for r in asked)

    while len(chosen) < min(FIRST, len(known)):
        chosen.append(min(known - set(chosen), key=lambda name: (cost([*chosen, name]), cost([name]), name)))
    hits = sum(_behind(r, chosen) <= AS_FAST for r in asked)
    where = f"of this kind on {hardware}" if same else "of this kind on other hardware" if alike else "of other kinds"
    beside = sum(r.kept for r in asked)
    why = f"the fastest, or within 3 % of it, in {hits} of {len(asked)} earlier runs {where} ({beside} beside this run"
    return Favourites(tuple(chosen), f"{why}, {len(asked) - beside} shipped with accel)")


def _behind(record: EarlierRun, targets: Sequence[str]) -> float:
    """Return the time of the fastest of some targets over that of the fastest of all."""
    best = min(record.ms.values())
    return min(MISSING, min(record.ms.get(name, math.inf) for name in targets) / best)


def _shipped() -> tuple[EarlierRun, ...]:
    return from_json(tuple[EarlierRun, ...], json.loads(SHIPPED.read_text()))


def _kept(runs: Path, this: Path) -> Iterator[EarlierRun]:
    for file in sorted(runs.glob(f"*/{document.FILENAME}")):
        if file.parent.resolve() == this.resolve():
            continue
        try:
            run = document.read(file)
        except InputError:
            continue
        yield from records(run)


def records(run: document.RunDocument) -> Iterator[EarlierRun]:
    """Yield what a run says of each device, where it says which kind of network its model is."""
    times: dict[str, dict[str, float]] = {}
    for variant in run.variants:
        points = [m for m in variant.measurements if m.scenario == "latency" and m.via == "inprocess"]
        if variant.status == "ok" and variant.static is None and points:
            times.setdefault(variant.device, {})[variant.target] = points[-1].p50_ms or points[-1].mean_ms
    if run.model.family is not None:
        for device, ms in times.items():
            yield EarlierRun(run.hardware.id, run.model.family, device, ms, kept=True)
