"""Render a scenario into the state file of the simulated NVML library."""

from collections.abc import Iterable, Sequence

from gpudiag.errors import UsageError
from gpudiag.reference.nvml import constant
from gpudiag.simulate.answers import (
    ANY_SUBJECT,
    MAX_SUBJECTS,
    NO_SUBJECT,
    SUBJECTS_PER_GPU,
    AnswerTable,
    Refusal,
    text,
    u32,
)
from gpudiag.simulate.encode_declared import encode_declared
from gpudiag.simulate.encode_details import encode_details
from gpudiag.simulate.encode_identity import encode_identity
from gpudiag.simulate.encode_links import encode_nvlinks, encode_pcie
from gpudiag.simulate.encode_memory import encode_memory
from gpudiag.simulate.encode_mig import encode_mig, list_mig_instances
from gpudiag.simulate.encode_processes import encode_processes
from gpudiag.simulate.encode_sensors import encode_sensors
from gpudiag.simulate.encode_topology import encode_affinity, encode_topology
from gpudiag.simulate.gpu_answers import GpuAnswers, PlacedGpu
from gpudiag.simulate.scenario import CallFault, Scenario, SimulatedNvml

_INIT_CALLS = ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags")
_MOST_GPUS = MAX_SUBJECTS // SUBJECTS_PER_GPU


def render_state(scenario: Scenario, xid_events: Iterable[tuple[str, int]] = ()) -> bytes:
    """The state file for a scenario.

    `xid_events` are the Xids that event sets are told, as (UUID of the GPU, code), oldest first.

    Raises:
        UsageError: the scenario says something that NVML cannot say.
    """
    gpus = place_gpus(scenario)
    table = AnswerTable()
    _encode_system(scenario.nvml, len(gpus), table)
    for placed in gpus:
        encode_declared(placed, table)
        # The last answer for a call wins: what follows knows better where it says the same.
        encode_identity(placed, table)
        encode_memory(placed, table)
        encode_sensors(placed, table)
        encode_details(placed, table)
        encode_pcie(placed, table)
        encode_affinity(placed, table)
        encode_nvlinks(placed, gpus, table)
        encode_processes(GpuAnswers(table, placed.subject), placed.read("processes"))
        encode_mig(placed, table)
    encode_topology(gpus, table)
    _add_faults(scenario.nvml, gpus, table)
    subjects = {placed.gpu.readings.get("uuid"): placed.subject for placed in gpus}
    for uuid, code in xid_events:
        if uuid in subjects:
            table.add_event(subjects[uuid], constant("nvmlEventTypeXidCriticalError"), code)
    return table.pack()


def place_gpus(scenario: Scenario) -> tuple[PlacedGpu, ...]:
    """The GPUs that NVML shows, in NVML's order.

    Raises:
        UsageError: there are more than the library has handles for.
    """
    if len(scenario.gpus) > _MOST_GPUS:
        raise UsageError(f"a simulated machine has at most {_MOST_GPUS} GPUs, not {len(scenario.gpus)}")
    visible = [(position, gpu) for position, gpu in enumerate(scenario.gpus) if gpu.visible]
    return tuple(
        PlacedGpu(gpu, position, nvml_index, scenario.host, scenario.nvml.driver_version)
        for nvml_index, (position, gpu) in enumerate(visible)
    )


def _encode_system(nvml: SimulatedNvml, gpu_count: int, table: AnswerTable) -> None:
    """Answer for the library and the driver as a whole."""
    for function in _INIT_CALLS:
        table.answer(function, NO_SUBJECT, Refusal(nvml.init_code) if nvml.init_code else b"")
    for function, version in (
        ("nvmlSystemGetDriverVersion", nvml.driver_version),
        ("nvmlSystemGetNVMLVersion", nvml.nvml_version),
    ):
        table.answer(function, NO_SUBJECT, text(version) if version else Refusal())
    for function in ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        cuda = nvml.cuda_driver_version
        table.answer(function, NO_SUBJECT, u32(_cuda_number(cuda)) if cuda else Refusal())
    for function in ("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2"):
        table.answer(function, NO_SUBJECT, u32(gpu_count))
    for function in ("nvmlGetExcludedDeviceCount", "nvmlGetBlacklistDeviceCount", "nvmlUnitGetCount"):
        table.answer(function, NO_SUBJECT, u32(0))
    table.answer("nvmlSystemGetHicVersion", NO_SUBJECT, u32(0))


def _cuda_number(version: str) -> int:
    """CUDA's number for a version: 13000 for `13.0`."""
    major, _, minor = version.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10


def _add_faults(nvml: SimulatedNvml, gpus: Sequence[PlacedGpu], table: AnswerTable) -> None:
    """Let calls misbehave: those on a GPU (and on its MIG devices) first, then those on any."""
    for placed in gpus:
        subjects = [placed.subject, *(placed.mig_subject(i) for i in range(len(list_mig_instances(placed))))]
        for fault in placed.gpu.faults:
            table.add_fault(fault, subjects, str(placed.gpu.readings.get("uuid") or placed.position))
    for fault in nvml.faults:
        table.add_fault(fault, (ANY_SUBJECT,), "nvml")
    if nvml.init_delay_seconds:
        slow = CallFault("nvmlInit*", delay_seconds=nvml.init_delay_seconds)
        table.add_fault(slow, (ANY_SUBJECT,), "nvml")
