"""The versions of what builds and measures here: part of the key of every result that they decide."""

from accel import exporters
from accel.builders import targets
from accel.builders.requirements import versions


def toolchain() -> dict[str, str]:
    """Return distribution → installed version of all that exporters, builders and the load generator name."""
    declared = (package for builder in targets.discover().values() for package in builder.packages)
    return versions([*exporters.PACKAGES, *declared, "numpy", "tritonclient"])
