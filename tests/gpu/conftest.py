"""The GPU suite: run by ``make test-gpu``, left out of every other run, and an error where there is no GPU."""

from collections.abc import Iterator
from typing import Any

import pytest

from accel.core import hardware

_ROWS = pytest.StashKey[list[tuple[str, ...]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROWS] = []


@pytest.fixture(autouse=True, scope="session")
def gpu() -> hardware.Gpu:
    """The first GPU.

    Raises:
        pytest.exit: there is none, so that nothing passes in silence.
    """
    if trouble := hardware.gpu_trouble():
        pytest.exit(f"the GPU suite needs an NVIDIA GPU: {trouble}", returncode=3)
    return hardware.detect().gpus[0]


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """Rows of the table that is printed at the end."""
    return request.config.stash[_ROWS]


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    yield
    table = config.stash.get(_ROWS, [])
    if table:
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        terminalreporter.section("GPU variants")
        for row in table:
            terminalreporter.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
