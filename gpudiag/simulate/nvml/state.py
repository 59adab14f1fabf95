"""A scenario rendered into the state file of the simulated NVML library."""

from collections.abc import Iterable, Sequence
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.reference.declaration import Activity, ByHand, Call, Declared, Field, by_question
from gpudiag.reference.nvml import constant, pack_struct
from gpudiag.reference.readings import READINGS
from gpudiag.reference.vocabulary import ENABLE_STATES
from gpudiag.simulate.nvml.answers import (
    ANY_SUBJECT,
    MAX_SUBJECTS,
    NO_SUBJECT,
    SUBJECTS_PER_GPU,
    AnswerTable,
    GpuAnswers,
    PlacedGpu,
    Refusal,
    text,
    u32,
    u64,
)
from gpudiag.simulate.nvml.calls import fills_a_struct
from gpudiag.simulate.nvml.encode_activity import encode_activity
from gpudiag.simulate.nvml.encode_gpu import (
    encode_details,
    encode_identity,
    encode_sensors,
    numbered,
    word_number,
)
from gpudiag.simulate.nvml.encode_links import encode_affinity, encode_nvlinks, encode_pcie, encode_topology
from gpudiag.simulate.nvml.encode_memory import (
    encode_memory,
    encode_mig,
    encode_processes,
    encode_shares,
    list_mig_instances,
)
from gpudiag.simulate.scenario import CallFault, Scenario, SimulatedNvml

_INIT_CALLS = ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags")
_MOST_GPUS = MAX_SUBJECTS // SUBJECTS_PER_GPU


def encode_declared(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer every reading whose call the table declares; versioned structs are packed by hand."""
    answers = GpuAnswers(table, placed.subject)
    for question, readings in by_question(READINGS):
        if isinstance(question, ByHand | Activity):
            continue
        if isinstance(question, Field):
            number = _number(question, readings[0].name, placed.read(readings[0].name))
            answers.reply_field_number(question.number, number, wide=question.wide)
            if question.otherwise is not None:
                _encode_call(answers, question.otherwise, readings, placed)
        elif not fills_a_struct(question.function):
            _encode_call(answers, question, readings, placed)


def _encode_call(answers: GpuAnswers, call: Call, readings: tuple[Declared, ...], placed: PlacedGpu) -> None:
    if call.gives == "text":
        answers.reply(call.function, placed.read(readings[0].name), text, call.arguments)
        return
    pack = u64 if call.wide else u32
    members = sorted(readings, key=lambda declared: _place(declared, call))
    numbers = [
        _number(
            declared.question if call.place is not None else call, declared.name, placed.read(declared.name)
        )
        for declared in members
    ]
    refused = next((number for number in numbers if isinstance(number, Refusal)), None)
    answers.reply(
        call.function,
        numbers if refused is None else refused,
        lambda known: b"".join(pack(number) for number in known),
        call.arguments,
    )


def _place(declared: Declared, call: Call) -> int:
    """The reading's place among the answer's numbers; members of a struct are in the table's order."""
    place = declared.question.place if isinstance(declared.question, Call) else call.place
    return place if isinstance(place, int) else 0


def _number(question: Any, name: str, reading: Any) -> Any:
    """The number that NVML gives for the reading, or its Refusal."""
    if isinstance(reading, Refusal):
        return reading
    if question.gives == "switch":
        return word_number(numbered(ENABLE_STATES), name, reading)
    if isinstance(question.gives, tuple):
        return word_number(numbered(question.gives), name, reading)
    return round(reading * question.per)


def render_state(scenario: Scenario, xid_events: Iterable[tuple[str, int]] = ()) -> bytes:
    """The state file for a scenario; `xid_events` are (UUID, code) of the Xids to report, oldest first.

    Raises:
        UsageError: the scenario has a value that NVML cannot express.
    """
    gpus = place_gpus(scenario)
    table = AnswerTable()
    _encode_system(scenario.nvml, len(gpus), table)
    for placed in gpus:
        encode_declared(placed, table)
        # The last answer for a call wins: what follows overrides it.
        encode_identity(placed, table)
        encode_memory(placed, table)
        encode_sensors(placed, table)
        encode_details(placed, table)
        encode_pcie(placed, table)
        encode_affinity(placed, table)
        encode_nvlinks(placed, gpus, table)
        answers = GpuAnswers(table, placed.subject)
        encode_processes(answers, placed.read("processes"))
        encode_shares(answers, placed.read("processes"), placed.read("utilization_percent"))
        encode_mig(placed, table)
        encode_activity(placed, table)
    encode_topology(gpus, table)
    _add_faults(scenario.nvml, gpus, table)
    for call, microseconds in scenario.nvml.call_microseconds.items():
        table.charge(call, microseconds)
    subjects = {placed.gpu.readings.get("uuid"): placed.subject for placed in gpus}
    for uuid, code in xid_events:
        if uuid in subjects:
            table.add_event(subjects[uuid], constant("nvmlEventTypeXidCriticalError"), code)
    return table.pack()


def place_gpus(scenario: Scenario) -> tuple[PlacedGpu, ...]:
    """The GPUs that NVML shows, in its order. Raises UsageError: more than the library has handles for."""
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
    if nvml.confidential_computing is not None:
        feature = word_number(numbered(ENABLE_STATES), "confidential_computing", nvml.confidential_computing)
        state = pack_struct("c_nvmlConfComputeSystemState_t", ccFeature=feature)
        table.answer("nvmlSystemGetConfComputeState", NO_SUBJECT, state)


def _cuda_number(version: str) -> int:
    """CUDA's number for a version: 13000 for `13.0`."""
    major, _, minor = version.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10


def _add_faults(nvml: SimulatedNvml, gpus: Sequence[PlacedGpu], table: AnswerTable) -> None:
    """Add the faults: each GPU's (and its MIG devices') first, then those of any call."""
    for placed in gpus:
        subjects = [placed.subject, *(placed.mig_subject(i) for i in range(len(list_mig_instances(placed))))]
        for fault in placed.gpu.faults:
            table.add_fault(fault, subjects, str(placed.gpu.readings.get("uuid") or placed.position))
    for fault in nvml.faults:
        table.add_fault(fault, (ANY_SUBJECT,), "nvml")
    if nvml.init_delay_seconds:
        slow = CallFault("nvmlInit*", delay_seconds=nvml.init_delay_seconds)
        table.add_fault(slow, (ANY_SUBJECT,), "nvml")
