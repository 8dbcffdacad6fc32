"""A Ray cluster of several nodes on this machine, each of processes of its own that tests and campaigns may kill."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import psutil

FEWER = ("--include-dashboard", "false", "--no-monitor")
PORTS = (
    *("--dashboard-agent-grpc-port", "--dashboard-agent-listen-port"),
    *("--runtime-env-agent-port", "--metrics-export-port"),
)
"""A node waits fifteen seconds for each port of its agents that it was not told."""
MARK = "ACCEL_TEST_NODE"
"""What a node's processes carry in their environment: they leave the session that started them."""


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


class Nodes:
    """A Ray cluster of processes on this machine; its head is also the first machine of the pool ``here``.

    Attributes:
        cpus: that each node is told it has.
        nodes: the processes of each node, by its name.
        address: for ``--ray``.
    """

    def __init__(self, folder: str | Path, cpus: int = 2) -> None:
        self.folder, self.cpus, self.nodes = folder, cpus, dict[str, list[psutil.Process]]()
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.start("head", "--head", "--port", port, *FEWER, *self.of("here"))

    def start(self, name: str, *words: object, **env: str) -> None:
        """Start a node and remember its processes; on a busy machine its agents may come too late for it, so again."""
        line = [sys.executable, "-m", "ray.scripts.scripts", "start", *map(str, words)]
        line += ["--node-ip-address", "127.0.0.1", "--object-store-memory", str(100 << 20), "--disable-usage-stats"]
        if "--head" in words:
            line += ["--temp-dir", str(self.folder)]
        for _ in range(8):
            told = [word for pair in zip(PORTS, map(str, free_ports(len(PORTS))), strict=True) for word in pair]
            own = os.environ | env | {MARK: self._mark(name)}
            done = subprocess.run(
                line + told, capture_output=True, text=True, check=False, env=own, start_new_session=True
            )
            self.nodes[name] = self._alive(name)
            if done.returncode == 0:
                return
            self.kill(name)
        raise AssertionError(done.stdout + done.stderr)

    def worker(self, name: str, pool: str, **env: str) -> None:
        """Add a machine of a pool."""
        self.start(name, "--address", self.address, *self.of(pool), **env)

    def of(self, pool: str) -> tuple[object, ...]:
        """Return the options of a machine of a pool."""
        return "--num-cpus", self.cpus, "--resources", json.dumps({pool: 1})

    def kill(self, name: str) -> None:
        """End all processes of a node at once, those included that it started since."""
        del self.nodes[name]
        while found := self._alive(name):
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, timeout=5)

    def _mark(self, name: str) -> str:
        return f"{self.folder}:{name}"

    def _alive(self, name: str) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark(name) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


@contextlib.contextmanager
def cluster(cpus: int = 2) -> Iterator[Nodes]:
    """Yield a cluster that only who has this process's environment may use; nothing of it is left behind."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # Ray's sockets lie there, and their paths have to be short
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with mock.patch.dict(os.environ, token):
        made = Nodes(folder, cpus)
        try:
            yield made
        finally:
            for name in list(made.nodes):
                made.kill(name)
            shutil.rmtree(folder, ignore_errors=True)
