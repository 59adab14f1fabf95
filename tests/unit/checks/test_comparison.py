"""What two looks at machines are said to differ in: each fact once, with its part, and whether it matters."""

from dataclasses import replace

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.comparison import Side, compare_sides
from gpudiag.checks.runner import run_checks
from gpudiag.model.comparison import Whose
from gpudiag.model.context import Context
from gpudiag.model.finding import Outcome
from gpudiag.model.host import Container
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.model.report import Measures, Report
from gpudiag.runs.gate import judge_results
from tests.unit.checks.active_measures import (
    LINK_SPEED,
    MEMORY_SPEED,
    gpu_snapshot,
    measure_cpu,
    measure_gpus,
    with_one,
)

_GPUS = gpu_snapshot(
    serial="1",
    ecc_uncorrected_aggregate=0,
    vbios_version="96.00",
    power_limit_enforced_watts=700.0,
    pcie_width_gpu_max=16,
    pcie_width_slot_max=16,
    persistence_mode="enabled",
)
_FACTS = {"kernel_driver_flavor": "open", "kernel_release": "6.8.0", "operating_system": "Ubuntu 24.04"}
SNAPSHOT = replace(_GPUS, machine=replace(_GPUS.machine, **_FACTS))
CHECKS = [check for check in BUILTIN if "active" in check.needs]
SICK = 3


def side(snapshot=SNAPSHOT, spoil=lambda measured: measured) -> Side:
    measures = Measures(active=spoil(measure_gpus(snapshot)))
    results = run_checks(Context(snapshot, measures), CHECKS)
    return Side.of(Report(judge_results(results), results, snapshot, measures))


def machine(**facts):
    return replace(SNAPSHOT, machine=replace(SNAPSHOT.machine, **facts))


def one_gpu(**readings):
    devices = list(SNAPSHOT.devices)
    devices[SICK] = replace(devices[SICK], **readings)
    return replace(SNAPSHOT, devices=tuple(devices))


def all_gpus(**readings):
    return replace(SNAPSHOT, devices=tuple(replace(one, **readings) for one in SNAPSHOT.devices))


def told(now, before=SNAPSHOT):
    found = compare_sides(Side(before), Side(now)).differences
    return [(one.whose, one.where, one.name, one.before, one.now, one.outcome) for one in found]


def test_a_machine_differs_in_nothing_from_itself():
    found = compare_sides(side(), side())
    assert (found.differences, found.not_compared, found.same_machine) == ((), (), True)
    assert found.alike > 50


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (replace(SNAPSHOT, driver_version="590.1"), (Whose.DRIVER, "a1", "driver")),
        (machine(kernel_driver_flavor="proprietary"), (Whose.DRIVER, "a1", "kernel module")),
        (machine(kernel_release="7.0"), (Whose.HOST, "a1", "kernel")),
        (machine(operating_system="Other 1"), (Whose.HOST, "a1", "operating system")),
        (machine(container=Container("docker", NOT_ASKED)), (Whose.CONTAINER, "a1", "container")),
        (one_gpu(vbios_version="97.00"), (Whose.GPU, f"GPU {SICK}", "VBIOS")),
        (one_gpu(power_limit_enforced_watts=500.0), (Whose.GPU, f"GPU {SICK}", "power limit")),
        (one_gpu(pcie_width_gpu_max=8), (Whose.LINK, f"GPU {SICK}", "highest PCIe width")),
        (one_gpu(ecc_uncorrected_aggregate=2), (Whose.GPU, f"GPU {SICK}", "uncorrected ECC errors")),
        (one_gpu(serial="2"), (Whose.GPU, f"GPU {SICK}", "serial number")),
        (all_gpus(persistence_mode="disabled"), (Whose.GPU, "GPUs 0-7", "persistence mode")),
    ],
    ids=lambda value: value[2] if isinstance(value, tuple) else "",
)
def test_each_fact_that_differs_is_told_once_with_its_part(now, expected):
    found = [one for one in told(now) if one[5] is Outcome.WARN]
    assert [one[:3] for one in found] == [expected]


