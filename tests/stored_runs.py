"""Runs that a test stores, as `gpudiag preflight` does beside its work."""

from contextlib import closing

from gpudiag.store.history import WRITE_SECONDS, HistoryKeeper, RunFacts, machine_key


def record_run(store: str, run: RunFacts, deadline_seconds: float = WRITE_SECONDS) -> str:
    """Store one run; a warning in one line, empty if it was stored."""
    with closing(HistoryKeeper(store, machine_key(run.snapshot))) as keeper:
        _, warning = keeper.read(deadline_seconds)
        return warning or keeper.write(run, deadline_seconds)
