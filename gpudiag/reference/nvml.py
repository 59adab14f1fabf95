"""NVML's functions, constants, return texts and struct layouts, as data taken from pynvml.

`tools/generate_nvml_reference.py` writes the data; a test compares it with the installed pynvml.
"""

import json
import struct
from functools import cache
from importlib import resources
from typing import Any

# The version word of a versioned struct: its size, with the version in the top byte (nvml.h's
# NVML_STRUCT_VERSION).
_VERSION_SHIFT = 24


@cache
def _load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))
    return data


@cache
def exported_functions() -> tuple[str, ...]:
    """Every name that the library exports, sorted: those that pynvml uses, and older ones."""
    symbols = _load("nvml_symbols.json")
    return tuple(sorted({*symbols["functions"], *symbols["older_functions"]}))


def return_texts() -> dict[int, str]:
    """The texts of nvmlErrorString, by return code."""
    symbols = _load("nvml_symbols.json")
    return {symbols["constants"][name]: text for name, text in symbols["return_texts"].items()}


def constant(name: str) -> int:
    """The value of an NVML constant, such as `NVML_FI_DEV_MEMORY_TEMP`.

    Raises:
        KeyError: pynvml has no such constant.
    """
    value: int = _load("nvml_symbols.json")["constants"][name]
    return value


@cache
def constants_with_prefix(prefix: str) -> dict[str, int]:
    """The constants with that prefix, by the rest of the name in lower case: `hopper` -> 9."""
    constants = _load("nvml_symbols.json")["constants"]
    return {
        name.removeprefix(prefix).lower(): value
        for name, value in constants.items()
        if name.startswith(prefix)
    }


def struct_size(name: str) -> int:
    """The size of a struct in bytes."""
    size: int = _load("nvml_structs.json")["structs"][name]["size"]
    return size


def struct_version(name: str, version: int) -> int:
    """The version that a caller writes into the first member of a versioned struct."""
    return struct_size(name) | version << _VERSION_SHIFT


def pack_struct(name: str, **members: int | float | str | bytes) -> bytes:
    """The bytes of a struct with these members; the others are zero.

    Raises:
        KeyError: the struct has no such member.
    """
    layout = _load("nvml_structs.json")["structs"][name]
    fields = {field: (offset, kind, count) for field, offset, kind, count in layout["fields"]}
    buffer = bytearray(layout["size"])
    for member, value in members.items():
        offset, kind, count = fields[member]
        if isinstance(value, str):
            value = value.encode()[: count - 1]
        if isinstance(value, bytes):
            buffer[offset : offset + len(value)] = value
        else:
            struct.pack_into(f"<{kind}", buffer, offset, value)
    return bytes(buffer)
