"""What a system call waits for, by its arguments: the file, FIFO, socket, lock or process behind them."""

import math
import os
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpudiag.linux.proc import list_pids, open_files, read_text
from gpudiag.linux.sockets import (
    CONNECTING,
    LISTENING,
    TcpSocket,
    format_address,
    listening_ports,
    read_tcp_sockets,
    read_udp_sockets,
)
from gpudiag.model.job import NAMELESS_SOCKET, Awaited
from gpudiag.model.untrusted_text import escape_controls, mask_text
from gpudiag.probe.job.memory import Memory
from gpudiag.probe.job.proc import describe_process

_ON_DESCRIPTOR = frozenset(
    [
        "read",
        "write",
        "readv",
        "writev",
        "pread64",
        "pwrite64",
        "preadv",
        "pwritev",
        "recvfrom",
        "recvmsg",
        "recvmmsg",
        "sendto",
        "sendmsg",
        "accept",
        "accept4",
        "connect",
        "ioctl",
        "fsync",
        "fdatasync",
        "ftruncate",
        "fallocate",
        "getdents",
        "getdents64",
        "splice",
        "sync_file_range",
        "syncfs",
        "copy_file_range",
        "fstat",
    ]
)
_ON_PATH = {
    "open": 0,
    "stat": 0,
    "lstat": 0,
    "access": 0,
    "statfs": 0,
    "mkdir": 0,
    "unlink": 0,
    "rename": 0,
    "truncate": 0,
}
_ON_PATH_AT = frozenset(["openat", "newfstatat", "unlinkat", "renameat", "renameat2", "statx"])
_MOST_POLLED = 64
_NAME_SERVICE = 53  # the port of DNS
_UNTIL = 1  # TIMER_ABSTIME of clock_nanosleep(2)
_LATE_SECONDS = 1.0  # by which a busy machine wakes it up late
_SET_LOCK_AND_WAIT = (7, 38)  # F_SETLKW, F_OFD_SETLKW of fcntl(2)
_FAR_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "lustre",
    "cifs",
    "smb3",
    "ceph",
    "gpfs",
    "beegfs",
    "glusterfs",
    "9p",
    "afs",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A system call in which a thread waits."""

    pid: int
    tid: int
    name: str
    arguments: tuple[int, ...]


def find_awaited(call: Call) -> Awaited | None:
    """What the call waits for; None where the call does not show it, as of a sleep.

    Raises:
        OSError: the process is gone, or may not be read.
    """
    first = call.arguments[0] if call.arguments else 0
    if call.name in _ON_DESCRIPTOR:
        return describe_descriptor(call.pid, first, with_other_end=call.tid == call.pid)
    if call.name == "flock" or (call.name == "fcntl" and call.arguments[1] in _SET_LOCK_AND_WAIT):
        return _file_lock(call.pid, first)
    if call.name in ("wait4", "waitid"):
        return _awaited_child(call)
    if call.name in _ON_PATH or call.name in _ON_PATH_AT:
        return _path(call, 1 if call.name in _ON_PATH_AT else 0)
    if call.name in ("poll", "ppoll"):
        return _polled(call)
    if call.name in ("select", "pselect6"):
        return _selected(call)
    if call.name.startswith("epoll"):
        return _watched(call, first)
    if call.name == "futex":
        return Awaited("lock", f"{first:#x}")
    return None


def end_of_sleep(call: Call) -> float | None:
    """When a sleep ends, by CLOCK_MONOTONIC.

    It is None for another call, or a sleep without a time at which it ends. `time.sleep` of Python 3.11 and
    later sleeps until a time (clock_nanosleep(2)); before that it gave the kernel a length, of which nothing
    shows how much has passed.

    Raises:
        OSError: the process is gone, or may not be read.
    """
    if call.name != "clock_nanosleep" or call.arguments[:2] != (time.CLOCK_MONOTONIC, _UNTIL):
        return None
    with _opened(call.pid) as memory:
        words = memory.words(call.arguments[2], 2)
    return words[0] + words[1] / 1e9 if words else None


def read_wake_up(call: Call) -> float | None:
    """Seconds until a sleep ends; None where that is not known.

    Raises:
        OSError: the process is gone, or may not be read.
    """
    left = (end_of_sleep(call) or -math.inf) - time.monotonic()
    # It sleeps, so its time is not past: a container may have a clock of its own (time_namespaces(7)).
    return left if left > -_LATE_SECONDS else None


def describe_descriptor(pid: int, number: int, *, with_other_end: bool = True) -> Awaited:
    """What a descriptor of a process stands for.

    Of a pipe or a connection, who has the other end, which all processes are asked for.

    Raises:
        OSError: the process or the descriptor is gone, or may not be read.
    """
    target = os.readlink(f"/proc/{pid}/fd/{number}")
    kind, _, inode = target.partition(":")
    if kind == "socket":
        return _socket(pid, inode.strip("[]"), with_other_end=with_other_end)
    if kind == "pipe":
        other = _other_end_of_pipe(pid, number, target) if with_other_end else ""
        return Awaited("pipe", f"descriptor {number}", other)
    return _file(pid, target) if target.startswith("/") else Awaited("other", target.strip("[]"))


def _file(pid: int, path: str) -> Awaited:
    """A file, FIFO, terminal or device by its path as the process sees it."""
    shown = escape_controls(mask_text(path))
    if path.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Awaited("terminal", shown)
    system = find_file_system(pid, path)
    # The path is compared, not written.
    if path.startswith("/dev/") and not path.startswith("/dev/shm"):  # noqa: S108
        return Awaited("device", shown, system)
    far = system.partition(" ")[0] in _FAR_FILE_SYSTEMS
    kind = "file"
    if not far:  # a stat on a server that is gone would hang
        with suppress(OSError):
            kind = "fifo" if stat.S_ISFIFO(os.stat(f"/proc/{pid}/root{path}").st_mode) else "file"
    return Awaited(kind, shown, system)


def find_file_system(pid: int, path: str) -> str:
    """`nfs4 on /data`: the type and the mount point of the file system that holds a path."""
    best = ("", "")
    for line in read_text(f"/proc/{pid}/mountinfo").splitlines():
        fields = line.split()
        point = fields[4]
        if (
            "-" in fields
            and (path == point or path.startswith(point.rstrip("/") + "/"))
            and len(point) >= len(best[1])
        ):
            best = (fields[fields.index("-") + 1], point)
    return f"{best[0]} on {best[1]}" if best[0] else ""


def _path(call: Call, place: int) -> Awaited | None:
    with _opened(call.pid) as memory:
        path = memory.text(call.arguments[place])
    if not path:
        return None
    if not path.startswith("/"):
        path = os.path.normpath(os.path.join(os.readlink(f"/proc/{call.pid}/cwd"), path))
    return _file(call.pid, path)


def _file_lock(pid: int, number: int) -> Awaited:
    path = os.readlink(f"/proc/{pid}/fd/{number}")
    holders = find_lock_holders(f"/proc/{pid}/fd/{number}", pid)
    held = ", ".join(describe_process(holder) for holder in holders[:2])
    return Awaited("lock", escape_controls(path), f"held by {held}" if held else "", tuple(holders))


def find_lock_holders(path: str, but_pid: int = 0) -> list[int]:
    """The processes that hold a lock on a file, by /proc/locks. Raises OSError: it cannot be looked at."""
    found = os.stat(path)
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    rows = (line.split() for line in read_text("/proc/locks").splitlines())
    held = [row for row in rows if "->" not in row and len(row) > 5 and row[5] == name]
    return list(dict.fromkeys(int(row[4]) for row in held if int(row[4]) not in (but_pid, -1)))


def _awaited_child(call: Call) -> Awaited | None:
    pid = call.arguments[0] if call.name == "wait4" else call.arguments[1]
    pid &= 0xFFFFFFFF
    if not 0 < pid < 1 << 30:
        return Awaited("process", "any child")
    return Awaited("process", describe_process(pid))


def _polled(call: Call) -> Awaited | None:
    """The descriptors of a poll: the only one, or the first socket among them."""
    with _opened(call.pid) as memory:
        data = memory.read(call.arguments[0], 8 * min(call.arguments[1], _MOST_POLLED))
    numbers = [struct.unpack_from("i", data, place)[0] for place in range(0, len(data) - 7, 8)]
    return _choose(call, numbers)


def _selected(call: Call) -> Awaited | None:
    with _opened(call.pid) as memory:
        words = memory.words(call.arguments[1], 2)
    numbers = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return _choose(call, numbers)


def _watched(call: Call, number: int) -> Awaited | None:
    lines = read_text(f"/proc/{call.pid}/fdinfo/{number}").splitlines()
    return _choose(call, [int(line.split()[1]) for line in lines if line.startswith("tfd:")])


def _choose(call: Call, numbers: list[int]) -> Awaited | None:
    found: dict[int, Awaited] = {}
    for number in numbers[:_MOST_POLLED]:
        with suppress(OSError):
            found[number] = describe_descriptor(call.pid, number, with_other_end=False)
    best = min(found, key=lambda number: _rank_among_polled(found[number]), default=None)
    if best is None:
        return None
    return describe_descriptor(call.pid, best) if call.tid == call.pid else found[best]


def _rank_among_polled(one: Awaited) -> int:
    """How much a polled descriptor shows, the most first: an event loop wakes itself by a nameless socket."""
    kinds = ("socket", "fifo", "pipe", "terminal", "process")
    return len(kinds) if one.kind not in kinds or one.name == NAMELESS_SOCKET else kinds.index(one.kind)


class _opened:
    """The memory of a process for the time of a `with`."""

    def __init__(self, pid: int) -> None:
        self.memory = Memory.open(pid)

    def __enter__(self) -> Memory:
        return self.memory

    def __exit__(self, *_: object) -> None:
        self.memory.close()


def _socket(pid: int, inode: str, *, with_other_end: bool) -> Awaited:
    for one in read_tcp_sockets(pid):
        if str(one.inode) == inode:
            if one.state == LISTENING:
                return Awaited("listener", format_address(one.local))
            if one.state == CONNECTING:
                return Awaited("socket", format_address(one.remote), "it does not answer yet")
            return Awaited(
                "socket", format_address(one.remote), _peer_here(pid, one) if with_other_end else ""
            )
    for one in read_udp_sockets(pid):
        if str(one.inode) == inode and one.remote_port:
            detail = "a name server, by UDP" if one.remote_port == _NAME_SERVICE else "by UDP"
            return Awaited("socket", format_address(one.remote), detail)
    with suppress(OSError):
        for line in read_text(f"/proc/{pid}/net/unix").splitlines()[1:]:
            fields = line.split()
            if fields[6] == inode:
                return Awaited("socket", f"{NAMELESS_SOCKET} {' '.join(fields[7:])}".strip())
    return Awaited("socket", "a socket")


def _peer_here(pid: int, own: TcpSocket) -> str:
    """Who has the other end of a connection open, where that is a process of this machine."""
    ports = own.remote_port, own.local_port
    for one in read_tcp_sockets(pid):
        if (one.local_port, one.remote_port) == ports and (one.local, one.remote) == (own.remote, own.local):
            inode = one.inode or _listener(pid, own.remote_port)  # 0 where nobody has accepted it
            return _name_other_end(pid, [holder for holder, _ in _holders(f"socket:[{inode}]")])
    return ""


def _listener(pid: int, port: int) -> int:
    """The inode of the socket that listens on a port in a process's network; 0 for none."""
    return next((inode for inode, own in listening_ports(pid).items() if own == port), 0)


def _other_end_of_pipe(pid: int, number: int, target: str) -> str:
    """Who has the other end of a pipe open."""
    writes = _may_write(pid, number)
    return _name_other_end(
        pid, [holder for holder, end in _holders(target) if _may_write(holder, end) != writes]
    )


def _name_other_end(pid: int, holders: Sequence[int]) -> str:
    other = next((holder for holder in holders if holder != pid), None)
    if other is not None:
        return f"the other end is {describe_process(other)}"
    return "only this process has the other end" if holders else ""


def _may_write(pid: int, number: int) -> bool:
    """Whether a descriptor was opened to write, by its flags."""
    flags = 0
    with suppress(OSError):
        lines = dict(line.split(":", 1) for line in read_text(f"/proc/{pid}/fdinfo/{number}").splitlines())
        flags = int(lines.get("flags", "0"), 8)
    return flags & os.O_ACCMODE != os.O_RDONLY


def _holders(target: str) -> Iterator[tuple[int, int]]:
    """The processes that have a pipe or a socket open, and their descriptors of it."""
    for pid in list_pids():
        yield from ((pid, number) for number, opened in open_files(pid).items() if opened == target)
