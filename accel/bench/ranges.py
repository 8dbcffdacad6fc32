"""Loads as the command line writes them: one number, or a range of numbers."""

from typing import Any

from accel.bench.load import Arrivals, Load
from accel.core.errors import UsageError


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


def rates(text: str, arrivals: Arrivals = "constant") -> tuple[Load, ...]:
    """Read ``RATE`` or ``START:END:STEP``, in requests per second.

    Raises:
        UsageError: it is neither.
    """
    parts = _numbers(text, float, "--request-rate", "RATE or START:END:STEP")
    if len(parts) == 2:
        raise UsageError(f"--request-rate {text} has no step", fix="give START:END:STEP")
    if len(parts) == 1:
        return (Load(rate_per_s=parts[0], arrivals=arrivals),)
    steps = int((parts[1] - parts[0]) / parts[2] + 1e-9) + 1
    return tuple(Load(rate_per_s=parts[0] + i * parts[2], arrivals=arrivals) for i in range(steps))


def _numbers(text: str, kind: type, option: str, form: str) -> list[Any]:
    try:
        parts = [kind(part) for part in text.split(":")]
    except ValueError:
        parts = []
    ascending = len(parts) < 2 or parts[0] <= parts[1]
    if not 1 <= len(parts) <= 3 or not all(0 < p < float("inf") for p in parts) or not ascending:
        raise UsageError(f"{option} {text!r} cannot be read", fix=f"give {form}, all above 0, such as 1:16")
    return parts
