"""What the host is doing, by counters that the kernel has in memory: no read of them waits for a device."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpudiag.linux.proc import read_text
from gpudiag.model.codec import read_sheet
from gpudiag.model.host_activity import HostActivity
from gpudiag.probe.host.machine import parse_meminfo
from gpudiag.probe.sheet import NOT_ASKED, SOURCE_ABSENT, Absent, Sheet

# Columns of the line `cpu` in /proc/stat behind its name (proc_stat(5)): guests are counted in user and nice
# already.
_IDLE, _WAITING, _COUNTED = 3, 4, 8
# Columns of /proc/net/dev behind the interface's name (proc_pid_net(5)).
_RECEIVED, _TRANSMITTED = 0, 8
# Columns of /proc/diskstats (iostats.rst): the name, sectors read and written; a sector is 512 bytes there
# whatever the disk has.
_NAME, _READ, _WRITTEN, _SECTOR_BYTES = 2, 5, 9, 512
_LOOPBACK = "lo"
_FIRST = "a mean between two looks, of which this was the first"
_NO_TICK = "the kernel counted no processor time between the last two looks"

# Two counters each, and the readings that their growth in a second is.
_RATES = {
    "network": ("network_received_bytes_per_second", "network_transmitted_bytes_per_second"),
    "disk": ("disk_read_bytes_per_second", "disk_written_bytes_per_second"),
}


class HostActivityReader:
    """Reads a host's load again and again; it keeps the counters of the last look."""

    def __init__(self, root: str = "/") -> None:
        """Read below `root`; the first `read` has no rates yet."""
        self._root = root
        self._before: dict[str, tuple[float, tuple[int, ...]]] = {}
        self._hardware: dict[str, bool] = {}  # by interface or disk

    def read(self, now: float) -> HostActivity:
        """The load since the last call; `now` is monotonic time in seconds."""
        sheet = Sheet()
        sheet.read_together(("processors_busy_percent", "processors_waiting_percent"), self._processors, now)
        sheet.read("load_average", lambda: float(self._text("proc/loadavg").split()[0]))
        sheet.read("uptime_seconds", lambda: float(self._text("proc/uptime").split()[0]))
        try:
            memory = self._text("proc/meminfo")
        except OSError:
            memory = ""
        for name, field in (("memory_total_bytes", "MemTotal"), ("memory_available_bytes", "MemAvailable")):
            sheet.read(name, parse_meminfo, memory, field)
        sheet.read(
            "swap_used_bytes", lambda: parse_meminfo(memory, "SwapTotal") - parse_meminfo(memory, "SwapFree")
        )
        for kind, names in _RATES.items():
            sheet.read_together(names, self._rates, kind, now)
        return read_sheet(HostActivity, sheet.document())

    def _processors(self, now: float) -> tuple[float, float]:
        """The shares of time, in per cent, that processors were busy, and idle while a disk was awaited."""
        ticks = parse_processor_ticks(self._text("proc/stat"))
        _, spent = self._grown("processors", now, ticks)
        total = sum(spent)
        if total <= 0:
            raise Absent(NOT_ASKED, _NO_TICK)
        return 100 * (1 - (spent[_IDLE] + spent[_WAITING]) / total), 100 * spent[_WAITING] / total

    def _rates(self, kind: str, now: float) -> tuple[float, ...]:
        counters = self._network() if kind == "network" else self._disks()
        seconds, grown = self._grown(kind, now, counters)
        return tuple(max(0, bytes_) / seconds for bytes_ in grown)

    def _grown(self, kind: str, now: float, counters: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """The seconds since the last look, and each counter's growth. Raises Absent: it is the first look."""
        before, self._before[kind] = self._before.get(kind), (now, counters)
        if before is None or now <= before[0]:
            raise Absent(NOT_ASKED, _FIRST)
        return now - before[0], tuple(after - old for after, old in zip(counters, before[1], strict=True))

    def _network(self) -> tuple[int, int]:
        found = parse_interface_bytes(self._text("proc/net/dev"))
        hardware = {name: row for name, row in found.items() if self._is_hardware("net", name)}
        return _sums(hardware or found)

    def _disks(self) -> tuple[int, int]:
        found = parse_disk_bytes(self._text("proc/diskstats"))
        return _sums({name: row for name, row in found.items() if self._is_hardware("block", name)})

    def _is_hardware(self, kind: str, name: str) -> bool:
        """Whether an interface or disk is hardware's, or a virtual machine's: no bridge, partition, loop."""
        if name not in self._hardware:
            place = os.path.join(self._root, "sys/class", kind, name, "device")
            self._hardware[name] = os.path.lexists(place)
        return self._hardware[name]

    def _text(self, name: str) -> str:
        return read_text(os.path.join(self._root, name))


def parse_processor_ticks(text: str) -> tuple[int, ...]:
    """The clock ticks of all processors by kind (/proc/stat). Raises Absent: there is no such line."""
    words = text.partition("\n")[0].split()
    if len(words) <= _COUNTED or words[0] != "cpu":
        raise Absent(SOURCE_ABSENT, "/proc/stat has no line for all processors")
    return tuple(int(word) for word in words[1 : 1 + _COUNTED])


def parse_interface_bytes(text: str) -> dict[str, tuple[int, int]]:
    """Bytes received and transmitted by each interface but the loopback, from /proc/net/dev."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        numbers = rest.split()
        if name.strip() != _LOOPBACK and len(numbers) > _TRANSMITTED:
            found[name.strip()] = int(numbers[_RECEIVED]), int(numbers[_TRANSMITTED])
    return found


def parse_disk_bytes(text: str) -> dict[str, tuple[int, int]]:
    """Bytes read from and written to each block device, from /proc/diskstats."""
    rows = (line.split() for line in text.splitlines())
    return {
        row[_NAME]: (int(row[_READ]) * _SECTOR_BYTES, int(row[_WRITTEN]) * _SECTOR_BYTES)
        for row in rows
        if len(row) > _WRITTEN
    }


def _sums(rows: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    if not rows:
        raise Absent(SOURCE_ABSENT, "the kernel lists none")
    return sum(one for one, _ in rows.values()), sum(other for _, other in rows.values())
