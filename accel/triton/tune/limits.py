"""What one call of ``accel tune`` has: time, and what earlier calls measured."""

import contextlib
import datetime
import json
import math
import time
from pathlib import Path
from typing import Any

from accel.builders.toolchain import toolchain
from accel.core import imports
from accel.core.files import write_text
from accel.core.values import sha256_json, to_json

NO_TIME = "no time was left (--budget-s)"


class Deadline:
    """How much time is left, and what is said of it."""

    def __init__(self, budget_s: float | None) -> None:
        self.budget_s, self._begin = budget_s, time.monotonic()
        self.expected_s: float | None = None

    def left(self, share: float = 1.0) -> float:
        """Return the seconds until a share of the budget is over; infinite where there is none."""
        return math.inf if self.budget_s is None else self._begin + share * self.budget_s - time.monotonic()

    def words(self) -> str:
        """Return how long it takes at most, or is likely to take where nothing limits it."""
        if self.budget_s is not None:
            return f"at most {_minutes(max(0.0, self.left()))} left"
        return f"about {_minutes(self.expected_s)} left" if self.expected_s is not None else ""


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


class MeasuredStore:
    """What was measured, on disk as soon as it is known.

    Args:
        path: its file. What it says under other conditions, by other versions or by other code is not read.
        conditions: what the measurements depend on, as JSON values.

    Attributes:
        call: when this call began, which tells its probes from those of earlier ones.
    """

    def __init__(self, path: Path, conditions: Any) -> None:
        self._path, self._key = path, sha256_json([conditions, _measured_with()])
        self._found: dict[str, Any] = {}
        self.call = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(read, dict) and read.get("key") == self._key:
                self._found = read["found"]

    def get(self, name: str) -> Any:
        """Return what is known under a name, or None."""
        return self._found.get(name)

    def put(self, name: str, value: Any) -> None:
        """Keep a value."""
        self._found[name] = to_json(value)
        write_text(self._path, json.dumps({"key": self._key, "found": self._found}, indent=1) + "\n")


def _measured_with() -> dict[str, Any]:
    """Return the versions of the runtimes and clients here, and a hash of the code that measures.

    The version of the embedded server is part of that code (``core/environments.py``).
    """
    return {"versions": toolchain(), "code": imports.code_hash("accel.triton.tune.measured")}
