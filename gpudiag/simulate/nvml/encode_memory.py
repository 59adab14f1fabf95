"""A GPU's memory and its errors, its MIG instances, and the processes that hold memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.reference.nvml import constant, constants_with_prefix, pack_struct, struct_version
from gpudiag.simulate.nvml.answers import (
    NO_SUBJECT,
    SUBJECTS_PER_GPU,
    AnswerTable,
    GpuAnswers,
    PlacedGpu,
    Refusal,
    both,
    hash_text,
    read_member,
    text,
    u32,
    u64,
)

_GIB = 1024**3
_PAGE_BYTES = 64 * 1024
_BAR1_USED_BYTES = 1024**2
_TURING_BAR1_BYTES = 256 * 1024**2
_WHOLE_MEMORY_IN_BAR1 = ("ampere", "hopper", "blackwell")
# The places of nvmlMemoryLocation_t that have field ids of their own, and how those spell them.
_FIELD_NAMES = {
    "l1_cache": "L1",
    "l2_cache": "L2",
    "dram": "DEV",
    "device_memory": "DEV",
    "register_file": "REG",
    "texture_memory": "TEX",
    "cbu": "CBU",
}
_ERROR_TYPES = {"corrected": 0, "uncorrected": 1}  # nvmlMemoryErrorType_t
_COUNTERS = {"volatile": 0, "aggregate": 1}  # nvmlEccCounterType_t
_CAUSES = {"corrected": 0, "uncorrected": 1}  # nvmlPageRetirementCause_t: several single-bit, one double-bit

_NO_INSTANCE = 0xFFFFFFFF
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE of an unsigned long long
_LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_MODES = {"compute": "COMPUTE", "graphics": "GRAPHICS", "mps": "MPS"}

_MOST_INSTANCES = 7  # of any GPU with MIG so far (NVIDIA MIG User Guide, 2026)
_BYTES_PER_MIB = 1024**2


def encode_memory(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the size and use of the GPU's memory, and its errors."""
    answers = GpuAnswers(table, placed.subject)
    encode_memory_info(answers, {**placed.gpu.readings, "missing": placed.gpu.missing})
    encode_window(answers, bar1_bytes(placed, placed.gpu.readings.get("memory_total_bytes")))
    _encode_ecc(placed, answers)
    _encode_ecc_locations(placed, answers)
    _encode_sram_status(placed, answers)
    _encode_rows(placed, answers)
    _encode_pages(placed, answers)


def encode_memory_info(answers: GpuAnswers, readings: Any) -> None:
    """Answer both versions of MemoryInfo: version 1 counts reserved memory as used."""
    total, used = read_member(readings, "memory_total_bytes"), read_member(readings, "memory_used_bytes")
    free, reserved = (
        read_member(readings, "memory_free_bytes"),
        read_member(readings, "memory_reserved_bytes"),
    )
    sizes = both(total, both(used, free))

    def pack_first(parts: tuple[int, tuple[int, int]]) -> bytes:
        held_back = 0 if isinstance(reserved, Refusal) else reserved
        return u64(parts[0]) + u64(parts[1][1]) + u64(parts[1][0] + held_back)

    def pack_second(parts: tuple[int, tuple[tuple[int, int], int]]) -> bytes:
        size, ((in_use, unused), held_back) = parts[0], parts[1]
        return pack_struct(
            "c_nvmlMemory_v2_t", version=version, total=size, reserved=held_back, free=unused, used=in_use
        )

    answers.reply("nvmlDeviceGetMemoryInfo", sizes, pack_first)
    version = struct_version("c_nvmlMemory_v2_t", 2)
    # A machine without a reserved figure has a driver that is older than the second version.
    second = both(total, both(both(used, free), reserved))
    answers.reply_versioned("nvmlDeviceGetMemoryInfo_v2", second, pack_second, version)


