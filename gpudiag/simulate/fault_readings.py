"""Faults that show in what a GPU says of itself: heat, power, memory errors, modes, Xids."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpudiag.reference.vocabulary import RECOVERY_ACTIONS
from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint, KernelLine
from gpudiag.simulate.fault import Fault, has, only_known
from gpudiag.simulate.kernel_log import xid_line
from gpudiag.simulate.recovery import XID_RECOVERY_ACTION, recovery_text

_SECONDS_AGO = 640.0
_DEGREES_TOO_HOT = 4  # beyond the limit: past the slowdown offset of every board we know (-2, -3)
_THROTTLED_SHARE = 4  # a GPU with its power brake on runs at a quarter of its clock and less
_CAP_SHARE = 0.6
_CORRECTED_ERRORS = 4711
_BUSY_OR_UNAVAILABLE = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"  # cudaError 46


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
    """A row of memory could not be replaced, for no spare row is left in its bank (Xid 64)."""

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
    """NVML says what must be done before the GPU is fit again (Xid 154)."""
    action = fault.argument or ""
    if action not in RECOVERY_ACTIONS:
        raise fault.refuse(f"{action!r} is no recovery action", f"one of {', '.join(RECOVERY_ACTIONS)}")
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
    """MIG mode was switched, and waits for a reset to take effect."""

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
    """The reasons for the clock with those added; a GPU that is held down is not idle at its ease."""
    kept = [reason for reason in gpu.gpu.readings.get("clocks_event_reasons", ()) if reason != "gpu_idle"]
    return [*kept, *(reason for reason in added if reason not in kept)]


def _clocks(gpu: GpuBlueprint, share: int) -> dict[str, int]:
    """The clocks at that part of their maximum, where they are not lower anyway."""
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
    _need(fault, gpu, *totals, hint="its ECC is off or not there")
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
    """A row is marked for replacement; on GPUs before Ampere, a page."""
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
    tell: Callable[[GpuBlueprint], GpuBlueprint] = lambda gpu: replace(  # noqa: E731 - one expression, used once
        gpu, gpu=replace(gpu.gpu, xid_codes=(*gpu.gpu.xid_codes, *codes))
    )
    return blueprint.change_gpu(fault.on, tell).log(*lines)
