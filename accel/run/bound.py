"""Whether an FP32 build could still beat what was measured: not where the products it must make take longer alone.

What products reach in their best moment bounds what a build takes in any. A machine that changes its speed timed the
leader in other moments: there the bound is far too low. Then products take turns with the leader, and each round has a
bound of its own.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from accel.bench.in_process import MeasurementPlan, ProcessRunner
from accel.bench.race import LEAST_ROUNDS, Contest, Race, behind, faster
from accel.bench.rounds import interleave
from accel.bench.stability import Ratio, ratio_interval
from accel.core.feeds import write_feeds
from accel.core.hardware import Hardware, runtime_variables
from accel.core.processes import Worker
from accel.core.values import Measurement
from accel.graph import arithmetic
from accel.graph.arithmetic import Arithmetic
from accel.run import points as timed, store
from accel.run.decide import Objective
from accel.run.job import Job
from accel.run.results import VariantState
from accel.run.stages import FILES, Answered, Stage, Stages
from accel.run.tasks import Described

ROUNDS, ROUND_S, WARM_S, MOST_S = 24, 0.1, 0.3, 8.0
"""Most rounds, how long each lasts, how long the leader is warmed up, and when the last round begins."""
SWING = 2.0
"""By what factor a machine may change its speed: a leader further above the bound is not timed once more."""
PRODUCTS = "FP32 products"


@dataclass(frozen=True, slots=True)
class Leader:
    """What leads by an objective, and its best point."""

    result: VariantState
    objective: Objective
    point: Measurement

    @property
    def id(self) -> str:
        return self.result.variant.id

    @property
    def most_ms(self) -> float:
        """What a batch item takes at most, by the interval of what the objective compares."""
        point = self.point
        return point.p50_ci_ms[1] / point.batch if self.objective == "latency" else 1e3 / point.throughput_ci_per_s[0]


@dataclass(frozen=True, slots=True)
class InTurn:
    """A leader and products that took turns.

    Attributes:
        item_ms: what a batch item of the leader took in each round.
        flops_per_s: of the fastest product in each round.
        disturbed: whether other processes disturbed a round; then it says nothing.
    """

    item_ms: tuple[float, ...]
    flops_per_s: tuple[float, ...]
    disturbed: bool

    def excludes(self, least: Arithmetic) -> bool:
        """Say whether the leader takes less time than the bound for certain, as a race of the two would."""
        bound = self._least_ms(least)
        return not self.disturbed and (faster(self.ratio(least)) or behind(bound, self.item_ms) is not None)

    def ratio(self, least: Arithmetic) -> Ratio:
        """Return the leader's time over what no FP32 build undercuts in the same round."""
        return ratio_interval(self.item_ms, self._least_ms(least))

    def _least_ms(self, least: Arithmetic) -> list[float]:
        return [least.at(speed).least_ms for speed in self.flops_per_s]


@dataclass(slots=True)
class _Products:
    """The runner whose time is what no FP32 build undercuts at the speed of its turn.

    Attributes:
        items: of one call of what it is compared with.
    """

    worker: Worker
    threads: int
    least: Arithmetic
    items: float
    name: str = PRODUCTS
    flops_per_s: list[float] = field(default_factory=list)

    def open(self) -> None:
        self._speed()  # the libraries are imported, and their threads started

    def turn(self, point: str) -> None:
        self.flops_per_s.append(self._speed())

    def _speed(self) -> float:
        return self.worker.call(arithmetic.flops_per_s, ROUND_S, self.threads)

    def discard(self) -> None:
        self.flops_per_s.pop()

    def end_turn(self) -> None:
        """Nothing was answered."""

    def times(self) -> Mapping[str, Sequence[float]]:
        return {PRODUCTS: [self.items * self.least.at(speed).least_ms for speed in self.flops_per_s]}

    def leave(self) -> None:
        """Its process is the caller's."""

    def close(self) -> None:
        """Its process is the caller's."""


