"""What the checks want to know of a GPU beyond what people look at: firmware, repairs, limits, errors, fabric."""

from __future__ import annotations

from ctypes import byref, c_uint

from gpudiag.probe.nvml_ask import Ask, DeviceSheet, enable_state, field_value, word
from gpudiag.probe.nvml_errors import code_of, reason_of
from gpudiag.probe.sheet import NOT_SUPPORTED, Absent, Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# NVML_FI_DEV_*
_SLOWDOWN_MARGIN = 194
_LINK_SPEED = 90  # NVLINK_SPEED_MBPS_COMMON, in MB/s of one direction
_PCIE_ERRORS = (
    ("correctable", 173), ("naks_received", 174), ("bad_tlp", 176), ("naks_sent", 177), ("bad_dllp", 178),
    ("nonfatal", 179), ("fatal", 180),
)  # fmt: skip
_RECOVERY_FAILURES, _BIT_ERROR_RATE = 214, 220  # NVLink 5, scope: the link
DETAIL_FIELDS = (_SLOWDOWN_MARGIN, _LINK_SPEED, *(field for _, field in _PCIE_ERRORS))

# nvmlBrandType_t
_BRANDS = (
    None, "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs", "vws", "cloud_gaming",
    "quadro_rtx", "nvidia_rtx", "nvidia", "geforce_rtx", "titan_rtx",
)  # fmt: skip
_GRAPHICS, _MEMORY = 0, 2  # nvmlClockType_t
_MEMORY_MAX, _GPU_MAX = 2, 3  # nvmlTemperatureThresholds_t
_CORRUPTED_INFOROM = 14  # nvmlReturn_t
# nvmlPerfPolicyType_t. The counters' field ids (269 and up) have changed between driver branches.
_POLICIES = (("power", 0), ("thermal", 1), ("sync_boost", 2), ("board_limit", 3), ("reliability", 5))
_NANOSECONDS_PER_SECOND = 1_000_000_000
_BYTES_PER_MB = 1_000_000
_LINKS_BEFORE_FIVE = (
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada",
    "hopper",
)  # architectures without NVLink 5
# nvmlGpuFabricState_t; the health mask's flags of two bits each, by shift; its field of causes.
_FABRIC_STATES = (None, "not_started", "in_progress", "completed")
_HEALTH = (None, "healthy", "unhealthy", "limited_capacity")
_FABRIC_FLAGS = (
    ("degraded_bw", 0),
    ("route_recovery", 2),
    ("route_unhealthy", 4),
    ("access_timeout_recovery", 6),
)
_CONFIGURATIONS = (
    None, None, "incorrect_sysguid", "incorrect_chassis_sn", "no_partition", "insufficient_nvlinks",
    "incompatible_gpu_fw", "invalid_location", "gpu_state_invalid",
)  # fmt: skip
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK = 8, 0xF
_TRUE = 1


