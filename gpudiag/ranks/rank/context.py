"""What a rank's entry function is given: its rank, how to reach the others, how to report progress.

An entry is `function(context: RankContext) -> Mapping[str, Any]`. It enters rendezvous, init, warmup, measure
and verify itself, and returns a JSON object with the process group still open: the worker writes it first,
then enters teardown, which so costs no result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpudiag.ranks.inject import MismatchKind


class Progress(Protocol):
    """One rank's side channel: what it is about to do. Every call is a cheap write, and never waits."""

    def enter_stage(self, stage: str) -> None:
        """Announce a stage that the rank starts: rendezvous, init, warmup, measure or verify.

        Stages may come again, in one order on every rank. A fault of `--inject` at a stage fires the first
        time.
        """

    def before_operation(
        self, sequence: int, op: str, dtype: str, elements: int, predicted_seconds: float | None = None
    ) -> None:
        """Announce that the rank is about to enter collective `sequence` (counted from 0, over the run).

        Arguments are the same on every rank; of buffers that differ (scatter, gather), `elements` is one
        part. 0 is local work. After ten times `predicted_seconds`, at least a second, it counts as stalled;
        without, by the stage.
        """

    def after_operation(self, sequence: int, *, queued: bool = False) -> None:
        """Announce that the rank came back from collective `sequence`; `queued`: a GPU has still to do it."""

    def before_iteration(self, iteration: int) -> None:
        """Announce that timed iteration `iteration` (from 0, over the whole run) starts; faults fire here."""

    def before_exchange(self, others: Sequence[int]) -> None:
        """Announce that this rank exchanges data with those alone; faults that slow that down fire here."""

    def note_place(self, file: str, line: int) -> None:
        """Announce the line that the rank is at, for scripts, which announce no collectives."""

    def pop_mismatch(self) -> MismatchKind | None:
        """How `--inject mismatch` wants this rank's next collective to differ, once; None if it does not.

        Call it before `before_operation`.
        """

    def should_flip_bit(self, iteration: int) -> bool:
        """Whether `--inject bitflip` wants this rank's output of that timed iteration corrupted."""

    def emit(self, event: Mapping[str, Any]) -> None:
        """Send one JSON event to the agent (a finished size, a wrong element); kept if the rank dies."""


@dataclass(frozen=True, slots=True)
class RankContext:
    """One rank's place in the run, with the recipe's `arguments`; the agent's limits end before torch's."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    init_method: str  # for torch.distributed.init_process_group
    rendezvous_timeout_seconds: float
    operation_timeout_seconds: float
    arguments: Mapping[str, Any]
    progress: Progress
    run_directory: str = ""  # of this run on this machine; removed when the run is over
