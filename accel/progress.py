"""What the pipeline tells whoever watches. The silent default; the terminal's version is in ``accel.terminal``."""

from __future__ import annotations


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
