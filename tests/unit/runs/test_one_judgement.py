"""A command and preflight's check of the same measurement find the same, and weigh it alike."""

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks.ranks.active import collective_all_reduce
from gpudiag.checks.runner import run_checks, verdict
from gpudiag.checks.training.run import train_ddp
from gpudiag.model.context import Context
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.measure import IncidentKind, InjectedFault, Measures, Movement
from gpudiag.model.reading import NOT_ASKED
from gpudiag.runs.collective_report import report_measurement
from gpudiag.runs.placement import Placement
from gpudiag.runs.train import build_report, build_result
from tests.unit.collectives.measurements import make_corruption, make_incident, make_measurement, make_result
from tests.unit.model.nouns import make_snapshot
from tests.unit.training.measurements import make_measurement as make_training

RESENT = Movement(HostSubject("a1"), "TCP segments sent again", 100, 112, "", "/proc")
OF_DATA = (IncidentKind.CORRUPTED, IncidentKind.PASSED)  # what a collective's buffers and barriers show
ON_CPU = Placement("gloo", 4)
COLLECTIVES: dict[str, dict[str, Any]] = {
    "as planned": {},
    **{kind.value: {"incidents": (make_incident(kind),)} for kind in IncidentKind if kind not in OF_DATA},
    "wrong data": {"incidents": (make_corruption(),), "moved": (RESENT,)},
    "wrong data, and a rank died": {"incidents": (make_corruption(), make_incident(IncidentKind.DIED))},
    "late, on a busy network": {"incidents": (make_incident(IncidentKind.LATE),), "moved": (RESENT,)},
    "nothing measured": {"results": ()},
    "the time was over": {"sizes_planned": 9, "timed_out": True},
    "not verified": {"results": (replace(make_result(8), verified=NOT_ASKED),), "sizes_planned": 1},
    "a fault that never came": {"injected": (InjectedFault("kill:1@9", fired=False),)},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "as planned": {},
    **{
        kind.value: {"incidents": (make_incident(kind, rank=1),)}
        for kind in IncidentKind
        if kind not in (*OF_DATA, IncidentKind.LATE)  # a training goes by the times of its steps
    },
    "no step": {"steps": (), "epoch_ends": (), "proofs": ()},
    "no start": {"starts": (), "steps": (), "epoch_ends": (), "proofs": ()},
    "cut short": {"steps_planned": 99},
    "a fault that never came": {"injected": (InjectedFault("nan:1@9", fired=False),)},
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_nccl_test_and_preflight_find_the_same_in_a_collective(name: str) -> None:
    measurement = make_measurement(**COLLECTIVES[name])
    report = report_measurement(measurement, ON_CPU)
    results = run_checks(Context(make_snapshot(), Measures(collective=measurement)), (collective_all_reduce,))
    assert report.findings == results[0].findings
    assert report.outcome is verdict(results)
    assert (report.outcome is Outcome.PASS) == (name == "as planned")


@pytest.mark.parametrize("name", TRAININGS)
def test_train_and_preflight_find_the_same_in_a_training(name: str) -> None:
    measurement = make_training(**TRAININGS[name])
    report = build_report((build_result(measurement),), Placement("gloo", 2))
    results = run_checks(Context(make_snapshot(), Measures(training=(measurement,))), (train_ddp,))
    assert report.findings == results[0].findings
    assert report.outcome is verdict(results)
    assert (report.outcome is Outcome.PASS) == (name == "as planned")
