"""Real files that packages of the index carry, taken as they come. ``COMPATIBILITY_PACKAGES`` names their folder.

pip install --no-deps --target packages rapidocr==3.10.0 silero-vad==6.2.3 magika==1.0.3 basic-pitch==0.4.0
COMPATIBILITY_PACKAGES=packages python -m benchmarks.compatibility run --all
"""

import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.compatibility.source import NotHere

FOLDER = "COMPATIBILITY_PACKAGES"


def installed(package: str, path: str) -> Callable[[Path], str]:
    """Return a ``make`` for a file or folder of an installed package."""

    def make(folder: Path) -> str:
        root = os.environ.get(FOLDER)
        found = Path(root or ".", path).resolve()
        if root is None or not found.exists():
            raise NotHere(f"{path} of {package} is not here: see benchmarks/compatibility/packages.py")
        return str(found)

    return make
