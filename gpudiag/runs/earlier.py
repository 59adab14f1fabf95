"""This machine's own earlier collective results: read while a run goes on, added to after it."""

from time import monotonic

from gpudiag.checks.ranks.collective import samples_of
from gpudiag.model.history import History
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.report import CollectiveReport
from gpudiag.runs.placement import Placement
from gpudiag.store.history import READ_SECONDS, HistoryKeeper, RunFacts, default_store, machine_key

KIND = "nccl-test"
_GRACE_SECONDS = 0.3


class EarlierResults:
    """What the store holds about this machine. It never fails or delays a verdict.

    Only runs on GPUs are compared and kept, unless a store was named: ranks on CPUs are not judged by
    their speed, and the database library costs more than their start.
    """

    def __init__(self, placement: Placement, store: str | None) -> None:
        """Start reading, if there is something to compare with."""
        self._snapshot = placement.snapshot
        self._started = monotonic()
        self._warning = ""
        self._keeper: HistoryKeeper | None = None
        wanted = placement.backend == "nccl" or store is not None
        if wanted and placement.snapshot is not None:
            self._keeper = HistoryKeeper(store or default_store(), machine_key(placement.snapshot))

    def history(self) -> Reading[History]:
        """What the store holds about this machine, or why that is not known."""
        if self._keeper is None:
            return NOT_ASKED
        # It had the whole run's time to read; the verdict waits only a moment longer.
        seconds = max(READ_SECONDS, monotonic() - self._started + _GRACE_SECONDS)
        history, self._warning = self._keeper.read(seconds)
        return history

    def record(self, report: CollectiveReport) -> str:
        """Store the results of a run; return what went wrong in one line, empty if nothing did."""
        if self._keeper is None or self._snapshot is None:
            return ""
        samples = samples_of(report.measurement)
        return self._keeper.write(
            RunFacts(self._snapshot, KIND, report.outcome.value, samples, keep_snapshot=False)
        )

    def close(self) -> None:
        """End the processes that still read or write."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
