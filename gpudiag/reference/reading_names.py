"""What people call a reading, and why there is none: the words of every text, in place of field names."""

from __future__ import annotations

from functools import cache

from gpudiag.model.device import SourceState
from gpudiag.model.reading import Missing, MissingReason

WHY_MISSING = {
    MissingReason.NOT_SUPPORTED: "this hardware does not report it",
    MissingReason.FUNCTION_NOT_FOUND: "the driver is too old to report it",
    MissingReason.NO_PERMISSION: "no permission to read it",
    MissingReason.DEVICE_LOST: "the GPU is lost",
    MissingReason.RESET_REQUIRED: "the GPU must be reset first",
    MissingReason.SOURCE_ABSENT: "nothing on this machine reports it",
    MissingReason.TIMED_OUT: "no answer by the deadline",
    MissingReason.ATTACHING: "the driver is still attaching the GPU",
    MissingReason.NOT_ASKED: "it was not asked for",
    MissingReason.IN_USE: "others use the GPU",
    MissingReason.ERROR: "reading it failed",
}

# What is no reading of one GPU: its row as a whole, and what sources may disagree about beside its readings.
_NO_READINGS = {
    "id": "identity",
    "responding": "an answer to any question",
    "count": "number of GPUs",
    "order": "order of the GPUs",
    "context_starts": "whether a CUDA context starts",
}
_UNITS = ("_bytes_per_second", "_bytes", "_celsius", "_watts", "_mhz", "_percent", "_seconds", "_bits")
_SPELLED = {
    "ecc": "ECC",
    "gpu": "GPU",
    "gsp": "GSP",
    "inforom": "InfoROM",
    "cuda": "CUDA",
    "mig": "MIG",
    "nvlink": "NVLink",
    "numa": "NUMA",
    "pcie": "PCIe",
    "pci": "PCI",
    "sm": "SM",
    "uuid": "UUID",
    "vbios": "VBIOS",
    "nvml": "NVML",
}


@cache
def name_reading(field: str) -> str:
    """What people call the reading of that field: `SM clock`, `pages retired for single-bit errors`."""
    from gpudiag.reference.readings import READINGS  # late: hardly a listing names a reading in a sentence

    called = _NO_READINGS.get(field) or next((one.called for one in READINGS if one.name == field), "")
    if called:
        return called
    for unit in _UNITS:
        if field.endswith(unit):
            field = field.removesuffix(unit)
            break
    return " ".join(_SPELLED.get(word, word) for word in field.split("_"))


def describe_missing(missing: Missing) -> str:
    """Why a value is not there, in words; the source's own words follow where there are any."""
    words = WHY_MISSING[missing.reason]
    return f"{words} ({missing.detail})" if missing.detail else words


def explain_missing(missing: Missing) -> str:
    """Why a value is not there: the source's own words, or ours where it gave none."""
    return missing.detail or WHY_MISSING[missing.reason]


_STATES = {
    SourceState.OK: "ok",
    SourceState.NO_DEVICES: "no GPU",
    SourceState.LIBRARY_ABSENT: "not installed",
    SourceState.DRIVER_NOT_LOADED: "no driver",
    SourceState.VERSION_MISMATCH: "wrong version",
    SourceState.NO_PERMISSION: "no permission",
    SourceState.TIMED_OUT: "no answer",
    SourceState.FAILED: "failed",
    SourceState.NOT_ASKED: "not asked",
}


def name_state(state: SourceState) -> str:
    """How a source answered, in a word or two."""
    return _STATES[state]
