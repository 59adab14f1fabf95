"""What was measured on ranks, with the method; and what happened to a rank or a link. No verdicts."""

from typing import Any

from gpudiag.compat import StrEnum
from gpudiag.model.codec import noun
from gpudiag.model.evidence import Evidence, Scalar, Subject
from gpudiag.model.reading import NOT_ASKED, Reading

# --- what pairs of nodes exchanged


class ExchangePhase(StrEnum):
    """Why two nodes exchanged data."""

    SCREEN = "screen"  # random disjoint pairs
    LOAD = "load"  # every node with two others at once
    FULL = "full"  # equally many nodes of each leaf at once, each with one of another leaf
    CONFIRM = "confirm"  # a suspect with a node that is known to be good, or a suspected pair again


class Symptom(StrEnum):
    """What is wrong with an exchange."""

    FAILED = "failed"  # it did not end in time, or broke off
    SLOW = "slow"
    LOSSY = "lossy"  # fast as a rule, and now and then it takes as long as a retransmission


@noun
class Node:
    """What is held to be good or bad as a whole: a host with its ranks, or one rank that acts as a node.

    By its labels: `switches` from the outermost to the leaf, each with its kind (`leaf s12`, `rack r3`); the
    NVLink domain that it shares with other nodes; and the names of its rails, one for each rank.
    """

    host: str
    ranks: tuple[int, ...]
    switches: Reading[tuple[str, ...]] = NOT_ASKED
    nvlink_domain: Reading[str] = NOT_ASKED
    rails: Reading[tuple[str, ...]] = NOT_ASKED


@noun
class Exchange:
    """What two ranks of different nodes exchanged in one round, each sending as much as it received.

    `nodes` are places in `Localisation.nodes`; `rail` is the place of both ranks in their nodes. The speed is
    that of the fastest large exchange, in each direction; typical and tail are the median and the slowest of
    small ones.
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


class FabricPart(StrEnum):
    """What part of a fabric that labels describe stands out."""

    UPLINKS = "uplinks"  # all ways out of a switch
    UPLINK = "uplink"  # one of several ways out of a switch: a part of what leaves it
    SWITCH = "switch"  # what stays inside a leaf
    PATH = "path"  # between two switches
    REACH = "reach"  # of one node, all that leaves its leaf; what stays inside it is good
    DOMAIN = "domain"  # NVLink between the nodes of a domain
    NVLINK = "nvlink"  # NVLink of one node to the others of its domain
    NETWORK = "network"  # the network of one node whose NVLink is good
    ALONE = "alone"  # a node that no other of its leaf could clear, or the uplink that leads to it


@noun
class Suspect:
    """What stands out, and was confirmed: a node, a rail of one, or the link between two.

    `nodes` has one place in `Localisation.nodes`, or two for a link. `rail` is None for a node as a whole,
    and `nodes` is empty for all nodes, or a rail of all of them. `value` is the best that it reached where
    the usual is `usual`: bytes per second for SLOW, seconds of the tail for LOSSY; both are None for FAILED,
    where `words` has the error's text. Of the uplinks of a switch under load both are sums over `exchanges`
    at once.
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
    part: FabricPart | None = None  # with labels, where it is not a node, a rail or a link as such
    switches: tuple[str, ...] = ()  # the switch or the NVLink domain; two for a path
    measured: int = 0  # with labels, the exchanges that passed it, of which `exchanges` had the symptom
    rail_name: str = ""  # of `rail`, where labels name it


@noun
class Localisation:
    """Which nodes and links stand out among those of one run.

    `usual_bytes_per_second` is the median of the good exchanges, `usual_tail_seconds` that of the nodes'
    shortest tails. `exchanges` has those of the suspects; all of them where there are few. `links` is how
    many of all pairs were measured.
    """

    nodes: tuple[Node, ...]
    rounds: int
    seconds: float
    links: int
    usual_bytes_per_second: Reading[float]
    usual_tail_seconds: Reading[float]
    suspects: tuple[Suspect, ...]
    exchanges: tuple[Exchange, ...]
    labels: Reading[str] = NOT_ASKED  # where they came from


