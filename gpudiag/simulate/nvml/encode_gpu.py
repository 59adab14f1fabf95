"""A GPU's readings as NVML answers them: identity, settings, sensors, and what only some checks need."""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.reading import is_without_word
from gpudiag.reference.nvml import constant, constants_with_prefix, pack_struct, struct_version
from gpudiag.reference.vocabulary import (
    BRANDS,
    ENABLE_STATES,
    EVENT_REASONS,
    FABRIC_FAULTS,
    FABRIC_HEALTH,
    FABRIC_MISCONFIGURATIONS,
    FABRIC_STATES,
    PERFORMANCE_LIMITS,
)
from gpudiag.simulate.nvml.answers import (
    NO_SUBJECT,
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
from gpudiag.units import MILLIWATTS_PER_WATT

# --- identity and settings

_DISPLAY_MODE_DEPRECATED_IN = 580


def word_number(numbers: dict[str, int], field: str, word: str) -> int:
    """NVML's number for one of our words; 9 for `unknown_9`. Raises UsageError: there is no such word."""
    if is_without_word(word):
        return int(word.rpartition("_")[2])
    if word not in numbers:
        raise UsageError(f"{field}: {word!r} is unknown", hint=f"one of {', '.join(numbers)}")
    return numbers[word]


def numbered(words: tuple[str | None, ...]) -> dict[str, int]:
    """NVML's number for each word of a table of the vocabulary."""
    return {word: number for number, word in enumerate(words) if word is not None}


def on_off(word: str) -> bytes:
    """NVML's number for `enabled` or `disabled`, packed."""
    return u32(word_number(numbered(ENABLE_STATES), "a mode", word))


def encode_identity(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the GPU's identity and modes, and the look-ups of its handle."""
    answers = GpuAnswers(table, placed.subject)
    answers.reply("nvmlDeviceGetSerial", placed.read("serial"), text)
    minor_number = placed.gpu.minor_number
    answers.reply("nvmlDeviceGetIndex", placed.nvml_index)
    answers.reply("nvmlDeviceGetMinorNumber", placed.nvml_index if minor_number is None else minor_number)
    answers.reply("nvmlDeviceGetCudaComputeCapability", placed.read("compute_capability"), _capability)
    brand = placed.read("brand")
    answers.reply("nvmlDeviceGetBrand", placed.read("name") if isinstance(brand, Refusal) else brand, _brand)
    _encode_modes(placed, answers)
    _encode_pci(placed, answers)
    _encode_look_ups(placed, table)


def _capability(version: str) -> bytes:
    major, minor = version.split(".")
    return u32(int(major)) + u32(int(minor))


def _brand(word: str) -> bytes:
    """NVML's number for a brand, packed, or for a product name's brand: data-center GPUs are plain NVIDIA."""
    brands = numbered(BRANDS)
    if is_without_word(word):
        return u32(word_number(brands, "brand", word))
    by_product = brands["geforce" if "GeForce" in word else "nvidia"]
    return u32(brands.get(word, by_product))


def _encode_modes(placed: PlacedGpu, answers: GpuAnswers) -> None:
    answers.reply("nvmlDeviceGetDisplayActive", "disabled", on_off)  # nothing draws on a simulated GPU
    answers.reply("nvmlDeviceGetDisplayMode", _display_mode(placed.driver_version), on_off)
    types = [value for name, value in constants_with_prefix("nvmlEventType").items() if name != "all"]
    answers.reply("nvmlDeviceGetSupportedEventTypes", sum(types), lambda mask: mask.to_bytes(8, "little"))


def _display_mode(driver_version: str) -> str | Refusal:
    """What drivers return for a data-center GPU: 570.148 `enabled`, 580.105 and 595.91 that it is deprecated.

    Source: nvidia-smi -q -x of an A100, an H100 and a T4, 2026.
    """
    major = driver_version.partition(".")[0]
    if major.isdigit() and int(major) >= _DISPLAY_MODE_DEPRECATED_IN:
        return Refusal(constant("NVML_ERROR_DEPRECATED"))
    return "enabled"


def parse_bus_id(bus_id: str) -> tuple[int, int, int]:
    """Domain, bus and device of `dddddddd:bb:dd.f`. Raises UsageError: the text has another form."""
    try:
        domain, bus, device = bus_id.split(".")[0].split(":")
        return int(domain, 16), int(bus, 16), int(device, 16)
    except ValueError:
        raise UsageError(f"{bus_id!r} is not a PCI bus id", hint="write it as 00000000:5d:00.0") from None


def pack_pci_info(bus_id: str, device_id: int = 0, subsystem_id: int = 0) -> bytes:
    """An nvmlPciInfo_t (version 3, of which the older ones are a part)."""
    domain, bus, device = parse_bus_id(bus_id)
    upper = bus_id.upper()
    return pack_struct(
        "nvmlPciInfo_t",
        busIdLegacy=upper[4:],
        domain=domain,
        bus=bus,
        device=device,
        pciDeviceId=device_id,
        pciSubSystemId=subsystem_id,
        busId=upper,
    )


def _encode_pci(placed: PlacedGpu, answers: GpuAnswers) -> None:
    # NVML joins two sysfs ids: the device's in the upper half, the vendor's in the lower.
    device_id = int(f"{placed.gpu.pci_device_id or '0'}10de", 16)
    subsystem_id = int(placed.gpu.pci_subsystem_id or "0", 16)
    bus_id = placed.read("bus_id")

    def pack(value: str) -> bytes:
        return pack_pci_info(value, device_id, subsystem_id)

    answers.reply_each(
        ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3"), bus_id, pack
    )
    class_id = int(placed.read_pci_attribute("class") or "0x030200", 16)

    def pack_extended(value: str) -> bytes:
        domain, bus, device = parse_bus_id(value)
        return pack_struct(
            "nvmlPciInfoExt_v1_t",
            version=version,
            domain=domain,
            bus=bus,
            device=device,
            pciDeviceId=device_id,
            pciSubSystemId=subsystem_id,
            baseClass=class_id >> 16,
            subClass=class_id >> 8 & 0xFF,
            busId=value.upper(),
        )

    version = struct_version("nvmlPciInfoExt_v1_t", 1)
    answers.reply("nvmlDeviceGetPciInfoExt", bus_id, pack_extended, keys=(version,))


def _encode_look_ups(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the handle for its index, UUID, serial and each way to write the bus id."""
    handle = u32(placed.subject)
    for function in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2"):
        table.answer(function, NO_SUBJECT, handle, keys=(placed.nvml_index,))
    bus_id, serial, uuid = placed.read("bus_id"), placed.read("serial"), placed.read("uuid")
    if not isinstance(uuid, Refusal):
        for function in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByUUIDV"):
            table.answer(function, NO_SUBJECT, handle, keys=(hash_text(uuid),))
    if not isinstance(serial, Refusal):
        table.answer("nvmlDeviceGetHandleBySerial", NO_SUBJECT, handle, keys=(hash_text(serial),))
    if not isinstance(bus_id, Refusal):
        for spelled in (bus_id, bus_id[4:], bus_id.split(":", 1)[1]):
            for function in ("nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2"):
                table.answer(function, NO_SUBJECT, handle, keys=(hash_text(spelled),))


# --- moving readings

_SENSOR_GPU = 0  # NVML_TEMPERATURE_GPU
_CLOCKS = ("graphics", "sm", "memory", "video")
_CLOCK_NUMBERS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}  # nvmlClockType_t
_CURRENT, _APPLICATION, _APPLICATION_DEFAULT = 0, 1, 2  # nvmlClockId_t


def encode_sensors(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the GPU's utilisation, temperatures, power, clocks and fans."""
    answers = GpuAnswers(table, placed.subject)
    _encode_temperatures(placed, answers)
    _encode_power(placed, answers)
    _encode_clocks(placed, answers)
    _encode_fans(placed, answers)


def _encode_temperatures(placed: PlacedGpu, answers: GpuAnswers) -> None:
    temperature = placed.read("temperature_celsius")
    answers.reply("nvmlDeviceGetTemperature", temperature, keys=(_SENSOR_GPU,))
    version = struct_version("c_nvmlTemperature_v1_t", 1)

    def pack(value: int) -> bytes:
        return pack_struct(
            "c_nvmlTemperature_v1_t", version=version, sensorType=_SENSOR_GPU, temperature=value
        )

    answers.reply_versioned("nvmlDeviceGetTemperatureV", temperature, pack, version, _SENSOR_GPU)
    margin_version = struct_version("c_nvmlMarginTemperature_v1_t", 1)

    def pack_margin(value: int) -> bytes:
        return pack_struct("c_nvmlMarginTemperature_v1_t", version=margin_version, marginTemperature=value)

    margin = placed.read("temperature_margin_celsius")
    answers.reply_versioned("nvmlDeviceGetMarginTemperature", margin, pack_margin, margin_version)
    for threshold in ("acoustic_min", "acoustic_curr", "acoustic_max", "gps_curr"):
        number = constant(f"NVML_TEMPERATURE_THRESHOLD_{threshold.upper()}")
        answers.reply("nvmlDeviceGetTemperatureThreshold", Refusal(), keys=(number,))


def _encode_power(placed: PlacedGpu, answers: GpuAnswers) -> None:
    def milliwatts(name: str) -> Any:
        watts = placed.read(name)
        return watts if isinstance(watts, Refusal) else round(watts * MILLIWATTS_PER_WATT)

    draw, enforced = milliwatts("power_draw_watts"), milliwatts("power_limit_enforced_watts")
    requested, default = milliwatts("power_limit_watts"), milliwatts("power_limit_default_watts")
    lowest, highest = milliwatts("power_limit_min_watts"), milliwatts("power_limit_max_watts")
    answers.reply("nvmlDeviceGetPowerManagementMode", requested, lambda _limit: u32(1))
    for field, reading in (
        ("AVERAGE", draw),
        ("MIN_LIMIT", lowest),
        ("MAX_LIMIT", highest),
        ("DEFAULT_LIMIT", default),
        ("CURRENT_LIMIT", enforced),
        ("REQUESTED_LIMIT", requested),
    ):
        answers.reply_field(f"DEV_POWER_{field}", reading)


def _encode_clocks(placed: PlacedGpu, answers: GpuAnswers) -> None:
    for clock in _CLOCKS:
        number = _CLOCK_NUMBERS[clock]
        current = placed.read(f"{clock}_clock_mhz")
        # The model has application clocks of graphics and memory; NVML's SM clock is the graphics one.
        application = placed.read(f"{'graphics' if clock == 'sm' else clock}_clock_application_mhz")
        default = placed.read(f"{'graphics' if clock == 'sm' else clock}_clock_application_default_mhz")
        answers.reply("nvmlDeviceGetApplicationsClock", application, keys=(number,))
        answers.reply("nvmlDeviceGetDefaultApplicationsClock", default, keys=(number,))
        answers.reply("nvmlDeviceGetClock", current, keys=(number, _CURRENT))
        answers.reply("nvmlDeviceGetClock", application, keys=(number, _APPLICATION))
        answers.reply("nvmlDeviceGetClock", default, keys=(number, _APPLICATION_DEFAULT))
    answers.reply("nvmlDeviceGetMaxClockInfo", Refusal(), keys=(_CLOCK_NUMBERS["video"],))
    answers.reply_each(("nvmlDeviceGetPerformanceState", "nvmlDeviceGetPowerState"), placed.read("pstate"))
    answers.reply_each(
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        placed.read("clocks_event_reasons"),
        lambda reasons: u64(_reason_bits(reasons)),
    )
    answers.reply_each(
        ("nvmlDeviceGetSupportedClocksEventReasons", "nvmlDeviceGetSupportedClocksThrottleReasons"),
        placed.read("clocks_event_reasons"),
        lambda _reasons: u64(constant("nvmlClocksThrottleReasonAll")),
    )


def _reason_bits(reasons: Iterable[str]) -> int:
    return sum(
        1 << word_number(numbered(EVENT_REASONS), "clocks_event_reasons", reason) for reason in reasons
    )


def _encode_fans(placed: PlacedGpu, answers: GpuAnswers) -> None:
    speed = placed.read("fan_speed_percent")
    answers.reply("nvmlDeviceGetFanSpeed_v2", speed, keys=(0,))
    answers.reply("nvmlDeviceGetNumFans", 0 if isinstance(speed, Refusal) else 1)


# --- readings that only some checks need

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
