"""Readings as plain data while they are gathered: values, and for each absence the reason.

Children gather sheets and send them through the guard's pipe; only the parent makes nouns of them.
A sheet's document has the form of the JSON documents: values, `missing`, `missing_detail`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# The words of model.MissingReason; a test compares the two lists.
NOT_SUPPORTED = "not_supported"
FUNCTION_NOT_FOUND = "function_not_found"
NO_PERMISSION = "no_permission"
DEVICE_LOST = "device_lost"
RESET_REQUIRED = "reset_required"
SOURCE_ABSENT = "source_absent"
TIMED_OUT = "timed_out"
NOT_ASKED = "not_asked"
ERROR = "error"


class Absent(Exception):
    """Raised by a function that reads or parses a reading that is absent; carries the reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        """Keep a word of model.MissingReason, and the source's own words."""
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def reason_of(error: Exception) -> tuple[str, str]:
    """The reason and the words for whatever a reading of a file raised."""
    if isinstance(error, Absent):
        return error.reason, error.detail
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return SOURCE_ABSENT, ""
    if isinstance(error, PermissionError):
        return NO_PERMISSION, str(error.filename or error)
    return ERROR, f"{type(error).__name__}: {error}"


class Sheet:
    """The readings of one thing: `values`, and `missing` with the reason and the words of each absence."""

    def __init__(self, reason_of: Callable[[Exception], tuple[str, str]] = reason_of) -> None:
        """Start empty; `reason_of` turns what a source raises into a reason and its words."""
        self.values: dict[str, Any] = {}
        self.missing: dict[str, tuple[str, str]] = {}
        self._reason_of = reason_of

    def read(self, field: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Fill one field with what the function returns, or with the reason why it does not."""
        self.read_together((field,), lambda: (function(*arguments),))

    def read_together(self, fields: Iterable[str], function: Callable[..., Any], *arguments: Any) -> None:
        """Fill several fields that one call answers, in order; one reason for all if it does not."""
        try:
            answers = function(*arguments)
        except MemoryError:  # this process's lack, and no reason of the source's
            raise
        except Exception as error:  # noqa: BLE001 - `reason_of` classifies it; others still count
            reason = self._reason_of(error)
            self.missing.update(dict.fromkeys(fields, reason))
        else:
            self.values.update(zip(fields, answers, strict=True))

    def mark(self, field: str, reason: str, detail: str = "") -> None:
        """Fill one field with a reason for its absence."""
        self.missing[field] = (reason, detail)

    def document(self) -> dict[str, Any]:
        """The sheet as plain data, in the form of a JSON document."""
        # Copies: late rows are sent while another thread still fills the sheet.
        missing = dict(self.missing)
        return {
            **dict(self.values),
            "missing": {field: reason for field, (reason, _) in missing.items()},
            "missing_detail": {field: detail for field, (_, detail) in missing.items() if detail},
        }
