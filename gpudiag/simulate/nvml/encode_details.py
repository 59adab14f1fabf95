"""Readings that only some checks need: firmware, repairs, limits, throttle time, PCIe errors, fabric."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.reference.nvml import constant, constants_with_prefix, pack_struct, struct_version
from gpudiag.reference.vocabulary import (
    FABRIC_FAULTS,
    FABRIC_HEALTH,
    FABRIC_MISCONFIGURATIONS,
    FABRIC_STATES,
    PERFORMANCE_LIMITS,
)
from gpudiag.simulate.nvml.answers import AnswerTable, Refusal, both, u64
from gpudiag.simulate.nvml.encode_identity import numbered, on_off, word_number
from gpudiag.simulate.nvml.gpu_answers import GpuAnswers, PlacedGpu, read_member

_NS_PER_SECOND = 1_000_000_000
_BYTES_PER_MB = 1_000_000
_PCIE_FIELDS = {
    "correctable": "CORRECTABLE_ERRORS",
    "nonfatal": "NON_FATAL_ERROR",
    "fatal": "FATAL_ERROR",
    "bad_tlp": "BAD_TLP",
    "bad_dllp": "BAD_DLLP",
    "naks_received": "NAKS_RECEIVED",
    "naks_sent": "NAKS_SENT",
}
_HEALTH_MASK = "NVML_GPU_FABRIC_HEALTH_MASK_"
_FLAG_TRUE, _FLAG_FALSE = 1, 2  # of the two bits that each fault has in the health mask; 0: not supported


def encode_details(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the readings that `model.Device` has besides the usual ones."""
    answers = GpuAnswers(table, placed.subject)
    _encode_firmware(placed, answers)
    _encode_repairs(placed, answers)
    _encode_throttle_time(placed, answers)
    errors = placed.read("pcie_errors")
    for name, field in _PCIE_FIELDS.items():
        answers.reply_field(f"DEV_PCIE_COUNT_{field}", read_part(errors, name))
    speed = placed.read("nvlink_bytes_per_second")
    megabytes = speed if isinstance(speed, Refusal) else round(speed / _BYTES_PER_MB)
    answers.reply_field("DEV_NVLINK_SPEED_MBPS_COMMON", megabytes)
    answers.reply_field("DEV_NVLINK_GET_SPEED", megabytes)
    _encode_fabric(answers, placed.read("fabric"))


def read_part(record: Mapping[str, Any] | Refusal, name: str) -> Any:
    """A member of a reading that is an object; the reading's own Refusal where that is missing."""
    return record if isinstance(record, Refusal) else read_member(record, name)


def _encode_firmware(placed: PlacedGpu, answers: GpuAnswers) -> None:
    modes = both(placed.read("gsp_firmware_mode"), placed.read("gsp_firmware_mode_default"))
    answers.reply("nvmlDeviceGetGspFirmwareMode", modes, lambda pair: on_off(pair[0]) + on_off(pair[1]))
    valid = placed.read("inforom_valid")
    corrupted = Refusal(constant("NVML_ERROR_CORRUPTED_INFOROM"))
    answers.reply("nvmlDeviceValidateInforom", corrupted if valid is False else valid, lambda _valid: b"")


def _encode_repairs(placed: PlacedGpu, answers: GpuAnswers) -> None:
    version = struct_version("c_nvmlUnrepairableMemory_v1_t", 1)
    answers.reply_versioned(
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
        placed.read("memory_unrepairable"),
        lambda flag: pack_struct("c_nvmlUnrepairableMemory_v1_t", version=version, unrepairableMemory=flag),
        version,
    )
    status_version = struct_version("c_nvmlRepairStatus_t", 1)
    answers.reply_versioned(
        "nvmlDeviceGetRepairStatus",
        both(placed.read("memory_channel_repair_pending"), placed.read("tpc_repair_pending")),
        lambda pair: pack_struct(
            "c_nvmlRepairStatus_t",
            version=status_version,
            bChannelRepairPending=pair[0],
            bTpcRepairPending=pair[1],
        ),
        status_version,
    )


