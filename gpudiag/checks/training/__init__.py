"""A training run and the ranks of a user's script, judged."""
