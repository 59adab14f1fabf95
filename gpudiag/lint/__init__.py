"""Reads training scripts, never runs them, and reports certain mistakes of distributed training."""
