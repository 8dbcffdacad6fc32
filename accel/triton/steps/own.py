"""A step of the user's: their function, held to the tensors that they declared."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Step:
    """Calls a function of the user's file once for each request.

    Args:
        options: ``file`` (below ``own/`` of the folder), ``function``, ``outputs``: [name, dtype, dims], where a name
            among the dims stands for one size in all outputs of a request.
        folder: the version folder.

    Raises:
        AttributeError: the file does not define the function.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        home = folder / "own"
        sys.path.append(str(home))
        spec = importlib.util.spec_from_file_location(f"own_{Path(options['file']).stem}", home / options["file"])
        if spec is None or spec.loader is None:
            raise ValueError(f"{options['file']} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        # Dataclasses and pickles look their module up by name.
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        self.name = f"{options['file']}:{options['function']}"
        self.function: Callable[[dict[str, np.ndarray]], Any] = getattr(module, options["function"])
        self.outputs = options["outputs"]

    def answer(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what the function gives, after holding it to its declaration.

        Raises:
            ValueError: raised by the function: what is wrong with the request.
            TypeError: it gave something else than it declared.
        """
        found = self.function(dict(inputs))
        if not isinstance(found, Mapping):
            raise TypeError(f"{self.name} gave {type(found).__name__}, expected a mapping from names to arrays")
        sizes: dict[str, int] = {}
        answer = {}
        for name, dtype, dims in self.outputs:
            if name not in found:
                raise TypeError(f"{self.name} gave {sorted(found)}, and declares {name!r}")
            value = np.asarray(found[name])
            if dtype == "str":
                value = value.astype(np.object_)
            elif value.dtype != np.dtype(dtype):
                raise TypeError(f"{self.name}: {name!r} is {value.dtype}, declared {dtype}")
            wanted = [
                sizes.setdefault(d, n) if isinstance(d, str) else d for d, n in zip(dims, value.shape, strict=False)
            ]
            if value.ndim != len(dims) or list(value.shape) != wanted:
                raise TypeError(f"{self.name}: {name!r} is {value.shape}, declared {tuple(dims)}")
            answer[name] = np.ascontiguousarray(value)
        return answer
