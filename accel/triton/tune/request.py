"""Everything a user asks of ``accel tune``: one model, of which its flags and ``tune:`` of a release file are made."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from accel.bench import ranges
from accel.bench.endpoint import InferenceProtocol
from accel.bench.load import Arrivals
from accel.core import recorded
from accel.core.errors import UsageError
from accel.core.options import AboveZero, Options, OptionTrait
from accel.triton.servers import Via
from accel.triton.tune import space as spaces
from accel.triton.tune.constraints import TuneLimits
from accel.triton.tune.cost import Price, read_prices
from accel.triton.tune.lab import LEAST, Goal
from accel.triton.tune.repeats import MOST_HITS
from accel.triton.tune.search import Mode
from accel.triton.tune.space import Space


def _prices(given: Any) -> Any:
    return read_prices(Path(given)) if isinstance(given, str | Path) else given


def _keys(given: Any) -> Any:
    return tuple(recorded.read_keys(Path(given))) if isinstance(given, str | Path) else given


def _space(given: Any) -> Any:
    return spaces.read(Path(given)) if isinstance(given, str | Path) else given


class TuneOptions(BaseModel):
    """What a configuration must hold, and how long and how it is searched: what a release asks of a model, too."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    offline: Annotated[
        bool,
        Field(description="Most items per second, however long requests take: of many items each, in a closed loop"),
    ] = False
    max_p99_ms: Annotated[
        AboveZero | None,
        OptionTrait.BY_MODEL,
        Field(validate_default=True, description="Budget that 99 % of the requests must keep"),
    ] = None
    max_p50_ms: Annotated[AboveZero | None, Field(description="Budget of the median")] = None
    max_p90_ms: Annotated[AboveZero | None, Field(description="Budget that 90 % must keep")] = None
    max_p95_ms: Annotated[AboveZero | None, Field(description="Budget that 95 % must keep")] = None
    rate: Annotated[
        AboveZero | None,
        OptionTrait.BY_MODEL,
        Field(description="Requests per second that are to be carried"),
    ] = None
    hit_rate: Annotated[
        float | None,
        Field(gt=0, le=MOST_HITS, description="Share of requests that repeat an earlier one: tries the response cache"),
    ] = None
    min_throughput: Annotated[AboveZero | None, Field(description="Items per second to carry")] = None
    max_memory_mib: Annotated[AboveZero | None, Field(description="What the server's processes may take")] = None
    max_gpu_memory_mib: Annotated[AboveZero | None, Field(description="What may be in use on its GPUs")] = None
    protocol: Annotated[InferenceProtocol, Field(description="What requests are sent over: grpc or http")] = "grpc"
    mode: Annotated[Mode, Field(description="predict, brute, quick or optuna")] = "predict"
    budget_s: Annotated[AboveZero | None, Field(description="How long to measure  [default: 900; brute: no limit]")] = (
        None
    )

    @field_validator("max_p99_ms", "max_p50_ms", "max_p90_ms", "max_p95_ms", "rate")
    @classmethod
    def _asked_online(cls, given: float | None, info: ValidationInfo) -> float | None:
        offline = info.data.get("offline", False)
        if offline and given is not None:
            raise ValueError("offline there is neither a rate nor a budget of latency")
        if info.field_name == "max_p99_ms" and given is None and not offline:
            raise PydanticCustomError("missing", "Field required")
        return given


