"""Host counters that rise when something slows or kills ranks: network, steal, throttling, OOM kills."""

from __future__ import annotations

import os

from gpudiag.linux.cgroup import parse_numbers, throttled_seconds
from gpudiag.linux.proc import read_text
from gpudiag.model.codec import decode
from gpudiag.model.measure import HostCounters
from gpudiag.probe.sheet import ERROR, NOT_SUPPORTED, Absent, Sheet

# Columns of /proc/net/dev behind the interface's name (proc(5)).
_RECEIVE_ERRORS, _RECEIVE_DROPS, _TRANSMIT_ERRORS, _TRANSMIT_DROPS = 2, 3, 10, 11
_STEAL_COLUMN = 8  # of the line `cpu` in /proc/stat, in clock ticks


def read_host_counters(root: str = "/") -> HostCounters:
    """The counters of this host now; each that cannot be read is missing with its reason."""
    sheet = Sheet()
    sheet.read(
        "tcp_retransmits", lambda: parse_protocol(read_text(root, "proc/net/snmp"), "Tcp", "RetransSegs")
    )
    sheet.read(
        "tcp_timeouts", lambda: parse_protocol(read_text(root, "proc/net/netstat"), "TcpExt", "TCPTimeouts")
    )
    sheet.read_together(
        ("interface_errors", "interface_drops"), lambda: parse_interfaces(read_text(root, "proc/net/dev"))
    )
    sheet.read("steal_seconds", lambda: parse_steal_seconds(read_text(root, "proc/stat")))
    sheet.read("throttled_seconds", _read_throttled_seconds, root)
    sheet.read("oom_kills", lambda: parse_vmstat(read_text(root, "proc/vmstat"), "oom_kill"))
    document = sheet.document()
    return decode(HostCounters, {**dict.fromkeys(document["missing"]), **document})


def parse_protocol(text: str, protocol: str, counter: str) -> int:
    """A counter of /proc/net/snmp or netstat: a line of names, then a line of numbers, per protocol.

    Raises:
        Absent: this kernel does not count it.
    """
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{protocol}:")]
    for names, numbers in zip(lines[::2], lines[1::2], strict=False):
        if counter in names:
            return int(numbers[names.index(counter)])
    raise Absent(NOT_SUPPORTED, f"this kernel does not count {protocol} {counter}")


def parse_interfaces(text: str) -> tuple[int, int]:
    """The errors and drops of all interfaces, both directions summed, from /proc/net/dev."""
    errors = drops = 0
    for line in text.splitlines()[2:]:
        numbers = line.partition(":")[2].split()
        errors += int(numbers[_RECEIVE_ERRORS]) + int(numbers[_TRANSMIT_ERRORS])
        drops += int(numbers[_RECEIVE_DROPS]) + int(numbers[_TRANSMIT_DROPS])
    return errors, drops


def parse_steal_seconds(text: str) -> float:
    """Seconds that the hypervisor gave to others, from /proc/stat. Raises Absent: there is no such column."""
    columns = text.splitlines()[0].split() if text else []
    if len(columns) <= _STEAL_COLUMN or columns[0] != "cpu":
        raise Absent(ERROR, "/proc/stat has no line for all processors")
    return int(columns[_STEAL_COLUMN]) / os.sysconf("SC_CLK_TCK")


def parse_throttled_seconds(text: str) -> float:
    """Seconds for which a control group was throttled (cpu.stat). Raises Absent: it counts none."""
    seconds = throttled_seconds(parse_numbers(text))
    if seconds is None:
        raise Absent(NOT_SUPPORTED, "the control group does not count throttling")
    return seconds


def parse_vmstat(text: str, counter: str) -> int:
    """A counter of /proc/vmstat. Raises Absent: this kernel does not count it."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == counter:
            return int(number)
    raise Absent(NOT_SUPPORTED, f"this kernel does not count {counter}")


def _read_throttled_seconds(root: str) -> float:
    """The throttled seconds of this process's control group."""
    for line in read_text(root, "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" and os.path.exists(os.path.join(root, "sys/fs/cgroup/cgroup.controllers")):
            return parse_throttled_seconds(read_text(root, f"sys/fs/cgroup{path}/cpu.stat"))
        if "cpu" in controllers.split(","):
            return parse_throttled_seconds(read_text(root, f"sys/fs/cgroup/{controllers}{path}/cpu.stat"))
    raise Absent(NOT_SUPPORTED, "no control group counts processor time")
