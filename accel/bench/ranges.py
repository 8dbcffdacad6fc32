"""Loads as the command line writes them: one number, or a range of numbers."""

import itertools
from pathlib import Path
from typing import Any, cast, get_args

from accel.bench.load import Arrivals, Load
from accel.core import recorded
from accel.core.errors import InputError, UsageError, raised_as


def concurrencies(text: str) -> tuple[Load, ...]:
    """Read ``N``, ``START:END`` (the powers of two in it) or ``START:END:STEP`` (as perf_analyzer reads it).

    Raises:
        UsageError: it is none of these, or nothing lies within it.
    """
    parts = _numbers(text, int, "--concurrency", "N, START:END or START:END:STEP with whole numbers")
    if len(parts) == 2:
        found = [1 << i for i in range(parts[1].bit_length()) if parts[0] <= 1 << i <= parts[1]]
    else:
        found = [parts[0]] if len(parts) == 1 else list(range(parts[0], parts[1] + 1, parts[2]))
    if not found:
        raise UsageError(f"--concurrency {text} holds no power of two", fix="give a step, START:END:STEP")
    return tuple(Load(concurrency=n) for n in found)


def rates(text: str, arrivals: Arrivals, gaps_s: tuple[float, ...] = ()) -> tuple[Load, ...]:
    """Read ``RATE`` or ``START:END:STEP``, in requests per second.

    Raises:
        UsageError: it is neither.
    """
    how: dict[str, Any] = {"arrivals": arrivals, "gaps_s": gaps_s}
    parts = _numbers(text, float, "--request-rate", "RATE or START:END:STEP")
    if len(parts) == 2:
        raise UsageError(f"--request-rate {text} has no step", fix="give START:END:STEP")
    if len(parts) == 1:
        return (Load(rate_per_s=parts[0], **how),)
    steps = int((parts[1] - parts[0]) / parts[2] + 1e-9) + 1
    return tuple(Load(rate_per_s=parts[0] + i * parts[2], **how) for i in range(steps))


def arrivals(text: str) -> tuple[Arrivals, tuple[float, ...]]:
    """Read ``constant``, ``poisson`` or the path of a file of recorded arrival times.

    That is one of seconds, ascending, one a line; or recorded requests as of ``core.recorded``, each with ``at``.

    Returns:
        The kind, and the recorded gaps in seconds: the first one is the mean of the others.

    Raises:
        UsageError: it is none of these.
        InputError: the file cannot be read, is not ascending, or has fewer than two different times.
    """
    if text in get_args(Arrivals) and text != "recorded":
        return cast(Arrivals, text), ()
    if not Path(text).is_file():
        raise UsageError(f"--arrivals {text} is unknown", fix="give constant, poisson or a file of arrival times")
    form = recorded.FORM if text.endswith(".jsonl") else "write seconds, one time a line"
    with raised_as(InputError, (OSError, ValueError), f"{text} holds no arrival times", fix=form):
        content = Path(text).read_text(encoding="utf-8-sig")
        if content.lstrip().startswith("{"):
            times, form = recorded.read_times(Path(text)), recorded.FORM
        else:
            times = [float(line) for line in content.split()]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    if not gaps or not min(gaps) >= 0 or not 0 < sum(gaps) < float("inf"):
        raise InputError(f"{text}: expected at least two times in ascending order", fix=form)
    return "recorded", (sum(gaps) / len(gaps), *gaps)


def _numbers(text: str, kind: type, option: str, form: str) -> list[Any]:
    try:
        parts = [kind(part) for part in text.split(":")]
    except ValueError:
        parts = []
    ascending = len(parts) < 2 or parts[0] <= parts[1]
    if not 1 <= len(parts) <= 3 or not all(0 < p < float("inf") for p in parts) or not ascending:
        raise UsageError(f"{option} {text!r} cannot be read", fix=f"give {form}, all above 0, such as 1:16")
    return parts
