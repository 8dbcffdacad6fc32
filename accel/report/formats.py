"""Numbers as a person wants to read them: three figures, one unit, and a dash where nothing is known.

Every renderer of a report takes its numbers from here, so that the page, the Markdown and the terminal agree.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeGuard

from accel.core.values import clean

NONE = "—"


def known(value: float | None) -> TypeGuard[float]:
    """Say whether there is a number: a run that lacks one reads as None or NaN."""
    return value is not None and value == value


def figures(value: float | None) -> str:
    """Format with three significant figures and no exponent: ``0.0842``, ``3.46``, ``34.6``, ``346``, ``3,460``."""
    if not known(value):
        return NONE
    rounded = float(f"{value:.2e}")  # first, so that 9.996 reads 10.0 and not 10.00
    if rounded == 0:
        return "0"
    decimals = min(max(2 - math.floor(math.log10(abs(rounded))), 0), 9)
    return f"{rounded:,.{decimals}f}" if decimals else f"{value:,.0f}"


def times(value: float | None) -> str:
    """Format a ratio: ``6.42×``."""
    return f"{figures(value)}×" if known(value) else NONE


def between(interval: tuple[float, float] | None, unit: str = "") -> str:
    """Format an interval: ``6.31–6.53×``; empty where there is none."""
    if interval is None or not all(map(known, interval)):
        return ""
    return f"{figures(interval[0])}–{figures(interval[1])}{unit}"


def decibels(value: float | None) -> str:
    """Format dB with one decimal: ``32.1 dB``."""
    return f"{round(value, 1) + 0.0:.1f} dB" if known(value) else NONE


def size(value: float | None) -> str:
    """Format bytes in binary units: ``104 MiB``."""
    if not known(value):
        return NONE
    for unit in ("B", "KiB", "MiB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{figures(value)} {unit}"
        value /= 1024
    return f"{figures(value)} GiB"


def mebibytes(value: float | None) -> str:
    """Format MiB: ``512 MiB``."""
    return size(value * 1024 * 1024) if known(value) else NONE


def seconds(value: float | None) -> str:
    """Format a duration in s: ``below 0.01 s``, ``8.20 s``, ``3 min 05 s``."""
    if not known(value):
        return NONE
    if value < 0.01:
        return "below 0.01 s"
    if value < 100:
        return f"{figures(value)} s"
    return f"{int(value) // 60} min {int(value) % 60:02d} s"


def error(value: float | None) -> str:
    """Format a difference or a tolerance, which spans many decades: ``3.1e-05``, ``0.042``, ``0``."""
    if not known(value):
        return NONE
    return f"{value:#.2g}".removesuffix(".") if value else "0"


def shares(parts: Mapping[str, float]) -> str:
    """Format the share of each precision, the largest first: ``int8 66.3 %, fp32 33.7 %``; ``none`` is not known."""
    largest = sorted(parts.items(), key=lambda row: -row[1])
    return ", ".join(f"{'not known' if name == 'none' else name} {100 * share:.3g} %" for name, share in largest)


def metric(name: str, value: float | None) -> str:
    """Format the value of a gate by the unit in its name: ``_db`` in dB, everything else with four decimals."""
    return decibels(value) if value is None or name.endswith("_db") else f"{value:.4f}"


def metric_name(name: str) -> str:
    """Turn a gate's name into words: ``sqnr_db`` → ``SQNR``, ``rank_correlation`` → ``rank correlation``."""
    words = name.removesuffix("_db").replace("_", " ")
    return words.upper() if words in ("sqnr", "f1", "bleu", "map") else words


def thousands(count: int | None) -> str:
    """Format a count with separators: ``12,345``."""
    return NONE if count is None else f"{count:,}"


def moment(created: str) -> str:
    """Format an ISO 8601 time for reading: ``2026-11-20 13:50 UTC``; anything else stays as it is."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{when:%Y-%m-%d %H:%M} {when.tzname() or ''}".strip()


def spans(text: str) -> list[tuple[bool, str]]:
    """Split a message at its backticks into (is code, text) parts; a whole command of accel is code without them."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick opens nothing
        parts[-2:] = ["`".join(parts[-2:])]
    if len(parts) == 1:
        return [(text.startswith("accel "), text)]
    return [(bool(i % 2), part) for i, part in enumerate(parts) if part]


def plain(value: object) -> str:
    """Write any JSON value as one short line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(k)} {plain(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        # Lists of numbers are shapes; everything else reads as an enumeration.
        numbers = bool(value) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        return ("×" if numbers else ", ").join(plain(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else NONE
    return NONE if value is None else clean(value)


def pairs(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return every entry that says something as (name, text)."""
    return tuple((name, text) for name, value in values.items() if value is not None and (text := plain(value)))
