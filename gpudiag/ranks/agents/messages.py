"""The messages between the processes of one launch: one type per kind; each is sent as a line of JSON."""

from dataclasses import dataclass
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.linux.namespaces import Machine
from gpudiag.model import codec
from gpudiag.model.published import HostAddresses
from gpudiag.ranks.agents.tcp_counters import PeerSegments
from gpudiag.ranks.diagnosis.dump import RankDump
from gpudiag.ranks.diagnosis.paths import Contact
from gpudiag.ranks.diagnosis.start_error import StartFailure
from gpudiag.ranks.diagnosis.survey import Target, Try
from gpudiag.ranks.diagnosis.view import RankView
from gpudiag.ranks.rank_run import RankEvent, RankRun


@dataclass(frozen=True, slots=True)
class AgentLocation:
    """Where the agent of a rank runs, and where it can be reached from other machines."""

    pid: int
    machine: Machine
    address: tuple[str, int] | None = None
    paths_address: tuple[str, int] | None = None  # where it answers those who look whether it is reachable


@dataclass(frozen=True, slots=True)
class RunKey:
    """Both ways, before anything else: the run that this process belongs to."""

    key: str


@dataclass(frozen=True, slots=True)
class Hello:
    """From a follower: its own rank, and the ports at which it listens for other machines."""

    rank: int
    location: AgentLocation
    port: int | None
    paths_port: int | None
    host: str
    world_size: int


@dataclass(frozen=True, slots=True)
class Card:
    """Who an agent is and where it looks for rank 0: what it announces beside the rendezvous."""

    key: str  # of its run; empty where it does not know it
    entry: str  # what is run; empty where nothing is yet
    job: str  # what its launcher calls the job; empty where it gives no name
    user: int
    rank: int
    world_size: int
    host: str
    place: str  # where it looks for rank 0, as it was given: HOST:PORT
    addresses: tuple[str, ...] = ()  # those of HOST, as its own machine looks them up
    machine: tuple[str, ...] = ()  # the addresses of its own machine, without loopback
    port: int | None = None  # where it listens for agents of other machines
    leads: bool = False
    obstacle: str = ""  # what is in the way to rank 0
    found: str = ""  # the same in words
    trouble: str = ""  # why it cannot start its rank
    hint: str = ""  # what to do about that
    ended: int | None = (
        None  # from a leader that has reported it: the exit status of all, whom no link reaches
    )
    relayed: bool = False  # the leader's card, from one of its followers: nobody finds it at that address


@dataclass(frozen=True, slots=True)
class Stray:
    """To the leader of others of the job, from an agent that does not find rank 0: itself, what it found."""

    card: Card


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """From a leader that misses ranks: relay what agents of this run announce, and answer with its card."""

    card: Card


@dataclass(frozen=True, slots=True)
class RelayedCard:
    """From a follower: what an agent announces that reaches this one, and perhaps not the leader."""

    card: Card
    address: str


@dataclass(frozen=True, slots=True)
class WayLook:
    """From a follower: whether it still looks for another server before rank 0's; `card`: what it found."""

    looking: bool
    card: Card | None = None


@dataclass(frozen=True, slots=True)
class RefusedRank:
    """To a follower: it cannot take part, and why; without `why`, another process has its rank."""

    rank: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class RankState:
    """From a follower: its rank's state, and its new events, by the CLOCK_MONOTONIC of its machine."""

    view: RankView
    events: tuple[RankEvent, ...]


@dataclass(frozen=True, slots=True)
class RankSettings:
    """From a follower, once its rank's modules are imported: what all ranks need alike."""

    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class SentSegments:
    """From a follower, twice a second: what its rank has sent so far, by address."""

    peers: tuple[PeerSegments, ...]


@dataclass(frozen=True, slots=True)
class FailedLaunch:
    """From a follower: its rank could not be started."""

    failure: StartFailure
    stderr: str
    host: str


@dataclass(frozen=True, slots=True)
class AllStates:
    """To a follower: what the leader knows, so that any follower can lead after it."""

    views: tuple[RankView, ...]
    agents: tuple[tuple[int, AgentLocation], ...]


@dataclass(frozen=True, slots=True)
class NextLeaders:
    """To a follower that gets all states only in turn: where the agents are that would lead next."""

    agents: tuple[tuple[int, AgentLocation], ...]


