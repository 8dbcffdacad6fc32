"""Files with trained weights in packages that ``accel env install weights`` brings, and what their entries share."""

import functools
from collections.abc import Callable
from pathlib import Path

from accel.core.environments import WEIGHTS, installed, site_packages

FILES = ("_weights.py",)


def resolve(path: str) -> Callable[[], Path | None]:
    """Return what finds a file or folder below the packages."""

    def found() -> Path | None:
        file = site_packages(WEIGHTS) / path
        return file if installed(WEIGHTS) and file.exists() else None

    return found


def load_file(file: Path | None) -> Path:
    """Return the file of an entry that is one: its ``load``."""
    assert file is not None  # from_zoo asks for it
    return file


@functools.cache
def characters(file: Path) -> str:
    """Return the characters that a PP-OCR reader knows, in the order of its classes; before them comes the blank.

    Source: PaddleOCR, ``ppocr/postprocess/rec_postprocess.py``: the dictionary, then the space.
    """
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    [told] = (entry.value for entry in model.metadata_props if entry.key == "character")
    return "".join(told.splitlines()) + " "
