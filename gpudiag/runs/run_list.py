"""The runs that a service knows, oldest first: which go on, which wait and at what place, who holds what."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpudiag.errors import RunNotFoundError
from gpudiag.model.live import ActiveRun
from gpudiag.model.run import ENDED, NumberedEvent, Run, RunState
from gpudiag.runs.kinds import Plan, RunKind
from gpudiag.runs.run_process import RunProcess


@dataclass(slots=True)
class RunEntry:
    """A run with what is needed to carry it out; one of an earlier service has neither kind nor plan."""

    run: Run
    kind: RunKind | None = None
    plan: Plan | None = None
    folder: Path | None = None
    process: RunProcess | None = None
    began: float = 0.0
    log: bytes = b""
    events: tuple[NumberedEvent, ...] = ()
    flags: tuple[str, ...] = ()  # of the command, beside those of the plan

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more."""
        return self.run.state in ENDED


class RunList:
    """Entries by the run's id, in the order in which they were asked for."""

    def __init__(self) -> None:
        """Know none yet."""
        self._entries: OrderedDict[str, RunEntry] = OrderedDict()

    def __iter__(self) -> Iterator[RunEntry]:
        """Every entry, oldest first; the list may change meanwhile."""
        return iter(tuple(self._entries.values()))

    def add(self, entry: RunEntry) -> None:
        """Take in the newest."""
        self._entries[entry.run.id] = entry

    def put_before(self, earlier: Iterable[RunEntry]) -> None:
        """Take in those of earlier services; what is known already stays."""
        entries = OrderedDict((entry.run.id, entry) for entry in earlier)
        entries.update(self._entries)
        self._entries = entries

    def find(self, identity: str) -> RunEntry:
        """The entry of that run.

        Raises:
            RunNotFoundError: there is none.
        """
        if identity not in self._entries:
            raise RunNotFoundError(f"there is no run {identity[:64]!r}", hint="GET /api/v1/runs lists them")
        return self._entries[identity]

    def holder_of(self, lock: tuple[str, ...]) -> RunEntry | None:
        """The run that goes on or waits before this one, and wants the same."""
        for entry in self._entries.values():
            if not entry.has_ended and set(entry.run.lock) & set(lock):
                return entry
        return None

    def queued(self) -> list[RunEntry]:
        """Those that wait, first come first."""
        return [entry for entry in self._entries.values() if entry.run.state is RunState.QUEUED]

    def whose_turn_it_is(self) -> Iterator[RunEntry]:
        """Those that wait for nobody any more; an earlier one that waits holds its GPUs against later ones."""
        held: set[str] = set()
        for entry in self:
            if entry.has_ended:
                continue
            if entry.run.state is RunState.QUEUED and not held & set(entry.run.lock):
                yield entry
            held |= set(entry.run.lock)

    def active(self) -> tuple[ActiveRun, ...]:
        """The runs that wait or go on, oldest first."""
        return tuple(
            ActiveRun(run.id, run.kind, run.state.value, run.started_at, run.progress)
            for run in (entry.run for entry in self._entries.values() if not entry.has_ended)
        )

    def show(self, entry: RunEntry) -> Run:
        """The run as it is now: its place in the queue, and how much it has printed."""
        if entry.run.state is RunState.QUEUED and entry in (queued := self.queued()):
            return replace(entry.run, queue_position=queued.index(entry) + 1)
        if entry.process is not None:
            return replace(entry.run, log_bytes=entry.process.log_bytes)
        return entry.run

    def forget_beyond(self, most: int) -> list[Run]:
        """The oldest runs that ended, which are too many and are forgotten now."""
        ended = [entry for entry in self._entries.values() if entry.has_ended]
        surplus = [entry.run for entry in ended[: max(0, len(self._entries) - most)]]
        for run in surplus:
            del self._entries[run.id]
        return surplus
