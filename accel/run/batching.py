"""Whether merging requests pays for a variant, by what its batches were measured to carry."""

from collections.abc import Sequence
from typing import Literal

from accel.core.values import Measurement
from accel.report.formats import figures

WORTH = 0.10
"""A larger batch must carry so much more than a smaller one: every request in it waits for all others."""


Scenario = Literal["throughput", "traffic"]
UNSHOWN = 1, "requests of one shape do not share calls: no measurement shows that they carry more together"
"""What follows for groups of one shape where ``worthwhile`` finds nothing."""
CARRIED = {"throughput": "items per second", "traffic": "requests of their own shapes per second"}


def worthwhile(
    points: Sequence[Measurement], max_p99_ms: float | None = None, *, scenario: Scenario = "throughput"
) -> tuple[int, str] | None:
    """Return the largest batch that is worth forming and why; 0 where the largest measured one is, or a larger one.

    Args:
        points: of one variant; those that were timed at full load in process count.
        max_p99_ms: a batch whose own p99 may be longer is never formed.
        scenario: what full load was: batches of the typical shape, or groups of requests of their own shapes.

    Returns:
        None where fewer than two batches were timed, or where the intervals do not show that a limit costs nothing.
    """
    timed = (p for p in points if p.scenario == scenario and p.via == "inprocess" and len(p.rounds_ms) != 1)
    every = {p.batch: p for p in timed}
    rows = {batch: p for batch, p in every.items() if max_p99_ms is None or _keeps(p, max_p99_ms)}
    if len(every) < 2 or not rows:
        return None
    batches = sorted(rows)
    least, most = batches[0], batches[-1]
    limit = next(
        b
        for b in batches
        if all(rows[c].throughput_ci_per_s[1] <= (1 + WORTH) * rows[b].throughput_ci_per_s[0] for c in batches if c > b)
    )
    carried = " and ".join(
        f"{figures(rows[b].throughput_per_s)} in batches of {b}" for b in dict.fromkeys((least, limit, most))
    )
    measured = f"it carries {carried} {CARRIED[scenario]}, in process"
    if limit == most < max(every):
        why = f"larger ones may take longer than {max_p99_ms:g} ms (p99)"
        return limit, f"{_what(limit)}: {why}; {measured}"
    if limit == most:
        gain = rows[most].throughput_per_s / rows[least].throughput_per_s - 1
        return (0, f"requests are merged: {measured} ({gain:+.0%})") if gain > WORTH else None
    return limit, f"{_what(limit)}: larger batches gain less than {WORTH:.0%}; {measured}"


def _what(limit: int) -> str:
    return "requests are not merged" if limit == 1 else f"at most {limit} items are merged"


def _keeps(point: Measurement, max_p99_ms: float) -> bool:
    return point.p99_ci_ms is not None and point.p99_ci_ms[1] <= max_p99_ms
