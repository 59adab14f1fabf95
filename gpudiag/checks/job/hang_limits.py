"""After how long a rank that stands still, or works alone, is reported and blamed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HangLimits:
    """After how long something is reported or blamed, in seconds; our choice, see docs/hang.md.

    `news`, `still`: a rank that does not move, while others wait for it, is reported, and blamed. `nap`:
    until the end of a sleep, of which it is known that it is no further away. `idle`: all ranks are still,
    and nobody waits for another. `alone`, `work`: a rank that works while others wait. `loop`: the same in an
    endless loop of Python. `disk`: a rank that waits for a disk, or for a loader's worker that sleeps or
    downloads, which may be busy. `locked`: ranks wait for loader workers that all stand at a lock. `absent`:
    a rank that did not come. `node`: a node that did not come to torchrun's rendezvous; None for nine tenths
    of the time after which torchrun gives up. `network`: all ranks wait in one call that fits. `work_flag` is
    what a user sets `work` by.
    """

    news: float = 0.9  # two looks are a second apart, less what a look takes
    still: float = 3.0
    nap: float = 15.0
    idle: float = 60.0
    alone: float = 10.0
    work: float = 300.0
    loop: float = 5.0
    disk: float = 30.0
    locked: float = 20.0
    absent: float = 30.0
    node: float | None = None
    network: float = 5.0  # a retransmission takes seconds
    work_flag: str = "--limit"
