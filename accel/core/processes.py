"""One build or one measurement in a process of its own: the parent's half (``accel.run.child`` is the child's).

A task is a function at the top of a module that both can import. The parent calls it through its ``Worker`` with typed
values, which travel as JSON by the types that the function declares, and so does its result; arrays are ``.npz`` files.
The child's stdout and stderr go to a log; a crash, an abort signal, a hang past the time limit or a kill becomes
``WorkerDied`` with the end of that log, never the end of the run.

The child finds accel by the path of this package alone, so any interpreter that has NumPy and one runtime will do:
nothing else of the parent's environment leaks in.
"""

import contextlib
import inspect
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from accel.core import environments, errors, sandbox, temporary
from accel.core.errors import END_OF_LOG, LOG_INDENT, AccelError, OutputError, StageError, WorkerDied
from accel.core.files import FULL_FIX, writing
from accel.core.values import TaskSpan, from_json, to_json

PACKAGE = Path(__file__).resolve().parents[1]
LOG_TAIL_LINES = 12
_CRASH = re.compile(
    r"Fatal Python error: .*\n\n.*\(most recent call first\):\n  File \"(?P<path>[^\"\n]+)\", line (?P<line>\d+) in "
    r"(?P<function>\S+)\n(?:  File .*\n)*\n*(?:Extension modules: .*\n*)?\Z"
)
"""What ends the log of a process that crashed, by ``faulthandler``: its stack, and a list of what was loaded."""
_FAULTS = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE))
"""Exit codes of the signals for which faulthandler writes."""
FULL_BYTES = 1 << 16
"""A disk with less than this left is full: a process that died there died of it."""
LOOK_S = 1.0
"""How often a waiting parent looks whether the child still lives: what it forked may hold its pipes open."""
MOST_LOG_BYTES = 8 << 20
"""Of a longer log the first and the last half of this are kept."""
MOST_LINE_BYTES = 256 << 20
"""Longer than any answer: arrays travel as files."""

P = ParamSpec("P")
R = TypeVar("R")
_running: "set[Worker]" = set()
_spans: list[TaskSpan] = []
_begin = time.monotonic()
_stopped = threading.Event()
_sandbox: sandbox.Sandbox | None = None


def start(within: sandbox.Sandbox | None = None) -> None:
    """Allow processes to be started (again), and clear up after killed ones, also where none will be started.

    Args:
        within: what each of them runs in from now on; None for nothing.
    """
    temporary.clear()
    global _begin, _sandbox
    _begin, _sandbox = time.monotonic(), within
    _stopped.clear()
    _spans.clear()


def timeline() -> tuple[TaskSpan, ...]:
    """Return the tasks that ran since ``start``, in the order of their beginning."""
    return tuple(sorted(_spans, key=lambda span: span.begin_s))


def stop_all() -> None:
    """End every running process, and let none start until ``start``: the way out of an interrupted run."""
    _stopped.set()
    for worker in list(_running):
        worker.kill()  # its holder sees the end and closes its pipes; closed here, their numbers could be another's


class ProcessGroup:
    """A process that leads a group of its own, which ends as a whole: whatever it started, also after its own end.

    Ctrl-C reaches the parent alone, which ends its groups in order. Until ``end`` the leader stays unreaped,
    so that the id of its group cannot become another's.

    Args:
        options: as for ``subprocess.Popen``.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        import psutil

        self.process = psutil.Popen(command, start_new_session=True, **options)
        self._ending = threading.Lock()

    def alive(self) -> bool:
        """Say whether the leader still runs."""
        return self.process.returncode is None and self.process.status() != "zombie"

    def wait(self, limit_s: float) -> bool:
        """Wait for the leader's end; say whether it came within the limit."""
        limit = time.monotonic() + limit_s
        while self.alive():
            if time.monotonic() >= limit:
                return False
            time.sleep(0.01)
        return True

    def kill(self) -> None:
        """End the group at once, from any thread."""
        with self._ending:
            if self.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, *, grace_s: float = 0.0) -> int:
        """End the group, the leader by SIGTERM where it does so within ``grace_s``.

        Returns:
            The leader's exit code, or minus the signal that ended it.
        """
        if grace_s and self.alive():
            self.process.terminate()
            self.wait(grace_s)
        self.kill()
        with self._ending:
            return int(self.process.wait() or 0)


HINTS: dict[int, str] = {
    signal.SIGKILL: " (as the kernel does when memory runs out)",
    signal.SIGPROF: " (a library did not come back from reading a file, which is damaged)",
}


def how_it_ended(code: int) -> str:
    """Put into words what ``ProcessGroup.end`` returned."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}{HINTS.get(-code, '')}"


_BOOT = """
import ctypes, importlib.util, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also within a computation that lets no other thread run
if sys.argv[1] not in ("0", str(os.getppid())):
    os._exit(1)  # it ended before that
def give(name, folder):
    spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
for name, folder in zip(sys.argv[2::2], sys.argv[3::2]):
    give(name, folder)
