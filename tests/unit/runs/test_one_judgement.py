"""A command and preflight's checks of the same measurement find the same, and weigh it alike."""

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.ranks.active import collective_all_reduce
from gpudiag.checks.ranks.collective import COLLECTIVE_FINDINGS, COLLECTIVE_WITHOUT_GPU, metric_name
from gpudiag.checks.ranks.localisation import NVLINK_SLOW
from gpudiag.checks.registry import FindingKind
from gpudiag.checks.runner import findings_worst_first, run_checks, verdict
from gpudiag.checks.training.kinds import SINGLE_WORKER, STRAGGLER
from gpudiag.model.context import Context
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import CheckResult, Finding, Outcome
from gpudiag.model.history import Baseline, History
from gpudiag.model.measure import IncidentKind, InjectedFault, Movement
from gpudiag.model.reading import NOT_ASKED
from gpudiag.model.remedy import Platform, fit_remedy
from gpudiag.model.report import Measures
from gpudiag.runs.collective_report import build_report
from gpudiag.runs.placement import Placement
from gpudiag.runs.rank_report import fit_to_place
from gpudiag.runs.train import build_report as build_training_report
from gpudiag.runs.train import build_result
from gpudiag.units import GIB
from tests.unit.collectives.measurements import make_corruption, make_incident, make_measurement, make_result
from tests.unit.model.nouns import TAKEN_AT, make_device, make_machine, make_snapshot
from tests.unit.training.measurements import make_measurement as make_training
from tests.unit.training.measurements import make_speed, make_start
from tests.walking import walk

RESENT = Movement(HostSubject("a1"), "TCP segments retransmitted", 100, 112, "", "/proc")
OF_DATA = (IncidentKind.CORRUPTED, IncidentKind.PASSED)  # what a collective's buffers and barriers show
NEVER = InjectedFault("kill:1@9", fired=False)
ON_CPU = Placement("gloo", 4, snapshot=make_snapshot())
COLLECTIVES: dict[str, dict[str, Any]] = {
    "as planned": {},
    **{kind.value: {"incidents": (make_incident(kind),)} for kind in IncidentKind if kind not in OF_DATA},
    "wrong data": {"incidents": (make_corruption(),), "moved": (RESENT,)},
    "wrong data, and a rank died": {"incidents": (make_corruption(), make_incident(IncidentKind.DIED))},
    "late, on a busy network": {"incidents": (make_incident(IncidentKind.LATE),), "moved": (RESENT,)},
    "nothing measured": {"results": ()},
    "the time was over": {"sizes_planned": 9, "timed_out": True},
    "not verified": {"results": (replace(make_result(8), verified=NOT_ASKED),), "sizes_planned": 1},
    "a fault that never came": {"injected": (NEVER,)},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "as planned": {},
    **{
        kind.value: {"incidents": (make_incident(kind, rank=1),)}
        for kind in IncidentKind
        if kind not in (*OF_DATA, IncidentKind.LATE)  # a training goes by the times of its steps
    },
    "a slow rank": {"speeds": (make_speed(0), make_speed(1, own_seconds_p50=0.5))},
    "no step": {"steps": (), "epoch_ends": (), "proofs": ()},
    "no start": {"starts": (), "steps": (), "epoch_ends": (), "proofs": ()},
    "cut short": {"steps_planned": 99},
    "a fault that never came": {"injected": (InjectedFault("nan:1@9", fired=False),)},
}


def judge_as_preflight(measures: Measures, need: str) -> tuple[CheckResult, ...]:
    """What all checks say whose subject that measurement is; which need it, and nothing beside."""
    checks = [check for check in BUILTIN if check.needs == (need,)]
    return run_checks(Context(make_snapshot(), measures), checks)


@walk(COLLECTIVES)
def test_nccl_test_and_preflight_find_the_same_in_a_collective(name: str) -> None:
    measurement = make_measurement(**COLLECTIVES[name])
    report = build_report(measurement, ON_CPU)
    results = judge_as_preflight(Measures(collective=measurement), "collective")
    assert report.findings == findings_worst_first(results)
    assert report.outcome is verdict(results)
    assert report.measurement is measurement
    assert (report.outcome is Outcome.PASS) == (name == "as planned")


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
@pytest.mark.parametrize("name", TRAININGS)
def test_train_and_preflight_find_the_same_in_a_training(name: str, strategy: str) -> None:
    measurement = make_training(strategy=strategy, **TRAININGS[name])
    here = Placement("gloo", 2, snapshot=make_snapshot())
    report = build_training_report((build_result(measurement, here),), here)
    results = judge_as_preflight(Measures(training=(measurement,)), "training")
    assert report.findings == report.strategies[0].findings == findings_worst_first(results)
    assert report.outcome is report.strategies[0].outcome is verdict(results)
    assert (report.outcome is Outcome.PASS) == (name == "as planned")