def _encode_throttle_time(placed: PlacedGpu, answers: GpuAnswers) -> None:
    seconds = placed.read("throttle_seconds")
    for policy, number in PERFORMANCE_LIMITS.items():
        held = read_part(seconds, policy)
        ns = held if isinstance(held, Refusal) else round(held * _NS_PER_SECOND)
        answers.reply("nvmlDeviceGetViolationStatus", ns, lambda value: u64(0) + u64(value), keys=(number,))
        answers.reply_field(f"DEV_PERF_POLICY_{policy.upper()}", ns, wide=True)


def _encode_fabric(answers: GpuAnswers, fabric: Mapping[str, Any] | Refusal) -> None:
    """Answer each version of GpuFabricInfo; health is in the second one and later."""
    answers.reply("nvmlDeviceGetGpuFabricInfo", fabric, partial(_pack_fabric, "c_nvmlGpuFabricInfo_t", {}))
    for number in (2, 3):
        struct = f"c_nvmlGpuFabricInfo_v{number}_t"
        version = struct_version(struct, number)
        members: dict[str, int] = {"version": version, "healthMask": _health_mask(fabric)}
        if number > 2:
            members["healthSummary"] = _health_summary(fabric)
        encode = partial(_pack_fabric, struct, members)
        answers.reply_versioned("nvmlDeviceGetGpuFabricInfoV", fabric, encode, version)


def _pack_fabric(struct: str, members: Mapping[str, int], fabric: Mapping[str, Any]) -> bytes:
    clique, cluster = read_member(fabric, "clique_id"), read_member(fabric, "cluster_uuid")
    return pack_struct(
        struct,
        clusterUuid=bytes(16) if isinstance(cluster, Refusal) else bytes.fromhex(cluster.replace("-", "")),
        status=_status_code(fabric["status"]),
        cliqueId=0 if isinstance(clique, Refusal) else clique,
        state=word_number(numbered(FABRIC_STATES), "fabric.state", fabric["state"]),
        **members,
    )


def _status_code(word: str) -> int:
    """NVML's return code for the outcome of the registration: `success`, or an error's name."""
    if word == "success":
        return 0
    return word_number(constants_with_prefix("NVML_ERROR_"), "fabric.status", word)


def _health_summary(fabric: Mapping[str, Any] | Refusal) -> int:
    health = read_part(fabric, "health")
    return 0 if isinstance(health, Refusal) else word_number(numbered(FABRIC_HEALTH), "fabric.health", health)


def _health_mask(fabric: Mapping[str, Any] | Refusal) -> int:
    """The bits of the faults that are true; the others are false, or not supported without a reading."""
    faults = read_part(fabric, "faults")
    if isinstance(faults, Refusal):
        return 0
    mask = 0
    for flag, shift in FABRIC_FAULTS.items():
        mask |= (_FLAG_TRUE if flag in faults else _FLAG_FALSE) << shift
    configurations = numbered(FABRIC_MISCONFIGURATIONS)
    for fault in faults:
        if fault in configurations:
            mask |= configurations[fault] << constant(f"{_HEALTH_MASK}SHIFT_INCORRECT_CONFIGURATION")
        elif fault not in FABRIC_FAULTS:
            raise UsageError(
                f"fabric.faults: {fault!r} is unknown", hint=", ".join((*FABRIC_FAULTS, *configurations))
            )
    return mask


def encode_bit_error_rate(rate: float) -> int:
    """A bit error rate as the NVLink fields hold it: mantissa in bits 8 to 11, minus the exponent below.

    Source: nvml.h, NVML_NVLINK_ERROR_COUNTER_BER_GET.
    """
    if rate <= 0:
        return 0
    exponent = max(0, math.ceil(-math.log10(rate)))
    mantissa = round(rate * 10.0**exponent)
    return mantissa << 8 | exponent
