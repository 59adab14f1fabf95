"""The disk test of level acceptance: write a file where jobs write, force it to disk, read and compare it.

The file has no name, if the file system allows that, and a child with a deadline does it all.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

from gpudiag.model.active import DiskResult
from gpudiag.model.codec import decode, encode
from gpudiag.model.device import Snapshot
from gpudiag.model.host_state import Filesystem, HostState
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import collect, start_guarded
from gpudiag.units import MIB

_BLOCK_BYTES = 8 * MIB
_MOST_BYTES = 512 * MIB
_SHARE_OF_FREE = 0.1  # of what the file system has left
_LEAST_BYTES = 64 * MIB
_DEADLINE_SECONDS = 120.0  # of each file system: 10 MB/s, and it is given up
# What the system answers where the place, and not the device, is why nothing can be written.
_OF_THE_PLACE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.EFBIG,
)


def describe_disk_cost(places: int) -> str:
    """What the test costs, in one sentence for the user before it starts."""
    return (
        f"a file of up to 512 MiB on {places} file system{'s' * (places != 1)}, written"
        f" and read back: about {5 * places} s"
    )


def places_to_test(snapshot: Snapshot) -> Reading[tuple[Filesystem, ...]]:
    """The file systems that jobs write to and that have room for the test, or why there is none."""
    state = snapshot.machine.state
    if snapshot.simulated is not None:
        return Missing(MissingReason.NOT_SUPPORTED, "a simulated machine has no disk to test")
    if not isinstance(state, HostState):
        return state
    if isinstance(state.filesystems, Missing):
        return state.filesystems
    return tuple(one for one in state.filesystems if one.read_only is not True)


def measure_disks(places: Iterable[Filesystem]) -> tuple[DiskResult, ...]:
    """What each file system did, one after the other: two at once may share a disk."""
    results = []
    for place in places:
        child = start_guarded("gpudiag.runs.disks:write_and_read", place.path, _size_for(place))
        collect([(child, child.started_at + _DEADLINE_SECONDS)])
        found = [decode(DiskResult, sheet) for kind, sheet in child.messages if kind == "disk"]
        if found:
            results.append(found[0])
            continue
        silent = child.ending == "timed_out"
        why = f"no answer within {_DEADLINE_SECONDS:.0f} s" if silent else child.detail or "no answer"
        reason = MissingReason.TIMED_OUT if silent else MissingReason.ERROR
        results.append(_failed(place.path, _size_for(place), Missing(reason, why)))
    return tuple(results)


def write_and_read(emit: Callable[[Any], None], path: str, size_bytes: int) -> None:
    """In a guarded child: emit the DiskResult of that place."""
    if size_bytes < _LEAST_BYTES:
        result = _failed(path, size_bytes, Missing(MissingReason.NOT_SUPPORTED, os.strerror(errno.ENOSPC)))
    else:
        try:
            result = _test(path, size_bytes)
        except OSError as error:
            is_fault = error.errno not in _OF_THE_PLACE
            reason = MissingReason.ERROR if is_fault else MissingReason.NOT_SUPPORTED
            why = Missing(reason, error.strerror or str(error))
            result = _failed(path, size_bytes, why, is_fault=is_fault)
    emit(("disk", encode(result)))


def _size_for(place: Filesystem) -> int:
    free = 0 if isinstance(place.available_bytes, Missing) else place.available_bytes
    return min(_MOST_BYTES, int(free * _SHARE_OF_FREE)) // _BLOCK_BYTES * _BLOCK_BYTES


def _failed(path: str, size_bytes: int, why: Missing, *, is_fault: bool = False) -> DiskResult:
    return DiskResult(path, size_bytes, why, why, failure=why.detail, is_fault=is_fault)


def _test(path: str, size_bytes: int) -> DiskResult:
    file = _open_nameless(path)
    seed = os.urandom(_BLOCK_BYTES)  # no file system can compress it
    buffer = mmap.mmap(-1, _BLOCK_BYTES)  # of whole pages, as a read past the page cache needs
    try:
        began = perf_counter()
        for block in _blocks(seed, size_bytes):
            _write_whole(file, block)
        os.fsync(file)
        written = perf_counter()
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        source, direct = _open_again(file)
        try:
            wrong, seconds = _compare(source, buffer, _blocks(seed, size_bytes))
        finally:
            os.close(source)
    finally:
        buffer.close()
        os.close(file)
    return DiskResult(path, size_bytes, size_bytes / (written - began), size_bytes / seconds, wrong, direct)


def _blocks(seed: bytes, size_bytes: int) -> Iterator[bytes]:
    """Blocks that all differ: the first eight bytes of each are its number."""
    for number in range(size_bytes // _BLOCK_BYTES):
        yield number.to_bytes(8, "little") + seed[8:]


def _write_whole(file: int, block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(file, left) :]


def _compare(source: int, buffer: mmap.mmap, blocks: Iterator[bytes]) -> tuple[int, float]:
    """How many bytes differ from the blocks, and how many seconds the reading alone took."""
    wrong, seconds = 0, 0.0
    for block in blocks:
        began = perf_counter()
        count = os.readv(source, [buffer])
        seconds += perf_counter() - began
        if count < _BLOCK_BYTES or buffer[:] != block:
            found = buffer[:count]
            wrong += _BLOCK_BYTES - count + sum(a != b for a, b in zip(found, block, strict=False))
    return wrong, seconds


def _open_nameless(path: str) -> int:
    """A file there that no name leads to."""
    try:
        return os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    file, name = tempfile.mkstemp(prefix=".gpudiag-", dir=path)  # this file system knows none without a name
    os.unlink(name)
    return file


def _open_again(file: int) -> tuple[int, bool]:
    """The same file, read past the page cache where the file system offers that, and whether it is."""
    way = f"/proc/self/fd/{file}"
    try:
        return os.open(way, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC), True
    except OSError:
        return os.open(way, os.O_RDONLY | os.O_CLOEXEC), False
