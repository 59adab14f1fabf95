"""The gate for everything that NVML and pynvml raise: a reason for a reading, a state for the source.

Return codes and their meanings: nvml.h, `nvmlReturn_t` (NVML API Reference Guide, "Return values"),
read November 2026. Nothing here imports pynvml, so that the tables can be tested without it.
"""

from __future__ import annotations

from gpudiag.probe.sheet import (
    DEVICE_LOST,
    ERROR,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    SOURCE_ABSENT,
    TIMED_OUT,
    Absent,
)

SUCCESS = 0
INVALID_ARGUMENT = 2
LIBRARY_NOT_FOUND = 12
CORRUPTED_INFOROM = 14

# Codes that are not here are ERROR: the question should have been answered, and it was not.
REASON_OF_CODE = {
    3: NOT_SUPPORTED,
    4: NO_PERMISSION,
    9: SOURCE_ABSENT,  # driver not loaded: it was unloaded under us
    10: TIMED_OUT,
    LIBRARY_NOT_FOUND: SOURCE_ABSENT,
    13: FUNCTION_NOT_FOUND,
    CORRUPTED_INFOROM: SOURCE_ABSENT,  # what holds the answer cannot be read; driver.firmware tells it
    15: DEVICE_LOST,
    16: RESET_REQUIRED,  # it is on the bus, and no longer usable before that
    17: NO_PERMISSION,  # the operating system has blocked the request
    22: NOT_SUPPORTED,  # ECC of a virtual GPU
    24: NOT_SUPPORTED,  # frequency
    25: FUNCTION_NOT_FOUND,  # the struct is newer than the driver
    26: NOT_SUPPORTED,  # deprecated
    28: DEVICE_LOST,  # GPU not found: it is gone since it was listed
    30: NOT_SUPPORTED,  # reset type
}

# Not supported, function not found: the reason says all that NVML's words would.
_SELF_EXPLAINING = (3, 13)

# What nvmlInit's code says about the source; states are words of model.SourceState.
STATE_OF_INIT_CODE = {
    4: "no_permission",
    9: "driver_not_loaded",
    LIBRARY_NOT_FOUND: "library_absent",
    17: "no_permission",
    18: "version_mismatch",
}


def reason_of(error: Exception) -> tuple[str, str]:
    """The reason for a reading's absence and NVML's words, for whatever asking NVML raised."""
    if isinstance(error, Absent):
        return error.reason, error.detail
    code = code_of(error)
    if code == SUCCESS:
        # pynvml raises NVMLError(0) where a call that asks for a size answers success.
        return ERROR, "NVML answered success and gave nothing"
    if code is not None:
        return reason_of_code(code), "" if code in _SELF_EXPLAINING else words_of(error, code)
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return FUNCTION_NOT_FOUND, "this driver lacks the function that pynvml asks for"
    if isinstance(error, AttributeError):
        return FUNCTION_NOT_FOUND, f"this nvidia-ml-py is too old: {error}"
    return ERROR, f"{type(error).__name__}: {error}"


def reason_of_code(code: int) -> str:
    """Why a reading is missing where NVML answered with this code."""
    return REASON_OF_CODE.get(code, ERROR)


def code_of(error: Exception) -> int | None:
    """The NVML return code that an exception of pynvml carries; None for any other exception."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) and type(error).__name__.startswith("NVMLError") else None


def words_of(error: Exception, code: int) -> str:
    """NVML's own words for a code, with the number: `GPU is lost (NVML 15)`."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - pynvml asks the library for the text, and that may fail too
        words = "NVML error"
    return f"{words.strip().rstrip('.') or 'NVML error'} (NVML {code})"


def state_of_init(error: Exception) -> str:
    """The state of the source, a word of model.SourceState, for what nvmlInit raised."""
    code = code_of(error)
    if code is not None:
        return STATE_OF_INIT_CODE.get(code, "failed")
    return "library_absent" if isinstance(error, ImportError) else "failed"