def test_only_train_tells_of_one_worker_alone() -> None:
    """Asked to train on many, it is worth a note; a machine with one GPU is healthy."""
    alone = make_training(
        world_size=1,
        starts=(make_start(0, world_size=1, workers=1),),
        ranks=make_training().ranks[:1],
        **{part: getattr(make_training(), part)[:1] for part in ("proofs", "speeds")},
        steps=tuple(step for step in make_training().steps if step.rank == 0),
        epoch_ends=tuple(end for end in make_training().epoch_ends if end.rank == 0),
    )
    told = build_result(alone, Placement("gloo", 1, snapshot=make_snapshot())).findings
    preflight = findings_worst_first(judge_as_preflight(Measures(training=(alone,)), "training"))
    assert SINGLE_WORKER.code in {finding.code for finding in told}
    assert preflight == tuple(finding for finding in told if finding.code != SINGLE_WORKER.code)


def make_finding(kind: FindingKind) -> Finding:
    return kind.finding(HostSubject("a1"), kind.meaning)


def test_what_is_seen_beside_a_collective_is_told_after_it_and_before_its_speed() -> None:
    """Of equals the order stays: what ranks showed, how they were placed, what came up meanwhile, their
    speed.
    """
    gpus = tuple(make_device(index, name="NVIDIA H100 80GB HBM3") for index in range(8))
    slow = replace(make_result(8 * GIB), busbw_bytes_per_second=100e9)
    unverified = replace(make_result(8), verified=NOT_ASKED)
    measurement = make_measurement(
        slow, unverified, backend="nccl", device_kind="cuda", world_size=8, injected=(NEVER,)
    )
    absent, meanwhile = make_finding(COLLECTIVE_WITHOUT_GPU), make_finding(STRAGGLER)
    here = Placement("nccl", 8, findings=(absent,), snapshot=make_snapshot(*gpus), devices=gpus)
    report = build_report(measurement, here, meanwhile=(meanwhile,))
    codes = [finding.code for finding in report.findings]
    assert codes == [
        "inject.not_fired",
        absent.code,
        "collective.not_verified",
        meanwhile.code,
        "collective.slow",
    ]
    assert report.outcome is Outcome.ERROR
    elsewhere = build_report(measurement, here, one_clock=False)
    assert "collective.slow" not in [finding.code for finding in elsewhere.findings]


def test_the_speed_of_gpus_is_held_against_the_history_of_the_machine_alone() -> None:
    measurement = make_measurement(make_result(8 * GIB), backend="nccl", device_kind="cuda", world_size=2)
    metric = metric_name(measurement.results[0], measurement)
    fast = measurement.results[0].busbw_bytes_per_second
    assert isinstance(fast, float)
    for uuid, runs, found in ((None, 3, ["collective.slow"]), (None, 2, []), ("GPU-0", 3, [])):
        before = Baseline(metric, "B/s", uuid, 2 * fast, runs, fast, TAKEN_AT)
        history = History("a1", "store", baselines=(before,))
        report = build_report(measurement, Placement("nccl", 2, snapshot=make_snapshot()), history)
        assert [finding.code for finding in report.findings] == found


def test_a_remedy_is_one_of_the_machine_where_the_ranks_were() -> None:
    in_container = Placement("gloo", 4, snapshot=make_snapshot(machine=make_machine(container="docker")))
    finding = make_finding(NVLINK_SLOW)
    (fitted,) = fit_to_place((finding,), in_container)
    assert (
        fitted
        == replace(finding, remedy=fit_remedy(NVLINK_SLOW.written_remedy, Platform.CONTAINER))
        != finding
    )
    assert fit_to_place((finding,), ON_CPU) == (finding,)


def test_a_judge_that_breaks_is_our_fault_and_never_a_report_without_words() -> None:
    with pytest.raises(TypeError):
        build_report(make_measurement(results=None), ON_CPU)


def test_a_command_reports_nothing_that_its_list_does_not_promise() -> None:
    assert {*collective_all_reduce.reports} <= {*COLLECTIVE_FINDINGS}
