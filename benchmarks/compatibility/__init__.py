"""A corpus of strangers' models, and what becomes of each: ``python -m benchmarks.compatibility --help``."""
