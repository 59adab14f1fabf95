"""NVML as the simulated nvidia-smi asks it, by ctypes alone: GPUtil starts it for each reading."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

SUCCESS, NOT_SUPPORTED, DRIVER_NOT_LOADED = 0, 3, 9  # nvmlReturn_t
FUNCTION_NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 13, 15, 18, 999
_MEMORY_V2_SIZE = 40  # nvmlMemory_v2_t: version and padding, total, reserved, free, used
_MEMORY_V2_VERSION = _MEMORY_V2_SIZE | 2 << 24
_FIELD_VALUE_SIZE = 40  # nvmlFieldValue_t; its code is at 28, its value at 32


class NvmlError(Exception):
    """A call answered a return code other than success."""

    def __init__(self, code: int) -> None:
        """Keep the code."""
        super().__init__(code)
        self.code = code


class Nvml:
    """The library; each call raises NvmlError where it fails."""

    def __init__(self) -> None:
        """Load the library. Raises OSError: there is none."""
        self._library = ctypes.CDLL("libnvidia-ml.so.1")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function with these arguments."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND) from None
        code = function(*arguments)
        if code != SUCCESS:
            raise NvmlError(code)

    def number(self, name: str, *arguments: object, kind: type = ctypes.c_uint) -> int:
        """The number that a call gives through its last argument."""
        value = kind()
        self.call(name, *arguments, ctypes.byref(value))
        return int(value.value)

    def pair(self, name: str, *arguments: object) -> tuple[int, int]:
        """The two numbers that a call gives through its last two arguments."""
        first, second = ctypes.c_uint(), ctypes.c_uint()
        self.call(name, *arguments, ctypes.byref(first), ctypes.byref(second))
        return first.value, second.value

    def text(self, name: str, *arguments: object) -> str:
        """The text that a call gives through a buffer and its length."""
        buffer = ctypes.create_string_buffer(256)
        self.call(name, *arguments, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode()

    def process_name(self, pid: int) -> str:
        """The program of a process that NVML knows."""
        return self.text("nvmlSystemGetProcessName", ctypes.c_uint(pid))

    def error_text(self, code: int) -> str:
        """NVML's text for a return code."""
        function = self._library.nvmlErrorString
        function.restype = ctypes.c_char_p
        words: bytes = function(code)
        return words.decode()

    def gpu(self, nvml_index: int) -> Gpu:
        """The GPU at that index."""
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(nvml_index), ctypes.byref(handle))
        return Gpu(self, handle, nvml_index)


