"""Where a process runs: which boot of which machine, and in which of its namespaces."""

import os
from dataclasses import dataclass

from gpudiag.linux.proc import read_text


@dataclass(frozen=True, slots=True)
class Machine:
    """What processes must have in common to compare their clocks, and to know each other by pid."""

    clock: str  # the same for processes with the same CLOCK_MONOTONIC
    process_table: str  # the same for processes that see the same pids
    network: str = ""  # the same for processes that share network interfaces


def read_machine() -> Machine:
    """Where this process runs: the boot id, and the time, pid and network namespaces."""
    boot = read_boot_id()
    return Machine(*(f"{boot} {_namespace(kind)}" for kind in ("time", "pid", "net")))


def read_boot_id() -> str:
    """The id of this boot of the machine (random(4)). Raises OSError: there is no /proc."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # this kernel has no namespaces of that kind: all processes share one
        return ""
