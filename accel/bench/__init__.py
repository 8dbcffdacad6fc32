"""Measuring: the clock and its loops (``session``), interleaved rounds over processes (``rounds``), load on a Triton
server (``load``, ``served``, ``perf_analyzer``), the statistics (``stability``)."""
