"""A pickle that holds only plain values: dicts, lists, tuples, words and numbers.

Loading a pickle with Python's own reader can run any program that its writer chose, and a few bytes can make
it take all memory. torch writes its flight recorder as a pickle of plain values only, and whoever sends such
a file is not always known. So this reads the opcodes of plain values and no other, within bounds; an opcode
that imports, calls or builds is refused and nothing of it is run.

A scan by `pickletools` before an `Unpickler` that refuses imports would be shorter, and loses dumps: both
fail on a text that is no UTF-8, as torch writes the path of a source file in a folder of another encoding. It
takes 1.6 times as long, too (20,000 calls).
"""

import struct
from collections.abc import Callable
from typing import Any

MAX_BYTES = 64 << 20
MAX_OPCODES = 10_000_000  # a ring of 100,000 calls has 7 million
_MAX_INTEGER_BYTES = 64

_INT32 = struct.Struct("<i")
_UINT16 = struct.Struct("<H")
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_FLOAT = struct.Struct(">d")


class PickleRefused(Exception):
    """Why a pickle is not read, in one sentence without a full stop."""


def load_plain_pickle(data: bytes) -> Any:
    """The value that the pickle holds.

    Raises:
        PickleRefused: it is cut off, damaged or too large, or it would import or call something when loaded.
    """
    if len(data) > MAX_BYTES:
        raise PickleRefused(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        return _Machine(data).run()
    except (IndexError, struct.error):
        raise PickleRefused("it ends in the middle, or is damaged") from None
    except (KeyError, TypeError, AttributeError, ValueError):
        raise PickleRefused("it is damaged: a value has the wrong type") from None


class _Machine:
    """The stack that a pickle's opcodes work on."""

    __slots__ = ("data", "marks", "memo", "position", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, opcodes = self.data, _OPCODES
        for _ in range(MAX_OPCODES):
            code = data[self.position]
            self.position += 1
            if code == _STOP:
                return self.stack[-1]
            action = opcodes.get(code)
            if action is None:
                raise PickleRefused(self._refusal(code))
            action(self)
        raise PickleRefused(f"it has more than {MAX_OPCODES:,} steps")

    def _refusal(self, code: int) -> str:
        if code not in _CODE_RUNNING:
            return f"it is no pickle, or a damaged one: byte {self.position - 1} is {code:#04x}"
        named = ""
        if code in b"ci":  # GLOBAL and INST name what they import in two lines
            module, function, *_ = [*self.data[self.position : self.position + 400].split(b"\n"), b"", b""]
            named = f" {module.decode(errors='replace')[:80]}.{function.decode(errors='replace')[:80]}"
        elif code == 0x93 and len(self.stack) > 1:
            named = f" {str(self.stack[-2])[:80]}.{str(self.stack[-1])[:80]}"
        what = f"it would import{named}" if named else "it would import or call something"
        return f"{what} when loaded, which a flight recorder never does; nothing of it was run"

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        start = self.position
        if size < 0 or start + size > len(self.data):
            raise IndexError
        self.position = start + size
        return self.data[start : start + size]

    def number(self, form: struct.Struct) -> Any:
        """The next number of this form."""
        (value,) = form.unpack_from(self.data, self.position)
        self.position += form.size
        return value

    def pop_mark(self) -> list[Any]:
        """What was pushed since the last mark."""
        items = self.stack
        self.stack = self.marks.pop()
        return items


Action = Callable[[_Machine], None]


def _push(value: Any) -> Action:
    return lambda machine: machine.stack.append(value)


def _push_new(make: Callable[[], Any]) -> Action:
    return lambda machine: machine.stack.append(make())


def _push_number(form: struct.Struct) -> Action:
    return lambda machine: machine.stack.append(machine.number(form))


def _push_byte(machine: _Machine) -> None:
    machine.stack.append(machine.data[machine.position])
    machine.position += 1


def _push_text(form: struct.Struct) -> Action:
    def act(machine: _Machine) -> None:
        machine.stack.append(machine.take(machine.number(form)).decode("utf-8", "replace"))

    return act


def _push_short_text(machine: _Machine) -> None:
    machine.stack.append(machine.take(machine.take(1)[0]).decode("utf-8", "replace"))


def _push_long(machine: _Machine) -> None:
    size = machine.take(1)[0]
    if size > _MAX_INTEGER_BYTES:
        raise PickleRefused(f"it holds a number of {size} bytes")
    machine.stack.append(int.from_bytes(machine.take(size), "little", signed=True))


def _mark(machine: _Machine) -> None:
    machine.marks.append(machine.stack)
    machine.stack = []


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    machine.stack[-1].append(value)


def _appends(machine: _Machine) -> None:
    items = machine.pop_mark()
    machine.stack[-1].extend(items)


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1][key] = value


def _set_items(machine: _Machine) -> None:
    items = machine.pop_mark()
    target = machine.stack[-1]
    if not isinstance(target, dict):
        raise TypeError
    target.update(zip(items[::2], items[1::2], strict=True))


def _make_tuple(size: int) -> Action:
    def act(machine: _Machine) -> None:
        if len(machine.stack) < size:
            raise IndexError
        items = machine.stack[-size:]
        machine.stack[-size:] = [tuple(items)]

    return act


def _make_marked(make: Callable[[list[Any]], Any]) -> Action:
    def act(machine: _Machine) -> None:
        items = machine.pop_mark()
        machine.stack.append(make(items))

    return act


def _make_dict(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _put_byte(machine: _Machine) -> None:
    machine.memo[machine.data[machine.position]] = machine.stack[-1]
    machine.position += 1


def _put(machine: _Machine) -> None:
    machine.memo[machine.number(_UINT32)] = machine.stack[-1]


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _read_byte(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.position]])
    machine.position += 1


def _read(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.number(_UINT32)])


def _skip(size: int) -> Action:
    def act(machine: _Machine) -> None:
        machine.take(size)

    return act


def _pop(machine: _Machine) -> None:
    machine.stack.pop()


_STOP = ord(".")
_OPCODES: dict[int, Action] = {
    ord("N"): _push(None),
    0x88: _push(True),
    0x89: _push(False),
    ord("J"): _push_number(_INT32),
    ord("K"): _push_byte,
    ord("M"): _push_number(_UINT16),
    0x8A: _push_long,
    ord("G"): _push_number(_FLOAT),
    ord("X"): _push_text(_UINT32),
    0x8C: _push_short_text,
    0x8D: _push_text(_UINT64),
    ord("T"): _push_text(_UINT32),
    ord("U"): _push_short_text,
    ord("]"): _push_new(list),
    ord("}"): _push_new(dict),
    ord(")"): _push(()),
    ord("("): _mark,
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
    ord("t"): _make_marked(tuple),
    ord("l"): _make_marked(list),
    ord("d"): _make_marked(_make_dict),
    0x85: _make_tuple(1),
    0x86: _make_tuple(2),
    0x87: _make_tuple(3),
    ord("q"): _put_byte,
    ord("r"): _put,
    0x94: _memoize,
    ord("h"): _read_byte,
    ord("j"): _read,
    ord("0"): _pop,
    0x80: _skip(1),  # the protocol's number
    0x95: _skip(8),  # the length of a frame
}
# Opcodes that import, call, or ask the reader's own code for an object.
_CODE_RUNNING = frozenset(b"ciobRPQ\x81\x92\x93\x82\x83\x84")
