"""Cases of the check of an all-reduce."""

from typing import Any

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import CollectiveResult, Incident, IncidentKind
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import Measures
from tests.scenarios.rank_cases import DIED, rank_cases
from tests.scenarios.situations import Case, Situation, now
from tests.unit.collectives.measurements import make_corruption, make_incident, make_measurement, make_result

CHECK = "collective.all_reduce"


def measured(*results: CollectiveResult, **values: Any) -> Situation:
    """An all-reduce with these results, where it did not go as planned."""
    return now(measured=lambda snapshot: Measures(collective=make_measurement(*results, **values)))


def with_incidents(incidents: tuple[Incident, ...], complete: bool) -> Situation:
    return measured(incidents=incidents, sizes_planned=2 if complete else 3)


BARRIER = make_result(0, op="barrier", verified=Missing(MissingReason.NOT_SUPPORTED))

OPEN_BARRIER = make_result(0, op="barrier", elements=0, verified=False)
LEFT_EARLY = make_incident(
    IncidentKind.PASSED,
    1,
    evidence=(Evidence("before_rank", 3), Evidence("iteration", 7), Evidence("early_by", 0.004, unit="s")),
)

COLLECTIVE_CASES = (
    *rank_cases(CHECK, with_incidents),
    Case(CHECK, "collective.corrupted", measured(incidents=(make_corruption(),)), measured(BARRIER)),
    Case(
        CHECK,
        "collective.wrong_reduction",
        measured(incidents=(make_corruption(diagnosis="summed"),)),
        measured(BARRIER),
    ),
    Case(
        CHECK,
        "collective.barrier_passed",
        measured(OPEN_BARRIER, incidents=(LEFT_EARLY,)),
        measured(BARRIER),
    ),
    Case(
        CHECK,
        "collective.incomplete",
        measured(sizes_planned=3),
        measured(sizes_planned=3, incidents=(DIED,)),
    ),
    Case(
        CHECK,
        "collective.timed_out",
        measured(results=(), sizes_planned=3, timed_out=True),
        measured(timed_out=True),
    ),
)
