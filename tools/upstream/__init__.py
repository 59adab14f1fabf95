"""Compares the tables of this repository with upstream's public sources: `python -m tools.upstream`."""
