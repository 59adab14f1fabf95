"""A process's control groups: paths, folders, the cost of a quota (cgroup-v1/*.rst and cgroup-v2.rst).

A machine may have both versions; the one group of version 2 has an empty name here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

UNIFIED = ""  # the name of version 2 in /proc/PID/cgroup: it lists no controllers
_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")  # a blank in a path of mountinfo


def parse_groups(text: str) -> dict[str, str]:
    """The path of each controller's group, from the text of /proc/PID/cgroup."""
    lines = (line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2)
    return {name: path for _, controllers, path in lines for name in controllers.split(",")}


def find_folders(text: str) -> Mapping[str, Path]:
    """The folder of each controller's group, from /proc/PID/cgroup, which may have the host's paths."""
    folders = {}
    mounts = read_mounts()
    for name, group in parse_groups(text).items():
        if name in mounts:
            root, mount = mounts[name]
            inside = group.removeprefix(root) if root != "/" else group
            folder = mount / inside.strip("/")
            folders[name] = folder if folder.is_dir() else mount
    return folders


@dataclass(frozen=True, slots=True)
class Quota:
    """A processor quota's effect: the periods that it cut short, the seconds throttled, and its group."""

    periods: int
    throttled_periods: int
    seconds: float
    group: str


def read_quota(folder: Path) -> Quota:
    """What the processor quota of a group has done to it since it was made; zeros where it has none."""
    numbers = parse_numbers(read_file(folder / "cpu.stat"))
    periods, throttled = numbers.get("nr_periods", 0), numbers.get("nr_throttled", 0)
    return Quota(periods, throttled, throttled_seconds(numbers) or 0.0, str(folder))


def read_processor_limit(folder: Path) -> tuple[str, float] | None:
    """The file that limits a group's processors, and how many it may use at once; None without a limit."""
    file, numbers = "cpu.max", read_file(folder / "cpu.max").split()
    if not numbers:
        file = "cpu.cfs_quota_us"
        numbers = [read_file(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if not all(one.isdecimal() and int(one) for one in numbers):
        return None
    return file, int(numbers[0]) / int(numbers[1])


def find_processor_folders(folders: Mapping[str, Path]) -> list[Path]:
    """The folders of a process's groups and of their parents that have a cpu.stat, innermost first."""
    found: list[Path] = []
    for name in ("cpu", UNIFIED):
        folder = folders.get(name)
        while folder is not None and (folder / "cpu.stat").is_file():
            found.append(folder)
            folder = folder.parent if folder.parent != folder else None
    return found


@cache
def read_mounts() -> Mapping[str, tuple[str, Path]]:
    """Where each controller is mounted, and its root group (proc_pid_mountinfo(5)); empty without /proc."""
    mounts: dict[str, tuple[str, Path]] = {}
    for line in read_file(_MOUNTS).splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, place = (
            _OCTAL.sub(lambda found: chr(int(found[1], 8)), field) for field in fields.split(" ")[3:5]
        )
        for name in [UNIFIED] if kind == "cgroup2" else options.split(","):
            mounts.setdefault(name, (root, Path(place)))
    return mounts


def parse_numbers(text: str) -> dict[str, int]:
    """The counters of a file such as cpu.stat or memory.events, by name."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def throttled_seconds(counters: Mapping[str, int]) -> float | None:
    """For how long a processor quota has held a group back (cpu.stat); None where it is not counted."""
    if "throttled_usec" in counters:
        return counters["throttled_usec"] / 1e6
    return counters["throttled_time"] / 1e9 if "throttled_time" in counters else None


def frozen_by(folders: Mapping[str, Path]) -> str | None:
    """The frozen group among them, by version 1's freezer or version 2's cgroup.events; None if none is."""
    for name in ("freezer", UNIFIED):
        folder = folders.get(name)
        if folder is None:
            continue
        state = read_file(folder / "freezer.state").strip()
        if state in ("FROZEN", "FREEZING") or "frozen 1" in read_file(folder / "cgroup.events").splitlines():
            return str(folder)
    return None


def read_file(path: Path) -> str:
    """The text of a file of a group; empty where there is no such controller, or the group is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