from accel.run.child import child
child()
"""


class Worker(contextlib.AbstractContextManager["Worker"]):
    """A child process that runs tasks one after another; ``start`` or the first task starts it.

    Args:
        python: interpreter to use; this one when None.
        log: file that takes everything the child prints; appended to.
        threads: CPU threads that the runtimes in the child may use.
        timeout_s: limit of each task.
        report_progress: takes what a task says about its progress (``accel.core.progress.report_progress``).

    Use it as a context manager; leaving it ends the child.
    """

    def __init__(
        self,
        log: Path,
        *,
        threads: int,
        timeout_s: float,
        python: Path | None = None,
        report_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.log = log
        self._threads, self._timeout_s = threads, timeout_s
        self._python, self._report_progress = python, report_progress
        self._group: ProcessGroup | None = None
        self._writable: tuple[Path, ...] = ()

    def start(self) -> None:
        """Start the process if it was not started yet.

        Raises:
            WorkerDied: the user stopped the run.
        """
        if self._group is not None:
            return
        if _stopped.is_set():
            raise WorkerDied("stopped by the user")
        with writing(self.log.parent):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.touch()
        # A killed child cannot tidy up: AOTInductor would leave the whole model that it unpacked.
        self._scratch = temporary.folder("worker-")
        packages = [str(v) for name in ("accel", "model_zoo") for v in (name, PACKAGE.parent / name)]
        parent = 0 if _sandbox is not None else os.getpid()  # a sandbox, which ends with its parent, has its own ids
        command = [str(self._python or sys.executable), "-P", "-c", _BOOT, str(parent), *packages]
        if _sandbox is not None:
            command = _sandbox.wrap(command, (*self._writable, self._scratch))
        with self.log.open("ab") as sink:
            # Linux ends a child with the thread that started it (PR_SET_PDEATHSIG, prctl(2)): this one stays, whichever
            # thread asked for the child.
            self._starter = ThreadPoolExecutor(max_workers=1)
            self._group = self._starter.submit(
                ProcessGroup,
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=_environment(self._threads, self._scratch),
            ).result()
        self._pipes = self._group.process.stdin, self._group.process.stdout
        _running.add(self)
        if _stopped.is_set():  # between the check above and here
            self.close()
            raise WorkerDied("stopped by the user")

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, task: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one task in the child and return its result.

        In a sandbox a task that writes files has a process of its own, which can write to that folder alone, and what
        it left is looked through when the process has ended.

        Raises:
            AccelError: the class the task raised, with its message and remedy.
            OutputError: a disk is full; the message says which.
            WorkerDied: the process crashed, was killed, or ran past its limit.
        """
        params = to_json(inspect.signature(task).bind(*args, **kwargs).arguments)
        if _sandbox is None or not (writable := sandbox.outputs(params)):
            return self._call(task, params)
        self.close()
        self._group, self._writable = None, writable
        try:
            result = self._call(task, params)
        finally:
            self.close()
            self._group, self._writable = None, ()
        sandbox.examine(writable)
        return result

    def _call(self, task: Callable[..., R], params: Mapping[str, Any]) -> R:
        line = json.dumps({"task": f"{task.__module__}:{task.__name__}", "params": params}).encode() + b"\n"
        self.start()
        try:
            self._pipes[0].write(line)
            self._pipes[0].flush()
        except (BrokenPipeError, ValueError):  # ValueError: an earlier call found the process dead and closed the pipe
            raise self._died(task.__name__) from None
        answer = self._answer(task.__name__)
        begin, end, cpu_s = answer["span"]
        _spans.append(TaskSpan(self.log.stem, task.__name__, begin - _begin, end - _begin, cpu_s))
        if "result" in answer:
            try:
                return typing.cast(R, from_json(typing.get_type_hints(task)["return"], answer["result"]))
            except (ValueError, TypeError) as wrong:
                why = f"the process of {task.__name__} answered something else than it declares: {wrong}"
                raise WorkerDied(why, log=str(self.log)) from wrong
        free, folder = self._fullest()
        if answer.get("full") or (free < FULL_BYTES and answer["error"] == "StageError"):  # C++ may not say why
            said = f"no space left in {folder} for {task.__name__}: {answer['message']}"
            raise OutputError(said, fix=FULL_FIX)
        kinds = {c.__name__: c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, AccelError)}
        error: AccelError = kinds.get(answer["error"], StageError)(str(answer["message"]), fix=answer["fix"])
        if isinstance(error, StageError):
            error.log = str(self.log)
        raise error

    def resident_bytes(self) -> int:
        """Return the memory that the child holds; 0 where it does not run."""
        if self._group is None or not self._group.alive():
            return 0
        return int(self._group.process.memory_info().rss)

    def close(self) -> int:
        """End the child and all it started; return the child's exit code, or minus the signal, or 0 without a child."""
        if self._group is None:
            return 0
        _running.discard(self)
        code = self._group.end()
        self._starter.shutdown(wait=False)
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        if self._scratch.exists():  # once: what left the group by setsid carries the folder's name still
            temporary.end_marked(self._scratch)
            shutil.rmtree(self._scratch, ignore_errors=True)
        shorten(self.log)
        return code

    def kill(self) -> None:
        """End the child and all it started, from any thread; the thread that holds this worker still closes it."""
        if self._group is not None:
            self._group.kill()

    def _answer(self, task: str) -> dict[str, Any]:
        assert self._group is not None
        deadline = time.monotonic() + self._timeout_s
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipes[1], selectors.EVENT_READ)
            while True:
                shorten(self.log)
                line, newline, rest = received.partition(b"\n")
                if newline or len(received) > MOST_LINE_BYTES:
                    message = _message(line)
                    if message is None:
                        self.close()
                        raise WorkerDied(
                            f"the process of {task} was stopped: what it answered is not a message of accel's, but "
                            f"{len(line)} bytes that begin with {bytes(line[:80])!r}",
                            fix="something in it writes to the pipe that is for accel's answers",
                            log=str(self.log),
                        )
                    if "doing" not in message:
                        return message
                    received = rest
                    if self._report_progress is not None:
                        self._report_progress(message["doing"])
                    continue
                left = deadline - time.monotonic()
                if selector.select(max(0.0, min(left, LOOK_S))):
                    chunk = os.read(self._pipes[1].fileno(), 1 << 16)
                    if not chunk:
                        raise self._died(task)
                    received += chunk
                elif not self._group.alive():
                    raise self._died(task)
                elif left <= 0:
                    self.close()
                    raise WorkerDied(
                        f"{task} ran past its limit of {self._timeout_s:.0f} s and was stopped{self._tail()}",
                        fix="raise it with --timeout SECONDS",
                        log=str(self.log),
                    )

    def _died(self, task: str) -> WorkerDied:
        assert self._group is not None
        self._group.wait(LOOK_S)  # its own exit code, before what it left running is ended
        free, folder = self._fullest()
        code = self.close()
        if _stopped.is_set():
            return WorkerDied("stopped by the user")
        if free < FULL_BYTES:
            cause = f"no space is left in {folder}: the process of {task} {how_it_ended(code)}{self._tail()}"
            return WorkerDied(cause, fix=FULL_FIX, log=str(self.log))
        if _sandbox is not None and code > sandbox.ENDED_BY_SIGNAL:
            code = sandbox.ENDED_BY_SIGNAL - code
        return WorkerDied(f"the process of {task} {how_it_ended(code)}{self._tail(code)}", log=str(self.log))

    def _fullest(self) -> tuple[int, Path]:
        """Return the least space left in a folder that the child writes to (bytes), and that folder."""
        folders = (folder for folder in (self.log.parent, Path(tempfile.gettempdir())) if folder.is_dir())
        return min((shutil.disk_usage(folder).free, folder) for folder in folders)

    def _tail(self, code: int = 0) -> str:
        """Return where a crash was, if the process crashed, and the last lines of what it printed itself."""
        text, place = self.log.read_text(errors="replace"), ""
        if code in _FAULTS and (found := _CRASH.search(text)):
            path = found["path"].rpartition("/site-packages/")[2]
            text, place = text[: found.start()], f" in {found['function']} ({path}, line {found['line']})"
        lines = text.splitlines()[-LOG_TAIL_LINES:]
        return place + (END_OF_LOG if lines else "") + "".join(f"\n{LOG_INDENT}{line}" for line in lines)


