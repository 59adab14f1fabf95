"""Tensors and process groups in a rank's memory: shapes, and which group a call was given.

`/proc/PID/mem` is read and never written, and the rank is not stopped. torch's layouts differ between
versions, so no offset is taken on trust: a tensor is what has sizes whose product is its number of elements,
a process group what has a rank below its size, and a backend with the same two numbers.
"""

import math
import os
import struct
from dataclasses import dataclass

from gpudiag.compat import Self
from gpudiag.model.job import GroupSeen, TensorSeen

_OBJECT_WORDS = 6  # PyObject's header and what torch and pybind11 put behind it
_TENSOR_BYTES = 256
_SIZES_PLACES = range(6, 10)  # words before the sizes: 7 in torch 2.4 to 2.13
_INLINE_SIZES = 5  # c10/core/impl/SizesAndStrides.h: up to five sizes and strides lie in the tensor itself
_MAX_DIMENSIONS = 16
_GROUP_BYTES = 512
_BACKEND_BYTES = 640
_OPTIONS_WORDS = 40
_MAX_RANKS = 1 << 20
_MOST_DAYS = 999_999_999  # of a timedelta
_MAX_NAME_BYTES = 64
_FEWEST_CALLS = 3  # smaller numbers are flags as often as counts

# c10/core/ScalarType.h: the number of each type, the same in all versions of torch.
_DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64"),
    *("complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a process, to be read."""

    fd: int

    @classmethod
    def open(cls, pid: int) -> Self:
        """The memory of that process. Raises OSError: it is gone, or may not be read."""
        return cls(os.open(f"/proc/{pid}/mem", os.O_RDONLY))

    def close(self) -> None:
        """Close it."""
        os.close(self.fd)

    def read(self, address: int, count: int) -> bytes:
        """`count` bytes at an address; fewer, or none, where there is no such memory."""
        if not 4096 <= address < 1 << 62:
            return b""
        try:
            return os.pread(self.fd, count, address)
        except (OSError, OverflowError):
            return b""

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """`count` words of 8 bytes at an address; none where there are not so many."""
        data = self.read(address, 8 * count)
        return struct.unpack(f"{count}Q", data) if len(data) == 8 * count else ()

    def text(self, address: int, limit: int = 4096) -> str:
        """The text at an address, up to its zero byte."""
        return self.read(address, limit).partition(b"\0")[0].decode(errors="replace")


def read_tensor(memory: Memory, address: int) -> TensorSeen | None:
    """The tensor of a Python object at an address; None where nothing there is one."""
    for pointer in memory.words(address, _OBJECT_WORDS)[2:]:
        found = _find_sizes(memory, memory.read(pointer, _TENSOR_BYTES))
        if found is not None:
            return found
    return None


def _find_sizes(memory: Memory, data: bytes) -> TensorSeen | None:
    """Sizes, strides, offset, number of elements and type, as they follow each other in a TensorImpl."""
    if len(data) < _TENSOR_BYTES:
        return None
    words = struct.unpack(f"{_TENSOR_BYTES // 8}q", data)
    tail = 1 + 2 * _INLINE_SIZES  # of the offset in the storage, behind the sizes
    for place in _SIZES_PLACES:
        dimensions, offset, elements = words[place], words[place + tail], words[place + tail + 1]
        number = words[place + tail + 2] & 0xFFFF
        if not (0 <= dimensions <= _MAX_DIMENSIONS and 0 <= offset < 1 << 48 and number < len(_DTYPES)):
            continue
        sizes: tuple[int, ...] = words[place + 1 : place + 1 + dimensions]
        if dimensions > _INLINE_SIZES:
            sizes = memory.words(words[place + 1], dimensions)
        if len(sizes) == dimensions and min(*sizes, 1, 1) >= 0 and math.prod(sizes) == elements:
            return TensorSeen(sizes, _DTYPES[number])
    return None


def read_timedelta(memory: Memory, address: int) -> float | None:
    """The seconds of a `datetime.timedelta` at an address; None where nothing there is one.

    Behind the header and the hash lie days, seconds and microseconds, 32 bits each (CPython's datetime.h,
    3.10 to 3.14).
    """
    data = memory.read(address, 36)
    if len(data) < 36:
        return None
    days, seconds, microseconds = struct.unpack_from("3i", data, 24)
    if not (0 <= days <= _MOST_DAYS and 0 <= seconds < 86400 and 0 <= microseconds < 1_000_000):
        return None
    return float(days * 86400 + seconds + microseconds / 1e6)


def read_group(memory: Memory, address: int) -> GroupSeen | None:
    """The process group of a Python object at an address; None where nothing there is one."""
    words = memory.words(address, 3)
    data = memory.read(words[2], _GROUP_BYTES) if words else b""
    if len(data) < _GROUP_BYTES:
        return None
    rank, size = struct.unpack_from("2i", data, 24)
    if not 0 <= rank < size <= _MAX_RANKS:
        return None
    for pointer in struct.unpack(f"{_GROUP_BYTES // 8}Q", data)[8:]:
        node = memory.words(pointer, 3) if pointer % 8 == 0 else ()
        backend = memory.read(node[2], _BACKEND_BYTES) if node and node[2] % 8 == 0 else b""
        if len(backend) == _BACKEND_BYTES and struct.unpack_from("2i", backend, 16) == (rank, size):
            name = _read_name(memory, backend)
            if name:
                return GroupSeen(size, rank, name, _read_ranks(memory, backend, size), _read_calls(backend))
    return GroupSeen(size, rank)


def _read_name(memory: Memory, backend: bytes) -> str:
    """The first std::string of a backend, which is the group's name."""
    for place in range(24, 128, 8):
        pointer, length = struct.unpack_from("2Q", backend, place)
        if 0 < length < _MAX_NAME_BYTES:
            data = memory.read(pointer, length + 1)
            text = data[:-1].decode(errors="replace")
            if len(data) == length + 1 and data[-1] == 0 and text.isprintable() and text.isascii():
                return text
    return ""


def _read_ranks(memory: Memory, backend: bytes, size: int) -> tuple[int, ...]:
    """The job's ranks in the group, by a std::vector of `size` different numbers in the backend's options.

    It is `global_ranks_in_group` of Backend.hpp. Empty where there is no such vector, as of the default
    group, or several.
    """
    found = set()
    for pointer in struct.unpack(f"{_BACKEND_BYTES // 8}Q", backend):
        words = memory.words(pointer, _OPTIONS_WORDS) if pointer % 8 == 0 else ()
        for begin, end, capacity in zip(words, words[1:], words[2:], strict=False):
            if begin and begin % 8 == 0 and end - begin == 8 * size and capacity >= end:
                ranks = memory.words(begin, size)
                if len(set(ranks)) == size and max(ranks) < _MAX_RANKS:
                    found.add(ranks)
    return found.pop() if len(found) == 1 and size > 1 else ()


def _read_calls(backend: bytes) -> int | None:
    """How many collectives a gloo backend has begun: it counts them twice, and both are equal.

    (ProcessGroupGloo.hpp: `collectiveCounter_` of 32 bits and `seq_` of 64.) None where several numbers are.
    """
    counts = [
        struct.unpack_from("I", backend, place + 4)[0]
        for place in range(192, 256, 8)
        if struct.unpack_from("I", backend, place)[0] in (0, 1)
    ]
    sequence = {
        word
        for (word,) in (struct.unpack_from("Q", backend, place) for place in range(256, len(backend) - 8, 8))
    }
    found = {count for count in counts if count >= _FEWEST_CALLS and count in sequence}
    return found.pop() if len(found) == 1 else None
