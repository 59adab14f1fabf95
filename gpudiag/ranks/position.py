"""Where a rank is: its stage, collective and line of code, as it announced them."""

from dataclasses import dataclass

Place = tuple[str, int]  # file and line


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective, or local step of the rank, as announced before entering it."""

    sequence: int
    op: str
    dtype: str
    elements: int
    predicted_seconds: float | None
    stage: str | None = None  # in which it was entered; None if no longer recorded

    @property
    def alone(self) -> bool:
        """Whether it is local work of this rank, which waits for no other: it moves no elements."""
        return self.elements == 0

    def describe(self) -> str:
        """The operation in words: `all_reduce float32[1024]`; a step without data is its name alone."""
        return f"{self.op} {self.dtype}[{self.elements}]" if self.dtype else self.op


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank last said it was. Times are CLOCK_MONOTONIC of its machine, in seconds."""

    stage: str
    stage_count: int  # stages entered so far; all ranks enter the same stages in the same order
    operation: Operation | None  # the last one entered
    inside: bool  # whether the rank is still inside `operation`
    entered_at: float | None  # when it entered `operation`
    moved_at: float  # when it last entered or left a stage or an operation
    iteration: int | None  # timed iteration, from 0 over the whole run
    place: str | None  # file:line of the code that announced it
    # Read only when asked for, oldest first. Of consecutive operations that are alike and in one stage
    # only the first is listed; `stages` are the last ones entered.
    history: tuple[Operation, ...] = ()
    stages: tuple[str, ...] = ()

    def is_same_place(self, other: "Position | None") -> bool:
        """Whether the rank has not moved since `other` was read."""
        if other is None:
            return False
        return (self.moved_at, self.iteration, self.progress) == (
            other.moved_at,
            other.iteration,
            other.progress,
        )

    @property
    def progress(self) -> tuple[int, int]:
        """Stages and collectives entered; all ranks go through the same ones in the same order."""
        return self.stage_count, self.entered

    def stage_after(self, count: int) -> str | None:
        """The stage that this rank entered after its first `count` ones; None if no longer recorded."""
        place = count - self.stage_count + len(self.stages)
        return self.stages[place] if 0 <= place < len(self.stages) else None

    def operation_at(self, sequence: int) -> Operation | None:
        """What the rank entered as collective `sequence`; None if not entered yet, or no longer recorded."""
        if sequence >= self.entered:
            return None
        earlier = [operation for operation in self.history if operation.sequence <= sequence]
        return max(earlier, key=lambda operation: operation.sequence, default=None)

    @property
    def entered(self) -> int:
        """How many collectives the rank has entered."""
        return 0 if self.operation is None else self.operation.sequence + 1
