"""Whether the kernel's OOM killer ended a process, in its own words; the counters are in control_group.py."""

import contextlib
import os
import re

from gpudiag.model.evidence import Evidence

_KERNEL_LOG = "/dev/kmsg"
_KILLED = re.compile(r"out of memory: killed process (?P<pid>\d+) ", re.IGNORECASE)
# The line before it, which says whose limit was reached (mm/oom_kill.c of the kernel).
_LIMITED = re.compile(r"oom-kill:.*oom_memcg=(?P<group>[^,]*),.*\bpid=(?P<pid>\d+),")


class OomWatch:
    """Remembers where the log ended at the start, so that only what happens afterwards counts."""

    def __init__(self) -> None:
        """Go to the end of the kernel log, where that is allowed."""
        self._lines: list[str] = []
        self._log = -1
        with contextlib.suppress(OSError):  # kernel.dmesg_restrict, or a container without the device
            self._log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def read_evidence(self, pid: int) -> tuple[Evidence, ...]:
        """What the kernel log says about that process; empty where it says nothing, or cannot be read."""
        self._lines += self._read_log()
        facts = [
            Evidence("oom_killer", line, source="kernel log")
            for line in self._lines
            if killed_pid(line) == pid
        ]
        groups = [group for line in self._lines if (group := limited_group(line, pid)) is not None]
        return (*facts, *(Evidence("oom_group", group, source="kernel log") for group in groups[-1:]))

    def close(self) -> None:
        """Close the kernel log; calling it twice does no harm."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def _read_log(self) -> list[str]:
        lines = []
        while self._log >= 0:
            try:
                record = os.read(self._log, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the kernel has overwritten what came next; go on with what there is
                continue
            if not record:
                break
            lines.append(record.decode(errors="replace").partition(";")[2].partition("\n")[0])
        return lines


def killed_pid(line: str) -> int | None:
    """The process that this line of the kernel log says was killed for want of memory; None if it says no such thing."""
    match = _KILLED.search(line)
    return int(match["pid"]) if match else None


def limited_group(line: str, pid: int) -> str | None:
    """The control group whose limit made the kernel kill that process, by this line; None if it says no such thing."""
    match = _LIMITED.search(line)
    return match["group"] if match and int(match["pid"]) == pid else None
