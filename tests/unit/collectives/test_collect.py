"""What ranks emit becomes results, at once when the last rank has told."""

from typing import Any

from gpudiag.collectives.cases import Case
from gpudiag.collectives.results import Diagnosis, RankCase, RankFacts, WrongBuffer, WrongElements
from gpudiag.model.codec import encode
from gpudiag.model.measure import IncidentKind, RankReport
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.run import EventKind, RunEvent
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.runs.collective_report import CaseCollector

CASES = (
    Case("all_reduce", "sum", "float32", 2, 8, in_place=True, unaligned=False),
    Case("all_reduce", "sum", "float32", 4, 16, in_place=True, unaligned=False),
)


def event(rank: int, kind: str, noun: Any, at_seconds: float = 1.0) -> RankEvent:
    return RankEvent(rank, at_seconds, {"kind": kind, **encode(noun)})


def told(rank: int, case: int) -> RankEvent:
    return event(rank, "rank_case", RankCase(rank, case, 2, (1000, 2000), (1, 2), (), 2, 0, 0.3, 0.1))


def test_a_result_is_told_when_every_rank_has_told_its_part() -> None:
    heard: list[RunEvent] = []
    collector = CaseCollector(CASES, 2, heard.append)
    collector.add(told(0, 0))
    assert (heard, collector.results) == ([], ())
    collector.add(told(1, 0))
    assert [(item.kind, item.done, item.planned) for item in heard] == [(EventKind.RESULT, 1, 2)]
    assert heard[0].result == collector.results[0]


def test_results_come_in_the_order_of_the_plan() -> None:
    collector = CaseCollector(CASES, 1)
    collector.add(told(0, 1))
    collector.add(told(0, 0))
    assert [result.size_bytes for result in collector.results] == [8, 16]


def test_what_one_rank_told_before_it_died_is_no_result() -> None:
    collector = CaseCollector(CASES, 2)
    collector.add(told(0, 0))
    assert collector.results == ()


def test_a_wrong_buffer_becomes_an_incident_with_rank_offset_and_mask() -> None:
    collector = CaseCollector(CASES, 2)
    wrong = WrongBuffer(1, 1, 7, 0, None, WrongElements(2, 1, 2, 2, 4, 6), Diagnosis("stale", 0, distance=-1))
    collector.add(event(1, "wrong_buffer", wrong, at_seconds=1.5))
    (incident,) = collector.incidents({1: "a2"})
    assert (incident.kind, incident.rank, incident.host) == (IncidentKind.CORRUPTED, 1, "a2")
    assert incident.at_seconds == 1.5
    facts = {fact.name: fact.value for fact in incident.evidence}
    assert (facts["size_bytes"], facts["iteration"], facts["first_offset"]) == (16, 7, 1)
    assert (facts["wrong_elements"], facts["xor_mask"]) == (2, "0x4")
    assert (facts["diagnosis"], facts["data_of_rank"], facts["distance"]) == ("stale", 0, -1)


def test_a_barrier_that_is_none_becomes_an_incident_of_the_rank_that_left_early() -> None:
    collector = CaseCollector((Case("barrier", None, "float32", 0, 0, in_place=True, unaligned=False),), 2)
    for rank, entered in ((0, 5_000_000), (1, 9_000_000)):
        case = RankCase(rank, 0, 1, (1_000_000,), (entered,), (), 1, 0, 0.3, 0.1)
        collector.add(event(rank, "rank_case", case))
    (incident,) = collector.incidents({0: "a1", 1: "a2"})
    assert (incident.kind, incident.rank, incident.host) == (IncidentKind.PASSED, 0, "a1")
    facts = {fact.name: fact.value for fact in incident.evidence}
    assert (facts["before_rank"], facts["iteration"], facts["early_by"]) == (1, 0, 0.003)


def test_versions_and_devices_come_from_what_ranks_say_of_themselves() -> None:
    collector = CaseCollector(CASES, 2)
    collector.add(event(1, "facts", RankFacts("2.13.0", "2.32.3", "2.29.7", "GPU-5")))
    report = RankReport(1, 1, "a1", 4241, "measure", 0)
    assert (collector.torch_version, collector.nccl_version) == ("2.13.0", "2.32.3")
    assert collector.nccl_built_version == "2.29.7"
    assert collector.with_device(report).device_uuid == "GPU-5"
    assert collector.with_device(RankReport(0, 0, "a1", 4240, "init", -9)).device_uuid != "GPU-5"


def test_versions_are_missing_where_no_rank_came_far_enough() -> None:
    version = CaseCollector(CASES, 2).torch_version
    assert isinstance(version, Missing)
    assert version.reason is MissingReason.ERROR


def test_events_of_another_kind_are_left_alone() -> None:
    collector = CaseCollector(CASES, 1)
    collector.add(RankEvent(0, 1.0, {"kind": "something new"}))
    assert collector.results == ()


def test_sizes_that_rank_0_left_out_are_not_planned_any_more() -> None:
    collector = CaseCollector(CASES, 1)
    collector.add(told(0, 0))
    left_out = {"kind": "left_out", "op": "all_reduce", "cases": 1, "size_bytes": 8, "seconds": 3.0}
    collector.add(RankEvent(0, 1.0, left_out))
    assert (len(collector.results), collector.planned, collector.left_out) == (1, 1, 1)
