"""Asking NVML: calls by name, fields in one batch, and a reason for everything that NVML raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpudiag.model.untrusted_text import escape_controls
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
    Sheet,
)
from gpudiag.reference.vocabulary import ENABLE_STATES, word_of

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
    CORRUPTED_INFOROM: SOURCE_ABSENT,  # what holds the answer cannot be read; driver.firmware reports it
    15: DEVICE_LOST,
    16: RESET_REQUIRED,  # it is on the bus, but not usable until it is reset
    17: NO_PERMISSION,  # the operating system has blocked the request
    22: NOT_SUPPORTED,  # ECC of a virtual GPU
    24: NOT_SUPPORTED,  # frequency
    25: FUNCTION_NOT_FOUND,  # the struct is newer than the driver
    26: NOT_SUPPORTED,  # deprecated
    28: DEVICE_LOST,  # GPU not found: it is gone since it was listed
    30: NOT_SUPPORTED,  # reset type
}

# Not supported, function not found: the reason has all that NVML's words would.
_SELF_EXPLAINING = (3, 13)

# The state of the source by nvmlInit's code; states are words of model.SourceState.
STATE_OF_INIT_CODE = {
    4: "no_permission",
    9: "driver_not_loaded",
    LIBRARY_NOT_FOUND: "library_absent",
    17: "no_permission",
    18: "version_mismatch",
}

# NVML writes all ones where a count or an id is not available (nvml.h, NVML_VALUE_NOT_AVAILABLE).
NOT_AVAILABLE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_MEMBER_OF_VALUE_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_GONE = (DEVICE_LOST, RESET_REQUIRED)
# The question should have been answered: not "this GPU has none", "this driver does not know", "not for you".
_FAILED = (ERROR, TIMED_OUT, SOURCE_ABSENT)
_WHOLE_PERCENT = 100
_MAX_CODE = 1000  # of nvmlReturn_t: 999 is the last
# Timeout, no data, insufficient resources, unknown: what a healthy GPU has been seen to answer once.
_TRANSIENT = (10, 21, 23, 999)


def reason_of(error: Exception) -> tuple[str, str]:
    """The reason for a reading's absence and NVML's words, for whatever asking NVML raised."""
    if isinstance(error, Absent):
        return error.reason, error.detail
    code = code_of(error)
    if code == SUCCESS:
        # pynvml raises NVMLError(0) where a call that asks for a size answers success.
        return ERROR, "NVML reported success and gave no value"
    if code is not None:
        return reason_of_code(code), "" if code in _SELF_EXPLAINING else words_of(error, code)
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return FUNCTION_NOT_FOUND, "this driver lacks the function that pynvml calls"
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


class CorruptedInforom(Absent):
    """A field that the driver cannot give because the GPU's InfoROM is corrupted (NVML 14)."""


class DeviceSheet(Sheet):
    """The readings of one GPU, which is asked nothing more once it is lost or needs a reset.

    `inforom_corrupted`: whether any call has answered so.
    """

    def __init__(self) -> None:
        """Start empty; `reason_of` here turns NVML's errors into reasons."""
        super().__init__(self._reason_of_nvml)
        self.lost: tuple[str, str] | None = None
        self.inforom_corrupted = False

    def _reason_of_nvml(self, error: Exception) -> tuple[str, str]:
        if isinstance(error, CorruptedInforom) or code_of(error) == CORRUPTED_INFOROM:
            self.inforom_corrupted = True
        return reason_of(error)

    def read_together(self, fields: Iterable[str], function: Callable[..., Any], *arguments: Any) -> None:
        """Fill the fields that one call answers; on a lost GPU, with that reason and without the call."""
        fields = tuple(fields)
        if self.lost is not None:
            self.missing.update(dict.fromkeys(fields, self.lost))
            return
        super().read_together(fields, function, *arguments)
        reason = self.missing.get(fields[0])
        if reason is not None and reason[0] in _GONE:
            self.lost = (reason[0], "")  # the detail is where the loss was noticed


class Noted:
    """What came up while one GPU was asked, by its own handle or its MIG devices'.

    `asking` names the call in progress, `failed` those answered with an error and its words, `lost` why the
    GPU no longer answers.
    """

    def __init__(self) -> None:
        """Start without any failed call."""
        self.asking = ""
        self.failed: dict[str, str] = {}
        self.lost: tuple[str, str] | None = None
        self.lost_in = ""  # the call that noticed it
        self.inforom_corrupted = False

    def forget(self) -> None:
        """Clear the notes: the GPU is about to be asked everything again."""
        self.failed, self.lost, self.lost_in = {}, None, ""

    def note(self, call: str, reason: str, words: str) -> None:
        """Note a call that gave no answer, if it should have given one."""
        if reason in _GONE:
            self.lost, self.lost_in = self.lost or (reason, words), self.lost_in or call
        elif reason in _FAILED:
            self.failed.setdefault(call, words)


