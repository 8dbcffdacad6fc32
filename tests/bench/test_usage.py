"""What is read from a server's ``/metrics``."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from accel.bench import usage
from accel.bench.endpoint import Endpoint

TEXT = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="a"} 0.5
nv_gpu_utilization{gpu_uuid="b"} 1
# HELP accel_calls Calls of the model, each on requests of similar length
# TYPE accel_calls counter
accel_calls{model="a"} 3
accel_calls{model="b"} 4
# HELP accel_rows Rows in these calls
# TYPE accel_rows counter
accel_rows{model="a"} 9
accel_rows{model="b"} 16
"""


class Metrics(BaseHTTPRequestHandler):
    """Answers with a text."""

    text = TEXT

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Endpoint("", "", f"127.0.0.1:{server.server_port}", None, None, "url")
        server.shutdown()


def test_models_that_group_requests_count_their_own_calls(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usage.model_calls(endpoint) == (7, 25)
    assert usage.gauges(endpoint) == {"nv_gpu_utilization": 0.75}
    monkeypatch.setattr(Metrics, "text", TEXT.partition("# HELP accel")[0])
    assert usage.model_calls(endpoint) is None
