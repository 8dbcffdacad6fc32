"""The serving configuration that meets an objective: curves measured, the server predicted, the best few proved."""
