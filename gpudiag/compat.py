"""What Python 3.10 lacks of the standard library that the rest of gpudiag is written for.

The only place that knows of it: elsewhere a name is imported from here, and mypy, which checks for 3.10,
finds the one that is not. What is wanted of `tomllib` is in `gpudiag/toml.py`, as few commands read a table.
"""

import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

__all__ = ["UTC", "Self", "StrEnum", "dataclass_transform", "parse_iso_time"]

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
elif sys.version_info >= (3, 11):
    from typing import Self, dataclass_transform
else:
    from typing import Any as Self

    def dataclass_transform(**_promises: object) -> Callable[[type], type]:
        """A decorator that changes nothing: only type checkers read it."""
        return lambda decorator: decorator


if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Members that are their values, also when they are shown."""

        _value_: str
        __str__ = str.__str__

        def __format__(self, format_spec: str) -> str:
            """The value, formatted as text."""
            return str.__format__(self, format_spec)

        @staticmethod
        def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
            return name.lower()


UTC = timezone.utc


def parse_iso_time(text: str) -> datetime:
    """The moment that an ISO 8601 text names; Python 3.10's own reader knows no Z, and few fractions.

    Raises:
        ValueError: it names none.
    """
    if sys.version_info >= (3, 11):
        return datetime.fromisoformat(text)
    import re  # late: a listing reads no time

    # Date, time, fraction and zone, as ISO 8601 has them in its two forms.
    form = (
        r"(\d{4})-?(\d\d)-?(\d\d)"
        r"(?:[T ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?(?:(Z)|([+-]\d\d):?(\d\d)?)?)?"
    )
    match = re.fullmatch(form, text)
    if match is None:
        raise ValueError(f"Invalid isoformat string: {text!r}")
    year, month, day, hour, minute, second, fraction, utc, offset, offset_minutes = match.groups()
    plain = f"{year}-{month}-{day}T{hour or '00'}:{minute or '00'}:{second or '00'}"
    if fraction:
        plain += f".{fraction[:6]:0<6}"
    if utc or offset:
        plain += "+00:00" if utc else f"{offset}:{offset_minutes or '00'}"
    return datetime.fromisoformat(plain)
