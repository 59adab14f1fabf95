"""Where an nccl-test runs: gloo only where there is no trace of a GPU, sick GPUs kept out of sight."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks.gpu.devices import GPU_RECOVERY_NEEDED
from gpudiag.checks.subjects import device_subject
from gpudiag.errors import SourceAbsentError, SourceFailedError, UsageError
from gpudiag.model.device import (
    Device,
    DeviceView,
    GpuProcess,
    Snapshot,
    SourceState,
    SourceStatus,
    TorchFacts,
)
from gpudiag.model.plan import NcclTestPlan
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.launchers import Launcher
from gpudiag.runs.nccl_test import ranks_of
from gpudiag.runs.placement import Placement, RanksWanted, judge_gpus, place_ranks, place_tests
from tests.unit.model.nouns import NOT_SUPPORTED, make_device, make_machine, make_snapshot

GIB = 1024**3
IDLE: dict[str, Any] = {"mig_mode": "disabled", "compute_mode": "default", "processes": ()} | {
    "utilization_percent": 0,
    "memory_used_bytes": 0,
    "memory_total_bytes": 80 * GIB,
}
TRAINING = GpuProcess(
    42, "compute", 2**30, True, "ann", "train.py", container_id=NOT_ASKED, started_at=NOT_ASKED
)
LOST = Missing(MissingReason.DEVICE_LOST, "GPU is lost")


def make_torch(**facts: Any) -> TorchFacts:
    known: dict[str, Any] = {
        "version": "2.13.0+cu130",
        "python": "python3",
        "cuda_runtime_version": "13.0",
        "architectures": ("sm_90",),
        "nccl_version": "2.29.7",
        "nccl_available": True,
        "gloo_available": True,
        "cuda_available": True,
        "device_count": 2,
        "nvml_device_count": 2,
        "context_starts": True,
        **facts,
    }
    return TorchFacts(**known)


def view_of(device: Device, ordinal: int, starts: Any = True) -> DeviceView:
    missing = NOT_SUPPORTED
    return DeviceView(
        "torch",
        ordinal,
        device.id.uuid,
        device.id.bus_id,
        "H100",
        missing,
        missing,
        missing,
        missing,
        missing,
        context_starts=starts,
    )


def make_machine_with(count: int, sick: tuple[int, ...] = (), **torch_facts: Any) -> Snapshot:
    """A machine with that many GPUs; the sick ones are off the bus, where no context starts."""
    lacks = Missing(
        MissingReason.ERROR, f"on {len(sick)} of {count} GPUs: CUDA error: invalid device ordinal"
    )
    torch_facts = {"context_starts": lacks if sick else True, "device_count": count, **torch_facts}
    devices = tuple(
        make_device(index, **({"responding": LOST} if index in sick else {"memory_free_bytes": 60 * GIB}))
        for index in range(count)
    )
    views = tuple(
        view_of(device, ordinal, starts=lacks if ordinal in sick else True)
        for ordinal, device in enumerate(devices)
    )
    return make_snapshot(*devices, views=views, torch=make_torch(**torch_facts))


def without_gpus() -> Snapshot:
    absent = SourceStatus("nvml", SourceState.LIBRARY_ABSENT, "libnvidia-ml.so.1 is not there")
    return make_snapshot(sources=(absent,), machine=make_machine(pci_devices=(), device_nodes=()))


def place(snapshot: Snapshot | None, environment: RankEnvironment | None = None, **fields: Any) -> Placement:
    def take(sources: Sequence[str], deadline_seconds: float) -> Snapshot:
        assert deadline_seconds > 0
        return snapshot

    return place_ranks(ranks_of(NcclTestPlan(**fields)), environment, take=take)


def launched(world_size: int, local_world_size: int) -> RankEnvironment:
    return RankEnvironment(Launcher.TORCHRUN, 0, world_size, 0, local_world_size, "env://", "run")


def host_only(available_bytes: int = 64 * GIB) -> Snapshot:
    return make_snapshot(sources=(), machine=make_machine(memory_available_bytes=available_bytes))


def test_gloo_asks_no_gpu() -> None:
    asked: list[tuple[str, ...]] = []

    def take(sources: Sequence[str], deadline_seconds: float) -> Snapshot:
        asked.append(tuple(sources))
        return host_only()

    placement = place_ranks(RanksWanted("gloo", 3, 5.0), None, take=take)
    assert (placement.backend, placement.world_size, asked) == ("gloo", 3, [()])


def test_on_the_cpu_the_buffers_of_all_ranks_must_fit_in_memory() -> None:
    assert place(host_only(GIB), backend="gloo").max_bytes < 64 * 1024**2
    assert place(host_only(64 * GIB), backend="gloo", max_bytes=GIB).max_bytes == GIB
    assert place(host_only(64 * GIB), backend="gloo", min_bytes=0, max_bytes=0).max_bytes == 0
    with pytest.raises(UsageError):
        place(host_only(12 * GIB), backend="gloo", max_bytes=GIB)


def test_without_a_trace_of_a_gpu_four_gloo_ranks_go_up_to_64_mib() -> None:
    placement = place(without_gpus())
    assert (placement.backend, placement.world_size, placement.max_bytes) == ("gloo", 4, 64 * 1024**2)


def test_nccl_without_a_trace_of_a_gpu_could_not_look() -> None:
    with pytest.raises(SourceAbsentError):
        place(without_gpus(), backend="nccl")


def test_every_usable_gpu_gets_a_rank() -> None:
    placement = place(make_machine_with(2))
    assert (placement.backend, placement.world_size, placement.variables) == ("nccl", 2, {})
    assert placement.findings == ()


def test_the_largest_size_keeps_within_the_share_of_free_memory() -> None:
    assert place(make_machine_with(2)).max_bytes == int(59 * GIB * 0.4 / 3)  # 60 are free, NCCL takes some
    assert place(make_machine_with(2), max_bytes=1024).max_bytes == 1024
    assert place(make_machine_with(2), min_bytes=0, max_bytes=0).max_bytes == 0


def test_a_size_that_does_not_fit_on_the_gpus_is_refused_with_one_that_does() -> None:
    machine = make_machine_with(2)  # 60 GiB free on each
    with pytest.raises(UsageError) as refused:
        place(machine, max_bytes=64 * GIB)
    fitting = int(refused.value.hint.removeprefix("--max-bytes ").removesuffix(" fits"))
    assert place(machine, max_bytes=fitting).max_bytes == fitting
    with pytest.raises(UsageError):
        place(machine, min_bytes=fitting + 1)
    shared = make_machine_with(1, nccl_version="2.30.7")
    with pytest.raises(UsageError):  # two ranks on it, with a context each
        place(shared, nproc=2, max_bytes=fitting // 2)


def test_only_gpus_that_take_part_are_what_a_result_was_measured_on() -> None:
    placement = place(make_machine_with(4), nproc=2)
    assert [device.id.uuid for device in placement.devices] == ["GPU-0", "GPU-1"]


def test_a_mig_instance_is_used_within_its_own_memory() -> None:
    gpu = make_device(0, mig_mode="enabled", memory_free_bytes=60 * GIB)
    instance = replace(view_of(gpu, 0), uuid="MIG-1", memory_free_bytes=6 * GIB)
    placement = place(make_snapshot(gpu, views=(instance,), torch=make_torch()))
    assert (placement.world_size, placement.variables) == (1, {})
    assert placement.max_bytes < GIB


def test_the_memory_of_a_whole_gpu_is_not_taken_for_that_of_its_instance() -> None:
    gpu = make_device(0, mig_mode="enabled", memory_free_bytes=60 * GIB)
    instance = replace(view_of(gpu, 0), uuid="MIG-1")  # torch does not report its memory
    placement = place(make_snapshot(gpu, views=(instance,), torch=make_torch()))
    assert placement.max_bytes == 64 * 1024**2


def test_a_mig_instance_is_shown_to_ranks_by_its_own_uuid() -> None:
    gpus = [make_device(index, mig_mode="enabled", memory_free_bytes=60 * GIB) for index in range(2)]
    lacks = Missing(MissingReason.ERROR, "CUDA error: unknown error")
    views = (
        replace(view_of(gpus[0], 0), uuid="MIG-0"),
        replace(view_of(gpus[1], 1, starts=lacks), uuid="MIG-1"),
    )
    placement = place(make_snapshot(*gpus, views=views, torch=make_torch()))
    assert (placement.world_size, placement.variables) == (1, {"CUDA_VISIBLE_DEVICES": "MIG-0"})


def test_of_two_mig_instances_of_a_gpu_the_one_where_a_context_starts_is_shown() -> None:
    gpu = make_device(0, mig_mode="enabled", memory_free_bytes=60 * GIB)
    lacks = Missing(MissingReason.ERROR, "CUDA error: unknown error")
    views = (
        replace(view_of(gpu, 0, starts=lacks), uuid="MIG-a"),
        replace(view_of(gpu, 1), uuid="MIG-b"),
    )
    placement = place(make_snapshot(gpu, views=views, torch=make_torch()))
    assert (placement.world_size, placement.variables) == (1, {"CUDA_VISIBLE_DEVICES": "MIG-b"})


def nameless(snapshot: Snapshot, index: int) -> Snapshot:
    """The machine where nobody tells that GPU's UUID; its bus id is known."""
    devices = [
        replace(device, id=replace(device.id, uuid=NOT_SUPPORTED)) if place == index else device
        for place, device in enumerate(snapshot.devices)
    ]
    views = [
        replace(view, uuid=NOT_SUPPORTED) if place == index else view
        for place, view in enumerate(snapshot.views)
    ]
    return replace(snapshot, devices=tuple(devices), views=tuple(views))


