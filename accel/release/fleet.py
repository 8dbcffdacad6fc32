"""The conversions of a release on the machines of a Ray cluster.

    ray start --address HEAD:6379 --resources '{"h100": 1}'      a machine of the pool h100, and one place to measure
    accel release build release.yaml --store /shared/releases --ray auto

A node is of the pools whose names it offers as resources; it shows its hardware before it converts anything. All nodes
of a pool are of one kind, or nothing measured on one would hold for another. A conversion is two tasks: ``prepare``
exports, builds and proves, and takes as many CPUs as it has threads; ``measure`` also takes more than half of the
pool's resource, so that a machine measures one model at a time, while preparations fill the CPUs that are left. What
several kinds of machines convert is exported by one of them first (``export``), for all.

Results go into the store: a folder that all machines share under the same path, or an object store, to which a task
gives what it made and from which the next takes it, by content. What a task returns is a word. The records in
the store say what is done, so a driver that is killed starts again where it was, and gives nobody what is done. It
hands out a few tasks for each CPU at a time, so that a release of any size asks no more of Ray. A task whose node is
lost is given to another; one whose own process dies twice has failed.

Source: Ray 2.60, "Resources" (fractional custom resources), "Fault tolerance" (task failures).
"""

import contextlib
import ctypes
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from accel.core import hardware
from accel.core.errors import InputError, OutputError, UnavailableError, UsageError
from accel.core.hardware import Hardware
from accel.core.progress import Progress
from accel.release import converting, planning
from accel.release.object_store import ObjectStore
from accel.release.planning import Duties
from accel.release.release_file import ModelPlan, ReleasePlan
from accel.release.shared import SharedStore, cache_of

MEASURING, PREPARING = 0.6, 0.001
"""Shares of a pool's resource: two that measure do not fit on one machine."""
MOST_LOSSES = 5
"""How often a task is given to another node when its node is lost, or its run is still held by a task that ends."""
POLL_S, GONE_S = 2.0, 60.0
"""How long a pool may have no node at all before its models wait for another build."""
AHEAD = 3.0
"""Tasks of a phase that are handed out for each CPU of a pool: what waits there begins without the driver."""
CALLS = 1
"""Tasks that a process of Ray's does before it ends: nothing is left for the next model."""
Phase = Literal["export", "prepare", "measure", "give up"]


@dataclass(frozen=True, slots=True)
class FleetMachine:
    """The nodes of one kind of hardware: the pools that they are of, and the CPUs that each has at least."""

    hardware: Hardware
    pools: tuple[str, ...]
    cpus: float


@dataclass(frozen=True, slots=True)
class FleetTask:
    """What one worker is asked to do for one model.

    Attributes:
        deaths: how often its own process died; in ``prepare`` also a variant's.
        losses: how often it was begun without coming to an end for no fault of its own.
    """

    model: str
    machine: str
    phase: Phase = "prepare"
    deaths: int = 0
    losses: int = 0
    why: str = ""