@dataclass(frozen=True, slots=True)
class ClockQuestion:
    """To a follower: what time is it by your clock?"""

    asked_at: float


@dataclass(frozen=True, slots=True)
class ClockAnswer:
    """From a follower: when it was asked, by the leader's clock, and when it answered, by its own."""

    asked_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """To a follower: ask the rank where it hangs."""


@dataclass(frozen=True, slots=True)
class Dumps:
    """From a follower: where the rank reports that it hangs."""

    dumps: tuple[RankDump, ...]


@dataclass(frozen=True, slots=True)
class EndRequest:
    """To a follower: the run is judged; kill the rank."""


@dataclass(frozen=True, slots=True)
class Ended:
    """From a follower: the rank is killed, except for these processes, which could not be."""

    unkillable: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Both ways: this process was asked to give up."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """To a follower: the run that all agents report."""

    run: RankRun


@dataclass(frozen=True, slots=True)
class FailedRun:
    """To a follower: the run has failed; the leader ends with this exit status, and reports why."""

    exit_status: int


@dataclass(frozen=True, slots=True)
class VerdictReceived:
    """From a follower: it has the leader's last word, and the leader may leave."""


@dataclass(frozen=True, slots=True)
class MachineCaller:
    """To rank 0, where each machine is looked at: from another machine, or from who awaits the verdict."""

    key: str


@dataclass(frozen=True, slots=True)
class MachineReport:
    """To rank 0: the report of a machine, and how many ranks that machine has."""

    rank: int
    ranks: int
    status: int
    node: str  # the machine's name, as the launcher has it
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PathTarget:
    """The agent of a rank, and where it answers."""

    rank: int
    address: tuple[str, int]


@dataclass(frozen=True, slots=True)
class PathRequest:
    """To any agent: connect to each of these, and report what you find."""

    targets: tuple[PathTarget, ...]


@dataclass(frozen=True, slots=True)
class PathFound:
    """What an agent found when it connected to that rank's."""

    rank: int
    contact: Contact
    passed_bytes: int | None = None  # of the largest packet that came through, where large ones are lost


@dataclass(frozen=True, slots=True)
class PathProbe:
    """Both ways: a message of exactly the size that is tried."""

    fill: str


@dataclass(frozen=True, slots=True)
class PathRow:
    """The reply to a PathRequest."""

    found: tuple[PathFound, ...]


@dataclass(frozen=True, slots=True)
class OwnAddresses:
    """From a follower, once: what its host has, and what its ranks publish."""

    addresses: HostAddresses


@dataclass(frozen=True, slots=True)
class SurveyRequest:
    """To a follower: try these ports, and report what you find.

    First listen on those of your own for a while.
    """

    number: int
    targets: tuple[Target, ...]
    listen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SurveyRow:
    """The reply to the SurveyRequest of that number."""

    number: int
    tries: tuple[Try, ...]


@dataclass(frozen=True, slots=True)
class SharedStatus:
    """From rank 0: the exit status of all processes."""

    status: int


Message = (
    RunKey
    | Hello
    | Card
    | Stray
    | WayLook
    | RelayRequest
    | RelayedCard
    | RefusedRank
    | RankState
    | RankSettings
    | FailedLaunch
    | AllStates
    | NextLeaders
    | ClockQuestion
    | ClockAnswer
    | DumpRequest
    | Dumps
    | EndRequest
    | Ended
    | Interrupted
    | FinishedRun
    | FailedRun
    | VerdictReceived
    | MachineCaller
    | MachineReport
    | SharedStatus
    | PathRequest
    | PathRow
    | PathProbe
    | SentSegments
    | OwnAddresses
    | SurveyRequest
    | SurveyRow
)
_TYPES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__args__}


def encode_message(message: Message) -> dict[str, Any]:
    """The message as a JSON object; `kind` names its type."""
    return {"kind": type(message).__name__, **codec.encode(message)}


def decode_message(data: Any) -> Message:
    """The message in a JSON object of another process. Raises ValueError: the sender is not gpudiag."""
    kind = _TYPES.get(str(data.get("kind"))) if isinstance(data, dict) else None
    if kind is None:
        raise ValueError("not a gpudiag message")
    try:
        message: Message = codec.decode(kind, data)
    except UsageError as error:
        raise ValueError(f"not a valid gpudiag {kind.__name__} message") from error
    return message
