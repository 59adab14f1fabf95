"""The readings of a GPU that are kept over time, and how several samples become one."""

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


# Series derived from readings that are not numbers.
_DERIVED = {"clocks_event_mask": Kind.BITS, "process_count": Kind.LAST}
_READINGS = {one.name: Kind(one.history) for one in READINGS if one.history is not None}
SERIES: dict[str, Kind] = _READINGS | _DERIVED
NAMES = tuple(SERIES)


def sample_of(device: Device) -> dict[str, float]:
    """The values of one GPU's readings, by series; missing readings are left out."""
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
