"""Imports a shipped builder module where nothing but the standard library and NumPy can be imported beside it.

Arguments: folder with the shipped modules, module name. Prints the file the module came from.
"""

import importlib
import sys
from importlib.abc import MetaPathFinder

folder, module = sys.argv[1:]


class OnlyTheBare(MetaPathFinder):
    """Refuses every package that a serving image may lack."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy", "accel", "model_zoo"}:
            raise ModuleNotFoundError(f"{name} is not in a bare serving image")


sys.meta_path.insert(0, OnlyTheBare())
sys.path.insert(0, folder)
loaded = importlib.import_module(module)
assert loaded.BUILDER is not None
sys.stdout.write(str(loaded.__file__))