def read_details(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in what only checks ask for."""
    sheet.read("brand", lambda: word(_BRANDS, ask("nvmlDeviceGetBrand")))
    sheet.read("memory_bus_width_bits", ask.number, "nvmlDeviceGetMemoryBusWidth")
    sheet.read("cuda_cores", ask.number, "nvmlDeviceGetNumGpuCores")
    _read_firmware(ask, sheet)
    sheet.read("ecc_sram_threshold_exceeded", _sram_threshold, ask)
    sheet.read("memory_unrepairable", lambda: bool(ask("nvmlDeviceGetUnrepairableMemoryFlag_v1")))
    sheet.read_together(
        ("memory_channel_repair_pending", "tpc_repair_pending"),
        lambda: [bool(flag) for flag in ask("nvmlDeviceGetRepairStatus")],
    )
    _read_limits(ask, sheet)
    sheet.read("throttle_seconds", _throttle_seconds, ask)
    sheet.read("pcie_errors", _pcie_errors, ask)
    sheet.read("nvlink_bytes_per_second", lambda: float(_link_speed(ask) * _BYTES_PER_MB))
    sheet.read("fabric", _fabric, ask)
    _add_recovery(ask, sheet)


def _read_firmware(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("gsp_firmware_version", ask.text, "nvmlDeviceGetGspFirmwareVersion")
    sheet.read_together(("gsp_firmware_mode", "gsp_firmware_mode_default"), _gsp_modes, ask)
    sheet.read("inforom_version", ask.text, "nvmlDeviceGetInforomImageVersion")
    sheet.read("inforom_valid", _inforom_valid, ask)


def _gsp_modes(ask: Ask) -> list[str]:
    # pynvml keeps its own pair of integers for all threads where none is given.
    modes = ask("nvmlDeviceGetGspFirmwareMode", c_uint(), c_uint())
    return [enable_state(mode) for mode in modes]


def _inforom_valid(ask: Ask) -> bool:
    try:
        ask("nvmlDeviceValidateInforom")
    except Exception as error:
        if code_of(error) == _CORRUPTED_INFOROM:
            return False
        raise
    return True


def _sram_threshold(ask: Ask) -> bool:
    status = ask.pynvml.c_nvmlEccSramErrorStatus_v1_t()
    ask("nvmlDeviceGetSramEccErrorStatus", byref(status))
    return bool(status.bThresholdExceeded)


def _read_limits(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("temperature_margin_slowdown_celsius", lambda: int(ask.field(_SLOWDOWN_MARGIN)))
    for field, threshold in (
        ("temperature_memory_max_celsius", _MEMORY_MAX),
        ("temperature_gpu_max_celsius", _GPU_MAX),
    ):
        sheet.read(field, ask.number, "nvmlDeviceGetTemperatureThreshold", threshold)
    for field, clock in (
        ("graphics_clock_application_default_mhz", _GRAPHICS),
        ("memory_clock_application_default_mhz", _MEMORY),
    ):
        sheet.read(field, ask.number, "nvmlDeviceGetDefaultApplicationsClock", clock)


def _throttle_seconds(ask: Ask) -> dict[str, object]:
    times = Sheet(reason_of)
    for name, policy in _POLICIES:
        times.read(name, _held_back, ask, policy)
    return _unless_empty(times)


def _held_back(ask: Ask, policy: int) -> float:
    nanoseconds: int = ask("nvmlDeviceGetViolationStatus", policy).violationTime
    return nanoseconds / _NANOSECONDS_PER_SECOND


def _pcie_errors(ask: Ask) -> dict[str, object]:
    counts = Sheet(reason_of)
    for name, field in _PCIE_ERRORS:
        counts.read(name, lambda field=field: int(ask.field(field)))
    return _unless_empty(counts)


def _unless_empty(sheet: Sheet) -> dict[str, object]:
    """The sheet's document.

    Raises:
        Absent: it has no value; the first reason stands for all.
    """
    if not sheet.values:
        raise Absent(*next(iter(sheet.missing.values())))
    return sheet.document()


def _link_speed(ask: Ask) -> int:
    speed = int(ask.field(_LINK_SPEED))
    if speed == 0:
        raise Absent(NOT_SUPPORTED, "NVML answers 0: no link is up")
    return speed


def _fabric(ask: Ask) -> dict[str, object]:
    """The registration with the NVLink fabric, by the newest form that the driver knows.

    Raises:
        Absent: the GPU is not made for a fabric.
    """
    info = ask.first_of(
        lambda: _fabric_info(ask, "nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        lambda: _fabric_info(ask, "nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        lambda: _fabric_info(ask, "nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    )
    if info.state == 0:
        raise Absent(NOT_SUPPORTED, "the GPU is not made for a fabric")
    sheet = Sheet(reason_of)
    sheet.values["status"] = "success" if info.status == 0 else f"error_{info.status}"
    sheet.values["clique_id"] = info.cliqueId
    sheet.values["cluster_uuid"] = _uuid_text(bytes(info.clusterUuid))
    sheet.values["state"] = word(_FABRIC_STATES, info.state)
    sheet.read("health", _health, info)
    sheet.read("faults", _faults, info)
    return sheet.document()


def _fabric_info(ask: Ask, function: str, struct: str) -> object:
    info = getattr(ask.pynvml, struct)()
    ask(function, byref(info))
    return info


def _uuid_text(raw: bytes) -> str:
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _health(info: object) -> str:
    summary = getattr(info, "healthSummary", 0)
    if summary == 0:
        raise Absent(NOT_SUPPORTED, "the driver gives no summary")
    return word(_HEALTH, summary)


def _faults(info: object) -> list[str]:
    """The faults that the health mask names.

    Raises:
        Absent: the driver fills in no mask.
    """
    mask: int = getattr(info, "healthMask", 0)
    if mask == 0:
        raise Absent(NOT_SUPPORTED, "the driver gives no health mask")
    faults = [name for name, shift in _FABRIC_FLAGS if mask >> shift & 3 == _TRUE]
    cause = mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK
    if cause >= len(_CONFIGURATIONS):
        faults.append(f"incorrect_configuration_{cause}")
    elif _CONFIGURATIONS[cause] is not None:
        faults.append(str(_CONFIGURATIONS[cause]))
    return faults


def _add_recovery(ask: Ask, sheet: DeviceSheet) -> None:
    """Add to each link what NVLink 5 says of it: recoveries that failed, and the bit error rate."""
    links = sheet.values.get("nvlinks")
    if not links or sheet.values.get("architecture") in _LINKS_BEFORE_FIVE or sheet.lost is not None:
        return
    numbers = [link["link"] for link in links]
    asked = [(field, number) for field in (_RECOVERY_FAILURES, _BIT_ERROR_RATE) for number in numbers]
    try:
        values = list(ask("nvmlDeviceGetFieldValues", asked))
    except Exception:  # noqa: BLE001 - the fields stay NOT_ASKED: an older driver refuses them all
        return
    for link, failures, rate in zip(links, values[: len(numbers)], values[len(numbers) :], strict=True):
        _add_reading(link, "recovery_failures", failures)
        _add_reading(link, "bit_error_rate", rate)


def _add_reading(link: dict[str, Any], name: str, value: object) -> None:
    try:
        number = field_value(value)
    except Absent as absent:
        link["missing"][name] = absent.reason
        return
    link[name] = parse_bit_error_rate(int(number)) if name == "bit_error_rate" else int(number)


def parse_bit_error_rate(encoded: int) -> float:
    """The rate that NVML packs into mantissa (bits 8 to 11) and minus the exponent (nvml.h, BER_GET)."""
    mantissa, exponent = encoded >> 8 & 0xF, encoded & 0xFF
    return float(mantissa * 10.0**-exponent)


# nvmlGpuTopologyLevel_t, nvmlGpuP2PStatus_t
_PATHS = {
    0: "board", 10: "pcie_switch", 20: "pcie_switches", 30: "host_bridge", 40: "numa_node", 50: "system",
}  # fmt: skip
_PEER_STATUS = (
    "ok", "chipset_not_supported", "gpu_not_supported", "topology_not_supported", "disabled", "not_supported",
    "unknown",
)  # fmt: skip
_READ, _NVLINK = 0, 2  # nvmlGpuP2PCapsIndex_t


def read_peers(ask: Ask, others: Iterable[tuple[str, object]]) -> list[dict[str, object]]:
    """One entry per other GPU, given by bus id and handle: the path to it, and whether it can be read."""
    found = []
    for bus_id, handle in others:
        sheet = Sheet(reason_of)
        sheet.values["bus_id"] = bus_id
        sheet.read("path", lambda handle=handle: _PATHS[ask("nvmlDeviceGetTopologyCommonAncestor", handle)])
        for name, capability in (("read", _READ), ("nvlink", _NVLINK)):
            sheet.read(name, _peer_status, ask, handle, capability)
        found.append(sheet.document())
    return found


def _peer_status(ask: Ask, handle: object, capability: int) -> str:
    return word(_PEER_STATUS, ask("nvmlDeviceGetP2PStatus", handle, capability))
