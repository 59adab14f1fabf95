"""CUDA_VISIBLE_DEVICES as CUDA and torch read it.

Ordinals as strtoul reads them, or beginnings of UUIDs; the list ends at the first entry that fits no
GPU, and an entry that comes twice leaves nothing. CUDA C++ Programming Guide, "CUDA Environment
Variables"; torch/cuda/__init__.py, `_parse_visible_devices`.
"""

import re
from collections.abc import Sequence

_LEADING_NUMBER = re.compile(r"[+-]?\d+")


def select_visible(value: str | None, uuids: Sequence[str]) -> list[int]:
    """The positions in `uuids` that the variable leaves, in its order; all where it is not set."""
    if value is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in value.split(","):
        position = _position(entry.strip(), uuids)
        if position is None:
            break
        if position in chosen:
            return []
        chosen.append(position)
    return chosen


def _position(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.startswith(("GPU-", "MIG-")):
        matching = [at for at, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    number = _LEADING_NUMBER.match(entry)
    if number is None or not 0 <= int(number[0]) < len(uuids):
        return None
    return int(number[0])
