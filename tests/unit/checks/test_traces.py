import pytest

from gpudiag.checks.gpu.availability import granted, granted_count, is_granted
from gpudiag.checks.traces import gpu_traces
from gpudiag.model.device import MigInstance, Snapshot, SourceState
from gpudiag.model.reading import NOT_ASKED
from tests.unit.checks.machines import make_bare_machine, make_broken_snapshot, make_pci_gpu
from tests.unit.model.nouns import make_device, make_machine, make_snapshot


def places(snapshot: Snapshot, **values: int) -> list[str]:
    return [trace.place for trace in gpu_traces(snapshot, **values)]


def test_a_machine_without_a_gpu_has_no_trace() -> None:
    assert places(make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine())) == []


def test_a_working_gpu_leaves_every_trace_of_its_own() -> None:
    snapshot = make_snapshot(make_device(0), machine=make_bare_machine(gpus=1))
    assert places(snapshot) == ["pci", "nvml", "device_node", "driver"]


@pytest.mark.parametrize("class_id", ["0300", "0302", "030000", "030200"])
def test_a_display_function_of_nvidia_is_a_trace(class_id: str) -> None:
    machine = make_bare_machine(pci_devices=(make_pci_gpu(0, class_id=class_id, driver="nouveau"),))
    assert places(make_broken_snapshot(SourceState.LIBRARY_ABSENT, machine)) == ["pci"]


@pytest.mark.parametrize(
    "facts", [{"class_id": "068000"}, {"class_id": "040300"}, {"vendor_id": "8086"}, {"driver": "vfio-pci"}]
)
def test_a_switch_a_sound_function_another_vendor_and_a_virtual_machine_s_gpu_are_none(
    facts: dict[str, str],
) -> None:
    machine = make_bare_machine(pci_devices=(make_pci_gpu(0, **facts),))
    assert places(make_broken_snapshot(SourceState.LIBRARY_ABSENT, machine)) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("CUDA_VISIBLE_DEVICES", "GPU-1234"),
        ("SLURM_JOB_GPUS", "0,1"),
        ("SLURM_GPUS_ON_NODE", "4"),
        ("NVIDIA_VISIBLE_DEVICES", "0"),
    ],
)
def test_a_variable_that_gives_gpus_is_a_trace(variable: str, value: str) -> None:
    machine = make_bare_machine(allocation={variable: value})
    assert places(make_broken_snapshot(SourceState.LIBRARY_ABSENT, machine)) == ["allocation"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", ""),
        ("CUDA_VISIBLE_DEVICES", "-1"),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles"),
        ("NVIDIA_VISIBLE_DEVICES", "void"),
        ("NVIDIA_VISIBLE_DEVICES", "none"),
        ("NVIDIA_VISIBLE_DEVICES", "all"),  # every CUDA base image says so
        ("SLURM_GPUS_ON_NODE", "0"),
        ("SLURM_JOB_ID", "42"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    ],
)
def test_a_variable_that_gives_none_is_no_trace(variable: str, value: str) -> None:
    machine = make_bare_machine(allocation={variable: value})
    assert places(make_broken_snapshot(SourceState.LIBRARY_ABSENT, machine)) == []


def test_expected_gpus_are_a_trace_unless_none_are_expected() -> None:
    snapshot = make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine())
    assert places(snapshot, expected_gpus=8) == ["expected"]
    assert places(snapshot, expected_gpus=0) == []
    assert gpu_traces(snapshot, NOT_ASKED) == ()


@pytest.mark.parametrize(
    ("variable", "value", "count"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1,2", 3),
        ("CUDA_VISIBLE_DEVICES", "0,2,-1,1", 2),  # CUDA stops at the first invalid one
        ("CUDA_VISIBLE_DEVICES", "", 0),
        ("SLURM_GPUS_PER_NODE", "h100:4", 4),
        ("SLURM_STEP_GPUS", "4,5", 2),
        ("NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b", 2),
        ("NVIDIA_VISIBLE_DEVICES", "all", None),
        ("NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices", None),
        ("SLURM_JOB_ID", "42", None),
    ],
)
def test_how_many_a_variable_gives(variable: str, value: str, count: int | None) -> None:
    assert granted_count(variable, value) == count


def test_the_scheduler_count_wins_over_a_list_that_a_user_may_have_cut() -> None:
    allocation = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "4"}
    assert granted(allocation) == ("SLURM_GPUS_ON_NODE", 4)
    assert granted({"SLURM_JOB_ID": "42"}) is None


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (None, [0, 1, 2]),
        ("0,2", [0, 2]),
        ("GPU-1", [1]),
        ("0,-1,2", [0]),
        ("", []),
        ("NoDevFiles", []),
        ("MIG-abc", [2]),
    ],
)
def test_which_gpus_a_job_was_given(value: str | None, given: list[int]) -> None:
    instance = MigInstance("MIG-abc-def", "1g.10gb", 7, 0, 10, 0, 10)
    devices = (make_device(0), make_device(1), make_device(2, mig_instances=(instance,)))
    allocation = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    snapshot = make_snapshot(*devices, machine=make_machine(allocation=allocation))
    assert [device.id.nvml_index for device in devices if is_granted(snapshot, device)] == given