@dataclass(slots=True)
class Cluster:
    """The driver's side of one build.

    Attributes:
        url: of the object store; None where the nodes have the folder ``store``.
        waiting: by machine and phase, what is not handed out yet.
        running: what is.
        exporting: model → what begins once it is exported.
        cpus: of all nodes of each machine, when they were last looked at.
        seen: when each machine was last seen, and how many nodes it had.
    """

    plan: ReleasePlan
    store: Path
    machines: Mapping[str, FleetMachine]
    duties: Duties
    retry: bool
    url: str | None = None
    waiting: dict[tuple[str, Phase], deque[FleetTask]] = field(default_factory=dict)
    running: dict[Any, FleetTask] = field(default_factory=dict)
    exporting: dict[str, list[FleetTask]] = field(default_factory=dict)
    cpus: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    _asked: dict[str, ModelPlan] = field(init=False)
    _remote: Any = field(init=False)
    _out: Counter[tuple[str, Phase]] = field(default_factory=Counter)
    _exports: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        import ray

        self._asked = {asked.name: asked for asked in self.plan.models}
        self._remote = ray.remote(max_calls=CALLS)(_work)

    def give(self, task: FleetTask) -> None:
        """Take a task that is to be done."""
        self.waiting.setdefault((task.machine, task.phase), deque()).append(task)

    def begin(self, model: str, machines: Sequence[str]) -> None:
        """Take a model that some machines are to convert: of several the one that exports least does so for all."""
        tasks = [FleetTask(model, id) for id in machines]
        if len(tasks) == 1:
            self.give(tasks[0])
            return
        self.exporting[model] = tasks
        first = min(machines, key=lambda id: self._exports[id])
        self._exports[first] += 1
        self.give(FleetTask(model, first, "export"))

    def exported(self, model: str) -> None:
        """Give what waited for a model's export, be it there or not: whoever lacks it makes it."""
        for task in self.exporting.pop(model):
            self.give(task)

    def hand_out(self) -> None:
        """Give the cluster as much of what waits as keeps it busy."""
        for (machine, phase), tasks in self.waiting.items():
            most = max(1.0, AHEAD * self.cpus.get(machine, 1.0))
            while tasks and self._out[machine, phase] < most:
                self._submit(tasks.popleft())

    def is_done(self, asked: ModelPlan, key: str | None, id: str) -> bool:
        """Say whether the store has a machine's record of just this: a model whose ``asked_key`` is ``key``."""
        folder, machine = self.store / planning.RUNS / id, self.machines[id].hardware
        return converting.is_done(asked, key, self.duties.targets(asked, id), folder, machine, retry=self.retry)

    def drop(self, id: str) -> None:
        """Give up what a machine was to do."""
        import ray

        ends = []
        for ref in [ref for ref, task in self.running.items() if task.machine == id]:
            ray.cancel(ref, force=True)
            ends.append(task := self.running.pop(ref))
            self._out[id, task.phase] -= 1
        for tasks in (tasks for (machine, _), tasks in self.waiting.items() if machine == id):
            ends += tasks
            tasks.clear()
        for model, after in self.exporting.items():
            self.exporting[model] = [task for task in after if task.machine != id]
        for task in ends:
            if task.phase == "export":
                self.exported(task.model)

    @property
    def busy(self) -> bool:
        """Whether anything is left to be done."""
        return bool(self.running) or any(self.waiting.values())

    def _submit(self, task: FleetTask) -> None:
        machine, asked = self.machines[task.machine], self._asked[task.model]
        threads = float(min(asked.options.get("threads") or machine.cpus, machine.cpus))
        share = MEASURING if task.phase == "measure" else PREPARING
        worker = self._remote.options(
            name=f"{task.model} on {machine.pools[0]}: {task.phase}",
            num_cpus=threads if task.phase != "give up" else 0,
            resources={machine.pools[0]: share},
            max_retries=0,
        )
        machines = self.machines if task.phase == "export" else (task.machine,)
        targets = tuple(dict.fromkeys(t for id in machines for t in self.duties.targets(asked, id)))
        code = planning.code()
        place = self.url or str(self.store)
        ref = worker.remote(task, asked, targets, place, machine.hardware, code, str(Path.cwd()), self.retry)
        self.running[ref] = task
        self._out[task.machine, task.phase] += 1

    def next_of(self, ref: Any) -> FleetTask | None:
        """Take the end of a task, and return what follows it; None where that was all, or is given (``exported``).

        Raises:
            OutputError: the store cannot be written to.
            UnavailableError: the worker is not what the node said it was.
        """
        import ray
        from ray import exceptions

        task = self.running.pop(ref)
        self._out[task.machine, task.phase] -= 1
        try:
            died = ray.get(ref)
            if task.phase == "export":
                self.exported(task.model)
            if task.phase == "prepare":
                return replace(task, phase="measure", deaths=task.deaths + died, losses=0)
            return None
        except (exceptions.WorkerCrashedError, exceptions.OutOfMemoryError) as error:
            if self._node_lost(task):
                return self._again(task, error)
            task = replace(task, deaths=task.deaths + 1, why=f"its process died: {str(error).splitlines()[0]}")
            if task.deaths < converting.TRIES:
                return task
            if task.phase == "export":  # each machine finds out by itself, and gives up
                self.exported(task.model)
                return None
            return replace(task, phase="give up", losses=0)
        except exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, OutputError):  # the task of a driver that was killed may still be ending
                time.sleep(POLL_S)
                return self._again(task, cause)
            raise cause from error
        except exceptions.RayError as error:
            return self._again(task, error)

    def _again(self, task: FleetTask, error: Exception) -> FleetTask:
        if task.losses < MOST_LOSSES:
            return replace(task, losses=task.losses + 1)
        if isinstance(error, OutputError):
            raise error
        raise UnavailableError(
            f"{task.model}: its node was lost {task.losses + 1} times: {str(error).splitlines()[0]}",
            fix="see `ray status`; the same command goes on",
        ) from error

    def _node_lost(self, task: FleetTask) -> bool:
        """Say whether a node of the task's machine went away just now: Ray reports that as a dead process, too."""
        time.sleep(POLL_S)  # the cluster notices a little later
        before = self.seen.get(f"nodes of {task.machine}", 0.0)
        now = float(len(_nodes(self.machines[task.machine].pools[0])))
        self.seen[f"nodes of {task.machine}"] = now
        return now < before

    def gone(self) -> list[str]:
        """Return the machines of which there has been no node for a while."""
        now = time.monotonic()
        for id, machine in self.machines.items():
            if found := _nodes(machine.pools[0]):
                self.seen[id] = now
                self.cpus[id] = sum(node["Resources"].get("CPU", 1.0) for node in found)
                key = f"nodes of {id}"
                self.seen[key] = max(self.seen.get(key, 0.0), float(len(found)))
        return [id for id in self.machines if now - self.seen[id] > GONE_S]


