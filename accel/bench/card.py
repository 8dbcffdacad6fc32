"""The GPU during a measuring session: what each variant takes of it, and whether it was quiet.

The parent looks, through NVML, while a variant's process works: nothing of it is in a timed call.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from accel.core.gpu import Card, GpuTrace, open_card
from accel.core.values import GpuUse

BUSY = 0.05
"""Utilisation before the session from which on the card counts as used by somebody else."""


@dataclass(slots=True)
class _CardRecord:
    """Memory of one variant, in MiB: what it took to load it, and the most it ever had."""

    now: float = 0.0
    peak: float | None = None


class CardWatch:
    """One card over one session.

    Args:
        card: as it is before the session's first process is started.
    """

    def __init__(self, card: Card) -> None:
        self._card = card
        self._busy = card.sample().utilization or 0.0
        self._others: int | None = None
        self._loaded: set[str] = set()
        self._held: dict[str, _CardRecord] = {}
        self._rounds: dict[tuple[str, str], list[GpuTrace]] = {}

    @contextmanager
    def loading(self, id: str) -> Iterator[None]:
        """Watch the card while a variant's process loads it and warms up."""
        held = self._held.setdefault(id, _CardRecord())
        before = self._card.sample().used_mib
        with self._card.watching() as watched:
            yield
        self._loaded.add(id)
        if before is not None and (used := watched.values("used_mib")):
            held.now = used[-1] - before
            held.peak = max(held.peak or 0.0, max(used) - before)

    def closed(self, id: str) -> None:
        """Take note that the variant's process ended."""
        self._loaded.discard(id)

    @contextmanager
    def timing(self, id: str, point: str) -> Iterator[None]:
        """Watch the card while one round of a point runs; nothing else of the session runs meanwhile."""
        held = self._held.setdefault(id, _CardRecord())
        before = self._card.sample().used_mib
        with self._card.watching() as watched:
            yield
        self._rounds.setdefault((id, point), []).append(watched)
        if (now := self._card.processes()) is not None:  # not sooner: NVML lists the dead of an earlier session a while
            self._others = max(self._others or 0, now - len(self._loaded))
        if before is not None and (used := watched.values("used_mib")):
            grown = held.now + max(used) - before
            held.peak = grown if held.peak is None else max(held.peak, grown)

    def discard(self, id: str, point: str) -> None:
        """Forget the point's last round: it is timed again, and its energy belongs to no answer that counts."""
        self._rounds[id, point].pop()

    def free_memory_mib(self) -> float:
        """Return the card's free memory, or infinity where it does not tell."""
        free = self._card.free_mib()
        return math.inf if free is None else free

    def use(self, id: str, point: str, items: int) -> GpuUse:
        """Sum up what was seen of a point.

        Args:
            items: batch items that were answered in all its rounds.
        """
        rounds = self._rounds.get((id, point), [])
        seen = GpuTrace([sample for watched in rounds for sample in watched.samples])
        joules = [watched.energy_j for watched in rounds if watched.energy_j is not None]
        reasons = tuple(dict.fromkeys(reason for sample in seen.samples for reason in sample.throttle_reasons))
        held = self._held.get(id, _CardRecord())
        warnings = [f"{self._others} other processes held the GPU"] if self._others else []
        if self._busy > BUSY and not self._others:
            warnings.append(f"the GPU was {self._busy:.0%} busy before anything was started")
        warnings += [f"its clocks were held down: {', '.join(reasons)}"] if reasons else []
        sm = seen.values("sm_mhz")
        return GpuUse(
            name=self._card.name,
            memory_peak_mib=held.peak,
            power_w=float(np.mean(watts)) if (watts := seen.values("power_w")) else None,
            energy_j=sum(joules) / items if items and len(joules) == len(rounds) > 0 else None,
            sm_mhz=_median(sm),
            sm_mhz_min=min(sm, default=None),
            memory_mhz=_median(seen.values("memory_mhz")),
            temperature_c=max(seen.values("temperature_c"), default=None),
            held_down=reasons,
            others=self._others,
            warnings=tuple(warnings),
        )


def watch_card(devices: Iterable[str]) -> CardWatch | None:
    """Begin to watch the GPU; None where no variant runs on it, or NVML cannot be asked."""
    if "cuda" not in devices:
        return None
    card = open_card()
    return CardWatch(card) if card is not None else None


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None
