"""Records the logs of real jobs that go wrong."""
