"""Where a server answers."""

from dataclasses import dataclass
from typing import Literal

from accel.core.errors import UnavailableError

InferenceProtocol = Literal["grpc", "http"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers.

    Attributes:
        grpc / http: ``host:port``; ``http`` is empty where nothing answers there.
        metrics: ``host:port`` of ``/metrics``, or None.
        pid: process of a server that was started here, else None.
        release: Triton release, or None where the server's version belongs to no known one.
        via: ``embedded``, ``local``, ``docker`` or ``url``.
    """

    grpc: str
    http: str
    metrics: str | None
    pid: int | None
    release: str | None
    via: str

    def http_only(self) -> str:
        """Return where it answers over HTTP.

        Raises:
            UnavailableError: it does not.
        """
        if not self.http:
            raise UnavailableError(f"the server at {self.grpc} does not answer over HTTP", fix="leave --protocol out")
        return self.http

    def http_for(self, protocol: InferenceProtocol) -> str | None:
        """Return where requests go over HTTP, or None where their protocol is gRPC; raises as ``http_only``."""
        return self.http_only() if protocol == "http" else None