@contextlib.contextmanager
def convert(
    plan: ReleasePlan, store: Path, address: str, progress: Progress, *, retry: bool, shared: SharedStore | None = None
) -> Iterator[Duties]:
    """Convert all models on the machines of a cluster, and give who converted what.

    Args:
        shared: object store behind the folder ``store``, which is then the driver's own.
        address: ``auto`` for the cluster that runs here, or a new one of this machine alone; else as ``ray.init``.

    Raises:
        UnavailableError: Ray is not installed, there is no such cluster, or a node has another accel.
        UsageError: nodes of one pool are of different hardware, or one node is of two pools for one device.
        OutputError: the store cannot be written to.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault(
        "RAY_enable_metrics_collection", "false"
    )  # the driver would report a row for every name, forever
    try:
        import ray
    except ImportError as error:
        raise UnavailableError(f"--ray needs Ray: {error}", fix="pip install 'accel[fleet]'") from error
    store = store.resolve()
    _connect(plan, address)
    try:
        machines = _machines(plan)
        duties = _duties(plan, machines)
        if shared is not None:
            shared.pull(plan, duties)
        cluster = Cluster(plan, store, machines, duties, retry, shared.place.url if shared else None)
        cluster.gone()
        total = done = 0
        for asked in plan.models:
            makers = dict.fromkeys(m for pool in asked.wanted if (m := duties.makers.get((asked.name, pool))))
            key = planning.asked_key(asked)
            todo = [id for id in makers if not cluster.is_done(asked, key, id)]
            total += len(makers)
            done += len(makers) - len(todo)
            if todo:
                cluster.begin(asked.name, todo)
        if done:
            progress.stage(f"{done} of {total} are done, and nothing changed")
        lost: set[str] = set()
        looked = time.monotonic()
        while cluster.busy:
            cluster.hand_out()
            ready, _ = ray.wait(list(cluster.running), num_returns=1, timeout=POLL_S)
            for ref in ready:
                task = cluster.running[ref]
                what = f"{task.model} on {', '.join(machines[task.machine].pools)}"
                follows = cluster.next_of(ref)
                done += follows is None and task.phase != "export"
                if follows is not None:
                    cluster.give(follows)
                    if (follows.losses, follows.deaths) > (0, 0) and follows.phase == task.phase:
                        progress.notice(f"{what}: {task.phase} is begun again: {follows.why or 'its node was lost'}")
                progress.stage(f"{what}: {task.phase} done ({done} of {total})")
            if time.monotonic() - looked > POLL_S:
                looked = time.monotonic()
                for id in cluster.gone():
                    lost.add(id)
                    cluster.drop(id)
                _give_back()
        if shared is not None:
            shared.pull(plan, duties)
        yield _without(duties, machines, lost)
    finally:
        ray.shutdown()


def _give_back() -> None:
    """Give the system what was freed: between what stays, Ray's buffers of 256 KiB and more leave holes in the heap."""
    with contextlib.suppress(AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


def _connect(plan: ReleasePlan, address: str) -> None:
    import ray

    quiet = {"log_to_driver": False, "logging_level": "error", "include_dashboard": None}
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        if address != "auto":
            fix = "ray start --head, and RAY_AUTH_MODE and RAY_AUTH_TOKEN here as there"
            raise UnavailableError(f"no Ray cluster at {address} takes this driver: {error}", fix=fix) from error
        lacking = planning.roles(plan.pools, hardware.detect())
        alone = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}  # nobody else is to reach it
        own = {pool: 1.0 for pool, lack in lacking.items() if lack is None}
        ray.init(num_cpus=hardware.cpu_threads(), resources=own, **quiet | alone)


