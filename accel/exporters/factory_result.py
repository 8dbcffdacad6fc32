"""What a user's factory returned."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True, eq=False)
class FactoryResult:
    """What a factory returned.

    Attributes:
        framework: whose model it is.
        module: a torch module in eval mode, or whatever of TensorFlow's takes and gives tensors.
        samples: by input name, each with its batch axis.
    """

    framework: Literal["torch", "tensorflow"]
    module: Any
    samples: tuple[Mapping[str, np.ndarray], ...]
