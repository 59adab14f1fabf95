"""Compares the tables of this repository with upstream's newest public sources: `python -m tools.upstream`."""
