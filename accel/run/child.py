"""The child's half of a worker process: it runs the tasks that come on stdin until that closes.

It ends itself when the parent disappears. ``accel.core.processes`` is the parent's half and describes the protocol.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import queue
import threading
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

from accel.core import progress
from accel.core.errors import AccelError, OutputError
from accel.core.files import out_of_space
from accel.core.values import from_json, to_json


def child() -> None:
    """Serve tasks from stdin until it closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints belongs to the log, not between the answers
    incoming = os.fdopen(os.dup(0), "rb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # nor may a prompt or a compiler eat a request
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900")  # rather this variant than the run
    faulthandler.enable(all_threads=False)  # a library's crash says where: the parent reads it off the log
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(incoming, requests), daemon=True).start()

    def say(doing: str) -> None:
        answers.write(json.dumps({"doing": doing}).encode() + b"\n")
        answers.flush()

    progress.listen(say)
    spent = 0.0
    while True:
        line = requests.get()
        begin = time.monotonic()
        try:
            answer: dict[str, Any] = {"result": _run(json.loads(line))}
        except Exception as error:  # noqa: BLE001  a library's failure is this variant's, not the run's
            answer = _failure(error)
        used = sum(os.times()[:4])
        answer["span"] = (begin, time.monotonic(), used - spent)  # the same clock in every process of this machine
        spent = used
        answers.write(json.dumps(answer, allow_nan=False).encode() + b"\n")
        answers.flush()


def _run(message: dict[str, Any]) -> Any:
    """Run a task (``module:function``) with values of the types that it declares."""
    module, _, name = message["task"].partition(":")
    task = getattr(importlib.import_module(module), name)
    hints = get_type_hints(task)
    return to_json(task(**{key: from_json(hints[key], value) for key, value in message["params"].items()}))


def _failure(error: Exception) -> dict[str, Any]:
    """Put an error into the log, and into the answer."""
    with contextlib.suppress(OSError):  # the log may lie on the disk that is full
        traceback.print_exc()
    if isinstance(error, AccelError):
        answer = {"error": type(error).__name__, "message": error.message, "fix": error.fix}
    elif isinstance(error, MemoryError):
        answer = {"error": "StageError", "message": "memory ran out", "fix": "free memory or use smaller shapes"}
    else:
        text = "\n".join(line for line in str(error).splitlines() if line.strip())
        answer = {"error": "StageError", "message": f"{type(error).__name__}: {text[:600]}", "fix": None}
    return {**answer, "full": out_of_space(error) and not isinstance(error, OutputError)}  # that one says where


def _read(incoming: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    for line in incoming:
        requests.put(line)
    os._exit(1)  # the parent is gone: nobody waits for what runs in the main thread