def test_a_gpu_whose_uuid_nobody_tells_is_found_by_its_bus_id() -> None:
    placement = place(nameless(make_machine_with(2), 1))
    assert (placement.world_size, placement.variables) == (2, {})


def test_a_gpu_that_cannot_be_named_is_left_out_where_another_must_be_hidden() -> None:
    placement = place(nameless(make_machine_with(3, sick=(0,)), 1))
    assert (placement.world_size, placement.variables) == (1, {"CUDA_VISIBLE_DEVICES": "GPU-2"})


def test_a_gpu_that_cannot_be_named_is_left_out_where_torch_counts_one_that_nvml_does_not_list() -> None:
    machine = make_machine_with(3)
    placement = place(nameless(replace(machine, devices=machine.devices[:2]), 1))
    assert (placement.world_size, placement.variables) == (1, {"CUDA_VISIBLE_DEVICES": "GPU-0"})


def test_a_gpu_that_cannot_be_named_is_used_where_torch_does_not_count_the_other() -> None:
    machine = nameless(make_machine_with(2), 1)
    placement = place(replace(machine, views=machine.views[1:]))
    assert (placement.world_size, placement.variables) == (1, {})


def test_of_gpus_whose_uuid_only_torch_tells_those_in_use_alone_are_left_alone() -> None:
    machine = make_machine_with(2)
    devices = tuple(
        replace(device, **use, id=replace(device.id, uuid=NOT_SUPPORTED))
        for device, use in zip(machine.devices, ({"processes": (TRAINING,)}, IDLE), strict=True)
    )
    tests = place_tests(replace(machine, devices=devices), (), NOT_ASKED, force=False)
    assert not isinstance(tests, Missing)
    assert tests.variables == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert [(one.name, one.in_use) for one in tests.untested] == [("GPU 0", True)]


