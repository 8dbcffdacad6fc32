"""Measuring: the clock and its loops (``session``), interleaved rounds over processes (``rounds``), the statistics."""
