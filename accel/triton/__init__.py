"""Triton: what a release carries, typed configs, model repositories and their check."""
