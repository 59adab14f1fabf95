"""From what happened to findings: each fault has its code and its rank, and nothing missing passes."""

import pytest

from gpudiag.checks.ranks.collective import COLLECTIVE_FINDINGS, judge_collective
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject
from gpudiag.model.finding import Finding, Outcome, outcome_of_findings
from gpudiag.model.measure import CollectiveMeasurement, IncidentKind, InjectedFault
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from tests.unit.collectives.measurements import make_corruption, make_incident, make_measurement, make_result


def judge(measurement: CollectiveMeasurement) -> tuple[Outcome, tuple[Finding, ...]]:
    findings = judge_collective(measurement)
    return outcome_of_findings(findings), findings


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.code for finding in findings]


@pytest.mark.parametrize(
    ("kind", "code", "outcome"),
    [
        (IncidentKind.DIED, "rank.died", Outcome.FAIL),
        (IncidentKind.STOPPED, "rank.stopped", Outcome.FAIL),
        (IncidentKind.RAISED, "rank.raised", Outcome.FAIL),
        (IncidentKind.SILENT, "rank.silent", Outcome.FAIL),
        (IncidentKind.MISMATCHED, "collective.mismatched", Outcome.FAIL),
        (IncidentKind.NOT_STARTED, "rank.not_started", Outcome.ERROR),
        (IncidentKind.LATE, "rank.late", Outcome.WARN),
    ],
)
def test_an_incident_of_a_rank_names_that_rank(kind: IncidentKind, code: str, outcome: Outcome) -> None:
    found, findings = judge(make_measurement(incidents=(make_incident(kind, rank=2),)))
    assert found is outcome
    assert codes(findings) == [code]
    assert findings[0].subject == RankSubject(2, "a1")


_EARLY = make_incident(
    IncidentKind.PASSED,
    1,
    evidence=(Evidence("before_rank", 3), Evidence("iteration", 7), Evidence("early_by", 0.004, unit="s")),
)
_INCIDENTS = {IncidentKind.CORRUPTED: make_corruption(), IncidentKind.PASSED: _EARLY}


def test_every_kind_of_incident_is_judged() -> None:
    for kind in IncidentKind:
        incident = _INCIDENTS.get(kind) or make_incident(kind)
        assert judge_collective(make_measurement(incidents=(incident,)))


def test_a_barrier_that_is_none_has_a_sentence_of_its_own() -> None:
    open_barrier = make_result(0, op="barrier", elements=0, verified=False)
    _, (finding,) = judge(make_measurement(open_barrier, incidents=(_EARLY, _EARLY)))
    assert (finding.code, finding.subject) == ("collective.barrier_passed", RankSubject(1, "a1"))
    assert finding.message == "rank 1 left a barrier 4 ms before rank 3 had entered it, in iteration 7"


def test_a_sum_in_the_place_of_another_reduction_is_the_librarys_fault() -> None:
    """Whatever each rank made of it with other dtypes, where sums round."""
    summed = [
        make_corruption(rank, op="reduce_scatter", reduce="max", diagnosis="summed") for rank in range(4)
    ]
    later = [
        make_corruption(rank, op="reduce_scatter", reduce="max", diagnosis="unknown") for rank in range(4)
    ]
    _, (finding,) = judge(make_measurement(incidents=(*summed, *later)))
    assert (finding.code, finding.subject) == ("collective.wrong_reduction", HostSubject("a1"))
    assert finding.message.startswith("reduce_scatter over gloo returns the sum where max was asked for")
    _, (_, other) = judge(make_measurement(incidents=(*summed, make_corruption(2))))
    assert (other.code, other.subject) == ("collective.corrupted", RankSubject(2, "a1"))


def test_ranks_that_stay_in_a_stage_are_not_said_to_be_inside_a_collective() -> None:
    outside = (
        Evidence("ranks_inside", "2"),
        Evidence("operation", "all_reduce"),
        Evidence("inside_operation", False),
    )
    stalled = make_incident(IncidentKind.STALLED, stage="teardown", evidence=outside)
    _, (finding,) = judge(make_measurement(incidents=(stalled,)))
    assert finding.message == "rank 2 stays in stage teardown and nothing moves"


def test_a_stall_blames_no_single_rank() -> None:
    _, findings = judge(make_measurement(incidents=(make_incident(IncidentKind.STALLED),)))
    assert codes(findings) == ["collective.stalled"]
    assert findings[0].subject == HostSubject("a1")


def test_the_evidence_of_an_incident_is_that_of_its_finding() -> None:
    evidence = (Evidence("signal", "SIGKILL", source="wait status"),)
    _, findings = judge(make_measurement(incidents=(make_incident(IncidentKind.DIED, evidence=evidence),)))
    assert findings[0].evidence == evidence
    assert "SIGKILL" in findings[0].message


