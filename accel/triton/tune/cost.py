"""What a configuration costs: per million inferences, and how many machines a rate needs.

What other machines carry is read from the ``tune.json`` of their runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.bench.goodput import Probe
from accel.core.errors import AccelError, InputError
from accel.core.files import load_json
from accel.core.values import from_json
from accel.core.yaml_file import read_yaml
from accel.triton.tune.lab import Goal
from accel.triton.tune.proof import CONFIRM

TUNE_THERE = "run accel tune with this budget on that machine, and name the run again"


@dataclass(frozen=True, slots=True)
class Price:
    """What a machine costs.

    Attributes:
        usd_per_hour: of the whole machine.
        models: how many models share it: each has an equal part of its time, carries that much less and bears as much.
    """

    usd_per_hour: float
    models: float = 1.0

    @property
    def of_a_model(self) -> float:
        """What a model bears of it, in USD per hour."""
        return self.usd_per_hour / self.models


@dataclass(frozen=True, slots=True)
class Cost:
    """What carrying a load on one kind of machine costs.

    Attributes:
        hardware: id of the machine.
        configuration: what was chosen for it.
        per_s: items per second that one machine carries of the model within the budget; where models share it, in the
            model's part of its time.
        per_minute: the most invocations (requests) per minute.
        machines: how many the wanted rate needs, headroom included; None where no rate is wanted.
        usd_per_million: of inferences on machines that are busy all the time; ``usd_per_hour`` of all of them. None
            where the price list lacks the hardware. Both are what the model bears.

    Formula: per_s = what the whole machine carries / models;
        machines = ⌈rate × items of a request × (1 + headroom) / per_s⌉;
        usd_per_million = (price of an hour / models) / (3600 per_s) × 10⁶, so that sharing changes nothing of it;
        usd_per_hour = machines × price of an hour / models.
    """

    hardware: str
    configuration: str
    per_s: float
    per_minute: float
    machines: int | None
    usd_per_million: float | None
    usd_per_hour: float | None


def read_prices(path: Path) -> dict[str, Price]:
    """Read a price list: hardware id → ``{usd_per_hour: 0.17, models: 2}``, or the price alone.

    Raises:
        InputError: it cannot be read, or a price is not a number above 0.
    """
    return parse_prices(read_yaml(path, "price list"), f"price list {path}")


def parse_prices(found: Any, what: str) -> dict[str, Price]:
    """Return the prices of a list that was read.

    Args:
        what: what it is, for messages.

    Raises:
        InputError: as ``read_prices``.
    """
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"{what} has no hardware", fix="write HARDWARE_ID: {usd_per_hour: 0.17}")
    return {str(name): _price(what, str(name), given) for name, given in found.items()}


def usd_per_million(usd_per_hour: float, per_s: float) -> float:
    """Return what a million inferences cost on a machine that is busy all the time."""
    return usd_per_hour / (3600 * per_s) * 1e6


def _price(what: str, name: str, given: Any) -> Price:
    fields = dict(given) if isinstance(given, Mapping) else {"usd_per_hour": given}
    unknown = set(fields) - {"usd_per_hour", "models"}
    numbers = [v for v in fields.values() if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < 1e9]
    if unknown or "usd_per_hour" not in fields or len(numbers) != len(fields):
        raise InputError(
            f"{what}: {name} is {given!r}, expected usd_per_hour and models, both above 0",
            fix=f"write {name}: {{usd_per_hour: 0.17, models: 1}}",
        )
    return Price(**{key: float(value) for key, value in fields.items()})


def cost(
    hardware: str,
    configuration: str,
    per_s: float,
    prices: Mapping[str, Price],
    *,
    rate_per_s: float | None,
    headroom: float,
    items: float = 1.0,
) -> Cost:
    """Return what carrying a rate costs on one kind of machine.

    Args:
        per_s: items per second that one machine carries of this model alone.
        rate_per_s: requests per second that are wanted.
        headroom: share of the rate that is kept free.
        items: of a request, on average.
    """
    price = prices.get(hardware)
    per_s = per_s / price.models if price else per_s
    machines = math.ceil(rate_per_s * items * (1 + headroom) / per_s - 1e-9) if rate_per_s else None
    each = price.of_a_model if price else None
    return Cost(
        hardware,
        configuration,
        per_s,
        60 * per_s / items,
        machines,
        usd_per_million(each, per_s) if each is not None else None,
        each * (machines or 1) if each is not None else None,
    )


def cheapest(costs: Sequence[Cost]) -> Cost | None:
    """Return the machine that costs the least: for the rate, or per inference where none is wanted."""
    priced = [c for c in costs if c.usd_per_hour is not None and c.usd_per_million is not None]
    return min(
        priced, key=lambda c: (c.usd_per_hour if c.machines else c.usd_per_million, c.usd_per_million), default=None
    )


def tuned_elsewhere(path: Path, goal: Goal, protocol: str = "grpc") -> tuple[str, str, float]:
    """Return hardware, configuration and items per second of what another machine's ``tune.json`` carries.

    It is what was chosen there, where it kept budgets as tight as these. Under looser ones a load counts that is within
    these by its p99, but only one that was probed as often as what is chosen: chance lets one probe hold too much.

    Raises:
        InputError: it cannot be read, has other arrivals or another protocol, or no load that was confirmed in it
            keeps the budget.
    """
    try:
        found = load_json(path.read_text(encoding="utf-8"))
        hardware, other = str(found["hardware"]["id"]), from_json(Goal, found["goal"])
        over = found.get("protocol", "grpc")
        rows = [(row, f"{row['repository']}: {row['label']}") for row in found["tried"]]
        chosen = [(from_json(Probe, row["measured"]), name) for row, name in rows if row["chosen"]]
        probes = [(from_json(Probe, p), name) for row, name in rows for p in row["probes"]]
    except (OSError, ValueError, KeyError, TypeError, AccelError) as error:
        raise InputError(f"{path} cannot be read as what accel tune wrote: {error}", fix=TUNE_THERE) from error
    if (other.arrivals, other.gaps_s) != (goal.arrivals, goal.gaps_s):
        raise InputError(
            f"{path} was tuned under {other.arrivals or 'closed-loop'} arrivals, expected {goal.arrivals or 'closed'}",
            fix=TUNE_THERE,
        )
    if other.hit_rate != goal.hit_rate:
        raise InputError(f"{path} was tuned for other shares of repeated requests (--hit-rate)", fix=TUNE_THERE)
    if over != protocol:
        raise InputError(f"{path} was tuned over {over}, expected {protocol}", fix=TUNE_THERE)
    if any(other.limits_ms.get(name, math.inf) > limit for name, limit in goal.limits_ms.items()):
        raise InputError(f"{path} was tuned without the budgets of {', '.join(goal.limits_ms)}", fix=TUNE_THERE)
    if other.budget_ms > goal.budget_ms:
        confirmed = [(p, name) for p, name in probes if p.held and p.count >= CONFIRM]
        chosen = [(p, name) for p, name in confirmed if p.p99_ms is not None and p.p99_ms <= goal.budget_ms]
    if not chosen:
        raise InputError(f"no load that was confirmed in {path} keeps {goal.words} on {hardware}", fix=TUNE_THERE)
    per_s, name = max((p.throughput_per_s, name) for p, name in chosen)
    return hardware, name, per_s
