"""How long the sampler and the service pause between two looks, questions, starts or writes, in seconds.

They are no limits, so tests may shorten them (tests/api/serving.py).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses of one service."""

    after_event: float = 5.0  # between two looks at the host that events asked for
    after_change: float = 10.0  # between two questions to GPUtil or torch where the GPUs have changed
    between_successors: float = 6.0  # between two fresh children while a call does not return
    lost: float = 8.0  # between two while a GPU is lost, in the first minute
    lost_later: float = 30.0
    failed: float = 4.0  # after a child that NVML refused: nothing changes that fast
    restart: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0)  # after the 1st, 2nd ... end of a child in a row
    journal: float = 10.0  # between two writes of readings


PAUSES = Pauses()  # read when a service starts
