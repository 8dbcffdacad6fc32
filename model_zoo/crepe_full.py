"""CREPE full; see ``_pitch``."""

from pathlib import Path
from typing import TYPE_CHECKING

from model_zoo import _pitch

if TYPE_CHECKING:
    import torch


def load(folder: Path | None) -> "torch.nn.Module":
    """Build the model with the weights of a file, or with random ones."""
    return _pitch.build(folder, "full")


ENTRY = _pitch.entry("full", 22239976, load)
