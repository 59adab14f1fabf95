"""A look from outside, as `gpudiag hang`'s, at a script's ranks that stand still, before they are killed.

A child does it while the agent goes on; where it fails or is late, the ranks' own reports stand.
"""

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpudiag.model.job import Frame, Job, ProcessLook
from gpudiag.probe.guard import GuardedChild
from gpudiag.probe.job.gather import read_looks_at, start_looks_at
from gpudiag.probe.job.py_spy import find_py_spy
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.training.script_main import read_pid_namespace

_LOOK_SECONDS = 10.0  # two looks, a second apart, at ranks that stand still; then the run ends without it
_OWN = f"{Path(__file__).parents[1].as_posix()}/"
_RUNNERS = ("<frozen runpy>", "/runpy.py")


@dataclass
class OutsideLook:
    """The look at the ranks of one run; it needs the event with which each rank reported its process."""

    script: str
    world_size: int
    job: Job | None = None
    clock: Callable[[], float] = time.monotonic
    _pids: dict[int, int] = field(default_factory=dict)
    _namespace: str = field(default_factory=read_pid_namespace)
    _child: GuardedChild | None = None

    def add(self, event: RankEvent) -> None:
        """Note the process of a rank of this machine, or that it has ended its script."""
        if event.data.get("kind") == "process" and self._namespace == event.data["namespace"] != "":
            self._pids[event.rank] = event.data["pid"]
        elif event.data.get("kind") == "done":
            self._pids.pop(event.rank, None)

    def is_done(self) -> bool:
        """Whether the look has ended or cannot be made; the first call begins it."""
        if self._child is None:
            if not self._pids or find_py_spy() is None:
                return True
            self._child = start_looks_at(self._pids, self.world_size)
        _receive(self._child)
        if self._child.ending is None:
            if self.clock() - self._child.started_at < _LOOK_SECONDS:
                return False
            self._child.give_up()
        job = read_looks_at(self._child)
        self.job = None if job is None else without_own_frames(job, self.script)
        return True

    def stop(self) -> None:
        """End a look that is under way: a rank has moved, or the run is over."""
        if self._child is not None:
            self._child.give_up()
        self._child = None


def _receive(child: GuardedChild) -> None:
    """Receive what the child has sent so far, without waiting."""
    while child.ending is None:
        ready, _, _ = select.select(child.descriptors(), [], [], 0)
        if not ready:
            return
        for descriptor in ready:
            if descriptor in child.descriptors():
                child.receive(descriptor)


def script_frames(frames: Sequence[Frame], script: str) -> tuple[Frame, ...]:
    """A stack as the script alone would have it: without gpudiag's hooks and what started the script."""
    begun = next((place for place, one in enumerate(frames) if one.file.endswith(_RUNNERS)), len(frames))
    return tuple(one for one in frames[:begun] if one.file == script or not one.file.startswith(_OWN))


def without_own_frames(job: Job, script: str) -> Job:
    """The job with stacks as the script alone would have them."""

    def strip(look: ProcessLook) -> ProcessLook:
        threads = tuple(
            replace(thread, frames=script_frames(thread.frames, script)) for thread in look.threads
        )
        return replace(look, threads=threads)

    ranks = tuple(
        replace(
            rank,
            looks=tuple(map(strip, rank.looks)),
            children=tuple(replace(child, looks=tuple(map(strip, child.looks))) for child in rank.children),
        )
        for rank in job.ranks
    )
    return replace(job, ranks=ranks)
