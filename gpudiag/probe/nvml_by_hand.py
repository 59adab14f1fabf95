"""The functions behind readings that no single number of NVML answers, by the name under which they are declared."""

from __future__ import annotations

from gpudiag.probe.nvml_ask import Ask, DeviceSheet, bus_id_of
from gpudiag.probe.nvml_details import (
    read_brand,
    read_fabric,
    read_gsp_modes,
    read_inforom_valid,
    read_link_speed,
    read_pcie_errors,
    read_sram_threshold,
    read_throttle_seconds,
)
from gpudiag.probe.nvml_links import read_links
from gpudiag.probe.nvml_memory import (
    read_ecc_locations,
    read_memory,
    read_retired_pages,
    read_row_remap_histogram,
)
from gpudiag.probe.nvml_mig import read_instances
from gpudiag.probe.nvml_processes import read_processes
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, Absent
from gpudiag.reference.vocabulary import reasons_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NO_SUBSYSTEM = "00000000"
_SLOWEST_PSTATE, _PSTATE_UNKNOWN = 15, 32  # nvmlPstates_t


def _read_place(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read_together(("bus_id", "pci_subsystem_id"), _place, ask)
    if sheet.values.get("pci_subsystem_id") == _NO_SUBSYSTEM:
        del sheet.values["pci_subsystem_id"]
        sheet.mark("pci_subsystem_id", NOT_SUPPORTED, "NVML answers 0")


def _place(ask: Ask) -> tuple[str, str]:
    """The PCI address, and the subsystem's id: the board's maker in the lower half, its model in the upper."""
    info = ask("nvmlDeviceGetPciInfo")
    return bus_id_of(info.busId), f"{info.pciSubSystemId:08x}"


def _read_serial(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("serial", _serial, ask)


def _serial(ask: Ask) -> str:
    serial = ask.text("nvmlDeviceGetSerial")
    if serial.strip("0") == "":
        raise Absent(NOT_SUPPORTED, f"NVML answers {serial!r}")
    return serial


def _read_compute_capability(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("compute_capability", _compute_capability, ask)


def _compute_capability(ask: Ask) -> str:
    major, minor = ask("nvmlDeviceGetCudaComputeCapability")
    return f"{major}.{minor}"


def _read_pstate(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("pstate", _pstate, ask)


def _pstate(ask: Ask) -> int:
    """The performance state, 0 (fastest) to 15."""
    state: int = ask("nvmlDeviceGetPerformanceState")
    if state == _PSTATE_UNKNOWN:
        raise Absent(NOT_SUPPORTED, "NVML answers P32, unknown")
    if not 0 <= state <= _SLOWEST_PSTATE:
        raise Absent(ERROR, f"NVML answers {state}, which gpudiag has no word for")
    return state


def _read_event_reasons(ask: Ask, sheet: DeviceSheet) -> None:
    sheet.read("clocks_event_reasons", _event_reasons, ask)


def _event_reasons(ask: Ask) -> list[str]:
    """The words for the bits of the mask of reasons why the clocks are not higher."""
    mask = ask.first_of(
        lambda: ask("nvmlDeviceGetCurrentClocksEventReasons"),
        lambda: ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    )
    return reasons_of(mask)


BY_HAND: dict[str, Callable[[Ask, DeviceSheet], None]] = {
    "brand": read_brand,
    "compute_capability": _read_compute_capability,
    "ecc_locations": read_ecc_locations,
    "event_reasons": _read_event_reasons,
    "fabric": read_fabric,
    "gsp_modes": read_gsp_modes,
    "inforom_valid": read_inforom_valid,
    "memory": read_memory,
    "mig_instances": read_instances,
    "nvlink_speed": read_link_speed,
    "nvlinks": read_links,
    "pcie_errors": read_pcie_errors,
    "place": _read_place,
    "processes": read_processes,
    "pstate": _read_pstate,
    "retired_pages": read_retired_pages,
    "row_remap_histogram": read_row_remap_histogram,
    "serial": _read_serial,
    "sram_threshold": read_sram_threshold,
    "throttle_seconds": read_throttle_seconds,
}
