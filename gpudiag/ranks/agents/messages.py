"""The messages between the processes of one launch: a type for each kind of message, a line of JSON for each message."""

from dataclasses import dataclass
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model import codec
from gpudiag.ranks.diagnosis.dump import RankDump
from gpudiag.ranks.diagnosis.start_error import StartFailure
from gpudiag.ranks.diagnosis.view import RankView
from gpudiag.ranks.process import Machine
from gpudiag.ranks.run import RunMessage


@dataclass(frozen=True, slots=True)
class AgentLocation:
    """Where the agent of a rank runs, and where it can be reached from other machines."""

    pid: int
    machine: Machine
    address: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class RunKey:
    """Both ways, before anything else: the run that this process belongs to."""

    key: str


@dataclass(frozen=True, slots=True)
class Hello:
    """From a follower: the rank that is its own, and the port at which it listens for other machines."""

    rank: int
    location: AgentLocation
    port: int | None
    world_size: int


@dataclass(frozen=True, slots=True)
class RefusedRank:
    """To a follower: another process has its rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class RankState:
    """From a follower: what its rank does, and the lines that the rank has added to its event file."""

    view: RankView
    events: tuple[dict[str, Any], ...]


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
class ClockQuestion:
    """To a follower: what does your clock say?"""

    asked_at: float


@dataclass(frozen=True, slots=True)
class ClockAnswer:
    """From a follower: when it was asked, by the leader's clock, and what its own clock said."""

    asked_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """To a follower: ask the rank where it hangs."""


@dataclass(frozen=True, slots=True)
class Dumps:
    """From a follower: what the rank told of where it hangs."""

    dumps: tuple[RankDump, ...]


@dataclass(frozen=True, slots=True)
class EndRequest:
    """To a follower: the run is judged; kill the rank."""


@dataclass(frozen=True, slots=True)
class Ended:
    """From a follower: the rank is killed, but for these processes, which the kernel keeps."""

    unkillable: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Both ways: this process was told to give up."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """To a follower: the run that all agents report."""

    run: RunMessage


@dataclass(frozen=True, slots=True)
class FailedRun:
    """To a follower: nothing comes of the run; the leader ends with this exit status, and says why."""

    exit_status: int


@dataclass(frozen=True, slots=True)
class MachineCaller:
    """To rank 0, where each machine is looked at: a process of another machine, or one that waits for the verdict."""

    key: str


@dataclass(frozen=True, slots=True)
class MachineReport:
    """To rank 0: the report of a machine, and how many ranks that machine has."""

    rank: int
    ranks: int
    status: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SharedStatus:
    """From rank 0: the exit status of all processes."""

    status: int


Message = (
    RunKey
    | Hello
    | RefusedRank
    | RankState
    | FailedLaunch
    | AllStates
    | ClockQuestion
    | ClockAnswer
    | DumpRequest
    | Dumps
    | EndRequest
    | Ended
    | Interrupted
    | FinishedRun
    | FailedRun
    | MachineCaller
    | MachineReport
    | SharedStatus
)
_TYPES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__args__}


def encode_message(message: Message) -> dict[str, Any]:
    """The message as a JSON object; `kind` names its type."""
    return {"kind": type(message).__name__, **codec.encode(message)}


def decode_message(data: Any) -> Message:
    """The message in a JSON object of another process.

    Raises:
        ValueError: it is none: whoever sent it is not one of ours.
    """
    kind = _TYPES.get(str(data.get("kind"))) if isinstance(data, dict) else None
    if kind is None:
        raise ValueError("no message of a process of gpudiag")
    try:
        message: Message = codec.decode(kind, data)
    except UsageError as error:
        raise ValueError(f"no {kind.__name__} of a process of gpudiag") from error
    return message