# --- what ranks measured


@noun
class HostCounters:
    """Counters of one host at one moment; all only ever rise until the next boot.

    `steal_seconds` is processor time that the hypervisor gave to others, over all processors;
    `throttled_seconds` what the control group's quota took from its processes.
    """

    tcp_retransmits: Reading[int]  # segments sent again, all interfaces
    tcp_timeouts: Reading[int]  # retransmission timers that ran out
    interface_errors: Reading[int]  # receive and transmit, over all interfaces
    interface_drops: Reading[int]
    steal_seconds: Reading[float]
    throttled_seconds: Reading[float]
    oom_kills: Reading[int]


@noun
class Movement:
    """One counter that rose, of which device or host, by how much, and where it was read."""

    subject: Subject
    name: str
    before: float
    after: float
    unit: str
    source: str

    @property
    def rise(self) -> float:
        """By how much the counter rose."""
        return self.after - self.before


@noun
class CollectiveResult:
    """One operation at one size: times over ranks, bandwidths as nccl-tests defines them.

    `size_bytes` is S of nccl-tests. The time of an iteration is the maximum over ranks; p50 and
    p99 are over iterations; `time_average_seconds` is the mean over ranks and iterations (what
    nccl-tests prints by default). algbw = S / p50; busbw = algbw x 2(n-1)/n for all_reduce, and
    missing for one rank, where no bus is used.
    """

    op: str
    reduce: Reading[str]
    dtype: str
    size_bytes: int
    elements: int
    iterations: int
    time_p50_seconds: float
    time_p99_seconds: float
    time_average_seconds: float
    algbw_bytes_per_second: Reading[float]  # missing for a barrier, which moves no data
    busbw_bytes_per_second: Reading[float]
    verified: Reading[bool]  # False when wrong_elements > 0; NOT_ASKED with --verify off
    verified_iterations: int
    wrong_elements: Reading[int]
    in_place: bool = True  # the result lies where the rank's own data lay
    unaligned: bool = False  # buffers start one element after an aligned address
    time_variation: Reading[float] = NOT_ASKED  # standard deviation over mean, of the slowest rank's times
    algorithm: Reading[str] = NOT_ASKED  # NCCL's, where it is known: ring, NVLS ...
    isolated_p50_seconds: Reading[float] = NOT_ASKED  # one operation after a barrier, launch included (GPUs)
    verify_share: Reading[float] = NOT_ASKED  # of the ranks' time, for filling and comparing the buffers


@noun
class RankReport:
    """What one rank did: the last stage it reached, and how its process ended.

    `exit` is a status, or minus the signal's number as in a wait status; missing while unknown.
    """

    rank: int
    local_rank: int
    host: str
    pid: Reading[int]
    stage: str
    exit: Reading[int]
    sequence: Reading[int] = NOT_ASKED  # collectives it had entered
    # Asked for when ranks hang: the main thread, innermost first, as `file:line in function`; and
    # the last collectives as torch recorded them.
    stack: Reading[tuple[str, ...]] = NOT_ASKED
    flight_recorder: Reading[tuple[str, ...]] = NOT_ASKED
    device_uuid: Reading[str] = NOT_ASKED


