"""What a repository on disk says: its configs and its stored reference."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, raised_as
from accel.triton.config import parse
from accel.triton.manifest import REFERENCE, Manifest
from accel.triton.samples import ReferencePoint

CONFIG = "config.pbtxt"


def read_configs(root: Path) -> dict[str, Any]:
    """Return model folder → its config as protobuf, for every folder of a repository that has one.

    Raises:
        InputError: a config cannot be read or parsed.
    """
    configs = {}
    for file in sorted(root.glob(f"*/{CONFIG}")):
        with raised_as(
            InputError, (OSError, UnicodeDecodeError), f"{file} cannot be read", fix="emit the repository again"
        ):
            configs[file.parent.name] = parse(file.read_text(encoding="utf-8"))
    return configs


def read_initial(root: Path, manifest: Manifest) -> dict[str, Any]:
    """Read the states of a first step, by input; none of a model without states.

    Raises:
        InputError: as ``read_points``.
    """
    if not manifest.states:
        return {}
    with _reference(root) as file:
        return {s.input.name: file[f"initial/{s.input.name}"] for s in manifest.states}


def read_points(root: Path, manifest: Manifest) -> dict[str, ReferencePoint]:
    """Read the stored shape points of a repository.

    Raises:
        InputError: the file is missing, cannot be read, or lacks a tensor.
    """
    with _reference(root) as file:
        return {
            point: ReferencePoint(
                {s.name: file[f"inputs/{point}/{s.name}"] for s in manifest.inputs},
                {s.name: file[f"outputs/{point}/{s.name}"] for s in manifest.outputs},
            )
            for point in manifest.reference_points
        }


@contextlib.contextmanager
def _reference(root: Path) -> Iterator[Any]:
    """Open the stored reference; what cannot be read of it, inside the block too, is an ``InputError``."""
    import numpy as np

    path = root / REFERENCE
    with (
        raised_as(
            InputError,
            (OSError, ValueError, EOFError, KeyError),
            f"{path} cannot be read",
            fix="emit the repository again",
        ),
        np.load(path, allow_pickle=False) as file,
    ):
        yield file