def test_a_rank_that_the_oom_killer_did_not_kill_is_not_sent_to_it() -> None:
    signal = Evidence("signal", "SIGKILL", source="wait status")
    for kills, asked in (
        (0, "Find who sent the signal"),
        (1, "for the OOM killer"),
        (None, "for the OOM killer"),
    ):
        counted = () if kills is None else (Evidence("oom_kills", kills, source="memory.events"),)
        incident = make_incident(IncidentKind.DIED, evidence=(signal, *counted))
        _, (finding, *_) = judge(make_measurement(incidents=(incident,)))
        assert asked in finding.remedy, kills


def test_the_earliest_incident_comes_first() -> None:
    early = make_incident(IncidentKind.STOPPED, rank=3)
    late = make_corruption(rank=1)
    _, findings = judge(make_measurement(incidents=(late, early)))
    assert [finding.code for finding in findings] == ["rank.stopped", "collective.corrupted"]


def test_a_hang_in_teardown_is_a_failure_even_so() -> None:
    stopped = make_incident(IncidentKind.STOPPED, stage="teardown")
    outcome, findings = judge(make_measurement(incidents=(stopped,)))
    assert (outcome, codes(findings)) == (Outcome.FAIL, ["rank.stopped"])


def test_wrong_data_is_one_finding_per_rank_by_its_first_buffer() -> None:
    incidents = (make_corruption(1, iteration=3), make_corruption(1, iteration=9), make_corruption(0))
    wrong = make_result(1024, verified=False, wrong_elements=3)
    outcome, findings = judge(make_measurement(wrong, incidents=incidents))
    assert outcome is Outcome.FAIL
    assert codes(findings) == ["collective.corrupted"] * 2
    assert [finding.subject for finding in findings] == [RankSubject(1, "a1"), RankSubject(0, "a1")]
    assert {fact.name: fact.value for fact in findings[0].evidence}["iteration"] == 3


def test_wrong_data_names_the_rank_whose_data_it_is_and_not_those_that_saw_it() -> None:
    seen = tuple(make_corruption(rank, diagnosis="stale", data_of_rank=3) for rank in range(4))
    _, findings = judge(make_measurement(incidents=seen))
    assert [finding.subject for finding in findings] == [RankSubject(3, "a1")]
    assert {fact.name: fact.value for fact in findings[0].evidence}["seen_by_ranks"] == "0-3"


def test_the_same_wrong_data_on_every_rank_names_none() -> None:
    seen = tuple(make_corruption(rank, diagnosis="unknown") for rank in range(4))
    _, findings = judge(make_measurement(incidents=seen))
    assert [finding.subject for finding in findings] == [HostSubject("a1")]


def test_different_wrong_data_on_every_rank_names_each() -> None:
    seen = tuple(make_corruption(rank, diagnosis="unknown", first_offset=rank) for rank in range(4))
    _, findings = judge(make_measurement(incidents=seen))
    assert [finding.subject for finding in findings] == [RankSubject(rank, "a1") for rank in range(4)]


def test_the_clocks_of_several_machines_leave_a_barrier_unverified_without_a_warning() -> None:
    unverifiable = make_result(0, op="barrier", verified=Missing(MissingReason.NOT_SUPPORTED))
    assert judge(make_measurement(unverifiable)) == (Outcome.PASS, ())


def test_wrong_data_that_nobody_described_still_fails() -> None:
    outcome, findings = judge(make_measurement(make_result(8, verified=False, wrong_elements=2)))
    assert (outcome, codes(findings)) == (Outcome.FAIL, ["collective.corrupted"])


def test_no_result_at_all_is_never_a_pass() -> None:
    outcome, findings = judge(make_measurement(results=(), sizes_planned=0))
    assert (outcome, codes(findings)) == (Outcome.ERROR, ["collective.incomplete"])


def test_a_fault_that_never_fired_is_an_error() -> None:
    outcome, findings = judge(make_measurement(injected=(InjectedFault("kill:2@500", fired=False),)))
    assert (outcome, codes(findings)) == (Outcome.ERROR, ["inject.not_fired"])


def test_a_fault_that_fired_is_no_finding_of_its_own() -> None:
    assert judge(make_measurement(injected=(InjectedFault("slow:1:5", fired=True),))) == (Outcome.PASS, ())


def test_unverified_data_does_not_pass() -> None:
    unverified = make_result(8, verified=NOT_ASKED, wrong_elements=NOT_ASKED, verified_iterations=0)
    outcome, findings = judge(make_measurement(unverified))
    assert (outcome, codes(findings)) == (Outcome.WARN, ["collective.not_verified"])


def test_codes_are_listed_once_each_with_a_meaning_and_a_remedy() -> None:
    listed = [kind.code for kind in COLLECTIVE_FINDINGS]
    assert len(set(listed)) == len(listed)
    assert all(kind.meaning and kind.remedy for kind in COLLECTIVE_FINDINGS)
