"""The result of running ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpudiag.model.measure import Incident, InjectedFault, RankReport


@dataclass(frozen=True, slots=True)
class RankEvent:
    """One event that a rank's entry emitted, `at_seconds` after the run started."""

    rank: int
    at_seconds: float
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RankRun:
    """One run of an entry on its ranks: what they returned, and what happened to them.

    `incidents` has the cause first, then ranks that were late; if it has only late ranks, every rank
    returned a result and ended with status 0. `results` has the payload of each rank that returned one,
    even if another rank failed. `reporter` says whether this process reports to the user: under a
    launcher every process gets the same run, and exactly one has it True.
    """

    world_size: int
    launcher: str
    host: str
    reports: tuple[RankReport, ...]
    incidents: tuple[Incident, ...]
    results: Mapping[int, Mapping[str, Any]]
    events: tuple[RankEvent, ...]
    injected: tuple[InjectedFault, ...]
    seconds: float
    timed_out: bool = False  # the budget for the whole run ran out, and no rank was to blame
    given_up: bool = False  # the caller's `is_over` returned True
    reporter: bool = True
    goes_on: bool = False  # the leader's `goes_on` said so: all agents run something more


@dataclass(frozen=True, slots=True)
class _RankResult:
    """What one rank's entry returned, as agents send it."""

    rank: int
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunMessage:
    """A run as agents send it: `RankRun` in types that JSON has."""

    world_size: int
    launcher: str
    host: str
    reports: tuple[RankReport, ...]
    incidents: tuple[Incident, ...]
    results: tuple[_RankResult, ...]
    events: tuple[RankEvent, ...]
    injected: tuple[InjectedFault, ...]
    seconds: float
    timed_out: bool
    given_up: bool
    goes_on: bool


def message_of_run(run: RankRun) -> RunMessage:
    """The message that tells the other agents of the run."""
    return RunMessage(
        world_size=run.world_size,
        launcher=run.launcher,
        host=run.host,
        reports=run.reports,
        incidents=run.incidents,
        results=tuple(_RankResult(rank, dict(payload)) for rank, payload in run.results.items()),
        events=run.events,
        injected=run.injected,
        seconds=run.seconds,
        timed_out=run.timed_out,
        given_up=run.given_up,
        goes_on=run.goes_on,
    )


def run_of_message(message: RunMessage) -> RankRun:
    """The run that another agent led; this process is not its reporter."""
    return RankRun(
        world_size=message.world_size,
        launcher=message.launcher,
        host=message.host,
        reports=message.reports,
        incidents=message.incidents,
        results={result.rank: result.payload for result in message.results},
        events=message.events,
        injected=message.injected,
        seconds=message.seconds,
        timed_out=message.timed_out,
        given_up=message.given_up,
        goes_on=message.goes_on,
        reporter=False,
    )
