"""basic-pitch as its package's ONNX file; see ``_notes``."""

from model_zoo import _notes

CALL = "StatefulPartitionedCall"
ENTRY = _notes.entry(
    "basic-pitch", "nmp.onnx", "onnx", "serving_default_input_2:0", (f"{CALL}:2", f"{CALL}:1", f"{CALL}:0")
)