def _nodes(pool: str) -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(pool)]


def _machines(plan: ReleasePlan) -> dict[str, FleetMachine]:
    """Ask every node that offers a pool what it is, and return the kinds of hardware by their ids."""
    import ray

    found: dict[str, tuple[Hardware, list[str], float]] = {}
    asked: dict[str, Any] = {}
    for name in plan.pools:
        nodes = _nodes(name)
        for node in nodes:
            if node["NodeID"] not in asked:
                strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                task = ray.remote(_describe).options(num_cpus=0, scheduling_strategy=strategy)
                asked[node["NodeID"]] = task.remote(planning.code())
        kinds = {_kind(shown): (shown, n) for n in nodes if (shown := _shown(asked[n["NodeID"]])) is not None}
        if len(kinds) > 1:
            told = " and ".join(sorted(kinds))
            raise UsageError(
                f"nodes of the pool {name} are {told}: what one measures does not hold for all",
                fix="give each kind of machine a pool and a resource of its own",
            )
        for shown, node in kinds.values():
            id = shown.id
            if (lack := plan.pools[name].lacks(shown)) is not None:
                raise UsageError(
                    f"{node['NodeManagerAddress']} offers the resource {name!r} and is not of that pool: {lack}",
                    fix="start it with the resources of the pools that it is of",
                )
            cpus = min(n["Resources"].get("CPU", 1.0) for n in nodes)
            machine = found.setdefault(id, (shown, [], cpus))
            if any(plan.pools[other].device == plan.pools[name].device for other in machine[1]):
                raise UsageError(
                    f"{id} is of the pools {machine[1][0]} and {name}, both for {plan.pools[name].device}",
                    fix="offer one of them",
                )
            machine[1].append(name)
    if not found:
        raise UnavailableError(
            f"no node of the cluster offers a pool as a resource: {', '.join(plan.pools)}",
            fix=f"ray start --address … --resources '{{\"{next(iter(plan.pools))}\": 1}}'",
        )
    return {id: FleetMachine(shown, tuple(pools), cpus) for id, (shown, pools, cpus) in found.items()}


