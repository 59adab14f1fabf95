"""Cases of the check of an all-reduce."""

from dataclasses import replace
from typing import Any

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import CollectiveResult, Incident, IncidentKind
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import Measures
from tests.scenarios.rank_cases import DIED, rank_cases
from tests.scenarios.situations import Case, Situation, case, now
from tests.unit.collectives.measurements import make_corruption, make_incident, make_measurement, make_result

BARRIER = make_result(0, op="barrier", verified=Missing(MissingReason.NOT_SUPPORTED))

OPEN_BARRIER = make_result(0, op="barrier", elements=0, verified=False)
LEFT_EARLY = make_incident(
    IncidentKind.PASSED,
    1,
    evidence=(Evidence("before_rank", 3), Evidence("iteration", 7), Evidence("early_by", 0.004, unit="s")),
)


def collective_cases(check: str, measures: str) -> tuple[Case, ...]:
    """What may happen to ranks and data, in the run that stands under that name in Measures."""

    def measured(*results: CollectiveResult, **values: Any) -> Situation:
        return now(
            measured=lambda snapshot: replace(Measures(), **{measures: make_measurement(*results, **values)})
        )

    def with_incidents(incidents: tuple[Incident, ...], complete: bool) -> Situation:
        return measured(incidents=incidents, sizes_planned=2 if complete else 3)

    return (
        *rank_cases(check, with_incidents),
        case(check, "collective.corrupted")(measured(incidents=(make_corruption(),)), measured(BARRIER)),
        case(check, "collective.wrong_reduction")(
            measured(incidents=(make_corruption(diagnosis="summed"),)), measured(BARRIER)
        ),
        case(check, "collective.barrier_passed")(
            measured(OPEN_BARRIER, incidents=(LEFT_EARLY,)), measured(BARRIER)
        ),
        case(check, "collective.incomplete")(
            measured(sizes_planned=3), measured(sizes_planned=3, incidents=(DIED,))
        ),
        case(check, "collective.timed_out")(
            measured(results=(), sizes_planned=3, timed_out=True), measured(timed_out=True)
        ),
    )


COLLECTIVE_CASES = collective_cases("collective.all_reduce", "collective")