class IncidentKind(StrEnum):
    """What can happen to a rank or a link."""

    DIED = "died"
    STOPPED = "stopped"
    SILENT = "silent"
    LATE = "late"
    MISMATCHED = "mismatched"
    CORRUPTED = "corrupted"
    NOT_STARTED = "not_started"
    UNREACHED = "unreached"  # its machine does not reach rank 0's
    SPLIT = (
        "split"  # it looks for rank 0 at another address or port than the others, or is one of another number
    )
    CUT_OFF = "cut_off"  # no other host reaches its host
    PARTED = "parted"  # its host and another one do not reach each other
    NARROWED = "narrowed"  # large packets between its host and others are lost, and small ones are not
    # the network carried nothing to its host, or between it and another one, and then it did again
    OUTAGE = "outage"
    LOSSY = "lossy"  # what its host sends to another one is lost now and then, and sent again
    MISNAMED = "misnamed"  # the address that its host gives to the others is none that these could connect to
    FILTERED = "filtered"  # ports of its host are closed to the others, or those of the others to it
    CONFLICTING = "conflicting"  # its host has another one's address, or sends by a wrong interface to it
    START_FAILED = "start_failed"  # the process that starts ranks could not
    RAISED = "raised"
    STALLED = "stalled"  # everyone is inside the same operation and nothing moves
    PASSED = "passed"  # it left a barrier before another rank had entered it
    ENDED = "ended"  # without an error, but before the others, which still needed it
    THROTTLED = "throttled"  # its control group's processor quota holds it back
    SKEWED = "skewed"  # its versions or its variables of collectives are not those of the others
    PAUSED = "paused"  # it was stopped or silent for a while, and then went on
    INTERRUPTED = "interrupted"  # nothing moved between ranks for a while, and then it did


@noun
class Incident:
    """What happened to one rank: when, at which stage, and how it is known. No verdict."""

    kind: IncidentKind
    rank: int
    host: str
    stage: str
    at_seconds: float  # since the run started
    evidence: tuple[Evidence, ...]

    @property
    def facts(self) -> dict[str, Scalar]:
        """The values of the evidence, by name."""
        return {fact.name: fact.value for fact in self.evidence}


@noun
class InjectedFault:
    """A fault that `--inject` asked for, whether it really happened, and when: seconds since the start."""

    specification: str
    fired: bool
    at_seconds: Reading[float] = NOT_ASKED


@noun
class RankLateness:
    """How late one rank came to the timed collectives: the mean of each span; None where it came to none."""

    rank: int
    late_seconds: tuple[float | None, ...]


@noun
class LatenessSeries:
    """Which rank was slow when, over the timed iterations of a run, in spans of equal length.

    A rank is late by how much later than the median rank it came to a collective, all by one clock. One whose
    median is above `limit_seconds` is a straggler.
    """

    from_seconds: float  # of the first arrival, since the run started
    span_seconds: float
    iterations: int
    limit_seconds: float
    ranks: tuple[RankLateness, ...]


@noun
class RanksOfRun:
    """The ranks of one run, and what became of them; `host` is that of the process that reports."""

    world_size: int
    launcher: str
    host: str
    ranks: tuple[RankReport, ...]
    incidents: tuple[Incident, ...]
    injected: tuple[InjectedFault, ...]
    seconds: float

    def of_ranks(self) -> dict[str, Any]:
        """These fields alone, by name: for what was measured on the same ranks."""
        return {name: getattr(self, name) for name in RanksOfRun.__match_args__}


@noun
class CollectiveMeasurement(RanksOfRun):
    """One nccl-test run: its ranks, what they measured, and what happened to them."""

    backend: str
    torch_version: Reading[str]
    nccl_version: Reading[str]
    device_kind: str  # cpu or cuda
    results: tuple[CollectiveResult, ...]
    sizes_planned: int  # results that a whole run would have
    verify_share: Reading[float] = (
        NOT_ASKED  # of the time for timing, filling and comparing, all ranks together
    )
    moved: Reading[tuple[Movement, ...]] = NOT_ASKED  # counters of the reporting host and its GPUs
    ranks_share_gpu: bool = False  # several ranks on one GPU: functional, not a speed
    timed_out: bool = False  # the time for the whole run (`--timeout`) ran out
    localisation: Reading[Localisation] = NOT_ASKED
    sizes_left_out: int = 0  # of those that were wanted: an operation between hosts took so long
    nccl_built_version: Reading[str] = NOT_ASKED  # what torch was built with; nccl_version is the loaded one
    buffers: Reading[str] = NOT_ASKED  # registered or symmetric, where that was asked for
    graph: Reading[bool] = NOT_ASKED  # operations were replayed from CUDA graphs
    lateness: Reading[LatenessSeries] = NOT_ASKED
