"""Checks: pure functions from what was gathered to findings."""
