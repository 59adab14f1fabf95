"""The ring buffer on disk: a full copy every few minutes, a journal of the samples since, and a timeline.

A copy is written beside the old one and then renamed over it; a journal record is complete or ignored. So
a kill costs the samples of the last seconds, and a full disk only what could not be written. Everything
here blocks on the disk and is called from a thread of its own.
"""

import json
import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudiag.sampler.ring import NAMES, TIERS, DeviceRing, Ring

_COPY, _JOURNAL, _TIMELINE = "readings.ring", "readings.journal", "timeline.jsonl"
_MAGIC = b"gpudiag readings 1\n"
_RECORD = struct.Struct(f"<36sd{len(NAMES)}fI")  # UUID without its prefix, Unix time, values, checksum
_HEADER = struct.Struct("<I")
_VALUE_BYTES = array("f").itemsize
_LAYOUT = zlib.crc32(" ".join(NAMES).encode())  # seeds each checksum: a record of other series does not match
_MAX_TIMELINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sample of one GPU."""

    uuid: str
    at: float
    values: tuple[float, ...]  # in the order of NAMES


class Spill:
    """The files in one folder.

    Raises:
        OSError: the folder cannot be made, or a file not written; what was stored before is still there.
    """

    def __init__(self, folder: Path) -> None:
        """Use that folder, and make it if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def load(self) -> Ring:
        """The stored ring; a file that cannot be read is treated as absent."""
        ring = Ring()
        with suppress(OSError, ValueError, KeyError, struct.error, zlib.error, EOFError):
            ring = _parse_copy((self._folder / _COPY).read_bytes())
        for sampled in self._read_journal():
            ring.add_values(sampled.uuid, sampled.at, sampled.values)
        return ring

    def save(self, ring: Ring) -> None:
        """Write a full copy, and empty the journal."""
        newer = self._folder / f"{_COPY}.new"
        try:
            newer.write_bytes(_render_copy(ring))
            newer.replace(self._folder / _COPY)
        finally:
            newer.unlink(missing_ok=True)
        (self._folder / _JOURNAL).write_bytes(b"")

    def append(self, samples: Iterable[Sampled]) -> None:
        """Add samples to the journal, all or none."""
        _append(self._folder / _JOURNAL, b"".join(map(_render_record, samples)))

    def append_timeline(self, entries: Iterable[dict[str, Any]]) -> None:
        """Add entries to the timeline's file, and cut its older half once it is too large."""
        path = self._folder / _TIMELINE
        _append(path, b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
        if path.stat().st_size > _MAX_TIMELINE_BYTES:
            newer = path.with_suffix(".new")
            newer.write_bytes(path.read_bytes()[-_MAX_TIMELINE_BYTES // 2 :].partition(b"\n")[2])
            newer.replace(path)

    def load_timeline(self) -> list[dict[str, Any]]:
        """The timeline's entries, oldest first; a truncated line is left out."""
        entries = []
        with suppress(OSError):
            for line in (self._folder / _TIMELINE).read_bytes().splitlines():
                with suppress(ValueError, RecursionError):
                    entries.append(json.loads(line))
        return [entry for entry in entries if isinstance(entry, dict)]

    def _read_journal(self) -> Iterator[Sampled]:
        data = b""
        with suppress(OSError):
            data = (self._folder / _JOURNAL).read_bytes()
        for start in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
            record = data[start : start + _RECORD.size]
            uuid, at, *values, checksum = _RECORD.unpack(record)
            if checksum == zlib.crc32(record[: -_HEADER.size], _LAYOUT):
                yield Sampled(f"GPU-{uuid.rstrip(bytes(1)).decode()}", at, tuple(values))


def _append(path: Path, data: bytes) -> None:
    """Append the data, or leave the file as it was."""
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        left = memoryview(data)
        try:
            while left:
                left = left[file.write(left) or 0 :]
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise


def _render_record(sampled: Sampled) -> bytes:
    uuid = sampled.uuid.removeprefix("GPU-").encode()[:36]
    body = _RECORD.pack(uuid, sampled.at, *sampled.values, 0)[: -_HEADER.size]
    return body + _HEADER.pack(zlib.crc32(body, _LAYOUT))


def _render_copy(ring: Ring) -> bytes:
    header = {
        "series": NAMES,
        "tiers": [[tier.step_seconds, tier.slots] for tier in TIERS],
        "devices": {
            uuid: [device.newest.get(tier) for tier in TIERS] for uuid, device in ring.devices.items()
        },
    }
    text = json.dumps(header).encode()
    empty = {tier: tier.empty() for tier in TIERS}
    body = b"".join(
        device.arrays[tier].get(place, empty[tier]).tobytes()
        for device in ring.devices.values()
        for tier in TIERS
        for place in range(len(NAMES))
    )
    return _MAGIC + zlib.compress(_HEADER.pack(len(text)) + text + body, 1)


def _parse_copy(data: bytes) -> Ring:
    """The ring of a copy.

    Raises:
        ValueError, zlib.error, struct.error: it is not a copy, or has another layout.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("not a copy of readings")
    body = zlib.decompress(data[len(_MAGIC) :])
    (length,) = _HEADER.unpack_from(body)
    start = _HEADER.size + length
    header = json.loads(body[_HEADER.size : start])
    if header["tiers"] != [[t.step_seconds, t.slots] for t in TIERS]:
        raise ValueError("a copy with another layout")
    ring = Ring()
    for uuid, newest in header["devices"].items():
        device = ring.devices[uuid] = DeviceRing()
        for tier, slot in zip(TIERS, newest, strict=True):
            if slot is not None:
                device.newest[tier] = slot
            # By name: series that this version does not keep are skipped, and new ones start empty.
            for name in header["series"]:
                stored = array("f", body[start : start + tier.slots * _VALUE_BYTES])
                if len(stored) != tier.slots:
                    raise ValueError("a copy that was cut short")
                if name in NAMES and any(value == value for value in stored):
                    device.arrays[tier][NAMES.index(name)] = stored
                start += tier.slots * _VALUE_BYTES
    return ring
