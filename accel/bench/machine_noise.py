"""What else the machine did while something was timed: other processes, stolen time, pressure, load, clock.

A neighbour on one core does not hit all variants alike: one whose threads wait for each other loses many times what the
neighbour takes. So a turn that was disturbed is timed again, and what cannot be had undisturbed says so.
"""

import contextlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from accel.core.hardware import throttled_s
from accel.core.values import MachineNoise

TOLERATED_CORES = 0.15
"""CPU time of others, in cores beyond those that are left over, that does not yet count as a disturbance."""
TOLERATED_STEAL = 0.05
QUOTA = "the CPU quota of this cgroup held accel back"
NAMED_AFTER_S = 0.3
LOOK_S = 0.1
"""How long a look for calm takes: counters tick in hundredths of a second."""
_PRESSURE = Path("/proc/pressure/cpu")
_CHILDREN = Path("/proc/thread-self/children")
"""There where the kernel lists children: it was built with ``CONFIG_PROC_CHILDREN``."""


class Turn(NamedTuple):
    """What the machine did during one turn; the columns of ``noise`` in a file of raw samples.

    Attributes:
        others_cores: CPU time of processes that are not accel's, over the turn's length.
        stolen_cores: CPU time that the hypervisor gave to other machines, over the turn's length.
        own_cores: CPU time of accel's processes, over the turn's length.
        pressure: share of the turn in which something waited for a CPU; NaN where the kernel does not say.
        load1: load average of the last minute.
        mhz: clock of the cores, their mean; NaN where it cannot be read.
        throttled_cores: time for which the cgroup's quota held threads back, over the turn's length.
    """

    others_cores: float
    stolen_cores: float
    own_cores: float
    pressure: float
    load1: float
    mhz: float
    throttled_cores: float = 0.0


@dataclass(frozen=True, slots=True)
class NoiseSample:
    """The counters at one moment, in seconds since each began."""

    at: float
    busy: float
    stolen: float
    own: float
    pressed: float
    throttled: float

    @classmethod
    def now(cls) -> "NoiseSample":
        """Read the counters, of the CPUs that this process may use: what others do on the rest disturbs nothing.

        Sources: Linux ``/proc/stat``, ``/proc/<pid>/stat``, ``/proc/pressure/cpu``.
        """
        usable = _usable_cpus()
        busy = sum(getattr(cpu, n, 0.0) for cpu in usable for n in ("user", "nice", "system", "irq", "softirq"))
        own = sum(t.user + t.system + t.children_user + t.children_system for _, t in _cpu_times(_own()))
        pressed = math.nan
        if _PRESSURE.exists() and (found := re.search(r"some .*total=(\d+)", _PRESSURE.read_text())):
            pressed = int(found[1]) / 1e6
        return cls(time.monotonic(), busy, sum(getattr(c, "steal", 0.0) for c in usable), own, pressed, throttled_s())

    def since(self, before: "NoiseSample") -> Turn:
        """Return what happened from another look to this one."""
        seconds = max(self.at - before.at, 1e-3)
        own = max(0.0, self.own - before.own)
        clock = psutil.cpu_freq()
        return Turn(
            others_cores=max(0.0, self.busy - before.busy - own) / seconds,
            stolen_cores=max(0.0, self.stolen - before.stolen) / seconds,
            own_cores=own / seconds,
            pressure=(self.pressed - before.pressed) / seconds,
            load1=os.getloadavg()[0],
            mhz=clock.current if clock else math.nan,
            throttled_cores=(self.throttled - before.throttled) / seconds,
        )


def disturbed(turn: Turn, threads: int) -> bool:
    """Say whether something with so many threads lacked CPU time: others took it, or the cgroup's quota was used up."""
    left_over = max(0, len(os.sched_getaffinity(0)) - threads)
    held_back = max(turn.stolen_cores, turn.throttled_cores)
    return turn.others_cores > left_over + TOLERATED_CORES or held_back > TOLERATED_STEAL


def wait_for_calm(threads: int, most_s: float) -> None:
    """Wait until others leave something with so many threads alone for a moment, or the time is over."""
    until = time.monotonic() + most_s
    while time.monotonic() < until:
        before = NoiseSample.now()
        time.sleep(LOOK_S)
        if not disturbed(NoiseSample.now().since(before), threads):
            return


