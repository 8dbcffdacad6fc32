"""basic-pitch as its package's SavedModel; see ``_notes``."""

from model_zoo import _notes

ENTRY = _notes.entry(
    "basic-pitch-tf", "nmp", framework="tensorflow", sound="input_2", outputs=("onset", "note", "contour")
)
