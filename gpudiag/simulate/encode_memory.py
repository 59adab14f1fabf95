"""A GPU's memory and what goes wrong in it: sizes, ECC counts, remapped rows, retired pages."""

from typing import Any

from gpudiag.errors import UsageError
from gpudiag.reference.nvml import constants_with_prefix, pack_struct, struct_version
from gpudiag.simulate.answers import AnswerTable, Refusal, both, u32, u64
from gpudiag.simulate.gpu_answers import GpuAnswers, PlacedGpu, read_member

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


def encode_memory(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer how large and full the GPU's memory is, and which errors it has had."""
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
    """The size of the BAR1 window of a GPU, or of a part of it with that much memory; None where unknown.

    Data-center GPUs since Ampere have the power of two that holds all of their memory, a T4 has
    256 MiB. Source: nvidia-smi -q -x of A100 (64 GiB), H100 (128 GiB), B200 (256 GiB) and T4, 2026.
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
            raise UsageError(f"{location!r} is no place in a GPU", hint=f"one of {', '.join(numbers)}")
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
        # NVML gives addresses, a scenario the count: any distinct ones will do.
        start = (number + 1) * _GIB

        def pack(pages: int, start: int = start) -> bytes:
            return u32(pages) + b"".join(u64(start + page * _PAGE_BYTES) for page in range(pages))

        def pack_with_times(pages: int, start: int = start) -> bytes:
            return pack(pages, start) + bytes(8 * pages)

        answers.reply("nvmlDeviceGetRetiredPages", count, pack, keys=(number,))
        answers.reply("nvmlDeviceGetRetiredPages_v2", count, pack_with_times, keys=(number,))
