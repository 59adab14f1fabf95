"""Sanity training on ranks: workloads, strategies, and the proof against a single-process run."""
