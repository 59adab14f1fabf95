"""The text of an nccl-test report: verdict first, the rank named, 80 columns."""

from typing import Any

import pytest

from gpudiag.checks.ranks.collective import judge_collective
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import outcome_of_findings
from gpudiag.model.measure import CollectiveMeasurement, IncidentKind, InjectedFault
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.model.report import CollectiveReport
from gpudiag.render.collective_text import render_collective
from tests.unit.collectives.measurements import (
    make_corruption,
    make_incident,
    make_measurement,
    make_result,
)

SWEEP = tuple(make_result(8 << step) for step in range(24))


def report_on(measurement: CollectiveMeasurement, **values: Any) -> CollectiveReport:
    findings = judge_collective(measurement)
    return CollectiveReport(outcome_of_findings(findings), measurement, findings, **values)


def test_a_pass_on_cpu_says_what_was_exact_and_that_speed_was_not_judged() -> None:
    first = render_collective(report_on(make_measurement(*SWEEP))).splitlines()[0]
    assert first == "PASS CPU ONLY: all_reduce, 4 gloo ranks, 24 sizes exact, speed not judged."


def test_about_six_sizes_are_shown_and_all_on_demand() -> None:
    report = report_on(make_measurement(*SWEEP))
    assert len(_table(render_collective(report))) == 6
    assert len(_table(render_collective(report, all_sizes=True))) == 24


def test_a_wrong_size_is_always_shown() -> None:
    results = list(SWEEP)
    results[3] = make_result(64, verified=False, wrong_elements=5)
    assert any(
        line.split()[-1] == "5" for line in _table(render_collective(report_on(make_measurement(*results))))
    )


def test_a_failure_names_the_rank_and_what_was_measured_before() -> None:
    evidence = (Evidence("signal", "SIGKILL", source="wait status"), Evidence("iteration", 5))
    died = make_incident(IncidentKind.DIED, rank=2, evidence=evidence)
    measurement = make_measurement(make_result(8), incidents=(died,), sizes_planned=24)
    text = render_collective(report_on(measurement))
    assert text.startswith("FAIL rank 2 ")
    assert "rank.died" in text
    assert "SIGKILL" in text
    assert "1 of 24 planned results" in text


def test_injected_faults_are_said_in_the_verdict() -> None:
    injected = (InjectedFault("bitflip:1@3", fired=True),)
    measurement = make_measurement(incidents=(make_corruption(),), injected=injected)
    assert render_collective(report_on(measurement)).startswith("FAIL (injected: bitflip:1@3) rank 1 ")


def test_a_simulated_machine_is_said_in_the_verdict() -> None:
    text = render_collective(report_on(make_measurement(), simulated="h100x8"))
    assert text.startswith("PASS SIMULATED h100x8 ")


def test_one_rank_shows_no_bus_bandwidth() -> None:
    one = make_result(1024, busbw_bytes_per_second=Missing(MissingReason.NOT_SUPPORTED))
    assert "n/a" in render_collective(report_on(make_measurement(one, world_size=1)))


def test_the_table_of_many_operations_tells_in_place_from_out_of_place_in_80_columns() -> None:
    wide = [
        make_result(64, op=op, dtype="float8_e4m3fn", in_place=in_place)
        for op in ("all_reduce", "all_gather", "reduce_scatter")
        for in_place in (False, True)
    ]
    lines = render_collective(report_on(make_measurement(*wide))).splitlines()
    assert any(line.startswith("reduce_scatter float8_e4m3fn* ") for line in lines)
    assert any(line.startswith("reduce_scatter float8_e4m3fn ") for line in lines)
    assert any("* in place" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_barrier_has_no_data_that_could_be_exact() -> None:
    barrier = make_result(0, op="barrier", reduce=Missing(MissingReason.NOT_SUPPORTED))
    first = render_collective(report_on(make_measurement(barrier))).splitlines()[0]
    assert first == "PASS CPU ONLY: barrier, 4 gloo ranks, no rank ended early, speed not judged."


def test_nothing_was_spent_on_verifying_what_was_not_verified() -> None:
    off = make_result(8, verified=NOT_ASKED, wrong_elements=NOT_ASKED)
    assert "verifying" not in render_collective(report_on(make_measurement(off, verify_share=0.01)))
    assert "verifying" in render_collective(report_on(make_measurement(*SWEEP, verify_share=0.2)))


@pytest.mark.parametrize("kind", [kind for kind in IncidentKind if kind is not IncidentKind.CORRUPTED])
def test_no_line_is_wider_than_80_columns(kind: IncidentKind) -> None:
    evidence = (Evidence("stderr", "Traceback\n" + "x " * 200 + "\nRuntimeError: gone", source="rank 2"),)
    incidents = (make_incident(kind, evidence=evidence), make_corruption())
    text = render_collective(report_on(make_measurement(*SWEEP, incidents=incidents)), all_sizes=True)
    assert max(map(len, text.splitlines())) <= 80


def _table(text: str) -> list[str]:
    lines = text.splitlines()
    heading = next(place for place, line in enumerate(lines) if "busbw GB/s" in line)
    return [line for line in lines[heading + 1 :] if line.split()[-1:] and line.split()[-1].isdigit()]
