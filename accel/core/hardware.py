"""What this machine is: a stable id for people, a fingerprint for cache keys, and the facts behind both.

Everything is read from the operating system; nothing is assumed from a product name. GPUs are listed by
``nvidia-smi`` where it exists, as far as ``CUDA_VISIBLE_DEVICES`` leaves them; no driver, no GPU.
"""

import functools
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from accel.core import gpu
from accel.core.values import sha256_json

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "avx_vnni", "asimd", "bf16", "i8mm")
"""Features of a CPU that decide which kernels run, as Linux names them."""
STEPS = (
    ("amx", ("amx_int8", "amx_bf16")),
    ("bf16", ("avx512_bf16", "bf16")),
    ("vnni", ("avx512_vnni", "avx_vnni")),
    ("i8mm", ("i8mm",)),
    ("avx512", ("avx512f",)),
    ("avx2", ("avx2",)),
)
"""What a hardware id says of the features, the widest alone: hypervisors call all CPUs "AMD EPYC", and Arm none."""


SIMULATE, SIMULATED = "ACCEL_SIMULATE", "simulated"
"""A variable that lets one machine pass for several, to try a fleet out, and what their hardware ids then say."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor as a process of this cgroup sees it; ``flags`` are those that decide which kernels run."""

    model: str
    threads: int
    flags: tuple[str, ...]

    @property
    def has_vnni(self) -> bool:
        """Whether products of 8 bits are summed in 32; without it pairs meet in 16 bits and saturate."""
        return bool({"avx512_vnni", "avx_vnni", "amx_int8", "asimd"} & set(self.flags))

    @property
    def step(self) -> str:
        """The first of ``STEPS`` that it has a feature of; empty where it has none."""
        return next((step for step, flags in STEPS if not set(flags).isdisjoint(self.flags)), "")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU."""

    name: str
    memory_bytes: int
    driver: str
    compute_capability: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """One hardware target."""

    cpu: Cpu
    gpus: tuple[Gpu, ...]
    memory_bytes: int
    system: str

    @property
    def id(self) -> str:
        """``amd-epyc-bf16-2cpu``, with the GPU's name appended where there is one: equal machines share it."""
        model = re.sub(r"\(r\)|\(tm\)|cpu|processor|@.*", "", self.cpu.model.lower())
        parts = [model, self.cpu.step, f"{self.cpu.threads}cpu"]
        if self.gpus:
            parts.append(f"{len(self.gpus)}x {self.gpus[0].name}" if len(self.gpus) > 1 else self.gpus[0].name)
        return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")

    @property
    def fingerprint(self) -> str:
        """Hash of all facts, for results that depend on the machine."""
        return sha256_json(self)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices a target can run on here: ``cpu``, and ``cuda`` with a GPU."""
        return ("cpu", "cuda") if self.gpus else ("cpu",)


READ_BY_RUNTIMES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ORT_", "OV_", "OPENVINO_", "TF_", "XLA_"),
    *("TORCH_", "ATEN_", "MALLOC_", "LD_PRELOAD"),
)
"""How the names of variables begin by which runtimes, OpenMP and memory are set: figures hold for these alone."""
SET_ON_IMPORT = ("TF_CPP_", "ORT_DISABLE_TELEMETRY", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""Those among them that change no figure: importing TensorFlow, accel or scikit-learn sets them."""


def runtime_variables() -> dict[str, str]:
    """Return the variables of this process's environment that runtimes read and that may change their speed."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(READ_BY_RUNTIMES) and not name.startswith(SET_ON_IMPORT)
    }


def detect() -> Hardware:
    """Read the facts of this machine."""
    return Hardware(
        cpu=Cpu(
            model=(_cpuinfo("model name|Model") or platform.processor() or platform.machine()) + _simulated(),
            threads=cpu_threads(),
            flags=tuple(flag for flag in FLAGS if flag in _cpuinfo("flags|Features").split()),
        ),
        gpus=_gpus(),
        memory_bytes=memory_limit_bytes(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def _simulated() -> str:
    """Return what the name of a CPU ends in where this process is to pass for another machine; nothing else."""
    label = os.environ.get(SIMULATE)
    return f" ({SIMULATED} {label})" if label else ""


def emulates_bf16() -> bool:
    """Say whether this CPU has no instructions for bfloat16; False where its features are not known."""
    found = _cpuinfo("flags|Features").split()
    return bool(found) and {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(found)


def computes_bf16() -> bool:
    """Say whether this is an x86 CPU with instructions for bfloat16."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_cpuinfo("flags|Features").split())


