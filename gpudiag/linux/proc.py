"""What the kernel shows of a process in /proc: state, environment, open files, schedule, parents.

A process is a pid or `self`; a thread is `PID/task/TID`.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")  # of a second
STOPPED_STATES = frozenset("Tt")  # by a signal, by a debugger
DEAD_STATES = frozenset("ZXx")
# Fields of proc_pid_stat(5), counted from 0 behind the command in brackets.
_STATE, _PARENT, _GROUP, _USER_TICKS, _SYSTEM_TICKS, _CHILDREN_TICKS, _START_TICKS = 0, 1, 2, 11, 12, 13, 19
_RESIDENT_PAGES, _PROCESSOR, _EXIT_CODE = 21, 36, 49
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NANOSECONDS = 1e9


class Stat(NamedTuple):
    """A process, or a thread, at one moment; a field is parsed when it is asked for."""

    pid: int
    name: str  # the command's, at most 15 characters
    fields: tuple[str, ...]

    @property
    def state(self) -> str:
        """The letter as in ps: R runs, S sleeps, D sleeps uninterruptibly, T is stopped, t traced, Z dead."""
        return self.fields[_STATE]

    @property
    def parent_pid(self) -> int:
        """Who started it, or who took it over."""
        return int(self.fields[_PARENT])

    @property
    def process_group(self) -> int:
        """The process that leads its group, which a fork keeps, also where its parent has ended."""
        return int(self.fields[_GROUP])

    @property
    def cpu_seconds(self) -> float:
        """The processor time that it has used itself."""
        return self._ticks(_USER_TICKS) / CLOCK_TICKS

    @property
    def children_cpu_seconds(self) -> float:
        """The processor time of its children that have ended and were waited for."""
        return self._ticks(_CHILDREN_TICKS) / CLOCK_TICKS

    @property
    def start_ticks(self) -> int:
        """Clock ticks from the boot to its start, which with the pid name a process for good."""
        return int(self.fields[_START_TICKS])

    @property
    def started_seconds(self) -> float:
        """Seconds from the boot to its start."""
        return self.start_ticks / CLOCK_TICKS

    @property
    def resident_bytes(self) -> int:
        """The memory that it has in the host."""
        return int(self.fields[_RESIDENT_PAGES]) * _PAGE_BYTES

    @property
    def processor(self) -> int:
        """The processor that it ran on last."""
        return int(self.fields[_PROCESSOR])

    @property
    def exit_code(self) -> int:
        """The wait status of a process that is dead."""
        return int(self.fields[_EXIT_CODE])

    def _ticks(self, first: int) -> int:
        return int(self.fields[first]) + int(self.fields[first + 1])


def parse_stat(text: str) -> Stat:
    """The line of /proc/PID/stat taken apart; the command in it may itself hold brackets and blanks."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition("(")
    return Stat(int(pid), name, tuple(tail.split()))


def read_stat(process: int | str, root: str = "/proc") -> Stat:
    """What the kernel shows of the process, or of one of its threads. Raises OSError: it has ended."""
    return parse_stat(read_text(f"{root}/{process}/stat"))


def find_process(pid: int) -> Stat | None:
    """The process as the kernel shows it; None if there is no such process."""
    with suppress(OSError):  # it ended, perhaps between open and read
        return read_stat(pid)
    return None


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    process = find_process(pid)
    return process is not None and process.state not in DEAD_STATES


def read_status(process: int | str, root: str = "/proc") -> dict[str, str]:
    """The lines of /proc/PID/status, as the kernel writes them. Raises OSError: it has ended."""
    lines = (line.partition(":") for line in read_text(f"{root}/{process}/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def read_schedule(process: int | str) -> tuple[float, float, int]:
    """Seconds on a processor, seconds that waited for one, and how often it got one (sched-stats.rst).

    Raises:
        OSError: it has ended, or the kernel does not count.
        ValueError: the kernel writes something else.
    """
    ran, waited, times = read_text(f"/proc/{process}/schedstat").split()[:3]
    return int(ran) / _NANOSECONDS, int(waited) / _NANOSECONDS, int(times)


def read_wait_channel(process: int | str) -> str:
    """The kernel function in which it waits; empty if it does not wait, or we may not look."""
    with suppress(OSError):
        name = read_text(f"/proc/{process}/wchan").strip()
        return "" if name == "0" else name
    return ""


def read_environment(process: int | str, root: str = "/proc") -> dict[str, str]:
    """The variables that it was started with. Raises OSError: it has ended, or is another user's."""
    pairs = (entry.partition("=") for entry in read_text(f"{root}/{process}/environ").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def list_pids() -> list[int]:
    """Every process that this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def list_environments() -> Iterator[tuple[int, bytes]]:
    """The pid and the environment, as bytes, of every process that may be read."""
    for pid in list_pids():
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            yield pid, file.read()


def open_files(pid: int, root: str = "/proc") -> dict[int, str]:
    """What each descriptor of a process is: a path, `socket:[123]`; empty where it is gone or forbidden."""
    found: dict[int, str] = {}
    with suppress(OSError):
        for number in os.listdir(f"{root}/{pid}/fd"):
            with suppress(OSError):  # closed since it was listed
                found[int(number)] = os.readlink(f"{root}/{pid}/fd/{number}")
    return found


def socket_inodes(pid: int, root: str = "/proc") -> set[int]:
    """The inodes of a process's sockets, as /proc/net has them; empty where it is gone or we may not look."""
    targets = open_files(pid, root).values()
    return {int(target[len("socket:[") : -1]) for target in targets if target.startswith("socket:[")}


def has_gpu_open(pid: int) -> bool:
    """Whether a process has a GPU's device node open; False if that cannot be seen."""
    return any(path.startswith("/dev/nvidia") for path in open_files(pid).values())


def read_text(*path: str) -> str:
    """The text of a file of /proc or /sys. Raises OSError: its thing is gone, or it may not be read."""
    with open(os.path.join(*path), errors="replace") as file:
        return file.read()


def read_line(*path: str) -> str:
    """The same without white space around it, of a file with one line."""
    return read_text(*path).strip()


def is_stopped(pid: int) -> bool:
    """Whether the process is held by a signal, as by Ctrl-Z, or by a debugger; False where it is gone."""
    process = find_process(pid)
    return process is not None and process.state in STOPPED_STATES


def children(pid: int, root: str = "/proc", *, of_main_thread: bool = False) -> list[int]:
    """The processes that its threads, or its main one, have started; empty where the kernel lists none."""
    found: list[int] = []
    try:
        threads = [str(pid)] if of_main_thread else os.listdir(f"{root}/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            found += map(int, read_text(f"{root}/{pid}/task/{thread}/children").split())
        except OSError:  # that thread has ended
            continue
    return found


def descendants(pid: int, root: str = "/proc") -> Iterator[int]:
    """Its children and theirs, each before its own."""
    for child in children(pid, root):
        yield child
        yield from descendants(child, root)
