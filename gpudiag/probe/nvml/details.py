"""Readings of a GPU that mainly the checks need: firmware, repairs, limits, errors, fabric."""

from __future__ import annotations

from ctypes import byref, c_uint

from gpudiag.probe.nvml.ask import (
    CORRUPTED_INFOROM,
    INVALID_ARGUMENT,
    Ask,
    DeviceSheet,
    code_of,
    enable_state,
    known,
    percent,
    reason_of,
    word,
)
from gpudiag.probe.sheet import NOT_SUPPORTED, Absent, Sheet
from gpudiag.reference.vocabulary import (
    BRANDS,
    FABRIC_FAULTS,
    FABRIC_HEALTH,
    FABRIC_MISCONFIGURATIONS,
    FABRIC_STATES,
    PEER_PATHS,
    PEER_STATUSES,
    PERFORMANCE_LIMITS,
)

# NVML_FI_DEV_*
_LINK_SPEED = 90  # NVLINK_SPEED_MBPS_COMMON, in MB/s of one direction
_PCIE_ERRORS = (
    ("correctable", 173),
    ("naks_received", 174),
    ("bad_tlp", 176),
    ("naks_sent", 177),
    ("bad_dllp", 178),
    ("nonfatal", 179),
    ("fatal", 180),
)

_NANOSECONDS_PER_SECOND = 1_000_000_000
_BYTES_PER_MB = 1_000_000
# In the fabric's health mask: flags of two bits each, and the field of causes.
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK = 8, 0xF
_TRUE = 1
_NO_LICENSE = "not_needed"


