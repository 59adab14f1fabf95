"""What ranks measured and what happened to them, judged."""
