"""What the pipeline tells whoever watches. The silent default; the terminal's version is in ``accel.cli.live``.

Long work inside a worker process says in short phrases how far it is (``report_progress``); the worker passes them to
the parent.
"""

from collections.abc import Callable

_sinks: list[Callable[[str], None]] = []


def report_progress(doing: str) -> None:
    """Say what the work of this process is doing now; nobody hears it outside a worker."""
    for sink in _sinks:
        sink(doing)


def listen(sink: Callable[[str], None]) -> None:
    """Let ``sink`` take what ``report_progress`` says from now on."""
    _sinks.append(sink)


class Progress:
    """Takes events and shows nothing."""

    def stage(self, name: str) -> None:
        """A stage of the run begins (``export``, ``build and prove``, ``measure``…)."""

    def variant(self, id: str, doing: str) -> None:
        """A variant is being worked on; ``doing`` is a short phrase."""

    def done(self, id: str, outcome: str, *, ok: bool) -> None:
        """A variant has its outcome in the present stage."""

    def notice(self, text: str) -> None:
        """Something the user must read."""
