"""How one request reaches the server and its answer comes back; what is sent, and when, others decide."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from accel.bench.request_pool import RequestPool, Step

METHOD = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


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

    async def infer(self, feed: int, slot: int, step: Step | None, timeout_s: float) -> Any:
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

    async def infer(self, feed: int, slot: int, step: Step | None, timeout_s: float) -> Any:
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
