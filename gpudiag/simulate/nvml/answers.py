"""The state file of the simulated NVML library: a table of answers, faults and events.

The layout is that of the structs in nvml_state.h; both change together with _LAYOUT.
Numbers are little-endian, as every machine that NVML runs on.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpudiag.errors import UsageError
from gpudiag.reference.nvml import constant, exported_functions
from gpudiag.simulate.nvml.calls import NOT_SUPPORTED, SHAPES, is_look_up, pack_functions
from gpudiag.simulate.scenario import CallFault, HostTree, SimulatedGpu

# --- the table

_T = TypeVar("_T")

_MAGIC, _LAYOUT = b"GPUDNVML", 2
_HEADER = struct.Struct("<8sIIQIIIIQQQQQ")
_SLOT = struct.Struct("<QIIiIII")
_FAULT = struct.Struct("<QQIiIIII")
_EVENT = struct.Struct("<IIQQ")
SUPERSEDED_OFFSET = 12  # in the header: set to 1 once a newer file has replaced this one

NO_SUBJECT = 0xFFFFFFFF
ANY_SUBJECT = 0xFFFFFFFE
SUBJECTS_PER_GPU = 16  # the GPU itself, then its MIG devices
MAX_SUBJECTS = 1024
_ANY_KEY = 0
_OCCUPIED, _HANGS = 1, 2
_FOREVER = 0xFFFFFFFF
_HANG, _IN_TURN, _CRASH = 1, 2, 3  # manners of a fault

_HASH_SEED, _HASH_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_FUNCTION_FACTOR, _SUBJECT_FACTOR = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F

# The return code that stands for each reason why a reading is missing.
REASON_CODES = {
    "not_supported": "NVML_ERROR_NOT_SUPPORTED",
    "function_not_found": "NVML_ERROR_FUNCTION_NOT_FOUND",
    "no_permission": "NVML_ERROR_NO_PERMISSION",
    "device_lost": "NVML_ERROR_GPU_IS_LOST",
    "reset_required": "NVML_ERROR_RESET_REQUIRED",
    "source_absent": "NVML_ERROR_NOT_SUPPORTED",
    "not_asked": "NVML_ERROR_NOT_SUPPORTED",
    "error": "NVML_ERROR_UNKNOWN",
    "attaching": "NVML_ERROR_UNKNOWN",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that gives no value: the return code, or a hang."""

    code: int = NOT_SUPPORTED
    hangs: bool = False

    @classmethod
    def for_reason(cls, reason: str) -> "Refusal":
        """The Refusal for a reading missing for this reason; TIMED_OUT hangs. Raises UsageError: unknown."""
        if reason == "timed_out":
            return cls(hangs=True)
        if reason not in REASON_CODES:
            raise UsageError(
                f"{reason!r} is not a reason for a missing reading", hint=f"one of {[*REASON_CODES]}"
            )
        return cls(constant(REASON_CODES[reason]))


def u32(value: int) -> bytes:
    """The value as NVML's unsigned int (a signed one where it is below 0)."""
    return struct.pack("<I", int(value) & 0xFFFFFFFF)


def u64(value: int) -> bytes:
    """The value as NVML's unsigned long long."""
    return struct.pack("<Q", int(value) & _MASK)


def text(value: str) -> bytes:
    """The value as a C string."""
    return value.encode() + b"\0"


def both(first: Any, second: Any) -> Any:
    """A pair of readings, or the first Refusal among them."""
    if isinstance(first, Refusal):
        return first
    return second if isinstance(second, Refusal) else (first, second)


def hash_text(value: str) -> int:
    """The part of a key that stands for a text, regardless of case."""
    result = _HASH_SEED
    for byte in value.lower().encode():
        result = (result ^ byte) * _HASH_PRIME & _MASK
    return result


def hash_key(parts: Iterable[int]) -> int:
    """The key of a call, from the arguments that select its answer."""
    result = _HASH_SEED
    for part in parts:
        result = (result ^ part & _MASK) * _HASH_PRIME & _MASK
    return result