def read_brand(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the product brand that the driver reports."""
    sheet.read("brand", _brand, ask)


def _brand(ask: Ask) -> str:
    number: int = ask("nvmlDeviceGetBrand")
    if number == 0:
        raise Absent(NOT_SUPPORTED, "NVML answers 0: the driver knows no brand for it")
    return word(BRANDS, number)


def read_gsp_modes(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in whether the GSP's firmware is in use, and whether it is by default."""
    sheet.read_together(("gsp_firmware_mode", "gsp_firmware_mode_default"), _gsp_modes, ask)


def read_inforom_valid(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in whether the InfoROM is intact, by the driver's first answer: the call reads the GPU's flash."""
    sheet.read("inforom_valid", ask.once, "inforom_valid", lambda: _inforom_valid(ask))


def read_codecs(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in for which share of the last sampling period the video encoder and decoder worked."""
    for engine in ("encoder", "decoder"):
        sheet.read(f"{engine}_utilization_percent", _codec, ask, engine.capitalize())


def _codec(ask: Ask, engine: str) -> int:
    busy, _sampling_period_us = ask(f"nvmlDeviceGet{engine}Utilization")
    return percent(known(busy))


def read_vgpu_license(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in whether a virtual GPU has its license; a physical one is asked once."""
    if ask.kept.get("needs no license"):
        sheet.values["vgpu_license"] = _NO_LICENSE
    else:
        sheet.read("vgpu_license", _license, ask)
        ask.kept["needs no license"] = sheet.values.get("vgpu_license") == _NO_LICENSE


def _license(ask: Ask) -> str:
    features = ask("nvmlDeviceGetGridLicensableFeatures")
    if not features.isGridLicenseSupported:
        return _NO_LICENSE
    listed = list(features.gridLicensableFeatures)[: features.licensableFeaturesCount]
    return "licensed" if any(feature.featureState for feature in listed) else "unlicensed"


def conclude_inforom(ask: Ask, sheet: DeviceSheet) -> None:
    """Mark the InfoROM corrupted if any call reported it, not only the one that validates it."""
    if sheet.inforom_corrupted or ask.noted.inforom_corrupted:
        sheet.values["inforom_valid"] = False
        sheet.missing.pop("inforom_valid", None)


def _gsp_modes(ask: Ask) -> list[str]:
    # pynvml keeps its own pair of integers for all threads where none is given.
    modes = ask("nvmlDeviceGetGspFirmwareMode", c_uint(), c_uint())
    return [enable_state(mode) for mode in modes]


def _inforom_valid(ask: Ask) -> bool:
    try:
        ask("nvmlDeviceValidateInforom")
    except Exception as error:
        if code_of(error) == CORRUPTED_INFOROM:
            return False
        raise
    return True


def read_sram_threshold(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in whether uncorrectable errors of SRAM have passed the driver's threshold."""
    sheet.read("ecc_sram_threshold_exceeded", _sram_threshold, ask)


def _sram_threshold(ask: Ask) -> bool:
    status = ask.pynvml.c_nvmlEccSramErrorStatus_v1_t()
    ask("nvmlDeviceGetSramEccErrorStatus", byref(status))
    return bool(status.bThresholdExceeded)


def read_throttle_seconds(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the seconds for which each cause has held the clocks down."""
    sheet.read("throttle_seconds", _throttle_seconds, ask)


def _throttle_seconds(ask: Ask) -> dict[str, object]:
    times = Sheet(reason_of)
    for name, policy in PERFORMANCE_LIMITS.items():  # the field ids differ between driver branches
        times.read(name, _held_back, ask, policy)
    return _unless_empty(times)


def _held_back(ask: Ask, policy: int) -> float:
    status = ask.allowing((INVALID_ARGUMENT,), "nvmlDeviceGetViolationStatus", policy)  # a policy not known
    nanoseconds: int = status.violationTime
    return nanoseconds / _NANOSECONDS_PER_SECOND


def read_pcie_errors(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the errors that the GPU's end of the PCIe link has counted."""
    sheet.read("pcie_errors", _pcie_errors, ask)


def _pcie_errors(ask: Ask) -> dict[str, object]:
    counts = Sheet(reason_of)
    for name, field in _PCIE_ERRORS:
        counts.read(name, lambda field=field: int(ask.field(field)))
    return _unless_empty(counts)


def _unless_empty(sheet: Sheet) -> dict[str, object]:
    """The sheet's document. Raises Absent: it has no value; the first reason stands for all."""
    if not sheet.values:
        raise Absent(*next(iter(sheet.missing.values())))
    return sheet.document()


def read_link_speed(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in what one NVLink carries in one direction, in bytes per second."""
    sheet.read("nvlink_bytes_per_second", lambda: float(_link_speed(ask) * _BYTES_PER_MB))


def _link_speed(ask: Ask) -> int:
    speed = int(ask.field(_LINK_SPEED))
    if speed == 0:
        raise Absent(NOT_SUPPORTED, "NVML answers 0: no link is up")
    return speed


def read_fabric(ask: Ask, sheet: DeviceSheet) -> None:
    """Fill in the registration with the NVLink fabric."""
    sheet.read("fabric", _fabric, ask)


def _fabric(ask: Ask) -> dict[str, object]:
    """The registration with the NVLink fabric, by the newest known form. Raises Absent: there is none."""
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
    sheet.values["state"] = word(FABRIC_STATES, info.state)
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
    return word(FABRIC_HEALTH, summary)


def _faults(info: object) -> list[str]:
    """The faults that the health mask names. Raises Absent: the driver fills in no mask."""
    mask: int = getattr(info, "healthMask", 0)
    if mask == 0:
        raise Absent(NOT_SUPPORTED, "the driver gives no health mask")
    flags = [(name, mask >> shift & 3) for name, shift in FABRIC_FAULTS.items()]
    faults = [name for name, flag in flags if flag == _TRUE]
    cause = mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK
    if cause >= len(FABRIC_MISCONFIGURATIONS):
        faults.append(f"incorrect_configuration_{cause}")
    elif FABRIC_MISCONFIGURATIONS[cause] is not None:
        faults.append(str(FABRIC_MISCONFIGURATIONS[cause]))
    return faults


_PATHS = {number: path for path, number in PEER_PATHS.items()}
_READ, _NVLINK = 0, 2  # nvmlGpuP2PCapsIndex_t


def read_peer(ask: Ask, bus_id: str, handle: object) -> dict[str, object]:
    """The path from this GPU to another, given by bus id and handle, and its peer-to-peer statuses."""
    sheet = Sheet(reason_of)
    sheet.values["bus_id"] = bus_id
    sheet.read("path", _path, ask, handle)
    for name, capability in (("read", _READ), ("nvlink", _NVLINK)):
        sheet.read(name, _peer_status, ask, handle, capability)
    return sheet.document()


def _path(ask: Ask, handle: object) -> str:
    level: int = ask("nvmlDeviceGetTopologyCommonAncestor", handle)
    return _PATHS.get(level, f"unknown_{level}")


def _peer_status(ask: Ask, handle: object, capability: int) -> str:
    return word(PEER_STATUSES, ask("nvmlDeviceGetP2PStatus", handle, capability))
