"""The answers of `gpudiag explain`: about one topic, or about what it recognised in logs."""

from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.codec import noun
from gpudiag.model.finding import Owner
from gpudiag.model.nccl_log import NcclLog

MAX_LINE_NUMBERS = 20  # of one failure; `count` is the total


class Role(StrEnum):
    """What a failure in a log is to the others there; the worst comes first."""

    HARDWARE = "hardware"  # the machine is at fault
    CAUSE = "cause"
    SYMPTOM = "symptom"  # what a fault elsewhere looks like from here


@noun
class Example:
    """A script that shows what an explanation speaks of: `wrong`, `right`."""

    title: str
    code: str


@noun
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
    examples: tuple[Example, ...] = ()


@noun
class Sighting:
    """One failure recognised in logs: where, how often, and whether another one there explains it."""

    explanation: Explanation
    role: Role
    lines: tuple[int, ...]  # numbers from 1 in `log`, the first `MAX_LINE_NUMBERS`
    count: int  # of lines, in all logs
    excerpt: str  # the first of these lines
    follows: str | None = None  # the topic of the failure that it is a consequence of
    log: str = ""  # the log that shows it first
    other_logs: tuple[str, ...] = ()  # that show it too
    program: str = ""  # who writes such a line
    owner: Owner | None = None  # who must act
    where: str = ""  # the user's own line that was running, where a traceback has it
    went_on: bool = False  # the run went on after it


@noun
class UnknownError:
    """An error that no known failure explains: the words of the log, and the user's own line."""

    text: str  # the exception, or the last line with an error
    log: str
    line: int
    count: int  # of equal ones, in all logs
    where: str = ""  # `train.py:42 in main: loss.backward()`
    rank: str = ""  # the stream that printed it, where its prefix names it
    meaning: str = ""  # the general meaning of an error of this kind


@noun
class LogRead:
    """One log that was given: how much of it was read, or why not."""

    name: str  # the file's name, `standard input` or `text`
    lines_read: int
    bytes_left_out: int = 0  # of a log that is too long
    refused: str | None = None  # why it was not read


class VerdictKind(StrEnum):
    """What became of a job, by its logs."""

    RANK_FAILED = "rank_failed"  # one rank, or few, failed first
    ALL_FAILED = "all_ranks_failed"  # all of them alike: the script, its data or its environment
    MACHINE_FAILED = "machine_failed"  # hardware, or the kernel of a host
    LINK_FAILED = "link_failed"  # the network between two hosts
    RANK_MISSING = "rank_missing"  # the others waited for it: it hung, left, or never came
    RANKS_DIFFER = "ranks_differ"  # they called different collectives
    STOPPED = "stopped_from_outside"  # a scheduler, a limit or a person ended the job
    ONLY_ECHOES = "only_echoes"  # it failed, and what failed first is not in these logs
    NOTHING = "nothing_wrong"


@noun
class Echo:
    """Lines of one sort that only follow from what failed first."""

    what: str
    count: int  # of lines
    ranks: tuple[int, ...]  # that printed them, where it is known
    hosts: tuple[str, ...]
    log: str  # of the first one
    line: int


@noun
class Verdict:
    """Who failed first, and by which line; what is not known is empty."""

    kind: VerdictKind
    sentence: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    pod: str = ""
    topic: str = ""  # of the known failure
    log: str = ""
    line: int = 0
    excerpt: str = ""  # of that line
    where: str = ""  # the user's own line
    at: str = ""  # by the log's own clock
    cause: str = ""
    remedy: str = ""
    evidence: tuple[str, ...] = ()  # what else shows it
    driver_errors: tuple[str, ...] = ()  # Xids of these hosts at that time
    echoes: tuple[Echo, ...] = ()  # the most frequent first


@noun
class LogExplanation:
    """`gpudiag.log_explanation/1`: who failed first, and what the logs show, the likeliest cause first."""

    SCHEMA: ClassVar[str] = "gpudiag.log_explanation/1"

    logs: tuple[LogRead, ...]
    sightings: tuple[Sighting, ...]
    unknown: tuple[UnknownError, ...]  # the earliest first
    verdict: Verdict | None = None  # None: there was not a line to judge by
    nccl: NcclLog | None = None  # what NCCL's own lines show, where there are any
