"""Counters that rose during a run, per host and per GPU; and the findings that they may explain."""

from dataclasses import replace
from typing import Any

from gpudiag.checks.ranks.rising_counters import describe_movement, find_movements
from gpudiag.model.device import NvLink, ThrottleSeconds
from gpudiag.model.evidence import DeviceSubject, HostSubject
from gpudiag.model.measure import HostCounters, Movement
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.runs.rank_report import find_new, finish_watch, start_watch
from tests.unit.collectives.measurements import make_corruption, make_incident, make_measurement
from tests.unit.model.nouns import NOT_SUPPORTED, make_device, make_snapshot

QUIET = HostCounters(100, 5, 0, 0, 1.5, 0.0, 0)


def names(movements: tuple[Movement, ...]) -> list[str]:
    return [movement.name for movement in movements]


def test_nothing_moved_is_nothing_told() -> None:
    assert find_movements("a1", (QUIET, QUIET), None) == ()


def test_counters_of_the_host_that_rose_are_told_with_their_rise() -> None:
    later = replace(QUIET, tcp_retransmits=112, steal_seconds=4.0)
    movements = find_movements("a1", (QUIET, later), None)
    assert [(movement.subject, movement.rise) for movement in movements] == [
        (HostSubject("a1"), 12),
        (HostSubject("a1"), 2.5),
    ]
    assert describe_movement(movements[1]).endswith("+2.50 s")


def test_counters_that_fell_or_cannot_be_read_are_not_told() -> None:
    unreadable = Missing(MissingReason.NO_PERMISSION)
    later = replace(QUIET, tcp_retransmits=3, tcp_timeouts=unreadable)
    assert find_movements("a1", (QUIET, later), None) == ()


def test_counters_of_gpus_are_told_of_each_gpu() -> None:
    def link(errors: int) -> NvLink:
        return NvLink(3, True, NOT_SUPPORTED, errors, 0, 0, 0)

    def throttled(seconds: float) -> ThrottleSeconds:
        return ThrottleSeconds(0.0, seconds, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED)

    before: dict[str, Any] = {
        "pcie_replay_count": 4,
        "nvlinks": (link(1),),
        "throttle_seconds": throttled(1.0),
    }
    after: dict[str, Any] = {
        "pcie_replay_count": 9,
        "nvlinks": (link(8),),
        "throttle_seconds": throttled(3.5),
    }
    snapshots = (
        make_snapshot(make_device(0), make_device(1, **before)),
        make_snapshot(make_device(1, **after)),
    )
    movements = find_movements("a1", (QUIET, QUIET), snapshots)
    assert names(movements) == ["PCIe replays", "throttled by thermal", "NVLink 3 crc flit errors"]
    assert [movement.rise for movement in movements] == [5, 2.5, 7]
    assert all(isinstance(movement.subject, DeviceSubject) for movement in movements)
    assert {
        movement.subject.uuid for movement in movements if isinstance(movement.subject, DeviceSubject)
    } == {"GPU-1"}


def test_a_gpu_that_was_lost_during_the_run_is_a_new_fault() -> None:
    lost = Missing(MissingReason.DEVICE_LOST, "GPU is lost")
    before = make_snapshot(make_device(0), make_device(1))
    after = make_snapshot(make_device(0), make_device(1, responding=lost))
    assert [finding.code for finding in find_new(before, after)] == ["gpu.lost"]
    assert find_new(after, after) == ()


def test_what_moved_is_evidence_where_it_may_explain_and_nowhere_else() -> None:
    from gpudiag.checks.ranks.collective import judge_collective
    from gpudiag.model.measure import IncidentKind

    movements = find_movements("a1", (QUIET, replace(QUIET, tcp_retransmits=112)), None)
    wrong, dead = make_corruption(), make_incident(IncidentKind.DIED)
    measurement = make_measurement(incidents=(wrong, dead), moved=movements)
    explained = {finding.code: finding for finding in judge_collective(measurement)}
    assert explained["collective.corrupted"].evidence[0].value == 12
    assert explained["rank.died"].evidence == ()


def test_this_host_can_be_watched() -> None:
    watched = finish_watch(start_watch(gpus=False), "a1")
    assert watched.findings == ()
    assert all(movement.rise > 0 for movement in watched.movements)