def cpu_threads() -> int:
    """Return how many CPUs this process may keep busy: its affinity, cut by the cgroup's quota (at least 1).

    Source: Linux kernel documentation, cgroup v2 ``cpu.max`` ("$MAX $PERIOD"), and v1 ``cpu.cfs_quota_us``.
    """
    threads = len(os.sched_getaffinity(0))
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        threads = min(threads, max(1, int(quota[0]) // int(quota[1])))
    v1 = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if v1[0].isdigit() and v1[1].isdigit():
        threads = min(threads, max(1, int(v1[0]) // int(v1[1])))
    return threads


def shares_cpus(threads: int) -> bool:
    """Say whether a process with so many threads leaves CPUs to others, which may be its like.

    A quota does not count here: under one, the processes of all containers may go to the same CPUs.

    OpenVINO pins its threads to the first CPUs: two processes of one thread each took turns on CPU 0 while CPU 1 was
    idle (BERT-large in INT8 on two CPUs: 2 × 1.96 calls a second pinned, 2 × 3.95 not).
    """
    return threads < len(os.sched_getaffinity(0))


def throttled_s() -> float:
    """Return for how many seconds the quota of this process's cgroup has held it back so far; 0 without a quota.

    Source: Linux kernel documentation, cgroup v2 ``cpu.stat``, ``throttled_usec``; v1 ``throttled_time``, in ns.
    """
    found = [line.split(":", 2) for line in _read("/proc/self/cgroup").splitlines()]
    mine = {"cpu" if "cpu" in names.split(",") else names: path for _, names, path in found}
    for root, name, key, unit in (
        ("/sys/fs/cgroup", "", "throttled_usec", 1e6),
        ("/sys/fs/cgroup/cpu", "cpu", "throttled_time", 1e9),
    ):
        for folder in (f"{root}{mine.get(name, '')}", root):  # a container sees its own cgroup as the root
            if match := re.search(rf"^{key} (\d+)$", _read(f"{folder.rstrip('/')}/cpu.stat"), re.MULTILINE):
                return int(match[1]) / unit
    return 0.0


def memory_limit_bytes() -> int:
    """Return the memory this process may use: the machine's, cut by the cgroup's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read("/sys/fs/cgroup/memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def available_memory_bytes() -> int:
    """Return what can be had without swapping: the machine's ``MemAvailable``, cut by what this cgroup has left.

    Source: Linux kernel documentation, cgroup v2 ``memory.current``, of which ``inactive_file`` can be reclaimed.
    """
    match = re.search(r"MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"))
    free = int(match[1]) * 1024 if match else memory_limit_bytes()
    limit, current = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if not (limit.isdigit() and current.isdigit()):
        return free
    cache = re.search(r"^inactive_file (\d+)$", _read("/sys/fs/cgroup/memory.stat"), re.MULTILINE)
    return max(0, min(free, int(limit) - int(current) + (int(cache[1]) if cache else 0)))


def fit_together(model_bytes: int, threads: int) -> int:
    """Return how many processes may load or build models of a size at once: two, or one for four threads.

    As long as memory holds eight models for each.
    """
    fit = available_memory_bytes() // (8 * model_bytes) if model_bytes else threads
    return int(max(1, min(fit, max(2, threads // 4))))


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _cpuinfo(keys: str) -> str:
    """Return the value of the first line of ``/proc/cpuinfo`` with one of the keys (a pattern), or nothing."""
    match = re.search(rf"^(?:{keys})\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else ""


def gpu_trouble() -> str | None:
    """Say why there is no GPU for a process started here; None where there is one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "there is no NVIDIA GPU on this machine"
    if _gpus():
        return None
    rows, complaint = _listed(tool)
    if rows:
        return f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} hides every NVIDIA GPU"
    return f"nvidia-smi lists no GPU: {complaint}"


def _gpus() -> tuple[Gpu, ...]:
    tool = shutil.which("nvidia-smi")
    rows = _listed(tool)[0] if tool is not None else ()
    wanted = gpu.visible()
    if wanted is None or any(name.startswith("MIG-") for name in wanted):  # nvidia-smi lists cards, not their slices
        return tuple(found for _, found in rows)
    by_number = {str(number): found for number, (_, found) in enumerate(rows)}
    by_uuid = {uuid: found for uuid, found in rows if uuid}
    return tuple(found for name in wanted if (found := (by_number | by_uuid).get(name)) is not None)


@functools.cache
def _listed(tool: str) -> tuple[tuple[tuple[str, Gpu], ...], str]:
    """Return the GPUs that ``nvidia-smi`` lists, each after its UUID, and the last thing it said beside them."""
    fields = "uuid,name,memory.total,driver_version,compute_cap"
    try:
        asked = subprocess.run(
            [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:  # a driver that hangs or fails offers no GPU
        return (), f"{type(error).__name__}: {error}"
    lines = [line for line in asked.stdout.splitlines() if line.count(",") > 3] if asked.returncode == 0 else []
    rows = []
    for line in lines:
        uuid, _, rest = line.partition(",")
        name, memory, driver, capability = (cell.strip() for cell in rest.rsplit(",", 3))
        rows.append((uuid.strip(), Gpu(name, _mib(memory) << 20, driver, capability)))
    said = (asked.stdout + asked.stderr).strip().splitlines()
    return tuple(rows), said[-1] if said and not rows else f"it ended with exit code {asked.returncode}"


def _mib(text: str) -> int:
    try:
        return int(float(text))
    except ValueError:  # "[N/A]": the GPU shares the machine's memory
        return 0