def shorten(log: Path) -> None:
    """Leave the middle out of a log that grew beyond ``MOST_LOG_BYTES``; who writes to it must append."""
    with contextlib.suppress(FileNotFoundError):
        size, half = log.stat().st_size, MOST_LOG_BYTES // 2
        if size <= MOST_LOG_BYTES + half:  # not for every line of one that is full
            return
        with log.open("r+b") as file:
            file.seek(-half, os.SEEK_END)
            tail = file.read()
            file.truncate(half)
            file.seek(half)
            file.write(b"\n[... %d bytes left out ...]\n" % (size - half - len(tail)) + tail)


def _message(line: bytes | bytearray) -> dict[str, Any] | None:
    """Return one line of the protocol as what it says; None where it is not a message."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    if isinstance(message.get("doing"), str):
        return message
    span, complete = message.get("span"), "result" in message or {"error", "message", "fix"} <= message.keys()
    timed = isinstance(span, list) and len(span) == 3 and all(isinstance(t, int | float) for t in span)
    return message if complete and timed else None


def _environment(threads: int, folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    compiled = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"  # worth keeping from process to process
    if _sandbox is not None:  # a later process would run what one in a sandbox compiled
        kept["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return (
        # A thread that spins at a barrier holds the core that the one it waits for needs: beside neighbours torch took
        # many times as long. Source: libgomp's manual, OMP_WAIT_POLICY; benchmarks/waiting.py
        {"TORCHINDUCTOR_CACHE_DIR": str(compiled), "OMP_WAIT_POLICY": "PASSIVE"}
        | kept
        | {
            "TMPDIR": str(folder),
            temporary.MARK: str(folder),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "TF_NUM_INTRAOP_THREADS": str(threads),
            "TF_NUM_INTEROP_THREADS": str(threads),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "KERAS_BACKEND": "tensorflow",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "DO_NOT_TRACK": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ACCEL_HOME": str(environments.home()),  # another interpreter would look beside itself
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of nvidia-smi and NVML
        }
    )