def bar1_bytes(placed: PlacedGpu, memory_bytes: int | None) -> int | None:
    """The size of the BAR1 window of a GPU, or of a part with that much memory; None where unknown.

    Data-center GPUs since Ampere have the next power of two, a T4 256 MiB. Source: nvidia-smi -q -x of A100
    (64 GiB), H100 (128 GiB), B200 (256 GiB) and T4, 2026.
    """
    if memory_bytes is None or "GeForce" in placed.gpu.readings.get("name", ""):
        return None
    architecture = placed.gpu.readings.get("architecture")
    if architecture == "turing":
        return _TURING_BAR1_BYTES
    return 1 << (memory_bytes - 1).bit_length() if architecture in _WHOLE_MEMORY_IN_BAR1 else None


def encode_window(answers: GpuAnswers, size_bytes: int | None) -> None:
    """Answer BAR1MemoryInfo: almost empty, as on an idle GPU; nvitop fails on MIG devices without it."""
    answers.reply(
        "nvmlDeviceGetBAR1MemoryInfo",
        Refusal() if size_bytes is None else size_bytes,
        lambda size: u64(size) + u64(size - _BAR1_USED_BYTES) + u64(_BAR1_USED_BYTES),
    )


def _encode_ecc(placed: PlacedGpu, answers: GpuAnswers) -> None:
    current, pending = placed.read("ecc_mode"), placed.read("ecc_mode_pending")
    answers.reply_field("DEV_ECC_CURRENT", _as_number(current))
    answers.reply_field("DEV_ECC_PENDING", _as_number(pending))


def _as_number(reading: Any) -> Any:
    return reading if isinstance(reading, Refusal) else int(reading == "enabled")


def _bits(error: str) -> str:
    """How field ids spell corrected (single-bit) and uncorrected (double-bit) errors."""
    return "SBE" if error == "corrected" else "DBE"


def _encode_ecc_locations(placed: PlacedGpu, answers: GpuAnswers) -> None:
    locations = placed.read("ecc_locations")
    if isinstance(locations, Refusal):
        answers.table.refuse_all("nvmlDeviceGetMemoryErrorCounter", placed.subject, locations)
        return
    numbers = constants_with_prefix("NVML_MEMORY_LOCATION_")
    for record in locations:
        location = record["location"]
        if location not in numbers:
            raise UsageError(f"{location!r} is not a place in a GPU", hint=f"one of {', '.join(numbers)}")
        for error, error_number in _ERROR_TYPES.items():
            for counter, counter_number in _COUNTERS.items():
                count = read_member(record, f"{error}_{counter}")
                keys = (error_number, counter_number, numbers[location])
                answers.reply("nvmlDeviceGetMemoryErrorCounter", count, u64, keys)
                _reply_location_field(answers, location, f"{_bits(error)}_{counter[:3].upper()}", count)


def _reply_location_field(answers: GpuAnswers, location: str, which: str, count: Any) -> None:
    if location in _FIELD_NAMES and not (location == "cbu" and which.startswith("SBE")):
        answers.reply_field(f"DEV_ECC_{which}_{_FIELD_NAMES[location]}", count, wide=True)


def _encode_sram_status(placed: PlacedGpu, answers: GpuAnswers) -> None:
    """Answer SramEccErrorStatus from the place `sram`: its uncorrected errors count as SEC-DED ones."""
    locations = placed.gpu.readings.get("ecc_locations") or ()
    sram = next((record for record in locations if record["location"] == "sram"), None)
    version = struct_version("c_nvmlEccSramErrorStatus_v1_t", 1)
    members = {
        "aggregateUncSecDed": "uncorrected_aggregate",
        "aggregateCor": "corrected_aggregate",
        "volatileUncSecDed": "uncorrected_volatile",
        "volatileCor": "corrected_volatile",
    }

    def pack(exceeded: bool) -> bytes:
        counts = {} if sram is None else {member: sram.get(name) or 0 for member, name in members.items()}
        return pack_struct(
            "c_nvmlEccSramErrorStatus_v1_t", version=version, bThresholdExceeded=exceeded, **counts
        )

    exceeded = placed.read("ecc_sram_threshold_exceeded")
    answers.reply_versioned("nvmlDeviceGetSramEccErrorStatus", exceeded, pack, version)


