"""accel in Python: optimise a model in memory or on disk, call the chosen variant, serve it, or take the steps apart.

Everything here makes the job that ``accel convert`` makes, and runs the same pipeline.
"""