def _kind(shown: Hardware) -> str:
    """Return what two machines share that are one for whoever measures: more than their id says of virtual CPUs."""
    gpus = "".join(f", compute capability {g.compute_capability}, driver {g.driver}" for g in shown.gpus)
    return f"{shown.id} ({' '.join(shown.cpu.flags) or 'no flags'}{gpus})"


def _shown(ref: Any) -> Hardware | None:
    """Return what a node said that it is; None where it left meanwhile."""
    import ray
    from ray import exceptions

    try:
        found: Hardware = ray.get(ref)
    except exceptions.RayTaskError as error:
        raise error.cause from error
    except exceptions.RayError:
        return None
    return found


def _duties(plan: ReleasePlan, machines: Mapping[str, FleetMachine]) -> Duties:
    """Say which machine converts what; kits for pools that nobody is of are left by one that lacks their device."""
    held = {pool: id for id, machine in machines.items() for pool in machine.pools}
    lacking = {p: None if p in held else f"no node of the cluster offers the resource {p!r}" for p in plan.pools}
    makers: dict[tuple[str, str], str] = {}
    for asked in plan.models:
        own = [held[pool] for pool in asked.wanted if pool in held]
        for pool in asked.wanted:
            device = plan.pools[pool].device
            without = [id for id in (*own, *machines) if device not in machines[id].hardware.devices]
            maker = held.get(pool) or next(iter(without), None)
            if maker is not None:
                makers[asked.name, pool] = maker
    return Duties(hardware.detect().id, makers, lacking)


def _without(duties: Duties, machines: Mapping[str, FleetMachine], lost: set[str]) -> Duties:
    """Return the duties less those of machines that went away."""
    away = {pool: "its machines left the cluster" for id in lost for pool in machines[id].pools}
    makers = {key: id for key, id in duties.makers.items() if id not in lost}
    return replace(duties, makers=makers, lacking={**duties.lacking, **away})


# ---------------------------------------------------------------------------------------------------------------------
# On a node


def _describe(code: str) -> Hardware:
    """Return what a node is.

    Raises:
        UnavailableError: its accel is another.
    """
    if planning.code() != code:
        raise UnavailableError(
            f"{os.uname().nodename} has another version of accel", fix="install the same on every node"
        )
    return hardware.detect()


def _work(
    task: FleetTask, asked: ModelPlan, targets: tuple[Any, ...], store: str, machine: Hardware, code: str, cwd: str,
    retry: bool,
) -> bool:  # fmt: skip
    """Do one phase of a conversion, and return whether a process died in it.

    Raises:
        UnavailableError: this node is not the hardware that was found before, has another accel, or cannot reach the
            object store.
        InputError: the folder that paths are relative to is not there.
        OutputError: the store cannot be written to, or another task holds the run.
    """
    here = _describe(code)
    if _kind(here) != _kind(machine):
        why = f"{os.uname().nodename} is {_kind(here)}, and was to be {_kind(machine)}"
        raise UnavailableError(why, fix="see `ray status`; a pool's nodes are of one kind")
    try:
        os.chdir(cwd)
    except OSError as error:
        raise InputError(f"{os.uname().nodename} has no {cwd}, where the build was started: {error}") from error
    shared = SharedStore(ObjectStore(store), cache_of(store)) if "://" in store else None
    folder = (shared.local if shared else Path(store)) / planning.RUNS / here.id
    folder.mkdir(parents=True, exist_ok=True)
    if shared is not None:
        shared.take(asked, here.id, exports=task.phase != "measure")
    died = False
    if task.phase == "give up":
        converting.give_up(asked, targets, folder, here, task.why)
    elif task.phase == "export":
        converting.export(asked, targets, folder, Progress())
    elif task.phase == "prepare":
        died = converting.prepare(asked, targets, folder, here, Progress(), retry=retry)
    else:
        tries = max(1, converting.TRIES - task.deaths)
        converting.convert(asked, targets, folder, here, Progress(), retry=retry, tries=tries)
    if shared is not None:
        shared.give(asked, here.id)
    return died