class TuneRequest(TuneOptions, Options, BaseModel):
    """One call of ``accel tune`` for one model.

    Attributes:
        targets: all of one client contract.
        hit_rate_of: what each recorded request asked, in their order.
        trials: None: an eighth of the configurations.
        probe_s / least: a probe lasts so long, and until so many requests have ended.
        space: beside the configuration that ships.

    Raises:
        UsageError: an option that is missing, unknown or out of its limits, or a space with fields that cannot vary.
        InputError: a file of arrival times, repeated requests, prices or a space is missing or broken.
    """

    MISSING: ClassVar = {
        "targets": "name run directories or repositories: accel tune runs/bert --max-p99-ms 100",
        "max_p99_ms": "--max-p99-ms 100: the budget that 99 % of the requests must keep; --offline: without one",
    }

    targets: Annotated[
        tuple[Path, ...],
        OptionTrait.ARGUMENT,
        OptionTrait.REPEATED,
        Field(
            min_length=1, description="Run directories or repositories of one model, or of several that share a server"
        ),
    ]
    arrivals: Annotated[
        str,
        Field(
            description="Open loop: poisson, constant, a file of times or of recorded requests; closed: a closed loop"
        ),
    ] = "poisson"
    hit_rate_of: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_keys),
        OptionTrait.FILE,
        Field(description="Recorded requests, each with a key: the share of them that a cache would answer"),
    ] = None
    prices: Annotated[
        Mapping[str, Price],
        BeforeValidator(_prices),
        OptionTrait.FILE,
        Field(description="Price list: HARDWARE_ID: {usd_per_hour: 0.17}"),
    ] = {}
    headroom: Annotated[float, Field(ge=0, description="Share of --rate that is kept free")] = 0.2
    max_cost: Annotated[AboveZero | None, Field(description="USD per million inferences, with --prices")] = None
    space: Annotated[
        InstanceOf[Space] | None,
        BeforeValidator(_space),
        OptionTrait.FILE,
        Field(description="Configurations to choose from (YAML)  [default: accel's own]"),
    ] = None
    trials: Annotated[int | None, Field(ge=1, description="Most that quick and optuna measure  [default: 1/8]")] = None
    data: Annotated[Path | None, Field(description="Requests to send: .json or .npz  [default: stored sample]")] = None
    via: Annotated[Via | None, Field(description="Server: embedded, local or docker")] = None
    probe_s: Annotated[float, Field(ge=0.05, alias="seconds", description="Least length of a probe")] = 1.5
    least: Annotated[int, Field(ge=10, alias="requests", description="Least requests of a probe")] = LEAST
    seed: Annotated[int, Field(description="Decides what quick and optuna try")] = 0
    out: Annotated[Path | None, Field(description="Folder  [default: RUN/tuned]")] = None

    @cached_property
    def goal(self) -> Goal:
        """What a configuration must do."""
        if self.offline:
            return Goal(None, None)
        budgets = {"p50": self.max_p50_ms, "p90": self.max_p90_ms, "p95": self.max_p95_ms}
        arrivals, gaps_s = self._arrivals
        limits_ms = {name: ms for name, ms in budgets.items() if ms is not None}
        return Goal(self.max_p99_ms, arrivals, gaps_s, self.rate, limits_ms, self.hit_rate)

    @cached_property
    def _arrivals(self) -> tuple[Arrivals | None, tuple[float, ...]]:
        return (None, ()) if self.arrivals == "closed" else ranges.arrivals(self.arrivals)

    @property
    def repeats(self) -> bool:
        """Whether it is known how often requests repeat."""
        return self.hit_rate is not None or self.hit_rate_of is not None

    @property
    def limits(self) -> TuneLimits:
        """What it must keep besides its latency budgets."""
        return TuneLimits(self.min_throughput, self.max_memory_mib, self.max_gpu_memory_mib, self.max_cost)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.offline and self.arrivals not in ("poisson", "closed"):
            raise UsageError("--offline sends requests as they are answered", fix="leave --arrivals out")
        if self.hit_rate is not None and self.hit_rate_of is not None:
            raise UsageError("--hit-rate says a share, and --hit-rate-of counts one", fix="give one of the two")
        if self.offline and self.repeats:
            raise UsageError(
                "--offline puts many items into a request: no whole one repeats", fix="leave --hit-rate out"
            )
        _ = self.goal  # a file of times that is wrong is refused at once
        return self
