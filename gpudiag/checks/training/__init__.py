"""Checks of a training run, and of the ranks of a user's script."""
