"""Faults of a GPU: those that show in its own readings, and those after which it answers late or never."""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import filter as filter_names
from typing import Any

from gpudiag.model.nearest import did_you_mean
from gpudiag.reference.nvml import exported_functions
from gpudiag.reference.vocabulary import ACTIONS_IN_XID_154, RECOVERY_ACTIONS
from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint, KernelLine
from gpudiag.simulate.faults.fault import Fault, has, only_known
from gpudiag.simulate.host.driver import xid_line
from gpudiag.simulate.scenario import CallFault

# --- no answer

_GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST
_FELL_OFF_SECONDS_AGO = 1260.0
_XID_OFF_THE_BUS = 79
# The GPU's identity was read before it was lost; NVML answers it from memory.
IDENTITY_CALLS = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo*",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetSerial",
)
# Readings that are not NVML's: the kernel still shows them for a GPU that does not answer.
_KERNEL_READINGS = ("uuid", "bus_id", "numa_node", "pcie_generation_slot_max", "pcie_width_slot_max")
_IDENTITY_READINGS = (*_KERNEL_READINGS, "name", "serial")


def lose(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The GPU fell off the bus: NVML answers 15 to all but identity calls, Xid 79 is in the kernel log."""
    lost = blueprint.listed()[fault.on]
    address = lost.sysfs_address
    blueprint = blueprint.change_gpu(fault.on, _lost)
    return blueprint.log(
        xid_line(lost, _XID_OFF_THE_BUS, _FELL_OFF_SECONDS_AGO),
        KernelLine(_FELL_OFF_SECONDS_AGO, f"NVRM: GPU {address}: GPU has fallen off the bus.", 3),
        *(
            KernelLine(_FELL_OFF_SECONDS_AGO, f"NVRM: GPU {address}: GPU serial number is {serial}.", 3)
            for serial in [lost.gpu.readings.get("serial")]
            if serial is not None
        ),
    )


def remove(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The GPU is neither on the PCI bus nor in NVML: its slot lost the card."""
    gone = blueprint.listed()[fault.on]
    slot = gone.sysfs_address.rsplit(".", 1)[0]
    functions = tuple(at for at in blueprint.host.pci_functions if not at.address.startswith(slot))
    blueprint = replace(
        blueprint,
        gpus=tuple(gpu for gpu in blueprint.gpus if gpu is not gone),
        host=replace(blueprint.host, pci_functions=functions),
    )
    number = fault.on + 1
    return blueprint.log(
        KernelLine(
            _FELL_OFF_SECONDS_AGO, f"pcieport 0000:00:{number:02x}.0: pciehp: Slot({number}): Link Down"
        ),
        KernelLine(
            _FELL_OFF_SECONDS_AGO,
            f"pcieport 0000:00:{number:02x}.0: pciehp: Slot({number}): Card not present",
        ),
    )


def hang(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """No call on the GPU returns, nor does CUDA start; the kernel's own files still name it."""
    blueprint = blueprint.change_gpu(fault.on, _hung)
    return replace(blueprint, torch=replace(blueprint.torch, hangs=True))


def hang_call(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """One NVML function never returns for the GPU."""
    function = fault.argument or ""
    if not filter_names(exported_functions(), function):  # a name, or nvmlDeviceGetMemory*
        hint = did_you_mean(function, exported_functions()) or "such as hang-call:0:nvmlDeviceGetPowerUsage"
        raise fault.refuse(f"{function!r} is not an NVML function", hint)
    return blueprint.change_gpu(fault.on, lambda gpu: _with_fault(gpu, CallFault(function, hang=True)))


def slow_down(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Every call on the GPU answers late."""
    delay = CallFault("*", delay_seconds=float(fault.argument or 0))
    return blueprint.change_gpu(fault.on, lambda gpu: _with_fault(gpu, delay))


def _lost(gpu: GpuBlueprint) -> GpuBlueprint:
    lost = _silent(gpu, "device_lost", _IDENTITY_READINGS)
    lost = _with_fault(lost, CallFault("*", except_calls=IDENTITY_CALLS, code=_GPU_IS_LOST))
    lost = replace(lost, gpu=replace(lost.gpu, xid_codes=(*lost.gpu.xid_codes, _XID_OFF_THE_BUS)))
    return replace(lost, link_lost=True, cuda_lists_it=False)


def _hung(gpu: GpuBlueprint) -> GpuBlueprint:
    hung = _silent(gpu, "timed_out", _KERNEL_READINGS)
    return _with_fault(hung, CallFault("*", hang=True))


def _silent(gpu: GpuBlueprint, reason: str, known: tuple[str, ...]) -> GpuBlueprint:
    names = (*gpu.gpu.readings, *gpu.gpu.missing)
    silent = gpu.without_readings(reason, *(name for name in names if name not in known), "responding")
    return replace(silent, readings_of_kernel=gpu.gpu.readings)


def _with_fault(gpu: GpuBlueprint, fault: CallFault) -> GpuBlueprint:
    return replace(gpu, gpu=replace(gpu.gpu, faults=(fault, *gpu.gpu.faults)))


# --- readings

XID_RECOVERY_ACTION = 154
# The Xids after which a driver logs an Xid 154, and the first branch that does (NVIDIA's Xid catalog, column
# "Xid 154 linkage"), where the catalog lists a reset as the action; a GPU off the bus needs a reboot, by
# public kernel logs of 2026. Those that end with the job (94) or a remapped row (63) ask for nothing here.
_RESET_SINCE = {48: 565, 62: 565, 64: 565, 74: 565, 95: 565, 110: 565, 120: 565, 136: 565, 109: 570, 143: 575}
_REBOOT_SINCE = {79: 565}
_UNKNOWN_TO_DRIVER = ("not_supported", "function_not_found")

_SECONDS_AGO = 640.0
_DEGREES_TOO_HOT = 4  # beyond the limit: past the slowdown offset of every board we know (-2, -3)
_THROTTLED_SHARE = 4  # a GPU with its power brake on runs at a quarter of its clock or less
_CAP_SHARE = 0.6
_CORRECTED_ERRORS = 4711
_BUSY_OR_UNAVAILABLE = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"  # cudaError 46

_GENERATIONS_LOST = 2
_LINK_ERRORS = {"crc_flit_errors": 1843, "crc_data_errors": 12, "replay_errors": 37, "recovery_errors": 2}


def ask_for_recovery(blueprint: Blueprint) -> Blueprint:
    """The machine with the recovery that its driver asks for after Xids; older drivers ask for none."""
    for gpu in blueprint.listed():
        cause, action = _request(gpu, int(blueprint.nvml.driver_version.split(".")[0]))
        if cause is not None:
            line = xid_line(
                gpu, XID_RECOVERY_ACTION, _age_seconds(blueprint, gpu, cause), recovery_text(action)
            )
            blueprint = blueprint.change_gpus(
                lambda other: _asking(other, action) if other is gpu else other  # noqa: B023
            ).log(line)
    return blueprint


def recovery_text(action: str) -> str:
    """The text of an Xid 154 that asks for that action."""
    number = RECOVERY_ACTIONS.index(action)
    return f"GPU recovery action changed from 0x0 (None) to 0x{number:x} ({ACTIONS_IN_XID_154[action]})"


def _request(gpu: GpuBlueprint, branch: int) -> tuple[int | None, str]:
    """The Xid for which the driver asks for a recovery, and the action; None where it asks for none."""
    codes = gpu.gpu.xid_codes
    unknown = gpu.gpu.missing.get("recovery_action") in _UNKNOWN_TO_DRIVER
    if unknown or XID_RECOVERY_ACTION in codes:
        return None, "none"
    for since, action in ((_REBOOT_SINCE, "node_reboot"), (_RESET_SINCE, "gpu_reset")):
        asking = [code for code in codes if since.get(code, branch + 1) <= branch]
        if asking:
            return asking[-1], action
    return None, "none"


def _asking(gpu: GpuBlueprint, action: str) -> GpuBlueprint:
    changed = replace(gpu, gpu=replace(gpu.gpu, xid_codes=(*gpu.gpu.xid_codes, XID_RECOVERY_ACTION)))
    return changed.with_readings(recovery_action=action) if "recovery_action" in gpu.gpu.readings else changed


def _age_seconds(blueprint: Blueprint, gpu: GpuBlueprint, code: int) -> float:
    """Seconds since the Xid was last logged for the GPU."""
    start = xid_line(gpu, code, 0.0, "").text
    return min(
        (line.age_seconds for line in blueprint.kernel_log if line.text.startswith(start)), default=0.0
    )


def heat(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The GPU is past its thermal limit and slows down."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        if not has(gpu, "temperature_celsius"):
            raise fault.refuse("the GPU reads no temperature")
        readings = gpu.gpu.readings
        rise = _degrees_to_limit(readings) + _DEGREES_TOO_HOT
        return only_known(
            gpu,
            temperature_celsius=readings["temperature_celsius"] + rise,
            temperature_margin_celsius=readings.get("temperature_margin_celsius", 0) - rise,
            memory_temperature_celsius=readings.get("memory_temperature_celsius", 0)
            + rise // 2,  # it is not the cause
            clocks_event_reasons=_reasons(gpu, "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown"),
            **_clocks(gpu, 2),
        )

    return blueprint.change_gpu(fault.on, change)


def throttle(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The power brake holds the GPU's clock down."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        _need(fault, gpu, "clocks_event_reasons")
        reasons = _reasons(gpu, "hw_slowdown", "hw_power_brake_slowdown")
        return only_known(gpu, clocks_event_reasons=reasons, **_clocks(gpu, _THROTTLED_SHARE))

    return blueprint.change_gpu(fault.on, change)


def cap_power(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Somebody lowered the GPU's power limit to 60 % of the default."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        _need(fault, gpu, "power_limit_default_watts", "power_limit_watts", "power_limit_enforced_watts")
        readings = gpu.gpu.readings
        limit = round(readings["power_limit_default_watts"] * _CAP_SHARE)
        limit = float(max(limit, readings.get("power_limit_min_watts", limit)))
        return only_known(
            gpu,
            power_limit_watts=limit,
            power_limit_enforced_watts=limit,
            power_draw_watts=min(readings.get("power_draw_watts", limit), limit),
            clocks_event_reasons=_reasons(gpu, "sw_power_cap"),
        )

    return blueprint.change_gpu(fault.on, change)


def break_memory(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """An uncorrectable ECC error: counted, logged (48, 63), and the row or page is to be replaced."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        return _spoil_row(_count_errors(fault, gpu, "uncorrected", 1))

    return _xids(blueprint.change_gpu(fault.on, change), fault, 48, 63)


def correct_memory(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Many ECC errors, every one of them corrected."""
    return blueprint.change_gpu(
        fault.on, lambda gpu: _count_errors(fault, gpu, "corrected", _CORRECTED_ERRORS)
    )


def remap_row(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """A row of memory waits for a reset to be replaced (Xid 63)."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        _need(fault, gpu, "row_remap_pending")
        return _spoil_row(gpu)

    return _xids(blueprint.change_gpu(fault.on, change), fault, 63)


def fail_remap(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """A row of memory could not be replaced, as no spare row is left in its bank (Xid 64)."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        _need(fault, gpu, "row_remap_failed")
        banks = _moved_bank(gpu, "none_banks")
        return only_known(gpu, row_remap_failed=True, row_remap_histogram=banks)

    return _xids(blueprint.change_gpu(fault.on, change), fault, 64)


def retire_pages(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Pages of memory were retired, and one more waits for a reboot (before Ampere)."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        _need(
            fault, gpu, "retired_pages_uncorrected", hint="Ampere and later remap rows: row-remap-pending:N"
        )
        return only_known(
            gpu, retired_pages_corrected=3, retired_pages_uncorrected=2, page_retirement_pending=True
        )

    return _xids(blueprint.change_gpu(fault.on, change), fault, 63)


def log_xid(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The driver reports that Xid for the GPU."""
    return _xids(blueprint, fault, int(fault.argument or 0))


def want_recovery(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """NVML asks for a recovery action before the GPU can be used again (Xid 154)."""
    action = fault.argument or ""
    if action not in RECOVERY_ACTIONS:
        raise fault.refuse(f"{action!r} is not a recovery action", f"one of {', '.join(RECOVERY_ACTIONS)}")
    _need(fault, blueprint.listed()[fault.on], "recovery_action")
    blueprint = blueprint.change_gpu(fault.on, lambda gpu: gpu.with_readings(recovery_action=action))
    return _xids(blueprint, fault, XID_RECOVERY_ACTION, text=recovery_text(action))


def switch_ecc_off(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """ECC is off, so that nothing counts memory errors."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        _need(fault, gpu, "ecc_mode")
        if gpu.gpu.readings["ecc_mode"] == "disabled":
            raise fault.refuse("its ECC is off already")
        counters = [name for name in gpu.gpu.readings if name.startswith("ecc_") and "mode" not in name]
        off = gpu.with_readings(ecc_mode="disabled", ecc_mode_pending="disabled")
        return off.without_readings("not_supported", *counters)

    return blueprint.change_gpu(fault.on, change)


def pend_mig(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """MIG mode was switched, which takes effect at the next reset."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        _need(fault, gpu, "mig_mode")
        other = "disabled" if gpu.gpu.readings["mig_mode"] == "enabled" else "enabled"
        return gpu.with_readings(mig_mode_pending=other)

    return blueprint.change_gpu(fault.on, change)


def prohibit_compute(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The compute mode lets no program start a context on the GPU."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        return replace(gpu.with_readings(compute_mode="prohibited"), context_error=_BUSY_OR_UNAVAILABLE)

    return blueprint.change_gpu(fault.on, change)


def _degrees_to_limit(readings: Any) -> int:
    if "temperature_margin_celsius" in readings:
        return max(0, int(readings["temperature_margin_celsius"]))
    limit = readings.get("temperature_slowdown_celsius", 90)
    return max(0, int(limit - readings["temperature_celsius"]))


def _reasons(gpu: GpuBlueprint, *added: str) -> list[str]:
    """The GPU's clock event reasons with those added, without `gpu_idle`."""
    kept = [reason for reason in gpu.gpu.readings.get("clocks_event_reasons", ()) if reason != "gpu_idle"]
    return [*kept, *(reason for reason in added if reason not in kept)]


def _clocks(gpu: GpuBlueprint, share: int) -> dict[str, int]:
    """The clocks in MHz at 1/`share` of their maximum, where they are not lower anyway."""
    lowered = {}
    for name in ("graphics_clock_mhz", "sm_clock_mhz"):
        maximum = gpu.gpu.readings.get(name.replace("_mhz", "_max_mhz"))
        if maximum is not None:
            lowered[name] = min(gpu.gpu.readings.get(name, maximum), maximum // share)
    return lowered


def _need(fault: Fault, gpu: GpuBlueprint, *names: str, hint: str = "") -> None:
    for name in names:
        if not has(gpu, name):
            reason = gpu.gpu.missing.get(name, "missing").replace("_", " ")
            raise fault.refuse(f"the GPU has no {name}: {reason}", hint)


def _count_errors(fault: Fault, gpu: GpuBlueprint, severity: str, errors: int) -> GpuBlueprint:
    totals = (f"ecc_{severity}_volatile", f"ecc_{severity}_aggregate")
    _need(fault, gpu, *totals, hint="its ECC is off or not supported")
    readings = gpu.gpu.readings
    locations = [
        _counted(place, severity, errors) if place["location"] == "dram" else place
        for place in readings.get("ecc_locations", ())
    ]
    return only_known(gpu, ecc_locations=locations, **{name: readings[name] + errors for name in totals})


def _counted(place: dict[str, Any], severity: str, errors: int) -> dict[str, Any]:
    counters = (f"{severity}_volatile", f"{severity}_aggregate")
    return {**place, **{name: place[name] + errors for name in counters}}


def _spoil_row(gpu: GpuBlueprint) -> GpuBlueprint:
    """The GPU with a row marked for replacement; before Ampere, a page."""
    readings = gpu.gpu.readings
    return only_known(
        gpu,
        row_remap_uncorrectable=readings.get("row_remap_uncorrectable", 0) + 1,
        row_remap_pending=True,
        row_remap_histogram=_moved_bank(gpu, "high_banks"),
        retired_pages_uncorrected=readings.get("retired_pages_uncorrected", 0) + 1,
        page_retirement_pending=True,
    )


def _moved_bank(gpu: GpuBlueprint, into: str) -> dict[str, int] | None:
    banks = gpu.gpu.readings.get("row_remap_histogram")
    return banks and {**banks, "max_banks": banks["max_banks"] - 1, into: banks[into] + 1}


def _xids(blueprint: Blueprint, fault: Fault, *codes: int, text: str | None = None) -> Blueprint:
    lines: list[KernelLine] = [
        xid_line(blueprint.listed()[fault.on], code, _SECONDS_AGO, text) for code in codes
    ]

    def with_xids(gpu: GpuBlueprint) -> GpuBlueprint:
        return replace(gpu, gpu=replace(gpu.gpu, xid_codes=(*gpu.gpu.xid_codes, *codes)))

    return blueprint.change_gpu(fault.on, with_xids).log(*lines)


def narrow_pcie(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Half of the PCIe link's lanes did not train."""
    return blueprint.change_gpu(
        fault.on, lambda gpu: _pcie(fault, gpu, "pcie_width", lambda width: max(1, width // 2))
    )


def slow_pcie(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The PCIe link trained two generations below what GPU and slot can do."""

    def change(gpu: GpuBlueprint) -> GpuBlueprint:
        best = gpu.gpu.readings.get("pcie_generation_gpu_max", 1)
        best = min(best, gpu.gpu.readings.get("pcie_generation_slot_max", best))
        return _pcie(fault, gpu, "pcie_generation", lambda _: max(1, best - _GENERATIONS_LOST))

    return blueprint.change_gpu(fault.on, change)


def break_nvlink(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """One NVLink of the GPU, or all, did not come up, as only NVML shows; `xid:N:74`: one fails later."""
    chosen = None if fault.argument is None else int(fault.argument)
    links = _links(fault, blueprint.listed()[fault.on])
    if chosen is not None and chosen not in [link["link"] for link in links]:
        raise fault.refuse(f"the GPU has NVLinks 0 to {len(links) - 1}, not {chosen}")
    changed = [{**link, "active": False} if chosen in (None, link["link"]) else link for link in links]
    return blueprint.change_gpu(fault.on, lambda gpu: gpu.with_readings(nvlinks=changed))


def spoil_nvlink(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The first NVLink of the GPU counts errors."""
    links = _links(fault, blueprint.listed()[fault.on])
    first = links[0]
    if first.get("crc_flit_errors") is None:
        raise fault.refuse("the GPU's NVLinks have no error counters")
    changed = [{**first, **{name: first[name] + errors for name, errors in _LINK_ERRORS.items()}}, *links[1:]]
    return blueprint.change_gpu(fault.on, lambda gpu: gpu.with_readings(nvlinks=changed))


def _pcie(fault: Fault, gpu: GpuBlueprint, name: str, lower: Callable[[int], int]) -> GpuBlueprint:
    if not has(gpu, name):
        raise fault.refuse("the GPU has no PCIe link")
    lowered = lower(gpu.gpu.readings[name])
    if lowered >= gpu.gpu.readings.get(f"{name}_gpu_max", lowered + 1):
        raise fault.refuse("its PCIe link is already at its lowest")
    return gpu.with_readings(**{name: lowered})


def _links(fault: Fault, gpu: GpuBlueprint) -> list[dict[str, Any]]:
    if not has(gpu, "nvlinks"):
        raise fault.refuse("the GPU has no NVLink")
    links: list[dict[str, Any]] = gpu.gpu.readings["nvlinks"]
    return links
