"""Several runs side by side: one section per hardware target, one column per run.

A speed-up compares within the session that measured both sides. Times from different runs were not interleaved, so the
comparison sets them beside each other and computes no ratio across runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accel.core import document
from accel.core.errors import UsageError
from accel.report.formats import moment
from accel.report.from_run import run_view
from accel.report.view import DecisionView, RunView, VariantView


@dataclass(frozen=True, slots=True)
class Row:
    """One variant over the runs of a hardware target; None where a run did not ask for it."""

    id: str
    family: str
    device: str
    cells: tuple[VariantView | None, ...]


@dataclass(frozen=True, slots=True)
class HardwareTarget:
    """The runs of one ``hardware.id``, newest last, with a label each."""

    id: str
    title: str
    runs: tuple[RunView, ...]
    labels: tuple[str, ...]

    @property
    def choices(self) -> tuple[tuple[str, RunView, DecisionView], ...]:
        """Every decision of every run, with the run and its label."""
        pairs = zip(self.labels, self.runs, strict=True)
        return tuple((label, run, decision) for label, run in pairs for decision in run.decisions)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every variant of every run by device, the ones that are fastest over all runs first."""
        found = [{v.id: v for v in run.variants} for run in self.runs]
        ids = dict.fromkeys(v.id for run in self.runs for v in run.variants)
        rows = []
        for identity in ids:
            cells = tuple(variants.get(identity) for variants in found)
            some = next(c for c in cells if c)
            rows.append(Row(identity, some.family, some.device, cells))
        devices = list(dict.fromkeys(v.device for run in self.runs for v in run.variants))
        return tuple(sorted(rows, key=lambda row: (devices.index(row.device), -_mean_speedup(row))))

    @property
    def fastest(self) -> float:
        """The highest speed-up of a variant that passed; the bars are scaled to it."""
        return max((c.speedup for r in self.rows for c in r.cells if c and c.status == "ok" and c.speedup), default=1.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several runs, by hardware target."""

    targets: tuple[HardwareTarget, ...]

    @property
    def count(self) -> int:
        """How many runs there are."""
        return sum(len(target.runs) for target in self.targets)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, without repeats."""
        return tuple(dict.fromkeys(run.name for target in self.targets for run in target.runs))


def merge_runs(paths: Sequence[Path]) -> Comparison:
    """Read runs and group them by hardware target.

    Args:
        paths: run directories or ``run.json`` files; the same one twice counts once.

    Raises:
        UsageError: no path.
        InputError: a run cannot be read; the message names it.
    """
    files = dict.fromkeys((path / document.FILENAME if path.is_dir() else path).resolve() for path in paths)
    if not files:
        raise UsageError(
            "no run to compare", fix="name run directories, for example `accel report runs/bert runs/minilm`"
        )
    runs = [run_view(document.read(file)) for file in files]
    groups: dict[str, list[RunView]] = {}
    for run in sorted(runs, key=lambda run: run.document.created or ""):
        groups.setdefault(run.hardware_id, []).append(run)
    return Comparison(tuple(_target(identity, tuple(group)) for identity, group in sorted(groups.items())))


def _target(identity: str, runs: tuple[RunView, ...]) -> HardwareTarget:
    names = [run.name for run in runs]
    apart = [moment(run.document.created) if run.document.created else number for number, run in enumerate(runs, 1)]
    pairs = zip(names, apart, strict=True)
    labels = tuple(f"{name} ({told})" if names.count(name) > 1 else name for name, told in pairs)
    return HardwareTarget(identity, runs[0].title, runs, labels)


def _mean_speedup(row: Row) -> float:
    """Return the geometric mean of a variant's speed-ups where it passed; below zero where it never did."""
    logs = [math.log(c.speedup) for c in row.cells if c and c.status == "ok" and c.speedup and c.speedup > 0]
    return math.exp(sum(logs) / len(logs)) if logs else -1.0
