"""Asking NVML about one GPU: calls by name, text whatever its bytes, and fields in one batch.

pynvml is passed in, so that everything here can be tried with a stand-in.
"""

from __future__ import annotations

from gpudiag.probe.nvml_errors import INVALID_ARGUMENT, SUCCESS, reason_of, reason_of_code
from gpudiag.probe.sheet import DEVICE_LOST, ERROR, FUNCTION_NOT_FOUND, NOT_SUPPORTED, Absent, Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

# NVML writes all ones where a count or an id is not available (nvml.h, NVML_VALUE_NOT_AVAILABLE).
NOT_AVAILABLE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_MEMBER_OF_VALUE_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_ENABLE_STATE = ("disabled", "enabled")  # nvmlEnableState_t


class DeviceSheet(Sheet):
    """The readings of one GPU; once the GPU is lost it is asked nothing more."""

    def __init__(self) -> None:
        """Start empty, with NVML's gate."""
        super().__init__(reason_of)
        self.lost: tuple[str, str] | None = None

    def read_together(self, fields: Iterable[str], function: Callable[..., Any], *arguments: Any) -> None:
        """Fill the fields that one call answers; on a lost GPU, with that reason and without the call."""
        fields = tuple(fields)
        if self.lost is not None:
            self.missing.update(dict.fromkeys(fields, self.lost))
            return
        super().read_together(fields, function, *arguments)
        reason = self.missing.get(fields[0])
        if reason is not None and reason[0] == DEVICE_LOST:
            self.lost = (DEVICE_LOST, "")  # the words stand where the loss was noticed


class Ask:
    """The questions about one GPU: `ask("nvmlDeviceGetName")` calls pynvml with its handle.

    `asking` names the call that is under way, for the row of a GPU that hangs.
    """

    def __init__(self, pynvml: Any, handle: Any) -> None:
        """Bind the library to one device handle."""
        self.pynvml = pynvml
        self.handle = handle
        self.asking = ""
        self.fields: dict[int, Any] = {}

    def __call__(self, name: str, *arguments: Any, **named: Any) -> Any:
        """What that function of pynvml returns for this GPU.

        Raises:
            AttributeError: this pynvml does not have it.
            pynvml.NVMLError: the driver does not answer it.
        """
        self.asking = name
        return getattr(self.pynvml, name)(self.handle, *arguments, **named)

    def text(self, name: str) -> str:
        """A text that NVML gives, whatever bytes it holds.

        Raises:
            Absent: it is empty or one of NVML's words for nothing.
        """
        return as_text(lambda: self(name))

    def number(self, name: str, *arguments: Any) -> int:
        """A count or measure that NVML gives.

        Raises:
            Absent: NVML answers with its all-ones value for "not available".
        """
        return known(self(name, *arguments))

    def enabled(self, name: str) -> str:
        """`enabled` or `disabled`, for a function that answers with nvmlEnableState_t."""
        return enable_state(self(name))

    def first_of(self, *questions: Callable[[], Any]) -> Any:
        """The first answer among the newer and the older way to ask the same; the first error if none.

        Only a question that the driver or pynvml does not know is asked in another way.
        """
        return first_known(reason_of, *questions)

    def read_fields(self, field_ids: Iterable[int]) -> None:
        """Ask for many fields in one call; `field` then answers from it.

        Raises:
            pynvml.NVMLError: the driver refuses the batch, as some do for one field that they do not know.
        """
        for value in self("nvmlDeviceGetFieldValues", list(field_ids)):
            self.fields[value.fieldId] = value

    def field(self, field_id: int) -> int | float:
        """The value of one NVML field (NVML_FI_...), from the batch or asked singly.

        Raises:
            Absent: there is none, for whatever reason.
        """
        value = self.fields.get(field_id)
        if value is None:
            try:
                value = self("nvmlDeviceGetFieldValues", [field_id])[0]
            except Exception as error:
                raise Absent(*reason_of(error)) from error
        return field_value(value)


def field_value(value: Any) -> int | float:
    """The number in one nvmlFieldValue_t, by its own return code and type.

    Raises:
        Absent: this field has no answer.
    """
    code = value.nvmlReturn
    if code == INVALID_ARGUMENT:
        raise Absent(FUNCTION_NOT_FOUND, f"the driver does not know field {value.fieldId}")
    if code != SUCCESS:
        reason = reason_of_code(code)
        raise Absent(reason, "" if reason == NOT_SUPPORTED else f"field {value.fieldId} (NVML {code})")
    if value.valueType >= len(_MEMBER_OF_VALUE_TYPE):
        raise Absent(ERROR, f"field {value.fieldId} has the unknown type {value.valueType}")
    number: int | float = getattr(value.value, _MEMBER_OF_VALUE_TYPE[value.valueType])
    return number


def first_known(reason_of: Callable[[Exception], tuple[str, str]], *questions: Callable[[], Any]) -> Any:
    """The first answer; the next question is asked only where the function of this one is not found."""
    first: Exception | None = None
    for question in questions:
        try:
            return question()
        except Exception as error:
            first = first or error
            if reason_of(error)[0] != FUNCTION_NOT_FOUND:
                raise
    assert first is not None  # noqa: S101 - a call without questions is our mistake
    raise first


def as_text(read: Callable[[], Any]) -> str:
    """The text that `read` gives as str or bytes; bytes that are not UTF-8 are replaced.

    Raises:
        Absent: it is empty or `N/A`.
    """
    try:
        raw = read()
    except UnicodeDecodeError as error:  # pynvml decodes before it returns; the bytes are in the error
        raw = error.object
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    text = text.strip("\0 \t\r\n")
    if text in ("", "N/A", "[N/A]", "Unknown"):
        raise Absent(NOT_SUPPORTED, f"NVML answers {text!r}" if text else "NVML answers with nothing")
    return text


def known(number: int) -> int:
    """`number`, where it is not NVML's all-ones value for "not available".

    Raises:
        Absent: it is.
    """
    if number in NOT_AVAILABLE:
        raise Absent(NOT_SUPPORTED, "NVML answers 'not available'")
    return int(number)


def enable_state(state: int) -> str:
    """`disabled` or `enabled` for nvmlEnableState_t.

    Raises:
        Absent: it is neither.
    """
    return word(_ENABLE_STATE, state)


def word(words: Sequence[str | None], number: int) -> str:
    """The word that stands for an enumerator.

    Raises:
        Absent: gpudiag has no word for it.
    """
    found = words[number] if 0 <= number < len(words) else None
    if found is None:
        raise Absent(ERROR, f"NVML answers {number}, which gpudiag has no word for")
    return found


def bus_id_of(raw: Any) -> str:
    """A PCI address as the model writes it, `dddddddd:bb:dd.f` in lower case.

    Raises:
        Absent: it is not an address.
    """
    text = as_text(lambda: raw).lower()
    domain, _, rest = text.partition(":")
    if not rest or len(rest.split(":")) != 2:
        raise Absent(ERROR, f"{text!r} is not a PCI address")
    return f"{domain:0>8}:{rest}"
