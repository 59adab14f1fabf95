"""Whether the kernel's OOM killer ended a process: its own words, and the memory cgroup's counter."""

import contextlib
import os
import re
from pathlib import Path

from gpudiag.model.evidence import Evidence

_KERNEL_LOG = "/dev/kmsg"
_KILLED = re.compile(r"out of memory: killed process (?P<pid>\d+) ", re.IGNORECASE)

# The file with an `oom_kill N` line, in cgroup v2 and v1 (memory.rst, cgroup-v2.rst of the kernel).
_COUNTER_FILES = {
    "": ("/sys/fs/cgroup", "memory.events"),
    "memory": ("/sys/fs/cgroup/memory", "memory.oom_control"),
}


class OomWatch:
    """Remembers how things stood at the start, so that only what happens afterwards counts."""

    def __init__(self) -> None:
        """Read this cgroup's counter, and go to the end of the kernel log where that is allowed."""
        self._counter_path = find_counter(Path("/proc/self/cgroup").read_text())
        self._count = _read_count(self._counter_path)
        self._lines: list[str] = []
        self._log = -1
        with contextlib.suppress(OSError):  # kernel.dmesg_restrict, or a container without the device
            self._log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def read_evidence(self, pid: int) -> tuple[Evidence, ...]:
        """What shows that the OOM killer ended that process, or one beside it, or that it did not.

        Empty where neither the kernel log nor a counter can be read, or the log alone says nothing.
        """
        self._lines += self._read_log()
        facts = [
            Evidence("oom_killer", line, source="kernel log")
            for line in self._lines
            if killed_pid(line) == pid
        ]
        if self._counter_path is not None:
            killed = _read_count(self._counter_path) - self._count
            facts.append(Evidence("oom_kills", killed, source=f"{self._counter_path}, since the run started"))
        return tuple(facts)

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


def find_counter(cgroups: str) -> Path | None:
    """The file that counts OOM kills in this process's cgroup, by the text of /proc/self/cgroup.

    In a container the path in it may be the host's; then the mount's root is the container's cgroup.
    """
    for line in cgroups.splitlines():
        _, controllers, group = line.split(":", 2)
        mount, name = _COUNTER_FILES.get(controllers, ("", ""))
        for path in (Path(mount + group) / name, Path(mount) / name):
            if mount and path.is_file():
                return path
    return None


def _read_count(path: Path | None) -> int:
    if path is None:
        return 0
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
