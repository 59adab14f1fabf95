"""A job that runs, judged from outside."""
