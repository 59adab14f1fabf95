"""What a job that was asked to end still waits for: torchrun gives its ranks 30 s after a signal."""

from collections.abc import Sequence
from pathlib import Path

from gpudiag.model.number_ranges import name_ranks
from gpudiag.runs.job_run.members import Member

ENDING_SIGNALS = frozenset(("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"))
# Of torch/distributed/elastic/multiprocessing/api.py: what PContext.close waits for before it kills.
_TORCHRUN_SECONDS = 30.0
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")
_FIRST_SECONDS, _AGAIN_SECONDS = 3.0, 10.0


class Ending:
    """Follows a job after the first signal that ends it."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command` is what the job was started with."""
        self._by_torchrun = any(Path(word).name in _TORCHRUN for word in command)
        self._name = Path(command[0]).name if command else "the command"
        self._signal = ""
        self._began = 0.0
        self._due = 0.0

    def note(self, name: str, at_seconds: float) -> None:
        """Note a signal that the job got; the first that ends it counts."""
        if not self._signal and name in ENDING_SIGNALS:
            self._signal, self._began = name, at_seconds
            self._due = at_seconds + _FIRST_SECONDS

    def describe(self, living: Sequence[Member], at_seconds: float) -> str | None:
        """What the job waits for, in a sentence, where a report is due; None else."""
        if not self._signal or at_seconds < self._due:
            return None
        self._due = at_seconds + _AGAIN_SECONDS
        passed = at_seconds - self._began
        since = f"{self._signal} came {passed:.0f} s ago"
        if not living:
            return f"{since}, and {self._name} has not ended yet; it has no rank left"
        left = _TORCHRUN_SECONDS - passed
        kills = f"{self._name} kills what is left in {left:.0f} s; " if self._by_torchrun and left > 0 else ""
        now = f"to end it now: kill -KILL {' '.join(str(one.pid) for one in living[:8])}"
        return f"{since}, and {_name_members(living)} not ended; {kills}{now}"


def _name_members(living: Sequence[Member]) -> str:
    """`rank 1 (pid 12, last seen at train.py:9 in load) has`, `ranks 0 and 1 have`."""
    numbers = [one.rank for one in living if one.rank is not None]
    named = name_ranks(numbers) if numbers else f"pid {', '.join(str(one.pid) for one in living[:4])}"
    if len(living) > 1:
        return f"{named} have"
    seen = living[0].last_seen
    known = [f"pid {living[0].pid}"] if numbers else []
    known += [f"last seen at {seen.place}"] if seen is not None and seen.place else []
    return f"{named} ({', '.join(known)}) has" if known else f"{named} has"
