"""Ranks that come late to the start: nobody is blamed while one of them may still come."""

from itertools import permutations

import pytest

from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.start_clock import StartClock
from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.diagnosis.watchdog import find_incidents
from gpudiag.ranks.stages import INIT, RENDEZVOUS, USUAL, Budgets
from tests.unit.ranks.views import position, view

LIMIT_SECONDS = 120.0
BUDGETS = Budgets(stage_seconds={RENDEZVOUS: LIMIT_SECONDS, INIT: LIMIT_SECONDS, "import": LIMIT_SECONDS})


def in_stage(rank: int, stage: str, still_seconds: float, **options: object) -> RankView:
    """A rank that is alone in that stage of the start, asleep, for so long."""
    count = {"import": 1, RENDEZVOUS: 2, INIT: 3}[stage]
    where = position(stage, count, sequence=None)
    return view(rank, position=where, still_seconds=still_seconds, process_state="S", **options)


def absent(rank: int, *, came: bool = False) -> RankView:
    return view(rank, Life.NOT_STARTED, position=None, pid=None, agent_came=came)


class Start:
    """The start of four ranks, as their leading agent sees it look by look."""

    def __init__(self) -> None:
        self.clock = StartClock(LIMIT_SECONDS)
        self.blamed: list[tuple[float, Incident]] = []

    def look(self, now: float, views: list[RankView]) -> None:
        seen = self.clock.add(views, now)
        found = find_incidents(seen, BUDGETS, now, self.clock.over_after(0.0))  # a suspicion is a warning
        found += find_incidents(seen, BUDGETS, now, self.clock.over_after(0.0), USUAL)
        self.blamed += [(now, one) for one in found]


@pytest.mark.parametrize("first", range(4))
def test_ranks_that_come_late_in_any_order_blame_nobody(first: int) -> None:
    """One comes at once, the others 9, 30 and 100 s later.

    Each imports for 20 s, and connects 15 s after rank 0 serves.
    """
    for order in permutations(rank for rank in range(4) if rank != first):
        comes = {first: 0.0} | dict(zip(order, (9.0, 30.0, 100.0), strict=True))
        start = Start()
        serves = comes[0] + 20.0
        for now in map(float, range(160)):
            views = []
            for rank, at in comes.items():
                connects = max(at + 20.0, serves + 15.0)
                if now < at + 20.0:
                    views.append(absent(rank, came=now >= at))
                elif rank == 0:
                    views.append(in_stage(0, RENDEZVOUS, now - serves))
                elif now < connects:
                    views.append(in_stage(rank, RENDEZVOUS, now - at - 20.0, connecting=True))
                else:
                    views.append(in_stage(rank, INIT, now - connects))
            if now >= max(serves + 15.0, *(at + 20.0 for at in comes.values())):
                break  # all have met
            start.look(now, sorted(views, key=lambda view: view.rank))
        assert start.blamed == []


def test_the_wait_for_the_next_rank_starts_when_the_last_one_came() -> None:
    start = Start()
    for now in map(float, range(200)):
        start.look(now, [in_stage(0, RENDEZVOUS, now), absent(1, came=now >= 75), absent(2)])
    at, first = start.blamed[0]
    assert (at, first.kind, first.rank) == (75 + LIMIT_SECONDS, IncidentKind.NOT_STARTED, 2)


def test_an_agent_that_leads_because_nobody_lower_came_waits_no_longer() -> None:
    clock = StartClock(LIMIT_SECONDS)
    clock.add([absent(0), in_stage(1, RENDEZVOUS, 125.0)], 125.0)
    assert clock.over_after(121.0) == 121.0


def test_a_rank_that_has_reached_the_store_and_goes_no_further_is_blamed_at_once_and_rank_0_is_not() -> None:
    connected = [in_stage(0, INIT, 9.0), in_stage(1, INIT, 9.0), in_stage(2, RENDEZVOUS, 9.0)]
    imports = [in_stage(0, RENDEZVOUS, 9.0), in_stage(1, INIT, 9.0), in_stage(2, "import", 9.0)]
    for views in (connected, imports):
        found = find_incidents(views, BUDGETS, 20.0, 120.0)
        assert [(one.kind, one.rank) for one in found] == [(IncidentKind.SILENT, 2)]


def test_a_rank_that_never_connects_is_blamed_at_the_limit_of_the_rendezvous_and_rank_0_is_not() -> None:
    def found(seconds: float) -> list[int]:
        views = [
            in_stage(0, RENDEZVOUS, seconds),
            in_stage(1, INIT, seconds),
            in_stage(2, RENDEZVOUS, seconds, connecting=True),
        ]
        return [one.rank for one in find_incidents(views, BUDGETS, 300.0, 120.0)]

    assert found(LIMIT_SECONDS) == []
    assert found(LIMIT_SECONDS + 1.0) == [2]
