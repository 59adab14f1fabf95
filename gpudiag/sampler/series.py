"""The readings of a GPU that are remembered, and how several of them become one."""

from enum import StrEnum

from gpudiag.model.device import Device
from gpudiag.model.reading import Missing, value_or
from gpudiag.reference.readings import READINGS
from gpudiag.reference.vocabulary import reason_mask


class Kind(StrEnum):
    """How the samples of a longer step become one number."""

    MEAN = "mean"
    LAST = "last"  # of counters and limits
    BITS = "bits"  # every bit that was set


# What is counted or made of a reading that is no number.
_DERIVED = {"clocks_event_mask": Kind.BITS, "process_count": Kind.LAST}
_READINGS = {one.name: Kind(one.history) for one in READINGS if one.history is not None}
SERIES: dict[str, Kind] = _READINGS | _DERIVED
NAMES = tuple(SERIES)


def sample_of(device: Device) -> dict[str, float]:
    """The readings of one GPU that are there, by series; what is missing is left out."""
    sample = {}
    for name in _READINGS:
        reading = getattr(device, name)
        if not isinstance(reading, Missing):
            sample[name] = float(reading)
    if not isinstance(device.clocks_event_reasons, Missing):
        sample["clocks_event_mask"] = float(reason_mask(device.clocks_event_reasons))
    if not isinstance(device.processes, Missing):
        sample["process_count"] = float(len(value_or(device.processes, ())))
    return sample
