"""What one case is: how the machines are arranged, how each rank is started, and what must be reported."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.ranks.machines import Machine

PORT = 29500

Arrange = Callable[[Sequence[Machine]], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def as_it_is(machines: Sequence[Machine]) -> Iterator[None]:
    """The four machines as they come: nothing is wrong with their network."""
    yield


@dataclass(frozen=True)
class Start:
    """How the rank of one machine is started where that differs from the others'."""

    variables: Mapping[str, str | None] = field(default_factory=dict)  # None: not set
    # After all others, so that they replace them; {folder} is one that all machines see.
    flags: Sequence[str] = ()
    meets: str | None = None  # where it is to look for rank 0, HOST:PORT
    rank: int | None = None  # the rank that it is given
    world_size: int | None = None  # as it is given; None for that of the case
    delay_seconds: float = 0.0
    missing: bool = False  # never started
    wrapper: Sequence[str] = ()  # the command that starts it


@dataclass(frozen=True)
class Case:
    """One network, and what must be reported of a run on it."""

    name: str
    arrange: Arrange = as_it_is
    starts: Mapping[int, Start] = field(default_factory=dict)  # by rank, where it is not as the others
    flags: Sequence[str] = ()  # of all ranks
    # What the findings must hold: words that stand in one of them, each; empty where the network is healthy.
    words: Sequence[str] = ()
    # Hosts that a finding must have as its subject, or as the ends of its link.
    hosts: Sequence[str] = ()
    launcher: str | None = None  # the only one that the case is for
    # The findings only warn: every process ends with status 0.
    warning: bool = False
    # How many reports may differ: a host that is cut off for good cannot agree with the others.
    reports: int = 1
    # gpudiag chooses how often each size runs.
    automatic: bool = False
    # How many machines, each with one rank.
    ranks: int = 4
    # How soon the first report must be there, from the start of its process's run on: Python has started by
    # then.
    within_seconds: float = math.inf
    # Done to the machines once all ranks measure; None for a fault of the start.
    then: Callable[[Sequence[Machine]], None] | None = None

    @property
    def healthy(self) -> bool:
        """Whether nobody may be blamed."""
        return not self.words and not self.hosts


def blamed(
    name: str, how: Arrange | Mapping[int, Start], words: Sequence[str], *machines: int, **more: Any
) -> Case:
    """The case of machines so arranged, or ranks so started, with the machines to blame, counted from 1."""
    key = "starts" if isinstance(how, Mapping) else "arrange"
    return Case(name, words=words, hosts=tuple(f"machine{one}" for one in machines), **{key: how, **more})


def broken(
    name: str, then: Callable[[Sequence[Machine]], None], words: Sequence[str], *machines: int, **more: Any
) -> Case:
    """The case of machines to which this is done once all ranks measure, with those to blame."""
    return blamed(name, as_it_is, words, *machines, then=then, **more)