def summary(turns: Sequence[Turn], threads: int, repeated: int) -> MachineNoise:
    """Reduce the turns that were kept.

    Args:
        repeated: turns that were timed again because they were disturbed.
    """
    rows = np.array(turns)
    return MachineNoise(
        others_cores=float(np.median(rows[:, 0])),
        others_cores_most=float(rows[:, 0].max()),
        stolen_cores=float(np.median(rows[:, 1])),
        load1=float(rows[:, 4].max()),
        disturbed_rounds=sum(disturbed(turn, threads) for turn in turns),
        repeated=repeated,
        throttled_cores=float(np.median(rows[:, 6])),
        own_cores=float(np.median(rows[:, 2])),
        own_cores_least=float(rows[:, 2].min()),
        stolen_cores_most=float(rows[:, 1].max()),
        throttled_cores_most=float(rows[:, 6].max()),
    )


def taker(noise: MachineNoise) -> str:
    """Say what took CPU time in the worst rounds, and how much of it."""
    stolen = noise.stolen_cores if noise.stolen_cores_most is None else noise.stolen_cores_most
    throttled = noise.throttled_cores if noise.throttled_cores_most is None else noise.throttled_cores_most
    others = noise.others_cores_most
    takers = [  # of equals the first: documents of before may know of none
        (others / TOLERATED_CORES, f"other processes took up to {others:.0%} of a core"),
        (stolen / TOLERATED_STEAL, f"the hypervisor gave other machines up to {stolen:.0%} of a core"),
        (throttled / TOLERATED_STEAL, QUOTA),
    ]
    return max(takers, key=lambda taker: taker[0])[1]


def busiest() -> str | None:
    """Name the process outside accel that uses the most CPU just now, and its share of a core; None where all idle.

    Takes a third of a second.
    """
    own = {process.pid for process in _own()}
    before = {p: t.user + t.system for p, t in _cpu_times(psutil.process_iter())}
    time.sleep(NAMED_AFTER_S)
    others = ((p, t) for p, t in _cpu_times(psutil.process_iter()) if p in before and p.pid not in own)
    used = {p: t.user + t.system - before[p] for p, t in others}
    if not used:
        return None
    process = max(used, key=lambda p: used[p])
    share = used[process] / NAMED_AFTER_S
    try:
        return f"{process.name()} (process {process.pid}) uses {share:.0%} of a core" if share > 0.05 else None
    except psutil.Error:
        return None


def _usable_cpus() -> list[Any]:
    """Return the CPU times of each CPU of this process's affinity; of all where their numbers have gaps."""
    every = psutil.cpu_times(percpu=True)
    usable = sorted(os.sched_getaffinity(0))
    return [every[n] for n in usable] if usable[-1] < len(every) == os.cpu_count() else every


_claimed: dict[str, psutil.Process | None] = {}
"""Word of a command line → the process that has it, once it was seen."""


def claim(word: str) -> None:
    """Count a process whose command line has this word as accel's, with its children: one in a container is no child.

    The engine of the container starts it, and it shows in this machine's ``/proc`` as any other.
    """
    _claimed[word] = None


def _own() -> list[psutil.Process]:
    own = _tree(psutil.Process())
    for word, known in list(_claimed.items()):
        if known is None:  # looked for among all processes until it is there, and no more once it has ended
            known = next((p for p in psutil.process_iter() if _has(p, word) and p.pid not in own), None)
            _claimed[word] = known
        if known is None:
            continue
        if not known.is_running():
            del _claimed[word]
            continue
        own |= _tree(known)
    return list(own.values())


def _tree(root: psutil.Process) -> dict[int, psutil.Process]:
    """Return a process and all that descend from it, by number.

    ``psutil`` looks at every process of the machine to find children, which takes ten times as long: for other kernels.

    Source: Linux ``proc_tid_children(5)``.
    """
    found: dict[int, psutil.Process] = {}
    if not _CHILDREN.exists():
        with contextlib.suppress(psutil.Error):
            found = {process.pid: process for process in (root, *root.children(recursive=True))}
        return found
    waiting = [root.pid]
    while waiting:
        number = waiting.pop()
        with contextlib.suppress(OSError, psutil.Error):
            found[number] = psutil.Process(number)
            for thread in Path(f"/proc/{number}/task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return found


def _has(process: psutil.Process, word: str) -> bool:
    try:
        return word in process.cmdline()
    except psutil.Error:
        return False


def _cpu_times(processes: Iterable[psutil.Process]) -> Iterator[tuple[psutil.Process, Any]]:
    """Yield the CPU times of each process that can still be read."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield process, process.cpu_times()
