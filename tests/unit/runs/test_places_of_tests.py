from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks.gpu.devices import GPU_RECOVERY_NEEDED
from gpudiag.checks.subjects import device_subject
from gpudiag.installed import pip_command
from gpudiag.model.device import DeviceView, GpuProcess, Snapshot, TorchFacts
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.runs.active import plan_active
from gpudiag.runs.placement import Placement, place_tests, why_no_peers
from tests.unit.model.nouns import WITHOUT_LIBRARY, make_device, make_snapshot

ABSENT = Missing(MissingReason.SOURCE_ABSENT, "torch is not installed")
NO_CUDA = Missing(MissingReason.NOT_SUPPORTED, "CPU build of torch")
FACTS: dict[str, Any] = (
    {"version": "2.13.0", "python": "python3", "cuda_runtime_version": "13.0"}
    | {"architectures": ("sm_90",), "nccl_version": "2.29", "nccl_available": True, "gloo_available": True}
    | {"cuda_available": True, "device_count": 3, "nvml_device_count": 3, "context_starts": True}
)
IDLE: dict[str, Any] = {"mig_mode": "disabled", "compute_mode": "default", "processes": ()} | {
    "utilization_percent": 0,
    "memory_used_bytes": 0,
    "memory_total_bytes": 80 * 2**30,
}
TRAINING = GpuProcess(42, "compute", 2**30, True, "ann", "train.py", container_id=ABSENT, started_at=ABSENT)


def machine(count: int = 3, torch: Any = None, **changed: dict[str, Any]) -> Snapshot:
    """A machine with idle GPUs that torch sees; `gpu1={...}` changes the second one."""
    devices = tuple(
        make_device(place, **{**IDLE, **changed.get(f"gpu{place}", {})}) for place in range(count)
    )
    facts = TorchFacts(**FACTS) if torch is None else torch
    starts = True if isinstance(facts, Missing) else facts.context_starts
    views = tuple(_view(place, context_starts=starts) for place in range(count))
    return make_snapshot(*devices, views=views, torch=facts)


