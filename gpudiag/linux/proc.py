"""A line of /proc/PID/stat, and who started whom."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")  # of a second
STOPPED_STATES = frozenset("Tt")  # by a signal, by a debugger
DEAD_STATES = frozenset("ZXx")
# Fields of proc_pid_stat(5), counted from 0 behind the command in brackets.
_STATE, _PARENT, _USER_TICKS, _SYSTEM_TICKS, _CHILDREN_TICKS, _START_TICKS = 0, 1, 11, 12, 13, 19
_PROCESSOR, _EXIT_CODE = 36, 49


@dataclass(frozen=True, slots=True)
class Stat:
    """A process, or a thread, at one moment; a field is parsed when it is asked for."""

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
    def cpu_seconds(self) -> float:
        """The processor time that it has used itself."""
        return self._ticks(_USER_TICKS) / CLOCK_TICKS

    @property
    def children_cpu_seconds(self) -> float:
        """The processor time of its children that have ended and were waited for."""
        return self._ticks(_CHILDREN_TICKS) / CLOCK_TICKS

    @property
    def start_ticks(self) -> int:
        """Clock ticks from the boot to its start; with the pid it names a process also where pids are used again."""
        return int(self.fields[_START_TICKS])

    @property
    def started_seconds(self) -> float:
        """Seconds from the boot to its start."""
        return self.start_ticks / CLOCK_TICKS

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
    return Stat(head.partition("(")[2], tuple(tail.split()))


def read_stat(pid: int, thread: int | None = None, root: str = "/proc") -> Stat:
    """What the kernel shows of the process, or of one of its threads.

    Raises:
        OSError: it has ended.
    """
    task = "" if thread is None else f"/task/{thread}"
    return parse_stat(read_text(f"{root}/{pid}{task}/stat"))


def read_text(path: str) -> str:
    """The text of a file of /proc.

    Raises:
        OSError: the process is gone, or it may not be read.
    """
    with open(path, errors="replace") as file:
        return file.read()


def is_stopped(pid: int) -> bool:
    """Whether the process is held by a signal, as by Ctrl-Z, or by a debugger; False where it is gone."""
    try:
        return read_stat(pid).state in STOPPED_STATES
    except (OSError, IndexError):
        return False


def children(pid: int, root: str = "/proc", *, of_main_thread: bool = False) -> list[int]:
    """The processes that its threads have started, or its main one; empty where the kernel does not list them."""
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
