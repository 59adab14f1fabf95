"""What a rank's entry function is given: its rank, how to reach the others, how to report progress.

An entry is `function(context: RankContext) -> Mapping[str, Any]`. It enters the stages rendezvous,
init, warmup, measure and verify itself (import is entered before it is loaded) and returns its
result, a JSON object, with the process group still open: the worker writes the result first, then
enters teardown and destroys the group, so that a rank that dies in teardown costs no result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpudiag.ranks.inject import MismatchKind


class Progress(Protocol):
    """One rank's side channel, through which the agent learns what the rank is about to do.

    Every call is cheap (a write to shared memory, or one to a local file for `emit`) and never
    waits for the agent.
    """

    def enter_stage(self, stage: str) -> None:
        """Announce a stage that the rank starts: rendezvous, init, warmup, measure or verify.

        Stages may come again (warmup, measure, verify, warmup ...), in the same order on every
        rank. Faults that `--inject` aims at a stage fire here, the first time it is entered.
        """

    def before_operation(
        self, sequence: int, op: str, dtype: str, elements: int, predicted_seconds: float | None = None
    ) -> None:
        """Announce that the rank is about to enter collective `sequence` (counted from 0, over the run).

        The arguments must be the same on every rank that takes part, `elements` too: where the ranks'
        buffers differ in length by design (scatter, gather), pass the length of one part. 0 elements
        means local work of this rank, which waits for no other.

        `predicted_seconds` is how long it should take once all ranks are there: after ten times that
        (and at least a second) it counts as stalled. Without it the stage's budget applies.
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
        """How `--inject mismatch` wants this rank's next collective to differ; None if it does not.

        Call it before `before_operation`, which must be given the collective that the rank really
        enters. Each mismatch is returned once.
        """

    def should_flip_bit(self, iteration: int) -> bool:
        """Whether `--inject bitflip` wants this rank's output of that timed iteration corrupted."""

    def emit(self, event: Mapping[str, Any]) -> None:
        """Send one JSON event to the agent (a finished size, a wrong element); kept if the rank dies."""


@dataclass(frozen=True, slots=True)
class RankContext:
    """One rank's place in the run; `arguments` is the JSON object that the recipe passed.

    Both timeouts are for torch, and longer than the agent's own limits: the agent reports first.
    """

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