def why_not(leaders: Sequence[Leader], least: Arithmetic, take_turns: Callable[[Leader], InTurn | None]) -> str | None:
    """Say why no FP32 build can win by any objective, or return None where one may.

    Args:
        leaders: what leads by each objective; no other process disturbed their figures.
        least: what products take on this machine.
        take_turns: as ``in_turn``; asked only where what is known does not say it.
    """
    told = []
    for leader in leaders:
        if leader.most_ms < least.least_ms:
            share = leader.most_ms / least.least_ms
            why = f"{least}, and {leader.id} takes at most {leader.most_ms:.3g} ms"
        else:
            found = take_turns(leader) if leader.most_ms < SWING * least.least_ms else None
            if found is None or not found.excludes(least):
                return None
            share, low, high = found.ratio(least)
            then = least.at(statistics.median(found.flops_per_s))
            figure = f"{share:.2f} [{low:.2f}, {high:.2f}] of that in {len(found.item_ms)} rounds"
            why = f"{then} while they take turns with it, and {leader.id} takes {figure}"
        told.append((share, leader.id, why))
    _, id, why = max(told)
    return f"cannot beat {id}: {why}"


def in_turn(
    leader: Leader,
    least: Arithmetic,
    described: Stage[Described],
    reference: Stage[Answered],
    *,
    job: Job,
    stages: Stages,
    kept: store.Store,
    hardware: Hardware,
    progress: Callable[[str, str], None],
    worker: Worker,
) -> InTurn | None:
    """Let a leader and products take turns, until one is faster for certain; None where either failed.

    Args:
        worker: makes the products.
    """
    built, proof = leader.result.built, leader.result.proof
    assert built is not None
    assert proof is not None
    key = store.key(
        built=built.key,
        least=least.item_flops,
        objective=leader.objective,
        batch=leader.point.batch,
        samples=described.value.samples.sha256,
        threads=job.threads,
        environment=runtime_variables(),
        hardware=hardware.fingerprint,
        code=store.code_hash("bench", "run/bound.py", "graph/arithmetic.py", "builders/__init__.py"),
    )
    name = f"in-turn-{leader.objective}"
    if not job.remeasure and (stored := kept.get(name, key, InTurn)) is not None:
        return stored
    pairs = timed.proved(described, reference)
    points = timed.points(leader.result.variant, described.value.source, leader.objective, pairs)
    shape, feeds = next((shape, feeds) for shape, feeds in points.items() if shape.batch == leader.point.batch)
    with kept.writing(name) as folder:
        file = folder / "feeds.npz"
        write_feeds(file, {key: pair.inputs for key, pair in feeds.items()})
        runner = ProcessRunner(
            name=leader.id,
            artifact=built.value,
            folder=built.folder / FILES,
            python=stages.python(leader.result.variant),
            log=job.run_dir / "logs" / f"{leader.id}.log",
            timed_shapes=(shape,),
            precision=proof.value.precision,
            plan=MeasurementPlan(leader.objective, ROUNDS, ROUND_S, WARM_S, least=1),
            feeds=file,
            threads=job.threads,
            timeout_s=job.timeout_s,
        )
        items = shape.items if leader.objective == "latency" else 1
        products = _Products(worker, job.threads, least, items)
        entries = ((runner.name, shape.key), (PRODUCTS, PRODUCTS))
        contest = Contest(entries, frozenset({runner.name, PRODUCTS}), most=ROUNDS, least=LEAST_ROUNDS)
        failed, noises = interleave(
            (runner, products),
            Race([contest], MOST_S),
            opening="loading",
            turn="in turn with FP32 products, round",
            progress=lambda _, doing: progress(leader.id, doing),
        )
        if failed:
            return None
        disturbed = any(noise.summary(job.threads).disturbed_rounds for noise in noises.values())
        found = InTurn(tuple(runner.item_ms(shape)), tuple(products.flops_per_s), disturbed)
        file.unlink()
        kept.put(name, key, found, folder)
    return found