@dataclass(slots=True)
class AnswerTable:
    """What each call answers; the last answer for a call wins."""

    _slots: dict[tuple[int, int, int], tuple[int, int, bytes]] = field(default_factory=dict)
    _faults: list[bytes] = field(default_factory=list)
    _bitmaps: list[bytes] = field(default_factory=list)
    _events: list[bytes] = field(default_factory=list)
    _costs_us: dict[str, float] = field(default_factory=dict)
    _numbers: dict[str, int] = field(
        default_factory=lambda: {name: number for number, name in enumerate(exported_functions())}
    )

    def answer(self, function: str, subject: int, value: bytes | Refusal, keys: Iterable[int] = ()) -> None:
        """Make the call answer these bytes, or refuse; `keys` are the arguments that select the answer."""
        self._put(function, subject, value, hash_key(keys))

    def reply(
        self,
        function: str,
        subject: int,
        reading: _T | Refusal,
        encode: Callable[[_T], bytes],
        keys: Iterable[int] = (),
    ) -> None:
        """Make the call answer the encoded reading, or refuse where the reading is a Refusal."""
        self.answer(function, subject, reading if isinstance(reading, Refusal) else encode(reading), keys)

    def refuse_all(self, function: str, subject: int, refusal: Refusal) -> None:
        """Make the call refuse for all other arguments that have no answer of their own."""
        self._put(function, subject, refusal, _ANY_KEY)

    def _put(self, function: str, subject: int, value: bytes | Refusal, key: int) -> None:
        if isinstance(value, Refusal):
            entry = (value.code, _OCCUPIED | _HANGS * value.hangs, b"")
        else:
            entry = (0, _OCCUPIED, value)
        self._slots[key, self._numbers[function], subject] = entry

    def add_fault(self, fault: CallFault, subjects: Iterable[int], name: str) -> None:
        """Make calls on these subjects misbehave; `name` keeps equal faults of two GPUs apart.

        Raises:
            UsageError: NVML has no function of that name.
        """
        bitmap = bytearray((len(self._numbers) + 7) // 8)
        for function, number in self._numbers.items():
            if _is_hit(fault, function):
                bitmap[number // 8] |= 1 << number % 8
        if not any(bitmap):
            raise UsageError(
                f"a fault names the call {fault.call}, and NVML has no such function",
                hint="name one as in nvml.h, or a prefix with a star: nvmlDeviceGetMemory*",
            )
        self._bitmaps.append(bytes(bitmap))
        first = fault.nth or fault.from_nth or 1
        for subject in subjects:
            self._faults.append(
                _FAULT.pack(
                    # The id keeps the count of calls across an update of the file.
                    hash_text(f"{name} {fault!r}"),
                    round(fault.delay_seconds * 1e9),
                    subject,
                    -1 if fault.code is None else fault.code,
                    _HANG if fault.hang else _CRASH if fault.crash else _IN_TURN if fault.in_turn else 0,
                    first,
                    fault.nth or _FOREVER,
                    len(self._bitmaps) - 1,
                )
            )

    def charge(self, call: str, microseconds: float) -> None:
        """Set the processor time of a call; of a name and prefixes with `*`, the longest counts."""
        self._costs_us[call] = microseconds

    def _cost_ns(self, function: str) -> int:
        fitting = [call for call in self._costs_us if _matches(call, function)]
        return round(self._costs_us[max(fitting, key=len)] * 1000) if fitting else 0

    def add_event(self, subject: int, event_type: int, data: int) -> None:
        """Add an event to the list that event sets report."""
        self._events.append(_EVENT.pack(subject, 0, event_type, data))

    def pack(self) -> bytes:
        """The state file."""
        self._refuse_unknown_versions()
        slots, values = self._pack_slots()
        bitmap_size = len(self._bitmaps[0]) if self._bitmaps else 0
        functions = pack_functions(self._cost_ns)
        offsets, position = [], _HEADER.size
        for part in (functions, slots, self._faults, self._events, self._bitmaps):
            position = (position + 7) // 8 * 8
            offsets.append(position)
            position += sum(map(len, part)) if isinstance(part, list) else len(part)
        bytes_offset = (position + 7) // 8 * 8
        faults = [_with_offset(fault, offsets[4], bitmap_size) for fault in self._faults]
        header = _HEADER.pack(
            _MAGIC,
            _LAYOUT,
            0,
            bytes_offset + len(values),
            len(self._numbers),
            len(slots) // _SLOT.size,
            len(faults),
            len(self._events),
            *offsets[:4],
            bytes_offset,
        )
        parts = [functions, slots, b"".join(faults), b"".join(self._events), b"".join(self._bitmaps)]
        image = bytearray(header)
        for offset, part in zip([*offsets, bytes_offset], [*parts, values], strict=True):
            image += bytes(offset - len(image)) + part
        return bytes(image)

    def _refuse_unknown_versions(self) -> None:
        """Calls with a versioned struct that a device does not answer at all are not supported there."""
        versioned = {self._numbers[name] for name, shape in SHAPES.items() if "v" in shape.split()}
        subjects = {subject for _key, _function, subject in self._slots}
        answered = {(function, subject) for _key, function, subject in self._slots}
        for function in versioned:
            for subject in subjects:
                if (function, subject) not in answered:
                    self._slots[_ANY_KEY, function, subject] = (NOT_SUPPORTED, _OCCUPIED, b"")

    def _pack_slots(self) -> tuple[bytes, bytes]:
        """The hash table with open addressing, at most half full, and the bytes that it points into."""
        count = 1 << max(4, (2 * len(self._slots)).bit_length())
        table: list[bytes | None] = [None] * count
        values = bytearray()
        places: dict[bytes, int] = {}
        for (key, function, subject), (code, flags, value) in self._slots.items():
            offset = places.get(value)
            if offset is None:
                offset = places[value] = len(values)
                values += value
            mixed = key ^ function * _FUNCTION_FACTOR & _MASK ^ subject * _SUBJECT_FACTOR & _MASK
            place = (mixed ^ mixed >> 29) & (count - 1)
            while table[place] is not None:
                place = (place + 1) & (count - 1)
            table[place] = _SLOT.pack(key, function, subject, code, flags, offset, len(value))
        empty = bytes(_SLOT.size)
        return b"".join(slot or empty for slot in table), bytes(values)


def _is_hit(fault: CallFault, function: str) -> bool:
    """Whether the fault is about that function: by its name, a prefix with `*`, or all of them."""
    if any(_matches(pattern, function) for pattern in fault.except_calls):
        return False
    return not (fault.call == "*" and is_look_up(function)) and _matches(fault.call, function)


def _matches(pattern: str, function: str) -> bool:
    return function.startswith(pattern[:-1]) if pattern.endswith("*") else function == pattern


def _with_offset(fault: bytes, bitmaps: int, bitmap_size: int) -> bytes:
    """The fault with its last member, the bitmap's number, replaced by the bitmap's offset."""
    *members, number = _FAULT.unpack(fault)
    return _FAULT.pack(*members, bitmaps + number * bitmap_size)


# --- one GPU

_FIELD_VALUE = struct.Struct("<Ii8s")
_ANY_SCOPE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class PlacedGpu:
    """A GPU of the machine, its place in NVML's order, and the host tree around it."""

    gpu: SimulatedGpu
    position: int  # among all GPUs of the scenario: the subject of its calls follows from it
    nvml_index: int  # among those that NVML shows
    host: HostTree
    driver_version: str = ""

    @property
    def subject(self) -> int:
        """The number of the GPU's handle."""
        return self.position * SUBJECTS_PER_GPU

    def mig_subject(self, number: int) -> int:
        """The number of the handle of the GPU's MIG device `number`, counted from 0."""
        return self.subject + 1 + number

    def read(self, name: str) -> Any:
        """The reading's value, or the Refusal that stands for why it is missing."""
        return read_member({**self.gpu.readings, "missing": self.gpu.missing}, name)

    def read_pci_attribute(self, name: str) -> str | None:
        """The text of a file in the GPU's sysfs folder of the host tree; None where there is none."""
        bus_id = self.gpu.readings.get("bus_id")
        if not isinstance(bus_id, str):
            return None
        suffix = f"/{bus_id[4:]}/{name}"
        for path, text in self.host.files.items():
            if path.endswith(suffix):
                return text.strip()
        return None


def read_member(record: Mapping[str, Any], name: str) -> Any:
    """The member's value, or the Refusal for the reason in the record's `missing`."""
    value = record.get(name)
    if value is not None:
        return value
    reason = (record.get("missing") or {}).get(name, "not_supported")
    return Refusal.for_reason(reason)


@dataclass(frozen=True, slots=True)
class GpuAnswers:
    """Writes the answers of one subject (a GPU or a MIG device) into the table."""

    table: AnswerTable
    subject: int

    def reply(
        self,
        function: str,
        reading: Any,
        encode: Callable[[Any], bytes] = u32,
        keys: Iterable[int] = (),
    ) -> None:
        """Make a call of this subject answer the reading."""
        self.table.reply(function, self.subject, reading, encode, keys)

    def reply_each(
        self, functions: Iterable[str], reading: Any, encode: Callable[[Any], bytes] = u32
    ) -> None:
        """Make several names of one call answer the reading."""
        for function in functions:
            self.reply(function, reading, encode)

    def reply_versioned(
        self, function: str, reading: Any, encode: Callable[[Any], bytes], *keys: int
    ) -> None:
        """Make a call with a versioned struct answer the reading; a refusal holds for every version."""
        if isinstance(reading, Refusal):
            self.table.refuse_all(function, self.subject, reading)
        else:
            self.reply(function, reading, encode, keys)

    def reply_field(self, field: str, reading: Any, *, wide: bool = False, scope: int = _ANY_SCOPE) -> None:
        """Make NVML_FI_`field` of nvmlDeviceGetFieldValues answer the reading; see `reply_field_number`."""
        self.reply_field_number(constant(f"NVML_FI_{field}"), reading, wide=wide, scope=scope)

    def reply_field_number(
        self, number: int, reading: Any, *, wide: bool = False, scope: int = _ANY_SCOPE
    ) -> None:
        """Make the field of that number answer the reading; `wide`: unsigned long long; negative: signed."""

        def encode(value: int) -> bytes:
            kind = "UNSIGNED_LONG_LONG" if wide else "SIGNED_INT" if value < 0 else "UNSIGNED_INT"
            packed = struct.pack("<q" if value < 0 else "<Q", int(value))
            return _FIELD_VALUE.pack(constant(f"NVML_VALUE_TYPE_{kind}"), 0, packed)

        self.reply("nvmlDeviceGetFieldValues", reading, encode, keys=(number, scope))
