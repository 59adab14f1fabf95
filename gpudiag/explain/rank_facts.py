"""What one log shows of ranks: who ended how, who is missing, who is where.

launcher_lines.py reads the lines.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime

from gpudiag.explain.lines import LogLine, Speaker, read_time
from gpudiag.model.untrusted_text import shorten_text

_ROW = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback) *: ?(.*)")
_RANK_OF_ROW = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE_OF_ROW = re.compile(r"(-?\d+) +\(pid: (\d+)\)")
_MAX_TASKS = 4096  # of one range of numbers
TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Exit:
    """How one rank ended, by a launcher."""

    line: int
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    host: str = ""
    pid: int | None = None
    code: int | None = None  # below zero: a signal
    at: datetime | None = None
    is_first: bool = False  # the launcher calls it the first of its node
    text: str = ""
    quote: str = ""  # the line of the log
    pod: str = ""


@dataclass(frozen=True, slots=True)
class Absence:
    """Somebody waited for ranks that did not come."""

    line: int
    speaker: Speaker
    at: datetime | None
    text: str
    ranks: tuple[int, ...] = ()  # that are missing, if the line names them
    joined: tuple[int, int] | None = None  # how many came, of how many
    at_start: bool = False  # they did not come when the ranks met
    by_rank_0: bool = False  # of rank 0, which knows who is missing; the others know only that rank 0 waits


@dataclass(slots=True)
class Watchdog:
    """What torch's watchdog of one rank reports on one process group."""

    rank: int
    group: str
    line: int
    at: datetime | None
    work: int = -1
    operation: str = ""
    elements: int = -1  # that the rank gave to the operation
    enqueued: int = -1
    completed: int = -1
    operation_line: int = 0  # of the line that names the operation, where that is another one


@dataclass(slots=True)
class RankFacts:
    """What one log shows of ranks."""

    exits: list[Exit] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    watchdogs: dict[tuple[int, str], Watchdog] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)  # of ranks
    ranks_of_pids: dict[tuple[str, int], int] = field(default_factory=dict)  # by host (may be empty) and pid
    # By host (may be empty) and local rank.
    ranks_of_local: dict[tuple[str, int], int] = field(default_factory=dict)
    # Ranks by host and the bus id as NCCL writes it.
    bus_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)  # hosts
    # Line, who, the peer's address, status.
    peers: list[tuple[int, Speaker, str, int]] = field(default_factory=list)
    lost: list[tuple[int, Speaker, str]] = field(default_factory=list)  # line, who, the other end that closed
    fingerprints: list[tuple[int, int, str]] = field(default_factory=list)  # line, rank, what it runs
    # Line, bytes that came, bytes asked for.
    overflows: list[tuple[int, int, int]] = field(default_factory=list)
    saved: dict[str, tuple[int, Speaker]] = field(default_factory=dict)  # files that someone wrote: line, who
    # Line, host, pid, when, how.
    killed_pids: list[tuple[int, str, int, datetime | None, str]] = field(default_factory=list)
    stopped_pids: set[int] = field(default_factory=set)  # that an agent ended
    pod_hosts: dict[str, str] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)  # lines at which a launcher starts its ranks once more
    own_host: str = ""  # of a bug report or a single launcher
    node_rank: int | None = None
    _row: dict[str, str] = field(default_factory=dict)
    _row_line: int = 0
    _row_words: str = ""
    _is_first: bool = False
    pod: str = ""  # that the lines of `kubectl describe` are about
    world_size: int = 0
    row_rank: int | None = None  # of the row whose traceback is being printed

    def miss(
        self,
        line: LogLine,
        ranks: tuple[int, ...],
        text: str = "",
        *,
        at_start: bool = False,
        by_rank_0: bool = False,
    ) -> None:
        """Note that a process waited for these ranks.

        `text` is the line's own account, else the whole line.
        """
        account = shorten_text((text or line.body).strip(), 300)
        self.absences.append(
            Absence(
                line.number, line.speaker, line.at, account, ranks, at_start=at_start, by_rank_0=by_rank_0
            )
        )

    def watchdog(self, rank: int, group: str, line: LogLine) -> Watchdog:
        """What the watchdog of that rank has reported of that group, so far."""
        return self.watchdogs.setdefault((rank, group), Watchdog(rank, group, line.number, line.at))

    def read_row(self, line: LogLine) -> bool:
        """Whether it is a line of torchrun's table of failures, which is noted; its last is `traceback`."""
        if "Root Cause (first observed failure)" in line.body:
            self._is_first = True
            return True
        match = _ROW.match(line.body)
        if match is None:
            return False
        name, value = match[1], match[2].strip()
        if name == "time":
            self._row, self.row_rank = {}, None
        elif not self._row:
            return False
        self._row[name] = value
        if name == "exitcode":
            self._row_line, self._row_words = line.number, line.body.strip()
        if name == "rank":
            rank = _RANK_OF_ROW.match(value)
            self.row_rank = int(rank[1]) if rank else None
        if name == "traceback":
            self._end_row(value, line.number)
        return True

    def _end_row(self, how: str, number: int) -> None:
        row, self._row = self._row, {}
        rank, code = _RANK_OF_ROW.match(row.get("rank", "")), _CODE_OF_ROW.match(row.get("exitcode", ""))
        if rank is None or code is None:
            return
        host = short_host(row.get("host", ""))
        message = "" if how.startswith(("To enable", "Traceback")) else how
        exited = Exit(
            number if message else self._row_line,
            int(rank[1]),
            int(rank[2]),
            None,
            host,
            int(code[2]),
            int(code[1]),
            read_time(row.get("time", "")),
            self._is_first,
            message,
            self._row_words,
        )
        self._is_first = False
        self.exits.append(exited)
        if host:
            self.hosts[int(rank[1])] = host
            self.own_host = host
        for key in {host, ""}:
            self.ranks_of_pids[key, int(code[2])] = int(rank[1])
            self.ranks_of_local[key, int(rank[2])] = int(rank[1])


def short_host(name: str) -> str:
    """The name of a host without its domain; an address stays whole, and `localhost` names nobody."""
    if name.startswith("localhost"):
        return ""
    return name if re.fullmatch(r"[\d.]+|[0-9a-f:]+", name) else name.split(".", 1)[0]


def numbers_of(ranges: str) -> list[int]:
    """The numbers in `8-10,12`."""
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            found += range(
                int(first),
                min(int(last) if last.isdecimal() else int(first), int(first) + _MAX_TASKS) + 1,
            )
    return found
