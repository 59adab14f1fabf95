"""Memory that others hold: when it is said, of which GPUs, and what a gate may ask for."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpudiag.checks.gpu.holders import describe_holder, memory_free
from gpudiag.checks.runner import run_checks
from gpudiag.errors import UsageError
from gpudiag.model.context import Context
from gpudiag.model.device import Device, MigInstance, Snapshot
from gpudiag.model.finding import CheckResult, Outcome, Owner
from gpudiag.model.host import Container
from gpudiag.model.plan import FreeMemory, PreflightPlan, parse_free_memory
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from tests.scenarios.gpu_cases import process
from tests.scenarios.situations import look_at_machine

GIB = 1024**3
MIB = 1024**2
NOT_THERE = Missing(MissingReason.NOT_SUPPORTED)


def machine(base: str = "h100x8", container: Container | None = None, **allocation: str) -> Snapshot:
    snapshot = look_at_machine(base)
    return replace(snapshot, machine=replace(snapshot.machine, container=container, allocation=allocation))


def held(snapshot: Snapshot, free_bytes: int, *indices: int, **facts: Any) -> Snapshot:
    """The machine with processes that leave that much of the GPUs free."""

    def fill(device: Device) -> Device:
        if indices and device.id.nvml_index not in indices:
            return device
        total = int(str(device.memory_used_bytes)) + int(str(device.memory_free_bytes))
        used = total - free_bytes
        holder = {"processes": (process(memory_used_bytes=used),), **facts}
        return replace(device, memory_used_bytes=used, memory_free_bytes=free_bytes, **holder)

    return replace(snapshot, devices=tuple(map(fill, snapshot.devices)))


def judged(snapshot: Snapshot, least: str | None = None) -> CheckResult:
    asked = NOT_ASKED if least is None else parse_free_memory(least)
    return run_checks(Context(snapshot, least_free_memory=asked), (memory_free,))[0]


def indices(result: CheckResult) -> list[object]:
    return [finding.subject.nvml_index for finding in result.findings]


@pytest.mark.parametrize("free", [0, 50 * MIB, 900 * MIB, 40 * GIB])
def test_a_held_gpu_of_the_job_is_named_with_its_holder(free: int):
    result = judged(held(machine(CUDA_VISIBLE_DEVICES="2,3"), free, 2, 7))
    (finding,) = result.findings
    assert (finding.code, finding.outcome, finding.blocks_jobs) == ("memory.held", Outcome.WARN, False)
    assert finding.subject.nvml_index == 2  # GPU 7 is another job's
    assert "are free: pid 4242 (ann, python train.py) holds" in finding.message
    assert "ps -o user,etime,args -p 4242" in finding.remedy


def test_a_context_alone_is_no_reason_to_warn():
    assert judged(held(machine(CUDA_VISIBLE_DEVICES="2"), 78 * GIB, 2)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("allocation", "said"),
    [
        ({}, []),  # a node with free GPUs, and nothing says whose the others are
        ({"SLURM_JOB_GPUS": "0,1"}, [0, 1]),  # a prolog: it sees all GPUs of the node
        ({"SLURM_JOB_GPUS": "4,5"}, []),
        ({"SLURM_STEP_GPUS": "0"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-", "SLURM_JOB_GPUS": "4"}, [0, 1]),  # CUDA's own has the last word
        ({"SLURM_GPUS_ON_NODE": "8"}, [0, 1]),
        ({"SLURM_GPUS_ON_NODE": "4"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, []),
    ],
)
def test_only_gpus_that_the_job_is_to_use_warn(allocation: dict[str, str], said: list[int]):
    assert indices(judged(held(machine(**allocation), GIB, 0, 1))) == said


def test_without_a_word_on_whose_the_gpus_are_it_is_said_where_none_is_left():
    assert indices(judged(held(machine(), GIB))) == list(range(8))


def test_gpus_that_are_shared_by_intention_or_have_a_display_do_not_warn():
    given = machine(CUDA_VISIBLE_DEVICES="2")
    server = process(pid=77, command="nvidia-cuda-mps-server", user="root", memory_used_bytes=30 * MIB)
    display = process(kind="graphics", command="/usr/lib/xorg/Xorg")
    for processes in ((process(), server), (display,), ()):  # of nobody: memory.leftover is about that
        assert judged(held(given, GIB, 2, processes=processes)).outcome is Outcome.PASS


def test_in_a_container_memory_of_nobody_is_somebody_elses():
    container = Container("docker", NOT_THERE)
    result = judged(held(machine("h100x8", container, CUDA_VISIBLE_DEVICES="2"), GIB, 2, processes=()))
    assert indices(result) == [2]
    assert "other containers are not visible" in result.findings[0].message
    hopper = held(machine("gh200", container), GIB, processes=())  # the kernel's page cache may be there
    assert judged(hopper).outcome is Outcome.PASS


def test_of_a_mig_gpu_the_instance_that_the_job_has_counts():
    base = look_at_machine("h100-mig")
    device = next(one for one in base.devices if one.mig_mode == "enabled")
    first, *others = device.mig_instances
    assert isinstance(first, MigInstance)
    full = replace(first, memory_used_bytes=int(str(first.memory_free_bytes)), memory_free_bytes=MIB)
    on_it = process(gpu_instance_id=first.gpu_instance_id, memory_used_bytes=full.memory_used_bytes)
    busy = replace(device, mig_instances=(full, *others), processes=(on_it,))
    for allocation, said in (
        ({"CUDA_VISIBLE_DEVICES": str(first.uuid)}, 1),
        ({"CUDA_VISIBLE_DEVICES": str(others[0].uuid)}, 0),
        ({}, 0),  # its instances belong to jobs
    ):
        snapshot = replace(
            base, devices=(busy,), machine=replace(base.machine, container=None, allocation=allocation)
        )
        assert len(judged(snapshot).findings) == said, allocation


@pytest.mark.parametrize(
    ("least", "free", "fails"),
    [
        *(("90%", 60 * GIB, True), ("50%", 60 * GIB, False), ("70G", 60 * GIB, True)),
        *(("59G", 60 * GIB, False), ("100%", 79 * GIB, True), ("0", 0, False), ("0%", 0, False)),
    ],
)
def test_a_gate_gets_what_it_asks_for(least: str, free: int, fails: bool):
    result = judged(held(machine(), free, 1), least)
    assert bool(result.findings) is fails
    for finding in result.findings:
        assert (finding.code, finding.outcome) == ("memory.below_minimum", Outcome.FAIL)
        assert finding.blocks_jobs  # also for --fail-on machine
        assert PreflightPlan(fail_on="machine").fails_on(finding)


def test_a_gate_asks_for_the_memory_of_the_jobs_gpus_only():
    prolog = held(machine(SLURM_JOB_GPUS="2,3"), GIB, 0, 1)  # another job runs there
    assert judged(prolog, "90%").outcome is Outcome.PASS
    assert indices(judged(held(prolog, GIB, 3), "90%")) == [3]


@pytest.mark.parametrize("text", ["75161927680", "70G", "90%", "0", "99.5%"])
def test_an_amount_is_read_as_people_write_it(text: str):
    amount = parse_free_memory(text)
    assert amount == (
        FreeMemory(share=float(text[:-1]) / 100)
        if text.endswith("%")
        else FreeMemory(size_bytes=amount.size_bytes)
    )


@pytest.mark.parametrize("text", ["", "x", "101%", "-1%", "nan%", "%", "70 apples", "70", "90", "1K"])
def test_what_is_no_amount_is_refused_in_one_sentence(text: str):
    with pytest.raises(UsageError, match="--min-free-memory"):
        PreflightPlan(min_free_memory=text)


def test_a_process_of_ones_own_is_for_oneself_to_end():
    given = machine(CUDA_VISIBLE_DEVICES="2")
    state = given.machine.state
    assert not isinstance(state, Missing)
    for user, owner in ((state.user, Owner.JOB), ("bob", Owner.HOST)):
        (finding,) = judged(held(given, GIB, 2, processes=(process(user=user),))).findings
        assert finding.owner is owner, user


def test_a_holder_is_named_as_far_as_it_is_known():
    now = look_at_machine("h100x8").taken_at
    started = process(started_at=now - timedelta(hours=3), memory_used_bytes=2 * GIB)
    assert describe_holder(started, now) == "pid 4242 (ann, python train.py) holds 2 GiB, started 3 h ago"
    hidden = process(user=NOT_THERE, command=NOT_THERE, memory_used_bytes=NOT_THERE)
    assert describe_holder(hidden, now) == "pid 4242 holds memory of it"
