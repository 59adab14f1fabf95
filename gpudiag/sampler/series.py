"""The sixteen readings of a GPU that are remembered, and how several of them become one."""

from enum import StrEnum

from gpudiag.model.device import Device
from gpudiag.model.reading import Missing, value_or
from gpudiag.probe.nvml_load import EVENT_REASONS


class Kind(StrEnum):
    """How the samples of a longer step become one number."""

    MEAN = "mean"
    LAST = "last"  # of counters and limits
    BITS = "bits"  # every bit that was set


SERIES: dict[str, Kind] = {
    "utilization_percent": Kind.MEAN,
    "memory_utilization_percent": Kind.MEAN,
    "memory_used_bytes": Kind.MEAN,
    "temperature_celsius": Kind.MEAN,
    "memory_temperature_celsius": Kind.MEAN,
    "power_draw_watts": Kind.MEAN,
    "power_limit_enforced_watts": Kind.LAST,
    "sm_clock_mhz": Kind.MEAN,
    "memory_clock_mhz": Kind.MEAN,
    "pstate": Kind.LAST,
    "clocks_event_mask": Kind.BITS,
    "fan_speed_percent": Kind.MEAN,
    "ecc_corrected_volatile": Kind.LAST,
    "ecc_uncorrected_volatile": Kind.LAST,
    "pcie_replay_count": Kind.LAST,
    "process_count": Kind.LAST,
}
NAMES = tuple(SERIES)
_DERIVED = ("clocks_event_mask", "process_count")


def sample_of(device: Device) -> dict[str, float]:
    """The readings of one GPU that are there, by series; what is missing is left out."""
    sample = {}
    for name in NAMES:
        if name in _DERIVED:
            continue
        reading = getattr(device, name)
        if not isinstance(reading, Missing):
            sample[name] = float(reading)
    if not isinstance(device.clocks_event_reasons, Missing):
        sample["clocks_event_mask"] = float(_mask(device.clocks_event_reasons))
    if not isinstance(device.processes, Missing):
        sample["process_count"] = float(len(value_or(device.processes, ())))
    return sample


def _mask(reasons: tuple[str, ...]) -> int:
    """The bits that those reasons have in NVML's mask."""
    bits = 0
    for reason in reasons:
        bit = EVENT_REASONS.index(reason) if reason in EVENT_REASONS else int(reason.removeprefix("bit_"))
        bits |= 1 << bit
    return bits
