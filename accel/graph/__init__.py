"""What is done to ONNX graphs, and what is found out about them."""

from typing import Literal, get_args

MARGIN = 2.0
"""FP16 and BF16 keep a node in FP32 where a value of it times this leaves the format's range."""
Method = Literal["minmax", "percentile", "entropy"]
METHODS: tuple[Method, ...] = get_args(Method)
METHOD: Method = "percentile"
"""How activations are calibrated, unless something else is asked for; see ``calibration.symmetric``."""
Level = Literal["keep", "io", "interior"]
LEVELS: tuple[Level, ...] = get_args(Level)
LEVEL: Level = "io"
"""How far ``narrow.narrow_file`` goes, unless something else is asked for; see there."""