def test_a_gpu_that_is_gone_fails_and_one_that_is_silent_too():
    gone = replace(SNAPSHOT, devices=SNAPSHOT.devices[:-1])
    [(whose, where, name, before, now, outcome)] = told(gone)
    assert (whose, name, before, now, outcome) == (Whose.GPU, "GPU", "here", "not here", Outcome.FAIL)
    assert where.startswith("GPU 7")
    assert "serial 1" in where
    silent = one_gpu(responding=Missing(MissingReason.DEVICE_LOST, "GPU is lost"))
    assert [(one[1].partition(" (")[0], one[2], one[5]) for one in told(silent)] == [
        ("GPU 3", "answers", Outcome.FAIL)
    ]


def test_identities_of_another_machine_do_not_matter():
    other = replace(
        SNAPSHOT,
        host="b2",
        devices=tuple(
            replace(one, serial="9", id=replace(one.id, uuid=f"GPU-other-{place}"))
            for place, one in enumerate(SNAPSHOT.devices)
        ),
    )
    found = compare_sides(Side(SNAPSHOT), Side(other))
    assert not found.same_machine
    assert {one.name for one in found.differences} == {"UUID", "serial number"}
    assert {one.outcome for one in found.differences} == {Outcome.PASS}


def test_a_slower_gpu_is_its_own_fault_and_a_speed_within_five_per_cent_is_alike():
    def slower(share):
        return lambda measured: replace(
            measured, bandwidth=with_one(measured.bandwidth, SICK, bytes_per_second=share * MEMORY_SPEED)
        )

    found = [
        one for one in compare_sides(side(), side(spoil=slower(0.8))).differences if one.name == "memory copy"
    ]
    assert [(one.whose, one.where, one.before, one.now) for one in found] == [
        (Whose.GPU, "GPU 3", "3000 GB/s", "2400 GB/s")
    ]
    assert compare_sides(side(), side(spoil=slower(0.96))).differences == ()


def test_where_all_gpus_are_slower_what_else_differs_is_named():
    def all_slower(measured):
        copies = (
            replace(one, bytes_per_second=0.6 * LINK_SPEED) if one.test == "host_to_device" else one
            for one in measured.bandwidth
        )
        return replace(measured, bandwidth=tuple(copies))

    now = side(replace(SNAPSHOT, driver_version="590.1"), all_slower)
    [speed] = [one for one in compare_sides(side(), now).differences if one.name == "host to device"]
    assert (speed.whose, speed.where, speed.outcome) == (Whose.DRIVER, "GPUs 0-7", Outcome.WARN)
    assert "590.1" in speed.why
    [alone] = [
        one
        for one in compare_sides(side(), side(spoil=all_slower)).differences
        if one.name == "host to device"
    ]
    assert (alone.whose, alone.outcome) == (Whose.HOST, Outcome.WARN)


def test_speeds_of_a_cpu_are_not_judged():
    def on_cpu(speed):
        measured = measure_cpu()
        copies = tuple(replace(one, bytes_per_second=speed) for one in measured.bandwidth)
        measures = Measures(active=replace(measured, bandwidth=copies))
        empty = replace(SNAPSHOT, devices=())
        results = run_checks(Context(empty, measures), CHECKS)
        return Side.of(Report(judge_results(results), results, empty, measures))

    found = compare_sides(on_cpu(10e9), on_cpu(5e9)).differences
    assert [(one.outcome, one.whose) for one in found] == [(Outcome.PASS, Whose.HOST)]


def test_a_new_finding_keeps_its_outcome_and_one_that_is_gone_does_not_matter():
    def wrong(measured):
        return replace(measured, bandwidth=with_one(measured.bandwidth, SICK, wrong_bytes=7))

    new = compare_sides(side(), side(spoil=wrong)).differences
    assert [(one.name, one.outcome, one.whose, one.before) for one in new] == [
        ("bandwidth.corrupted", Outcome.FAIL, Whose.GPU, "not found")
    ]
    gone = compare_sides(side(spoil=wrong), side()).differences
    assert [(one.name, one.outcome, one.now) for one in gone] == [
        ("bandwidth.corrupted", Outcome.PASS, "no longer found")
    ]


def test_what_only_one_holds_is_said():
    found = compare_sides(side(), Side(SNAPSHOT))
    assert found.not_compared == ("checks and speeds: one of the two is a snapshot",)
    lost = Missing(MissingReason.ERROR, "broken")
    assert (
        "driver: not read in the second"
        in compare_sides(Side(SNAPSHOT), Side(replace(SNAPSHOT, driver_version=lost))).not_compared
    )