def _encode_rows(placed: PlacedGpu, answers: GpuAnswers) -> None:
    corrected, uncorrected = placed.read("row_remap_correctable"), placed.read("row_remap_uncorrectable")
    pending, failed = placed.read("row_remap_pending"), placed.read("row_remap_failed")
    answers.reply_field("DEV_REMAPPED_COR", corrected)
    answers.reply_field("DEV_REMAPPED_UNC", uncorrected)
    answers.reply_field("DEV_REMAPPED_PENDING", pending)
    answers.reply_field("DEV_REMAPPED_FAILURE", failed)
    answers.reply(
        "nvmlDeviceGetRowRemapperHistogram",
        placed.read("row_remap_histogram"),
        lambda banks: b"".join(
            u32(banks[f"{name}_banks"]) for name in ("max", "high", "partial", "low", "none")
        ),
    )


def _encode_pages(placed: PlacedGpu, answers: GpuAnswers) -> None:
    for cause, number in _CAUSES.items():
        count = placed.read(f"retired_pages_{cause}")
        answers.reply_field(f"DEV_RETIRED_{_bits(cause)}", count)
        # NVML gives addresses, a scenario only the count: any distinct addresses will do.
        start = (number + 1) * _GIB

        def pack(pages: int, start: int = start) -> bytes:
            return u32(pages) + b"".join(u64(start + page * _PAGE_BYTES) for page in range(pages))

        def pack_with_times(pages: int, start: int = start) -> bytes:
            return pack(pages, start) + bytes(8 * pages)

        answers.reply("nvmlDeviceGetRetiredPages", count, pack, keys=(number,))
        answers.reply("nvmlDeviceGetRetiredPages_v2", count, pack_with_times, keys=(number,))


def encode_processes(answers: GpuAnswers, processes: Any) -> None:
    """Answer the process lists of a GPU or a MIG device; `processes` may be a Refusal."""
    for kind, function in _LISTS.items():
        of_kind = processes
        if not isinstance(processes, Refusal):
            of_kind = [process for process in processes if process["kind"] == kind]
        answers.reply(function, of_kind, lambda records: _pack_list(records, with_instances=False))
        for newer in (f"{function}_v2", f"{function}_v3"):
            answers.reply(newer, of_kind, lambda records: _pack_list(records, with_instances=True))
        _encode_details(answers, kind, of_kind)
    if not isinstance(processes, Refusal):
        _encode_names(answers.table, processes)


def encode_shares(answers: GpuAnswers, processes: Any, utilization: Any) -> None:
    """Answer the processes' shares of the SMs: alike for those that compute, as the GPU's together."""
    if isinstance(processes, Refusal) or not isinstance(utilization, int):
        return
    computing = [process for process in processes if process["kind"] == "compute"]
    if not (computing and utilization):
        return  # no process has worked: not found
    packed = [
        pack_struct(
            "c_nvmlProcessUtilizationSample_t",
            pid=process["pid"],
            timeStamp=1,
            smUtil=utilization // len(computing),
        )
        for process in computing
    ]
    answers.reply(
        "nvmlDeviceGetProcessUtilization", packed, lambda records: u32(len(records)) + b"".join(records)
    )


def _pack_list(processes: Sequence[Mapping[str, Any]], *, with_instances: bool) -> bytes:
    size = 24 if with_instances else 16
    packed = [_pack_process("c_nvmlProcessInfo_v2_t", process)[:size] for process in processes]
    return u32(len(packed)) + b"".join(packed)


def _pack_process(struct: str, process: Mapping[str, Any]) -> bytes:
    memory = read_member(process, "memory_used_bytes")
    return pack_struct(
        struct,
        pid=process["pid"],
        usedGpuMemory=_NOT_AVAILABLE if isinstance(memory, Refusal) else memory,
        gpuInstanceId=_instance(process, "gpu_instance_id"),
        computeInstanceId=_instance(process, "compute_instance_id"),
    )


def _instance(process: Mapping[str, Any], name: str) -> int:
    number = process.get(name)
    return _NO_INSTANCE if number is None else int(number)