class Ask:
    """The questions about one GPU, `ask("nvmlDeviceGetName")`; `repeated`: to measure what is between."""

    repeated = False

    def __init__(self, pynvml: Any, handle: Any, noted: Noted | None = None) -> None:
        """Bind the library to one device handle; `noted` is shared with the GPU's other handles."""
        self.pynvml = pynvml
        self.handle = handle
        self.noted = noted or Noted()
        self.fields: dict[int | tuple[int, int], Any] = {}  # by number, or by number and scope
        self.kept: dict[Any, Any] = {}  # answers that stay true while the driver is loaded

    @property
    def asking(self) -> str:
        """The call in progress, or the last one."""
        return self.noted.asking

    @asking.setter
    def asking(self, call: str) -> None:
        self.noted.asking = call

    def on(self, handle: Any) -> Ask:
        """The same questions about another handle of this GPU, such as a MIG device's."""
        return type(self)(self.pynvml, handle, self.noted)

    def __call__(self, name: str, *arguments: Any, **named: Any) -> Any:
        """What that function of pynvml returns for this GPU.

        Raises:
            AttributeError: this pynvml does not have it.
            pynvml.NVMLError: the driver does not answer it.
        """
        return self.allowing((), name, *arguments, **named)

    def allowing(self, codes: Sequence[int], name: str, *arguments: Any, **named: Any) -> Any:
        """The same, where these NVML codes are normal answers: raised, but not noted as failures."""
        self.asking = name
        try:
            return self._call_twice(name, codes, arguments, named)
        except Exception as error:
            code = code_of(error)
            if code == CORRUPTED_INFOROM:
                self.noted.inforom_corrupted = True
            elif code not in codes:
                self.noted.note(name, *reason_of(error))
            raise

    def _call_twice(
        self, name: str, codes: Sequence[int], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """What the function returns; asked once more where its error may be of that moment alone."""
        try:
            return self.call(name, *arguments, **named)
        except Exception as error:
            if code_of(error) not in _TRANSIENT or code_of(error) in codes:
                raise
        return self.call(name, *arguments, **named)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call the function of pynvml on this handle, once."""
        return getattr(self.pynvml, name)(self.handle, *arguments, **named)

    def text(self, name: str) -> str:
        """A text that NVML gives, whatever bytes. Raises Absent: it is empty or a word for nothing."""
        return as_text(lambda: self(name))

    def number(self, name: str, *arguments: Any) -> int:
        """A count or measure that NVML gives. Raises Absent: NVML answers all ones, "not available"."""
        return known(self(name, *arguments))

    def enabled(self, name: str) -> str:
        """`enabled` or `disabled`, for a function that answers with nvmlEnableState_t."""
        return enable_state(self(name))

    def once(self, key: Any, question: Callable[[], Any]) -> Any:
        """The question's first answer, cached under `key`: a caller that runs for hours asks it once."""
        if key not in self.kept:
            self.kept[key] = question()
        return self.kept[key]

    def while_same(self, key: Any, known: Any, question: Callable[[], Any]) -> Any:
        """The question's last answer while what it follows from is `known`; a single look always asks."""
        before = self.kept.get(key) if self.repeated else None
        if before is None or before[0] != known:
            before = self.kept[key] = (known, question())
        return before[1]

    def first_of(self, *questions: Callable[[], Any]) -> Any:
        """The first answer of newer and older calls for one thing; the next is tried if one is unknown."""
        return first_known(reason_of, *questions)

    def read_fields(self, field_ids: Iterable[int]) -> None:
        """Ask for many fields, for `field` to answer. Raises pynvml.NVMLError: the batch is refused."""
        # The fields of a refused batch are asked for singly, so the batch's failure is not noted.
        for value in self.allowing(range(_MAX_CODE), "nvmlDeviceGetFieldValues", list(field_ids)):
            self.fields[value.fieldId] = value

    def field(self, field_id: int) -> int | float:
        """The value of an NVML field (NVML_FI_...), from the batch or alone. Raises Absent: there is none."""
        value = self.fields.get(field_id)
        if value is None or value.nvmlReturn in _TRANSIENT:
            try:
                value = self.allowing((INVALID_ARGUMENT,), "nvmlDeviceGetFieldValues", [field_id])[0]
            except Exception as error:
                raise Absent(*reason_of(error)) from error
        try:
            return field_value(value)
        except CorruptedInforom:
            self.noted.inforom_corrupted = True
            raise
        except Absent as absent:
            self.noted.note(f"nvmlDeviceGetFieldValues, field {field_id}", absent.reason, absent.detail)
            raise


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
        if code == CORRUPTED_INFOROM:
            raise CorruptedInforom(reason, f"field {value.fieldId} (NVML {code})")
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
    """The text that `read` gives as str or bytes, UTF-8 or not. Raises Absent: it is empty or `N/A`."""
    try:
        raw = read()
    except UnicodeDecodeError as error:  # pynvml decodes before it returns; the bytes are in the error
        raw = error.object
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
    text = text.strip("\0 \t\r\n")
    if text in ("", "N/A", "[N/A]", "Unknown"):
        raise Absent(NOT_SUPPORTED, f"NVML answers {text!r}" if text else "NVML answers with an empty text")
    return escape_controls(text)


def known(number: int) -> int:
    """`number`, unless it is NVML's all-ones value for "not available", which raises Absent."""
    if number in NOT_AVAILABLE:
        raise Absent(NOT_SUPPORTED, "NVML answers 'not available'")
    return int(number)


def percent(number: int) -> int:
    """`number`, unless it is no share of a whole. Raises Absent: it is below 0 or above 100."""
    if not 0 <= number <= _WHOLE_PERCENT:
        raise Absent(NOT_SUPPORTED, f"NVML answers {number} %, which is no share of a whole")
    return number


def enable_state(state: int) -> str:
    """`disabled` or `enabled` for nvmlEnableState_t; `unknown_2` for what is neither."""
    return word(ENABLE_STATES, state)


def word(words: tuple[str | None, ...], number: int) -> str:
    """The word for an enumerator; `unknown_9` for an unknown number. Raises Absent: NVML answers all ones."""
    return word_of(words, known(number))


def bus_id_of(raw: Any) -> str:
    """A PCI address in the model's form, `dddddddd:bb:dd.f` in lower case. Raises Absent: it is none."""
    text = as_text(lambda: raw).lower()
    domain, _, rest = text.partition(":")
    if not rest or len(rest.split(":")) != 2:
        raise Absent(ERROR, f"{text!r} is not a PCI address")
    return f"{domain:0>8}:{rest}"
