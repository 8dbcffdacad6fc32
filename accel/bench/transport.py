"""How one request reaches the server and its answer comes back; what is sent, and when, others decide."""

import importlib.util
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np

from accel.bench.request_pool import HttpPool, RequestPool, SequenceStep
from accel.core.errors import UnavailableError, UsageError

METHOD = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
LENGTH_OF_HEADER = "Inference-Header-Content-Length"
CONNECTIONS = 512
"""Most requests of a process that are under way over HTTP, each on a connection of its own: ``select``, by which the
loop waits, takes file descriptors below 1,024."""


class RequestError(Exception):
    """A request was not answered.

    Attributes:
        unavailable: the server is gone, or refuses for now (a full queue).
    """

    def __init__(self, message: str, *, unavailable: bool) -> None:
        super().__init__(message)
        self.message, self.unavailable = message, unavailable


class Transport(Protocol):
    """A connection to one server, used by one event loop."""

    async def connect(self) -> None:
        """Prepare to send, in the loop that will."""

    async def infer(self, feed: int, slot: int, step: SequenceStep | None, timeout_s: float) -> Any:
        """Send the request of a feed and return the answer, unparsed.

        Args:
            step: of a stateful model, whose step it is.

        Raises:
            RequestError: there is no answer.
        """

    def outputs(self, answer: Any, slot: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of an answer, but for text."""

    async def live(self) -> None:
        """Ask whether the server lives.

        Raises:
            RequestError: it does not say so.
        """

    async def close(self) -> None:
        """Disconnect."""


class GrpcTransport:
    """Serialised messages over one channel.

    Args:
        url: ``host:port`` of the gRPC endpoint.
    """

    def __init__(self, url: str, pool: RequestPool) -> None:
        self._url, self._pool = url, pool

    async def connect(self) -> None:
        import grpc

        self._channel = grpc.aio.insecure_channel(self._url, OPTIONS)
        self._infer = self._channel.unary_unary(METHOD)
        self._live = self._channel.unary_unary("/inference.GRPCInferenceService/ServerLive")

    async def infer(self, feed: int, slot: int, step: SequenceStep | None, timeout_s: float) -> Any:
        body = self._pool.body(feed, slot)
        return await self._asked(self._infer, body if step is None else body + step.message(), timeout_s)

    def outputs(self, answer: Any, slot: int) -> Mapping[str, np.ndarray]:
        return self._pool.outputs(parse_response(answer), slot)

    async def live(self) -> None:
        await self._asked(self._live, b"", 5)

    async def close(self) -> None:
        await self._channel.close()

    async def _asked(self, call: Any, body: bytes, timeout_s: float) -> Any:
        import grpc

        try:
            return await call(body, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            gone = error.code() is grpc.StatusCode.UNAVAILABLE
            raise RequestError(f"{error.code().name}: {error.details()}", unavailable=gone) from error


def parse_response(body: bytes) -> Any:
    """Parse the bytes of a ``ModelInferResponse``."""
    from tritonclient.grpc import service_pb2

    return service_pb2.ModelInferResponse.FromString(body)


class HttpTransport:
    """HTTP/1.1 with tensors as binary data behind a JSON header, over as many connections as requests are under way.

    Args:
        url: ``host:port`` of the HTTP endpoint.

    Source: server docs/protocol/extension_binary_data.md.
    """

    def __init__(self, url: str, model: str, pool: HttpPool) -> None:
        self._base, self._pool = f"http://{url}/v2", pool
        self._infer = f"{self._base}/models/{quote(model)}/infer"

    async def connect(self) -> None:
        import aiohttp

        # An answer is compressed where a client says that it can take that, as this library does by itself.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent")
        )

    async def infer(self, feed: int, slot: int, step: SequenceStep | None, timeout_s: float) -> Any:
        header, body = self._pool.request(feed, step)
        sizes = {LENGTH_OF_HEADER: str(header)}
        return await self._asked(self._session.post(self._infer, data=body, headers=sizes, timeout=_within(timeout_s)))

    def outputs(self, answer: Any, slot: int) -> Mapping[str, np.ndarray]:
        return self._pool.outputs(*answer)

    async def live(self) -> None:
        await self._asked(self._session.get(f"{self._base}/health/live", timeout=_within(5)))

    async def close(self) -> None:
        await self._session.close()

    async def _asked(self, call: Any) -> tuple[int, bytes]:
        """Return the length of the answer's header, and the answer."""
        import aiohttp

        try:
            async with call as response:
                body = await response.read()
                if response.status != HTTPStatus.OK:
                    said = _error(body)
                    gone = response.status == HTTPStatus.SERVICE_UNAVAILABLE
                    raise RequestError(f"HTTP {response.status}: {said}", unavailable=gone)
                return int(response.headers.get(LENGTH_OF_HEADER, len(body))), body
        except TimeoutError as error:
            raise RequestError("no answer in time", unavailable=False) from error
        except aiohttp.ClientError as error:
            raise RequestError(f"{type(error).__name__}: {error}", unavailable=True) from error


def check_http(clients: int) -> None:
    """Refuse what cannot be sent over HTTP.

    Raises:
        UnavailableError: aiohttp is missing.
        UsageError: more clients than a process may have connections.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise UnavailableError("requests over HTTP need aiohttp, which is not here", fix="pip install 'accel[serve]'")
    if clients > CONNECTIONS:
        raise UsageError(f"{clients} clients over HTTP, and {CONNECTIONS} are the most", fix="leave --protocol out")


def _error(body: bytes) -> str:
    """Return what the server says: the error of its JSON, or the text as it is."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]


def _within(timeout_s: float) -> Any:
    import aiohttp

    return aiohttp.ClientTimeout(total=timeout_s)
