from typing import Any

import pytest

from gpudiag.checks.gpu.availability import Candidate, judge_availability, mark_free, reasons_against
from gpudiag.checks.gpu.devices import gpu_lost
from gpudiag.model.device import Device, GpuProcess, MigInstance
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.units import GIB
from tests.unit.checks.machines import LOST, look_at
from tests.unit.model.nouns import NOT_SUPPORTED, TAKEN_AT, make_device, make_machine, make_snapshot

REFUSED = Missing(MissingReason.NO_PERMISSION)
IDLE: dict[str, Any] = {
    "processes": (),
    "memory_used_bytes": 0,
    "memory_total_bytes": 80 * GIB,
    "utilization_percent": 0,
    "compute_mode": "default",
    "mig_mode": "disabled",
}


def make_process(kind: str = "compute", gpu_instance_id: int | Missing = NOT_SUPPORTED) -> GpuProcess:
    return GpuProcess(
        4242, kind, GIB, True, "ann", "python train.py", NOT_SUPPORTED, TAKEN_AT, gpu_instance_id
    )


def make_instance(gpu_instance_id: int, used_bytes: int = 0) -> MigInstance:
    uuid = f"MIG-{gpu_instance_id}"
    return MigInstance(uuid, "1g.10gb", gpu_instance_id, 0, 10 * GIB, used_bytes, 10 * GIB - used_bytes)


def judge(*devices: Device, **allocation: str) -> tuple[Candidate, ...]:
    snapshot = make_snapshot(*devices, machine=make_machine(allocation=allocation))
    return judge_availability(snapshot, gpu_lost.judge(look_at(snapshot)).findings)


def judge_one(**changes: Any) -> Candidate:
    (candidate,) = judge(make_device(0, **{**IDLE, **changes}))
    return candidate


def test_an_idle_gpu_is_free_and_known_by_its_uuid() -> None:
    candidate = judge_one()
    assert (candidate.free, candidate.label, candidate.uuid) == (True, "0", "GPU-0")


@pytest.mark.parametrize(
    "changes",
    [
        {"processes": (make_process(),)},
        {"processes": (make_process("mps"),)},
        {"memory_used_bytes": 8 * GIB},
        {"utilization_percent": 10},
        {"compute_mode": "prohibited"},
        {"responding": LOST},
        {"recovery_action": "gpu_reset"},
        {"processes": REFUSED},
        {"memory_used_bytes": REFUSED},
        {"utilization_percent": REFUSED},
        {"processes": NOT_SUPPORTED, "memory_used_bytes": NOT_SUPPORTED},
    ],
)
def test_each_of_these_alone_speaks_against_a_gpu(changes: dict[str, Any]) -> None:
    candidate = judge_one(**changes)
    assert not candidate.free
    assert len(candidate.against) >= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"processes": (make_process("graphics"),)},
        {"memory_used_bytes": 8 * GIB - 1},
        {"utilization_percent": 9},
        {"memory_used_bytes": NOT_SUPPORTED, "memory_total_bytes": NOT_SUPPORTED},
        {"memory_used_bytes": 60 * GIB, "memory_kind": "unified"},
        {"utilization_percent": NOT_SUPPORTED},
        {"recovery_action": "drain_p2p"},  # a warning
    ],
)
def test_none_of_these_speaks_against_a_gpu(changes: dict[str, Any]) -> None:
    assert judge_one(**changes).free


def test_a_job_is_offered_only_what_it_was_given() -> None:
    devices = [make_device(place, **IDLE) for place in range(4)]
    free = [candidate.label for candidate in judge(*devices, CUDA_VISIBLE_DEVICES="1,3") if candidate.free]
    assert free == ["1", "3"]


def test_mig_instances_are_offered_one_by_one() -> None:
    instances = (make_instance(7), make_instance(8), make_instance(9, used_bytes=5 * GIB))
    processes = (make_process(gpu_instance_id=8),)
    device = make_device(
        0, **{**IDLE, "mig_mode": "enabled", "mig_instances": instances, "processes": processes}
    )
    candidates = judge(device)
    assert [(one.label, one.uuid, one.free) for one in candidates] == [
        ("0:0", "MIG-7", True),
        ("0:1", "MIG-8", False),
        ("0:2", "MIG-9", False),
    ]


def test_a_process_that_may_be_on_any_instance_keeps_them_all() -> None:
    device = make_device(
        0,
        **{
            **IDLE,
            "mig_mode": "enabled",
            "mig_instances": (make_instance(7),),
            "processes": (make_process(),),
        },
    )
    assert [candidate.free for candidate in judge(device)] == [False]


def test_a_job_that_was_given_one_instance_is_offered_that_one() -> None:
    device = make_device(
        0, **{**IDLE, "mig_mode": "enabled", "mig_instances": (make_instance(7), make_instance(8))}
    )
    candidates = judge(device, CUDA_VISIBLE_DEVICES="MIG-8")
    assert [candidate.uuid for candidate in candidates if candidate.free] == ["MIG-8"]


def findings_and_snapshot(*devices: Device) -> tuple[Any, Any]:
    snapshot = make_snapshot(*devices, machine=make_machine())
    return gpu_lost.judge(look_at(snapshot)).findings, snapshot


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, ()),
        ({"recovery_action": "gpu_reset"}, ("a check found a fault on it",)),
        ({"recovery_action": "drain_p2p"}, ()),  # a warning: it can be used
        ({"compute_mode": "prohibited"}, ("its compute mode is prohibited",)),
        ({"processes": (make_process(),)}, ("1 compute process",)),
        ({"mig_mode": "enabled", "mig_instances": (make_instance(1), make_instance(2, 9 * GIB))}, ()),
        (
            {"mig_mode": "enabled", "mig_instances": (make_instance(2, 9 * GIB),)},
            ("90 % of its memory is used",),
        ),
        ({"mig_mode": "enabled", "mig_instances": ()}, ("MIG is on, and it has no instance",)),
    ],
)
def test_the_mark_and_the_reasons_follow_the_rule_of_the_list(
    changes: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    findings, snapshot = findings_and_snapshot(make_device(0, **{**IDLE, **changes}))
    (marked,) = mark_free(snapshot, findings).devices
    told = judge_availability(snapshot, findings)
    assert reasons_against(snapshot, snapshot.devices[0], findings) == reasons
    assert marked.free is (not reasons) is any(candidate.free for candidate in told)
    if marked.mig_instances and not isinstance(marked.mig_instances, Missing):
        assert [one.free for one in marked.mig_instances] == [candidate.free for candidate in told]
