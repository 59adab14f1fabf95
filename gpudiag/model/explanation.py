"""What `gpudiag explain` says: about one topic, or about what it recognised in a log."""

from dataclasses import dataclass
from enum import StrEnum

MAX_LINE_NUMBERS = 20  # of one failure; `count` says how many there are


class Role(StrEnum):
    """What a failure in a log is to the others there; the worst comes first."""

    HARDWARE = "hardware"  # the machine is at fault
    CAUSE = "cause"
    SYMPTOM = "symptom"  # what a fault elsewhere looks like from here


@dataclass(frozen=True, slots=True)
class Explanation:
    """One topic explained; what does not apply to it is empty."""

    topic: str  # gpu.lost, Xid 79, SXid 12028, rendezvous.port_in_use
    title: str
    meaning: str
    facts: tuple[str, ...] = ()  # outcome, owner and the like, for people
    reads: str = ""
    limit: str = ""
    remedy: str = ""
    look_also: tuple[str, ...] = ()  # commands and topics
    proof: str = ""  # the command that shows the failure, or rules it out
    source: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One failure recognised in a log: where, how often, and whether another one there explains it."""

    explanation: Explanation
    role: Role
    lines: tuple[int, ...]  # numbers from 1, the first `MAX_LINE_NUMBERS`
    count: int
    excerpt: str  # the first of these lines
    follows: str | None = None  # the topic of the failure that it is a consequence of


@dataclass(frozen=True, slots=True)
class LogExplanation:
    """What was recognised in one log, the likeliest cause first."""

    name: str  # the file's name, or `standard input`
    lines_read: int
    bytes_left_out: int  # of the middle of a log that is too long
    sightings: tuple[Sighting, ...]
