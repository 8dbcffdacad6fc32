"""A real browser: chromium without a window, told what to do by its DevTools protocol over a pair of pipes.

Source: https://chromedevtools.github.io/devtools-protocol, and chromium's ``--remote-debugging-pipe``: it reads
messages from descriptor 3 and writes to 4, each JSON that ends with a zero byte.
"""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ANSWER_S = 60


class Browser:
    """One tab.

    Args:
        reads, writes: descriptors of the pipes.
    """

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes, self._rest, self._numbers = reads, writes, b"", itertools.count()
        self._tab: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._tab = {"sessionId": session}
        self.call("Page.enable")

    def call(self, method: str, **parameters: object) -> Any:
        """Return what a method of the protocol answers."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._tab}
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda told: told.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, page: Path, width: int, height: int = 900) -> None:
        """Open a page in a window of this size, in CSS pixels, and wait until it is loaded and was painted."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=page.as_uri())
        self._until(lambda told: told.get("method") == "Page.loadEventFired")
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, once it is there."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, to: Path) -> None:
        """Write what is seen as a PNG."""
        to.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _until(self, wanted: Any) -> Any:
        """Return the first message that is wanted; the others are of no use here."""
        until = time.monotonic() + ANSWER_S
        while True:
            while b"\0" not in self._rest:
                ready, _, _ = select.select([self._reads], [], [], max(0.0, until - time.monotonic()))
                assert ready, f"the browser has not answered for {ANSWER_S} s"
                part = os.read(self._reads, 1 << 20)
                assert part, "the browser has ended"
                self._rest += part
            text, _, self._rest = self._rest.partition(b"\0")
            told = json.loads(text)
            if wanted(told):
                return told


@contextmanager
def browser(home: Path) -> Iterator[Browser]:
    """Run chromium with a new profile in a folder."""
    (told_r, told_w), (said_r, said_w) = (map(_high, os.pipe()) for _ in range(2))
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    words += [f"--user-data-dir={home}", "about:blank"]
    line = ["bash", "-c", f'exec "$@" 3<&{told_r} 4>&{said_w}', "bash", *map(str, words)]
    with (home.parent / f"{home.name}.log").open("w") as log:
        running = subprocess.Popen(line, pass_fds=(told_r, said_w), stdout=log, stderr=log)
    os.close(told_r)
    os.close(said_w)
    try:
        yield Browser(said_r, told_w)
    finally:
        os.close(told_w)  # it ends by itself
        os.close(said_r)
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _high(descriptor: int) -> int:
    """Return the descriptor under a number that 3 and 4 leave alone."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
