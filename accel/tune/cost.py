"""What a configuration costs: per million inferences, and how many machines a rate needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.core.errors import InputError
from accel.core.yaml_file import read_yaml


@dataclass(frozen=True, slots=True)
class Price:
    """What a machine costs.

    Attributes:
        usd_per_hour: of the whole machine.
        models: how many models share it, each of which bears its part.
    """

    usd_per_hour: float
    models: float = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What carrying a load on one kind of machine costs.

    Attributes:
        hardware: id of the machine.
        per_s: items per second that one machine carries within the budget.
        per_minute: the most invocations per minute.
        machines: how many the wanted rate needs, headroom included; None where no rate is wanted.
        usd_per_million: of inferences on machines that are busy all the time; ``usd_per_hour`` of all of them. None
            where the price list lacks the hardware.

    Formula: machines = ⌈rate × (1 + headroom) / per_s⌉; usd_per_million = usd_per_hour / models / (3600 per_s) × 10⁶.
    """

    hardware: str
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
    found = read_yaml(path, "price list")
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"price list {path} has no hardware", fix="write HARDWARE_ID: {usd_per_hour: 0.17}")
    return {str(name): _price(path, str(name), given) for name, given in found.items()}


def _price(path: Path, name: str, given: Any) -> Price:
    fields = dict(given) if isinstance(given, Mapping) else {"usd_per_hour": given}
    unknown = set(fields) - {"usd_per_hour", "models"}
    numbers = [v for v in fields.values() if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < 1e9]
    if unknown or "usd_per_hour" not in fields or len(numbers) != len(fields):
        raise InputError(
            f"price list {path}: {name} is {given!r}, expected usd_per_hour and models, both above 0",
            fix=f"write {name}: {{usd_per_hour: 0.17, models: 1}}",
        )
    return Price(**{key: float(value) for key, value in fields.items()})


def cost(
    hardware: str, per_s: float, prices: Mapping[str, Price], *, rate_per_s: float | None, headroom: float
) -> Cost:
    """Return what carrying a rate costs on one kind of machine.

    Args:
        per_s: items per second that one machine carries.
        headroom: share of the rate that is kept free.
    """
    price = prices.get(hardware)
    machines = math.ceil(rate_per_s * (1 + headroom) / per_s - 1e-9) if rate_per_s else None
    each = price.usd_per_hour / price.models if price else None
    return Cost(
        hardware,
        per_s,
        60 * per_s,
        machines,
        each / (3600 * per_s) * 1e6 if each is not None else None,
        each * (machines or 1) if each is not None else None,
    )
