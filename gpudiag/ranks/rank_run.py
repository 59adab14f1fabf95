"""What ranks report, and the result of running them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpudiag.compat import StrEnum
from gpudiag.model.codec import noun
from gpudiag.model.measure import LatenessSeries, RanksOfRun
from gpudiag.model.reading import NOT_ASKED, Reading


class EventKind(StrEnum):
    """What an event of a rank is: one line of its event file."""

    EMITTED = "emitted"  # by the entry, through Progress.emit
    RESULT = "result"  # what the entry returned
    ARRIVALS = "arrivals"  # when the rank arrived at each timed collective
    RAISED = "raised"  # the exception that ended the entry
    FAULT = "fault"  # an injected fault that is about to happen


@dataclass(frozen=True, slots=True)
class RankEvent:
    """One event of a rank, `at_seconds` after the run started (CLOCK_MONOTONIC until logged)."""

    rank: int
    at_seconds: float
    data: dict[str, Any]
    kind: EventKind = EventKind.EMITTED


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank's entry returned."""

    rank: int
    payload: dict[str, Any]


@noun
class RankRun(RanksOfRun):
    """One run of an entry on its ranks: what they returned, and what happened to them.

    `incidents`: the cause first, then late ranks; with late ranks alone, all ended with status 0. `returned`:
    each rank that returned a result. `reporter`: whether this process reports to the user, as one of a launch
    does.
    """

    returned: tuple[RankResult, ...] = ()
    events: tuple[RankEvent, ...] = ()
    timed_out: bool = False  # the budget for the whole run ran out, and no rank was to blame
    given_up: bool = False  # the caller's `is_over` returned True
    reporter: bool = True
    lateness: Reading[LatenessSeries] = NOT_ASKED
    goes_on: bool = False  # the leader's `goes_on` decided so: all agents run something more

    @property
    def results(self) -> Mapping[int, Mapping[str, Any]]:
        """The payload of each rank that returned one."""
        return {result.rank: result.payload for result in self.returned}
