"""A real S3 server (moto's) over HTTP, in a process of its own, that can be told to fail: ``python s3_server.py``."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

CONTROL = "/-/faults"
FAULTS = ("broken", "cut", "stalled", "slow_s")
STALL_S = 4.0


class S3Server:
    """The process, and what it is told.

    Attributes:
        broken: how many of the next uploads it answers with 500.
        cut: how many of the next downloads it breaks off in the middle.
        stalled: how many of the next downloads it holds for ``STALL_S`` seconds in the middle.
        slow_s: how long it waits before each answer.
        requests: method and path of each request since ``forget``.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the server did not start"

    def __getattr__(self, name: str) -> Any:
        if name in (*FAULTS, "requests"):
            return self._ask()[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FAULTS:
            self._ask({name: value})
        else:
            super().__setattr__(name, value)

    def forget(self) -> None:
        """Forget the requests that came."""
        self._ask({"requests": []})

    def end(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def _ask(self, told: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if told is None else json.dumps(told).encode()
        request = urllib.request.Request(self.url + CONTROL, data, method="GET" if told is None else "PUT")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


class Faulty:
    """moto's server, and the faults in front of it, as a WSGI application."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self.app, self.lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
        self.state: dict[str, Any] = {"broken": 0, "cut": 0, "stalled": 0, "slow_s": 0.0, "requests": []}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == CONTROL:
            return self._control(environ, start_response)
        content = "/store/content/" in path
        with self.lock:
            self.state["requests"].append((method, path))
            broken = method == "PUT" and (content or "/releases/" in path) and self._take("broken")
            cut = method == "GET" and content and self._take("cut")
            stalled = method == "GET" and content and self._take("stalled")
            slow_s = self.state["slow_s"]
        time.sleep(slow_s)
        if broken:
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"broken"]
        answer = self.app(environ, start_response)
        if not cut and not stalled:
            return answer
        whole = b"".join(answer)
        half = len(whole) // 2
        return (
            [whole[:half]] if cut else self._held(whole, half)
        )  # cut: the connection closes before its Content-Length

    def _take(self, fault: str) -> bool:
        self.state[fault] -= (left := self.state[fault]) > 0
        return bool(left > 0)

    @staticmethod
    def _held(whole: bytes, half: int) -> Iterator[bytes]:
        yield whole[:half]
        time.sleep(STALL_S)
        yield whole[half:]

    def _control(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        with self.lock:
            if environ["REQUEST_METHOD"] == "PUT":
                self.state |= json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            told = json.dumps(self.state).encode()
        start_response("200 OK", [("Content-Type", "application/json")])
        return [told]


def main() -> None:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            """Say nothing: a test makes hundreds."""

    http = make_server("127.0.0.1", 0, Faulty(), threaded=True, request_handler=Silent)
    print(f"http://127.0.0.1:{http.server_port}", flush=True)
    http.serve_forever()


if __name__ == "__main__":
    main()
