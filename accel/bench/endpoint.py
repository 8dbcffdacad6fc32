"""Where a server answers."""

from dataclasses import dataclass


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