class Gpu:
    """One GPU (or MIG device), by its handle."""

    def __init__(self, nvml: Nvml, handle: ctypes.c_void_p, nvml_index: int) -> None:
        """Keep the handle."""
        self.nvml = nvml
        self.handle = handle
        self.nvml_index = nvml_index

    def number(self, name: str, *arguments: int, kind: type = ctypes.c_uint) -> int:
        """The number that `nvmlDevice<name>` gives for this GPU and these arguments."""
        return self.nvml.number(f"nvmlDevice{name}", self.handle, *map(ctypes.c_uint, arguments), kind=kind)

    def wide(self, name: str, *arguments: int) -> int:
        """Like `number`, for a call that gives an unsigned long long."""
        return self.number(name, *arguments, kind=ctypes.c_ulonglong)

    def pair(self, name: str, *arguments: int) -> tuple[int, int]:
        """The two numbers that `nvmlDevice<name>` gives."""
        return self.nvml.pair(f"nvmlDevice{name}", self.handle, *map(ctypes.c_uint, arguments))

    def four(self, name: str) -> tuple[int, int, int, int]:
        """The four numbers that `nvmlDevice<name>` gives."""
        a, b, c, d = (ctypes.c_uint() for _ in range(4))
        self.nvml.call(f"nvmlDevice{name}", self.handle, *map(ctypes.byref, (a, b, c, d)))
        return a.value, b.value, c.value, d.value

    def text(self, name: str) -> str:
        """The text that `nvmlDevice<name>` gives."""
        return self.nvml.text(f"nvmlDevice{name}", self.handle)

    def numbers(self, name: str, count: int, *arguments: int) -> tuple[int, ...]:
        """The `count` unsigned ints that the call gives in one struct."""
        values = (ctypes.c_uint * count)()
        self.nvml.call(f"nvmlDevice{name}", self.handle, *map(ctypes.c_uint, arguments), ctypes.byref(values))
        return tuple(values)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes: total, reserved, free and used; reserved counts as used where the driver is old."""
        second = (ctypes.c_ulonglong * 5)(_MEMORY_V2_VERSION)
        try:
            self.nvml.call("nvmlDeviceGetMemoryInfo_v2", self.handle, ctypes.byref(second))
        except NvmlError:
            first = (ctypes.c_ulonglong * 3)()
            self.nvml.call("nvmlDeviceGetMemoryInfo", self.handle, ctypes.byref(first))
            return {"total": first[0], "free": first[1], "used": first[2]}
        return {"total": second[1], "reserved": second[2], "free": second[3], "used": second[4]}

    def field(self, field_id: int) -> int:
        """The value of one NVML field of the GPU."""
        record = (ctypes.c_ubyte * _FIELD_VALUE_SIZE)()
        ctypes.memmove(record, ctypes.byref(ctypes.c_uint(field_id)), 4)
        self.nvml.call("nvmlDeviceGetFieldValues", self.handle, ctypes.c_int(1), ctypes.byref(record))
        code = ctypes.c_uint.from_buffer(record, 28).value
        if code != SUCCESS:
            raise NvmlError(code)
        return int(ctypes.c_ulonglong.from_buffer(record, 32).value)

    def bus_id(self) -> str:
        """The PCI bus id as nvidia-smi writes it: `00000000:5D:00.0`."""
        info = (ctypes.c_char * 68)()  # nvmlPciInfo_t; busId is at 36
        self.nvml.call("nvmlDeviceGetPciInfo_v3", self.handle, ctypes.byref(info))
        return info.raw[36:].split(b"\0")[0].decode()

    def pci_ids(self) -> tuple[int, int]:
        """The PCI device id and subsystem id, each with the vendor in the lower half."""
        info = (ctypes.c_uint * 17)()
        self.nvml.call("nvmlDeviceGetPciInfo_v3", self.handle, ctypes.byref(info))
        return info[7], info[8]

    def processes(self, kind: str) -> list[tuple[int, int | None]]:
        """The pid and memory in bytes (None where NVML has none) of the Compute or Graphics processes."""
        name = f"nvmlDeviceGet{kind}RunningProcesses_v3"
        count = ctypes.c_uint(1024)
        records = (ctypes.c_ulonglong * (3 * count.value))()
        self.nvml.call(name, self.handle, ctypes.byref(count), ctypes.byref(records))
        found = [(records[3 * i] & 0xFFFFFFFF, records[3 * i + 1]) for i in range(count.value)]
        return [(pid, None if memory == (1 << 64) - 1 else memory) for pid, memory in found]

    def mig_devices(self) -> list[Gpu]:
        """The GPU's MIG devices, each with its index on the GPU."""
        try:
            most = self.number("GetMaxMigDeviceCount")
        except NvmlError:
            return []
        devices = []
        for index in range(most):
            handle = ctypes.c_void_p()
            try:
                self.nvml.call(
                    "nvmlDeviceGetMigDeviceHandleByIndex",
                    self.handle,
                    ctypes.c_uint(index),
                    ctypes.byref(handle),
                )
            except NvmlError:
                continue  # the indices have holes
            devices.append(Gpu(self.nvml, handle, index))
        return devices


def words_of(nvml: Nvml, code: int) -> str:
    """What nvidia-smi prints in a cell without a value."""
    if code == NOT_SUPPORTED:
        return "N/A"
    return nvml.error_text(code)


Reader = Callable[[Gpu], "int | float | str"]
