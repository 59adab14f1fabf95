"""Which node, link or rail is bad: what pairs of nodes exchanged, and what stands out. No verdicts."""

from dataclasses import dataclass
from enum import StrEnum

from gpudiag.model.reading import NOT_ASKED, Reading


class ExchangePhase(StrEnum):
    """Why two nodes exchanged data."""

    SCREEN = "screen"  # random disjoint pairs
    LOAD = "load"  # every node with two others at once
    CONFIRM = "confirm"  # a suspect with a node that is known to be good, or a suspected pair again


class Symptom(StrEnum):
    """What is wrong with an exchange."""

    FAILED = "failed"  # it did not end in time, or broke off
    SLOW = "slow"
    LOSSY = "lossy"  # fast as a rule, and now and then it takes as long as a retransmission


@dataclass(frozen=True, slots=True)
class Node:
    """What is held to be good or bad as a whole: a host with its ranks, or one rank that acts as a node."""

    host: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What two ranks of different nodes exchanged in one round, each sending as much as it received.

    `nodes` are places in `Localisation.nodes`; `rail` is the place of both ranks in their nodes. The speed is that of the
    fastest large exchange, in each direction; typical and tail are the median and the slowest of small ones.
    """

    round_number: int
    phase: ExchangePhase
    nodes: tuple[int, int]
    rail: int
    bytes_per_second: Reading[float]
    typical_seconds: Reading[float]
    tail_seconds: Reading[float]
    sent_again: Reading[float] = (
        NOT_ASKED  # of TCP's segments, the share that was sent twice; of the worse end
    )


@dataclass(frozen=True, slots=True)
class Suspect:
    """What stands out, and was confirmed: a node, a rail of one, or the link between two.

    `nodes` has one place in `Localisation.nodes`, or two for a link. `rail` is None for a node as a whole, and `nodes` is
    empty for all nodes, or a rail of all of them. `value` is the best that it reached where the usual is `usual`: bytes per second for
    SLOW, seconds of the tail for LOSSY; both are None for FAILED, where `words` has what was said.
    """

    symptom: Symptom
    nodes: tuple[int, ...]
    rail: int | None
    value: float | None
    usual: float | None
    exchanges: int  # that had the symptom
    sent_again: float | None = None  # LOSSY: the median share of its exchanges, where TCP counts it
    under_load: bool = False  # it shows only while all nodes exchange at once
    words: str = ""


@dataclass(frozen=True, slots=True)
class Localisation:
    """Which nodes and links stand out among those of one run.

    `usual_bytes_per_second` is the median of the good exchanges, `usual_tail_seconds` that of the nodes' shortest tails.
    `exchanges` has those of the suspects; all of them where there are few. `links` is how many of all pairs were
    measured.
    """

    nodes: tuple[Node, ...]
    rounds: int
    seconds: float
    links: int
    usual_bytes_per_second: Reading[float]
    usual_tail_seconds: Reading[float]
    suspects: tuple[Suspect, ...]
    exchanges: tuple[Exchange, ...]