def _view(place: int, **values: Any) -> DeviceView:
    names = ("name", "memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "utilization_percent")
    unknown = dict.fromkeys((*names, "bus_id", "driver_version"), NO_CUDA)
    known = {"source": "torch", "source_index": place, "uuid": f"GPU-{place}", "context_starts": True}
    return DeviceView(**{**unknown, **known, **values})


def choose(snapshot: Snapshot, findings: Any = (), *, force: bool = False) -> Any:
    return place_tests(snapshot, findings, NOT_ASKED, force=force)


def chosen(place: Placement) -> list[Any]:
    return [device.id.nvml_index for device in place.devices]


def test_idle_gpus_are_all_tested():
    place = choose(machine())
    assert (place.device_kind, place.world_size, chosen(place)) == ("cuda", 3, [0, 1, 2])
    assert place.variables == {}  # CUDA shows those and no others
    assert place.untested == ()


def test_a_gpu_that_someone_uses_is_left_alone_and_named():
    place = choose(machine(gpu1={"processes": (TRAINING,)}))
    assert chosen(place) == [0, 2]
    assert [(one.name, one.reason) for one in place.untested] == [
        ("GPU 1", "1 compute process: pid 42 (ann, train.py) holds 1 GiB")
    ]
    assert "GPU-1" not in place.variables["CUDA_VISIBLE_DEVICES"]


def test_force_is_offered_for_gpus_in_use_and_for_nothing_else():
    place = choose(machine(gpu1={"processes": (TRAINING,)}, gpu2={"mig_mode": "enabled"}))
    assert [one.in_use for one in place.untested] == [True, False]


def test_gpus_in_exclusive_mode_are_tested_but_not_copied_between():
    place = choose(machine(gpu1={"compute_mode": "exclusive_process"}))
    assert chosen(place) == [0, 1, 2]
    assert "GPU 1" in why_no_peers(place)
    plan = plan_active("standard", place, None)
    assert "peer_copy" not in plan.tests
    assert "memory_copy" in plan.tests
    assert "peer_copy" in plan_active("standard", choose(machine()), None).tests


def test_force_tests_it_all_the_same():
    assert chosen(choose(machine(gpu1={"processes": (TRAINING,)}), force=True)) == [0, 1, 2]


def test_where_all_are_in_use_nothing_is_tested_and_that_counts_as_a_gap():
    busy = {f"gpu{place}": {"processes": (TRAINING,)} for place in range(3)}
    place = choose(machine(**busy))
    assert isinstance(place, Missing)
    assert place.reason is MissingReason.IN_USE
    assert "--force" in place.detail


@pytest.mark.parametrize("force", [False, True])
def test_a_faulty_gpu_is_never_tested(force):
    snapshot = machine()
    fault = GPU_RECOVERY_NEEDED.finding(device_subject(snapshot, snapshot.devices[1]), "it must be reset")
    place = choose(snapshot, (fault,), force=force)
    assert chosen(place) == [0, 2]
    assert "gpu.recovery_needed" in place.untested[0].reason


@pytest.mark.parametrize(
    "readings",
    [
        {"responding": Missing(MissingReason.DEVICE_LOST)},
        {"responding": Missing(MissingReason.TIMED_OUT)},
        {"mig_mode": "enabled"},
    ],
    ids=["lost", "hung", "mig"],
)
def test_a_gpu_that_cannot_be_tested_costs_only_itself(readings):
    place = choose(machine(gpu1=readings), force=True)
    assert chosen(place) == [0, 2]
    assert len(place.untested) == 1


def test_a_gpu_that_torch_does_not_see_is_left_out():
    snapshot = machine()
    assert chosen(choose(replace(snapshot, views=snapshot.views[1:]))) == [1, 2]


def test_a_gpu_on_which_no_context_starts_is_left_out():
    snapshot = machine()
    broken = (_view(0, context_starts=Missing(MissingReason.ERROR, "CUDA error")), *snapshot.views[1:])
    error = Missing(MissingReason.ERROR, "on 1 of 3 GPUs: CUDA error")
    facts = TorchFacts(**{**FACTS, "context_starts": error})
    assert chosen(choose(replace(snapshot, views=broken, torch=facts))) == [1, 2]


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (ABSENT, pip_command("torch")),
        (Missing(MissingReason.TIMED_OUT, "no answer within 30 s"), "no answer within 30 s"),
        (TorchFacts(**{**FACTS, "cuda_runtime_version": NO_CUDA}), "without CUDA"),
        (TorchFacts(**{**FACTS, "context_starts": Missing(MissingReason.ERROR, "error 802")}), "error 802"),
    ],
    ids=["absent", "hung", "cpu build", "no context"],
)
def test_a_torch_that_cannot_use_the_gpus_is_an_error_with_its_cause(torch, words):
    place = choose(machine(torch=torch))
    assert isinstance(place, Missing)
    assert place.reason is MissingReason.ERROR
    assert words in place.detail


def test_a_machine_without_a_gpu_is_tested_on_its_cpu():
    facts = TorchFacts(**{**FACTS, "cuda_runtime_version": NO_CUDA})
    place = choose(replace(machine(0, facts), sources=WITHOUT_LIBRARY))
    assert (place.device_kind, place.world_size, place.variables) == ("cpu", 4, {})


def test_a_missing_torch_is_an_error_without_a_gpu_too():
    place = choose(machine(0, ABSENT))
    assert isinstance(place, Missing)
    assert place.reason is MissingReason.ERROR


def test_simulated_gpus_compute_nothing():
    place = choose(replace(machine(), simulated="h100x8"))
    assert isinstance(place, Missing)
    assert place.reason is MissingReason.NOT_SUPPORTED
