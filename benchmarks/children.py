"""A library or a model in a process of its own, which is asked in lines of JSON and answers in them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class Child:
    """A child that has said its version.

    Args:
        command: line whose process writes ``{"version": …}`` once it is ready, and a line for each that it reads.
        of_accel: it imports accel from this checkout.
        quiet: further environment variables.

    Raises:
        RuntimeError: it ended.
    """

    def __init__(self, *command: str | Path, of_accel: bool = False, quiet: dict[str, str] | None = None) -> None:
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"} | (quiet or {})
        if of_accel:
            environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self.version: str = self._read()["version"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")

    def ask(self, **what: Any) -> dict[str, Any]:
        """Let it do something, and return what it tells."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
