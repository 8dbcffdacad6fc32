"""What NVML says of one GPU: its name, memory, power, energy, clocks, and who else is on it.

Everything is read from outside the measured process, so that nothing of it is in a timed call. Without the package
``nvidia-ml-py`` (extra ``cuda``) or without a driver there is no card, and nothing fails; what a card does not
support is None. Which library needs which driver is said here too.

Source: NVML API reference, "Device Queries"; CUDA Toolkit release notes, table "CUDA Toolkit and Minimum Required
Driver Version for CUDA Minor Version Compatibility".
"""

import contextlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")

LEAST_DRIVER: Mapping[int, tuple[int, ...]] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
"""CUDA major version → the oldest Linux driver that runs it."""

THROTTLE_REASONS: Mapping[int, str] = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability limit",
}
"""Bit of ``nvmlDeviceGetCurrentClocksEventReasons`` → why clocks are held down; being idle is no such reason, nor are
clocks that the user or a display set."""

INTERVAL_S = 0.05
"""How often a watched card is looked at: NVML refreshes its readings about that often."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of a card; None where the card does not tell.

    Attributes:
        used_mib: memory taken by all processes, without what the driver keeps for itself.
        power_w / temperature_c / sm_mhz / memory_mhz: as they are now.
        utilization: share of the last sampling period in which a kernel ran, 0 to 1.
        throttle_reasons: for which the clocks are held down.
    """

    used_mib: float | None
    power_w: float | None
    temperature_c: float | None
    sm_mhz: float | None
    memory_mhz: float | None
    utilization: float | None
    throttle_reasons: tuple[str, ...]


@dataclass(slots=True)
class GpuTrace:
    """What was seen of a card during one stretch of time; ``energy_j`` is what it took in all."""

    samples: list[GpuSample] = field(default_factory=list)
    energy_j: float | None = None

    def values(self, name: str) -> list[float]:
        """Return every reading of one field, without those that the card did not give."""
        return [v for sample in self.samples if (v := getattr(sample, name)) is not None]


class Card:
    """One GPU, as NVML shows it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.name = str(self._ask(nvml.nvmlDeviceGetName) or "NVIDIA GPU")

    def sample(self) -> GpuSample:
        """Read the card now."""
        nvml = self._nvml
        power = self._ask(nvml.nvmlDeviceGetPowerUsage)
        busy = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons)
        if reasons is None:  # its name before driver 535
            reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return GpuSample(
            used_mib=self._memory_mib("used"),
            power_w=None if power is None else power / 1e3,
            temperature_c=self._number(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            sm_mhz=self._number(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_mhz=self._number(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            utilization=None if busy is None else busy.gpu / 100,
            throttle_reasons=throttle_reasons(reasons or 0),
        )

    def energy_j(self) -> float | None:
        """Return the energy taken since the driver was loaded, in joules."""
        energy = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if energy is None else energy / 1e3

    def free_mib(self) -> float | None:
        """Return the memory that nobody took."""
        return self._memory_mib("free")

    def processes(self) -> int | None:
        """Count the processes that hold a context on the card, this machine's and other containers' alike."""
        found = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        return None if found is None else len(found)

    @contextlib.contextmanager
    def watching(self, interval_s: float = INTERVAL_S) -> Iterator[GpuTrace]:
        """Look at the card again and again, in a thread of this process, for as long as the block runs."""
        watched, done = GpuTrace(), threading.Event()
        begin = self.energy_j()

        def sample() -> None:
            while True:
                watched.samples.append(self.sample())
                if done.wait(interval_s):
                    break

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield watched
        finally:
            done.set()
            thread.join()
            end = self.energy_j()
            if begin is not None and end is not None:
                watched.energy_j = end - begin

    def _memory_mib(self, part: Literal["used", "free"]) -> float | None:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)  # version 1 counts the driver's own share
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo) if memory is None else memory
        return None if memory is None else getattr(memory, part) / 2**20

    def _number(self, function: Callable[..., Any], *what: Any) -> float | None:
        value = self._ask(function, *what)
        return None if value is None else float(value)

    def _ask(self, function: Callable[..., T], *what: Any) -> T | None:
        try:
            return function(self._handle, *what)
        except (self._nvml.NVMLError, self._nvml.NVMLLibraryMismatchError):  # not in this card or driver
            return None


def open_card() -> Card | None:
    """Return the GPU that a CUDA process started here would use first; None without NVML, a driver or a visible GPU."""
    try:
        import pynvml as nvml
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        first = visible()
        if first is None:
            return Card(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
        if not first:
            return None
        if first[0].isdigit():
            return Card(nvml, nvml.nvmlDeviceGetHandleByIndex(int(first[0])))
        return Card(nvml, nvml.nvmlDeviceGetHandleByUUID(first[0]))
    except nvml.NVMLError:
        return None


def visible() -> tuple[str, ...] | None:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, by number or UUID; None where it hides nothing.

    Source: CUDA programming guide, "Environment variables": the list ends at the first entry that is not a device.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None
    entries = (part.strip() for part in listed.split(","))
    return tuple(itertools.takewhile(lambda entry: entry.isdigit() or entry.startswith(("GPU-", "MIG-")), entries))


def throttle_reasons(reasons: int) -> tuple[str, ...]:
    """Name the reasons of a bit field for which clocks are held down."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit)


def too_old(driver: str, cuda: str) -> str | None:
    """Say that a driver is too old for a build with that CUDA version; None where it is not, or nobody can tell."""
    major = re.match(r"\d+", cuda)
    least = LEAST_DRIVER.get(int(major[0])) if major else None
    found = tuple(int(n) for n in re.findall(r"\d+", driver))
    if least is None or not found or found >= least:
        return None
    return f"the NVIDIA driver {driver} is too old for CUDA {cuda}: it needs {'.'.join(map(str, least))} or newer"


def ran_out_of_memory(error: BaseException) -> bool:
    """Say whether a runtime's error means that device memory ran out: each says so in words of its own.

    Source: torch ``OutOfMemoryError``; CUDA error 2 (``cudaErrorMemoryAllocation``, "out of memory"); ONNX Runtime
    core/framework/bfc_arena.cc, AllocateRawInternal.
    """
    text = str(error).lower()
    return "out of memory" in text or "failed to allocate memory for requested buffer" in text
