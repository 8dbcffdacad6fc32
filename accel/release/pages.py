"""A release for people: ``index.html``, one file that loads nothing, and ``report.md`` for a pull request."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accel.builders import targets
from accel.release.document import WORDS, Line, PoolLine, Release, ReleaseEntry
from accel.report import formats, layout
from accel.triton.tune.cost import usd_per_million

COLUMNS = (
    *(("model", "text"), ("state", "text"), ("variant", "text"), ("speed-up", ""), ("p50, ms", ""), ("per s", "")),
    *(("accuracy", ""), ("size", ""), ("variants", "text")),
)


@dataclass(frozen=True, slots=True)
class PageRow:
    """One model on one pool, as both pages draw it.

    Attributes:
        best: the chosen variant; None where there is none.
        accuracy: the first figure of its gate, and how it and the least that passes are written.
        usd_per_million: what a million inferences cost at its best throughput; None where no price is known.
    """

    entry: ReleaseEntry
    best: Line | None
    family: str
    colours: tuple[str, ...] | None
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    accuracy: tuple[float | None, str, str] | None
    usd_per_million: float | None


def page(release: Release) -> str:
    """Return ``index.html``."""
    pools = [(pool, list(_rows(release, pool.name))) for pool in release.pools]
    return layout.render(
        "release.html.j2",
        [row for _, rows in pools for row in rows if row.best],
        release=release,
        pools=pools,
        across=list(_across(pools)) if len(pools) > 1 else [],
        counts={pool.name: Counter(row.entry.held for row in rows) for pool, rows in pools},
        columns=COLUMNS,
        words=WORDS,
        script=layout.script("release.js"),
    )


def markdown(release: Release) -> str:
    """Return ``report.md``."""
    pools = [(pool, list(_rows(release, pool.name))) for pool in release.pools]
    return layout.render("release.md.j2", release=release, pools=pools, words=WORDS).rstrip("\n") + "\n"


def _across(pools: Sequence[tuple[PoolLine, Sequence[PageRow]]]) -> Iterator[tuple[str, list[PageRow | None], float]]:
    """Yield each model, its row on each pool (None where it is not asked for), and the least p50 of several, in ms."""
    found = {(row.entry.model, pool.name): row for pool, rows in pools for row in rows}
    for model in dict.fromkeys(model for model, _ in found):
        rows = [found.get((model, pool.name)) for pool, _ in pools]
        times = [r.best.p50_ms for r in rows if r is not None and r.best is not None and r.best.p50_ms is not None]
        yield model, rows, min(times) if len(times) > 1 else math.nan


def _rows(release: Release, pool: str) -> Iterator[PageRow]:
    for entry in release.entries:
        if entry.pool != pool:
            continue
        best = next((v for v in entry.variants if v.id == entry.chosen), None)
        name = best.id.partition("@")[0] if best else ""
        known = targets.runtime(name) if name in targets.discover() else None
        decided = next((d for d in entry.decisions if d.chosen == entry.chosen and d.speedup is not None), None)
        accuracy = None
        if best is not None and best.gate:
            metric, least = next(iter(best.gate.items()))
            found = best.found.get(metric)
            shown = "exact" if found is None else formats.metric(metric, found)
            accuracy = found, shown, formats.metric(metric, least)
        yield PageRow(
            entry,
            best,
            targets.family(name),
            known.colours if known else None,
            decided.speedup if decided else None,
            decided.speedup_ci if decided else None,
            accuracy,
            usd_per_million(entry.usd_per_hour, best.throughput_per_s)
            if best and entry.usd_per_hour and best.throughput_per_s
            else None,
        )
