"""What the measurements of the service share: the load beside it, and the kernel's figures of its process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LOAD = Path(__file__).with_name("socket_load.py")


def start_load(service: Any, kind: str, size: int, seconds: float, *more: str) -> subprocess.Popen[str]:
    """The load on what answers at the `url` of that service."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    command = [sys.executable, str(_LOAD), kind, host, port, str(size), str(seconds), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish_load(load: subprocess.Popen[str]) -> Any:
    """What the load has seen."""
    text, _ = load.communicate()
    if load.returncode != 0:
        raise SystemExit("the load failed")
    return json.loads(text)


def milliseconds(seconds: float) -> str:
    """A time for people."""
    return f"{seconds * 1e3:.1f} ms"


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def children_seconds(pid: int) -> float:
    """Processor time of the children of a process that have ended."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[13]) + int(fields[14])) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def proportional_bytes(pid: int) -> int:
    """Memory of a process in RAM, of shared pages its share (PSS), which other programs lessen."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def together_bytes(pids: list[int]) -> int:
    """Memory in RAM of these processes as if alone: what they share counts once.

    Their own pages, and of each file the most that one of them has in RAM.
    """
    own = 0
    files: dict[str, int] = {}
    for pid in pids:
        of_files: dict[str, int] = {}
        name = ""
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):  # the head of a mapping; its path is the sixth word
                name = words[5] if len(words) > 5 and words[5].startswith("/") else ""
            elif words[0] == "Rss:":
                of_files[name] = of_files.get(name, 0) + int(words[1]) * 1024
            elif words[0] == "Anonymous:":  # of a file's mapping: pages that were written to
                own += int(words[1]) * 1024
                of_files[name] -= int(words[1]) * 1024
        for name, size in of_files.items():
            files[name] = max(files.get(name, 0), size)
    return own + sum(files.values())