def test_a_fault_of_a_gpu_without_a_uuid_is_told_apart_by_its_bus_id() -> None:
    machine = nameless(nameless(make_machine_with(2), 0), 1)
    fault = GPU_RECOVERY_NEEDED.finding(device_subject(machine, machine.devices[1]), "it must be reset")
    assert [gpu.unfit is None for gpu in judge_gpus(machine, (fault,))] == [False, False]
    assert "gpu.recovery_needed" in str(judge_gpus(machine, (fault,))[1].unfit)
    assert "recovery" not in str(judge_gpus(machine, (fault,))[0].unfit)


def test_tests_and_collectives_say_in_the_same_words_why_torch_can_use_no_gpu() -> None:
    causes: list[dict[str, Any]] = [
        {"cuda_runtime_version": NOT_SUPPORTED},
        {"context_starts": False},
        {"context_starts": Missing(MissingReason.ERROR, "CUDA error 802: system not yet initialized")},
    ]
    for facts in causes:
        machine = replace(make_machine_with(2, **facts), views=())
        with pytest.raises(SourceFailedError) as refused:
            place(machine)
        tests = place_tests(machine, (), NOT_ASKED, force=False)
        assert isinstance(tests, Missing)
        assert (tests.reason, tests.detail) == (MissingReason.ERROR, refused.value.message)