def _encode_details(answers: GpuAnswers, kind: str, processes: Any) -> None:
    """Answer RunningProcessDetailList: the count and the address of the array are in the struct."""
    version = struct_version("c_nvmlProcessDetailList_v1_t", 1)
    mode = constant(f"NVML_PROCESS_MODE_{_MODES[kind]}")

    def pack(records: Sequence[Mapping[str, Any]]) -> bytes:
        packed = [_pack_process("c_nvmlProcessDetail_v1_t", process) for process in records]
        return u32(len(packed)) + b"".join(packed)

    answers.reply("nvmlDeviceGetRunningProcessDetailList", processes, pack, keys=(version, mode))


def _encode_names(table: AnswerTable, processes: Sequence[Mapping[str, Any]]) -> None:
    for process in processes:
        command = process.get("command")
        if command:
            table.answer(
                "nvmlSystemGetProcessName", NO_SUBJECT, text(command.split()[0]), keys=(process["pid"],)
            )


def encode_mig(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer a handle for each of the GPU's MIG instances."""
    answers = GpuAnswers(table, placed.subject)
    modes = both(placed.read("mig_mode"), placed.read("mig_mode_pending"))
    answers.reply("nvmlDeviceIsMigDeviceHandle", 0)
    instances = list_mig_instances(placed)
    enabled = not isinstance(modes, Refusal) and modes[0] == "enabled"
    answers.reply("nvmlDeviceGetMaxMigDeviceCount", _MOST_INSTANCES if enabled else 0)
    if isinstance(modes, Refusal):
        table.refuse_all("nvmlDeviceGetMigDeviceHandleByIndex", placed.subject, modes)
    for number, instance in enumerate(instances):
        # The indices of MIG devices may have gaps: a recorded machine lists them.
        index = instance.get("mig_index", number)
        handle = u32(placed.mig_subject(number))
        table.answer("nvmlDeviceGetMigDeviceHandleByIndex", placed.subject, handle, keys=(index,))
        _encode_instance(placed, number, index, instance, table)


def list_mig_instances(placed: PlacedGpu) -> Sequence[Mapping[str, Any]]:
    """The GPU's MIG instances, none without such a reading. Raises UsageError: more than a GPU can have."""
    instances: Sequence[Mapping[str, Any]] = placed.gpu.readings.get("mig_instances") or ()
    if len(instances) >= SUBJECTS_PER_GPU:
        raise UsageError(f"a GPU has at most {_MOST_INSTANCES} MIG instances, not {len(instances)}")
    return instances


def _encode_instance(
    placed: PlacedGpu, number: int, index: int, instance: Mapping[str, Any], table: AnswerTable
) -> None:
    answers = GpuAnswers(table, placed.mig_subject(number))
    uuid = read_member(instance, "uuid")
    answers.reply("nvmlDeviceGetUUID", uuid, text)
    if not isinstance(uuid, Refusal):
        for function in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByUUIDV"):
            table.answer(function, NO_SUBJECT, u32(answers.subject), keys=(hash_text(uuid),))
    answers.reply("nvmlDeviceGetName", read_member(instance, "name"), text)
    answers.reply("nvmlDeviceGetIndex", index)
    answers.reply("nvmlDeviceIsMigDeviceHandle", 1)
    answers.reply("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", placed.subject)
    answers.reply("nvmlDeviceGetGpuInstanceId", read_member(instance, "gpu_instance_id"))
    answers.reply("nvmlDeviceGetComputeInstanceId", read_member(instance, "compute_instance_id"))
    encode_memory_info(answers, instance)
    encode_window(answers, bar1_bytes(placed, instance.get("memory_total_bytes")))
    answers.reply_each(
        ("nvmlDeviceGetAttributes", "nvmlDeviceGetAttributes_v2"),
        read_member(instance, "memory_total_bytes"),
        lambda size: pack_struct("c_nvmlDeviceAttributes", memorySizeMB=size // _BYTES_PER_MIB),
    )
    encode_processes(answers, _processes_of(placed, instance))


def _processes_of(placed: PlacedGpu, instance: Mapping[str, Any]) -> Any:
    """The GPU's processes that run in this instance."""
    processes = placed.read("processes")
    if isinstance(processes, Refusal):
        return processes
    names = ("gpu_instance_id", "compute_instance_id")
    return [
        process for process in processes if all(process.get(name) == instance.get(name) for name in names)
    ]
