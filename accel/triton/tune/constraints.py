"""What a configuration must keep besides its latency budgets, judged at the load that was chosen for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from accel.core.errors import UsageError
from accel.triton.tune.cost import Price, cost
from accel.triton.tune.proof import ConfigurationRunner


@dataclass(frozen=True, slots=True)
class TuneLimits:
    """Limits of ``accel tune``; None where one is not asked for.

    Attributes:
        min_throughput_per_s: items per second of the greatest load held.
        max_memory_mib: resident memory of the server's processes, at most in any probe.
        max_gpu_memory_mib: memory in use on the GPUs that the server sees.
        max_cost: USD per million inferences on a machine that is busy all the time.
    """

    min_throughput_per_s: float | None = None
    max_memory_mib: float | None = None
    max_gpu_memory_mib: float | None = None
    max_cost: float | None = None

    def check(self, prices: Mapping[str, Price], hardware: str) -> None:
        """Refuse a limit that nothing here can be held against.

        Raises:
            UsageError: the cost is limited, and the price list lacks this machine.
        """
        if self.max_cost is not None and hardware not in prices:
            has = f"it has {', '.join(sorted(prices))}" if prices else "none is given"
            raise UsageError(
                f"--max-cost needs the price of this machine ({hardware}): {has}", fix="--prices FILE with that id"
            )


@dataclass(frozen=True, slots=True)
class Judged:
    """One limit, held against what was measured.

    Attributes:
        limit / found: in the unit of the name; ``found`` None where it cannot be known, which keeps no limit.
        lacks: by which share the limit is missed; 0 where it is kept.
    """

    name: str
    limit: float
    found: float | None
    lacks: float

    def __str__(self) -> str:
        if self.found is None:
            return f"its {self.name} cannot be known here, and at most {self.limit:g} is asked for"
        side = "less" if self.found < self.limit else "more"
        return f"its {self.name} is {self.found:.4g}, {abs(self.found - self.limit):.4g} {side} than {self.limit:g}"


def judge(
    runner: ConfigurationRunner, limits: TuneLimits, prices: Mapping[str, Price], hardware: str
) -> tuple[Judged, ...]:
    """Hold the load that a configuration carries against each limit that is asked for."""
    usd = None
    if runner.held:
        usd = cost(hardware, "", runner.held, prices, rate_per_s=None, headroom=0.0).usd_per_million
    rows = (
        ("throughput per s", limits.min_throughput_per_s, runner.held, -1),
        ("memory in MiB", limits.max_memory_mib, runner.memory_mib, 1),
        ("GPU memory in MiB", limits.max_gpu_memory_mib, runner.gpu_memory_mib, 1),
        ("cost in USD per million", limits.max_cost, usd, 1),
    )
    return tuple(
        Judged(name, limit, found, 1.0 if found is None else max(0.0, sign * (found / limit - 1)))
        for name, limit, found, sign in rows
        if limit is not None
    )


def keeps_memory(runner: ConfigurationRunner, limits: TuneLimits) -> bool:
    """Say whether a configuration keeps the limits of memory, which no other load mends."""
    return within(judge(runner, replace(limits, min_throughput_per_s=None, max_cost=None), {}, ""))


def within(judged: Sequence[Judged]) -> bool:
    """Say whether every limit is kept."""
    return not any(one.lacks for one in judged)