@pytest.mark.parametrize("busy", [(), (1,), (0, 2)])
@pytest.mark.parametrize("sick", [(), (1,), (0, 3)])
def test_tests_take_the_gpus_of_a_collective_but_those_in_use(
    busy: tuple[int, ...], sick: tuple[int, ...]
) -> None:
    machine = make_machine_with(4, sick=sick)
    devices = tuple(
        replace(device, processes=(TRAINING,)) if index in busy else replace(device, **IDLE)
        for index, device in enumerate(machine.devices)
    )
    machine = replace(machine, devices=devices)
    collective = place(machine)
    tests = place_tests(machine, collective.findings, NOT_ASKED, force=False)
    assert not isinstance(tests, Missing)
    healthy = [index for index in range(4) if index not in sick]
    assert [device.id.nvml_index for device in collective.devices] == healthy
    assert [device.id.nvml_index for device in tests.devices] == [
        index for index in healthy if index not in busy
    ]
    assert {one.name: one.in_use for one in tests.untested} == {
        **{f"GPU {index}": True for index in busy},
        **{f"GPU {index}": False for index in sick},
    }
    forced = place_tests(machine, collective.findings, NOT_ASKED, force=True)
    assert not isinstance(forced, Missing)
    assert forced.devices == collective.devices


def test_a_sick_gpu_is_hidden_and_named_and_the_others_run() -> None:
    placement = place(make_machine_with(3, sick=(1,)))
    assert placement.world_size == 2
    assert placement.variables == {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-2"}
    assert [finding.code for finding in placement.findings] == ["gpu.lost"]


@pytest.mark.parametrize(
    "facts",
    [
        {"cuda_runtime_version": NOT_SUPPORTED},
        {"context_starts": False},
        {"context_starts": Missing(MissingReason.ERROR, "CUDA error 802: system not yet initialized")},
    ],
)
def test_a_gpu_that_torch_cannot_use_is_an_error_and_never_gloo(facts: dict[str, Any]) -> None:
    with pytest.raises(SourceFailedError) as refused:
        place(replace(make_machine_with(2, **facts), views=()))
    assert "a GPU is here" in refused.value.message


def test_simulated_gpus_compute_nothing() -> None:
    with pytest.raises(SourceFailedError) as refused:
        place(make_snapshot(make_device(0), simulated="h100x8"))
    assert "h100x8" in refused.value.message
    assert place(host_only(), backend="gloo").backend == "gloo"


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(UsageError):
        place(make_machine_with(2), nproc=3)
    with pytest.raises(UsageError):
        place(make_machine_with(2), launched(16, 4))


def test_a_gpu_without_a_context_is_left_out_and_named_and_the_others_run() -> None:
    machine = make_machine_with(3)
    full = Missing(MissingReason.ERROR, "CUDA error: out of memory")
    views = (*machine.views[:2], view_of(machine.devices[2], 2, starts=full))
    facts = make_torch(context_starts=Missing(MissingReason.ERROR, f"on 1 of 3 GPUs: {full.detail}"))
    placement = place(replace(machine, views=views, torch=facts))
    assert (placement.world_size, placement.variables) == (2, {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"})
    (finding,) = placement.findings
    assert finding.code == "cuda.out_of_memory"
    assert "GPU 2" in finding.message


def test_memory_that_only_torch_lacks_is_not_taken_for_a_gpu_in_use() -> None:
    """A gate must not pass untested GPUs of which nobody knows why torch has so little of their memory."""
    machine = make_machine_with(1)
    little = (replace(machine.views[0], memory_free_bytes=GIB // 4),)
    left_out = place_tests(replace(machine, views=little), (), NOT_ASKED, force=False)
    assert isinstance(left_out, Missing)
    assert left_out.reason is MissingReason.ERROR
    assert "NVML counts 60 GiB as free" in left_out.detail
    held = replace(machine.devices[0], memory_free_bytes=GIB // 4)
    in_use = place_tests(replace(machine, devices=(held,), views=little), (), NOT_ASKED, force=False)
    assert isinstance(in_use, Missing)
    assert in_use.reason is MissingReason.IN_USE
    assert "NVML counts" not in in_use.detail


def test_a_launcher_may_show_each_rank_a_gpu_of_its_own() -> None:
    machine = make_machine_with(4)
    shown_one = replace(machine, views=machine.views[:1])
    placement = place(shown_one, launched(4, 4))
    assert (placement.world_size, placement.ranks_share_gpu, placement.variables) == (4, False, {})
    with pytest.raises(UsageError):
        place(shown_one, launched(8, 8))  # the machine has four
    with pytest.raises(UsageError):
        place(shown_one, nproc=4)  # nobody shows its ranks others


def test_two_ranks_may_share_the_only_gpu_where_nccl_can() -> None:
    placement = place(make_machine_with(1, nccl_version="2.30.7"), nproc=2)
    assert placement.ranks_share_gpu
    assert placement.variables == {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    assert not place(make_machine_with(1, nccl_version="2.30.7")).ranks_share_gpu


@pytest.mark.parametrize("version", ["2.29.7", "2.28.9", NOT_SUPPORTED])
def test_two_ranks_on_one_gpu_are_refused_with_the_version_that_they_need(version: Any) -> None:
    with pytest.raises(UsageError) as refused:
        place(make_machine_with(1, nccl_version=version), nproc=2)
    assert "2.30" in refused.value.message


@pytest.mark.parametrize(
    ("capability", "version", "expected"),
    [("9.0", "2.29.7", True), ("10.0", "2.24.3", True), ("8.0", "2.29.7", False), ("9.0", "2.23.4", False)],
)
def test_eight_bit_floats_need_new_gpus_and_a_new_nccl(capability: str, version: str, expected: bool) -> None:
    gpu = make_device(0, compute_capability=capability)
    machine = make_snapshot(gpu, views=(view_of(gpu, 0),), torch=make_torch(nccl_version=version))
    assert place(machine).float8 is expected


@pytest.mark.parametrize(("version", "expected"), [("2.7.1+cu128", False), ("2.8.0+cu128", True)])
def test_eight_bit_floats_need_a_torch_that_reduces_them(version: str, expected: bool) -> None:
    gpu = make_device(0, compute_capability="9.0")
    machine = make_snapshot(gpu, views=(view_of(gpu, 0),), torch=make_torch(version=version))
    assert place(machine).float8 is expected


def test_a_machine_whose_gpus_are_all_sick_could_not_be_tested() -> None:
    with pytest.raises(SourceFailedError):
        place(make_machine_with(2, sick=(0, 1)))


def test_a_launcher_says_how_many_ranks_there_are() -> None:
    assert place(host_only(), launched(2, 2), backend="gloo").world_size == 2
    assert place(make_machine_with(2), launched(16, 2)).world_size == 16


def test_the_launcher_and_nproc_must_agree() -> None:
    assert place(host_only(), launched(2, 2), backend="gloo", nproc=2).world_size == 2
    with pytest.raises(UsageError):
        place(host_only(), launched(2, 2), backend="gloo", nproc=4)
