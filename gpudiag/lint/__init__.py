"""Reads training scripts, never runs them, and names the mistakes of distributed training that are certain."""
