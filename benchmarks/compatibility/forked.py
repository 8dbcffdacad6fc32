"""Run ``accel`` in processes forked from one that has imported the frameworks, so that no source pays for imports.

Two thirds of what a small source costs is importing torch, its exporter and transformers, in the process of ``accel``
and in each of its workers. Here both are forks of one process: the same code, arguments, pipes, logs and environment,
and the imports done. What differs: a module that is never imported is not missed, and a kill of what a worker
started goes by its process group alone. Rows made so say ``warm``; ``test_compatibility`` compares some with cold ones.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compatibility.source import Kind

OWN = (
    "accel.cli",
    "accel.pipeline",
    "accel.exporters",
    "accel.exporters.check",
    "accel.exporters.coverage",
    "accel.exporters.samples",
    "accel.exporters.verdict",
    "accel.graph.narrow",
    "accel.triton.ensemble",
    "accel.triton.repository",
    "accel.report.from_run",
    "accel.run.child",
    "onnxscript.rewriter",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "openvino",
    "scipy.stats",
)
MODULES: dict[Kind, tuple[str, ...]] = {
    "onnx": (),
    "torch": ("torch", "torch.onnx", "torch.export", "torch._dynamo", "onnxscript", "accel.exporters.from_torch"),
    "huggingface": ("transformers", "accel.exporters.from_huggingface"),
    "tensorflow": ("tensorflow", "tf2onnx", "accel.exporters.from_tensorflow"),
}
"""Kind → what its sources import."""
MODULES["huggingface"] = (*MODULES["torch"], *MODULES["huggingface"])
PR_SET_PDEATHSIG = 1


def prepare(kind: Kind) -> None:
    """Import what sources of this kind need, and let workers of accel be forks of their parent from here on."""
    for name in (*OWN, *MODULES[kind]):
        importlib.import_module(name)
    if "torch.onnx" in MODULES[kind]:
        _export_once()
    started = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute(self: Any, args: Any, *rest: Any) -> None:
        from accel.core import processes

        if isinstance(args, (list, tuple)) and processes._BOOT in args and args[0] == sys.executable:
            _fork_worker(self, *rest)
        else:
            started(self, args, *rest)

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


def _export_once() -> None:
    """Let torch's exporter import what its first use imports."""
    import torch

    batch = torch.export.Dim("batch")
    torch.onnx.export(
        torch.nn.Linear(4, 2).eval(), (torch.zeros(2, 4),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )


def call(
    main: Callable[[], None], cwd: Path, limit_s: float, environment: dict[str, str]
) -> tuple[int | None, str, str]:
    """Call ``main`` in a fork of this process; returns its code (None: ended at the limit), stdout and stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _become(main, cwd, environment, {1: out.fileno(), 2: err.fileno()})
        code = _waited(child, limit_s)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return code, texts[0], texts[1]


def accel(words: Sequence[str]) -> None:
    """Be the command line of accel."""
    from accel.cli import main

    sys.argv = ["accel", *words]
    main()


def apart(main: Callable[[], int]) -> int:
    """Call ``main`` in a fork of this process, which stays as light as it is; returns what it returned."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = main()
        except BaseException:  # noqa: BLE001  as the interpreter does at its end
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _waited(child: int, limit_s: float) -> int | None:
    """Wait for a process that leads its group; end the group past the limit."""
    limit, asked = time.monotonic() + limit_s, False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            return None if asked else os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL if asked else signal.SIGINT)
            limit, asked = time.monotonic() + 20.0, True
        time.sleep(0.05)


def _fork_worker(
    self: Any,
    executable: Any,
    preexec_fn: Any,
    close_fds: Any,
    pass_fds: Any,
    cwd: Any,
    env: dict[str, str],
    startupinfo: Any,
    creationflags: Any,
    shell: Any,
    p2cread: int,
    p2cwrite: int,
    c2pread: int,
    c2pwrite: int,
    errread: int,
    errwrite: int,
    *rest: Any,
) -> None:
    """Stand in for ``subprocess.Popen._execute_child``, whose parameters these are (CPython 3.11 to 3.13)."""
    self.pid = os.fork()
    if self.pid == 0:
        _become(_work, None, env, {0: p2cread, 1: c2pwrite, 2: errwrite})
    self._child_created = True
    for fd in (p2cread, c2pwrite):
        os.close(fd)


def _work() -> None:
    import ctypes

    from accel.run.child import child

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    child()


def _become(main: Callable[[], None], cwd: Path | None, environment: dict[str, str], files: dict[int, int]) -> None:
    """Be the process that ``main`` expects: a session, environment, working folder and standard files of its own."""
    code = 1
    try:
        os.setsid()
        for target, source in files.items():
            os.dup2(source, target)
        os.closerange(3, 4096)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        if cwd is not None:
            os.chdir(cwd)
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001  as the interpreter does at its end
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            import atexit

            sys.stdout.flush()
            sys.stderr.flush()
            atexit._run_exitfuncs()
        os._exit(code)
