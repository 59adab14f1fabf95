"""A value or a reason: what every field that may be absent is made of."""

from dataclasses import dataclass
from typing import TypeVar, Union

from gpudiag.compat import StrEnum

_T = TypeVar("_T")


class MissingReason(StrEnum):
    """Why a value is not there."""

    NOT_SUPPORTED = "not_supported"
    FUNCTION_NOT_FOUND = "function_not_found"  # the driver is older than the question
    NO_PERMISSION = "no_permission"
    DEVICE_LOST = "device_lost"
    RESET_REQUIRED = "reset_required"  # the GPU is on the bus and does not answer before a reset
    SOURCE_ABSENT = "source_absent"
    TIMED_OUT = "timed_out"
    ATTACHING = "attaching"  # the driver is still initialising the GPU for the first program that asks
    NOT_ASKED = "not_asked"
    IN_USE = "in_use"  # others use the GPU, so that it was not tested
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Missing:
    """The absence of a value: the reason, and the source's own message."""

    reason: MissingReason
    detail: str = ""


# `Reading[int]` is an int or the reason why there is none.
Reading = Union[_T, Missing]  # noqa: UP007 - `_T | Missing` cannot be subscripted on Python 3.11

# A plain fact, as evidence and disagreements carry it.
Scalar = Union[str, int, float, bool]  # noqa: UP007 - used as a type alias at run time

NOT_ASKED = Missing(MissingReason.NOT_ASKED)

# The driver gave a number that gpudiag does not know: `unknown_9`; a bit of a mask is `bit_11`.
_WITHOUT_A_WORD = ("unknown_", "bit_")


def is_without_word(value: object) -> bool:
    """Whether the value is a number of the driver that gpudiag does not know."""
    return (
        isinstance(value, str)
        and value.startswith(_WITHOUT_A_WORD)
        and value.rpartition("_")[2].isdecimal()
        and value.count("_") == 1
    )


def value_or(reading: Reading[_T], fallback: _T) -> _T:
    """The value, or `fallback` where it is missing; only for display and ordering."""
    return fallback if isinstance(reading, Missing) else reading
