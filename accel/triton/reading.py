"""What a repository on disk says: its configs and its stored reference."""

from pathlib import Path
from typing import Any

from accel.core.errors import InputError
from accel.triton.config import parse
from accel.triton.manifest import REFERENCE, Manifest
from accel.triton.samples import Point

CONFIG = "config.pbtxt"


def read_configs(root: Path) -> dict[str, Any]:
    """Return model folder → its config as protobuf, for every folder of a repository that has one.

    Raises:
        InputError: a config cannot be read or parsed.
    """
    configs = {}
    for file in sorted(root.glob(f"*/{CONFIG}")):
        try:
            configs[file.parent.name] = parse(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read: {error}", fix="emit the repository again") from error
    return configs


def read_points(root: Path, manifest: Manifest) -> dict[str, Point]:
    """Read the stored shape points of a repository.

    Raises:
        InputError: the file is missing, cannot be read, or lacks a tensor.
    """
    import numpy as np

    path = root / REFERENCE
    try:
        with np.load(path, allow_pickle=False) as file:
            return {
                point: Point(
                    {s.name: file[f"inputs/{point}/{s.name}"] for s in manifest.inputs},
                    {s.name: file[f"outputs/{point}/{s.name}"] for s in manifest.outputs},
                )
                for point in manifest.reference_points
            }
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise InputError(f"{path} cannot be read: {error}", fix="emit the repository again") from error
