"""basic-pitch as its package's SavedModel; see ``_notes``."""

from model_zoo import _notes

ENTRY = _notes.entry("basic-pitch-tf", "nmp", "tensorflow", "input_2", ("onset", "note", "contour"))
