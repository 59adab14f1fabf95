"""What lines of launchers, watchdogs and schedulers say about ranks: who ended how, who is missing, who is where."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from gpudiag.explain.lines import LogLine, Speaker, read_time
from gpudiag.model.untrusted_text import shorten_text

# A line without one of these words is not looked at.
MARKS = re.compile(
    rb"(?:time|host|rank)      : |exitcode  ?: |error_file: |traceback : |Root Cause \(first|failed \(exitcode|closing signal|error: \S+: task|"
    rb"Last enqueued|keys: /|clients joined|monitoredBarrier|orkNCCL\(|last enqueued|Timed out waiting|CollectiveFingerPrint|op\.preamble|node[_-]rank|"
    rb"Init COMPLETE|Init START|Bootstrap ?: Using|OOB |Got completion|closed by remote peer|ncclUniqueId from|global_ranks|Killed process|segfault at|"
    rb"^Name: |^Node: |Node: +\S+/|Exit Code: |Linux \S+ .*(?:SMP|PREEMPT)|Rendezvous'?ed worker|did not join|has left|restart_count|"
    rb"Worker group|exited on signal|Stack trace of the failed|OMMON_TIMEOUT|heartbeat|exits with return code|Killing subprocess|ssigned values|"
    rb"Child process with PID|(?:[Ss]aved|[Ww]ritten|[Ww]rote|[Ss]aving)\b[^/]{0,60} /|\[missing ranks: |: \[(?:[\w./-]*Horovod\w|(?:allreduce|allgather|broadcast|alltoall|reducescatter)\.)"
)
_ROW = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback) *: ?(.*)")
_RANK_OF_ROW = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE_OF_ROW = re.compile(r"(-?\d+) +\(pid: (\d+)\)")
_AGENT_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_AGENT_STOPPED = re.compile(r"Sending process (\d+) closing signal (?:Signals\.)?(SIG\w+)")
_SRUN = re.compile(r"srun: error: (\S+): tasks? ([\d,\-]+): (.*)")
_SRUN_CODE = re.compile(r"Exited with exit code (\d+)")
_SRUN_SIGNALS = (
    ("Killed", -9),
    ("Out Of Memory", -9),
    ("Segmentation fault", -11),
    ("Aborted", -6),
    ("Bus error", -7),
    ("Terminated", -15),
)
_KEY = re.compile(r"wait timeout after \d+ ?ms, keys: (/\S*?)/?(\d+)(?![\w/])")
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
_BARRIER_MISSED = re.compile(r"[Rr]anks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
_BARRIER_WAITED = re.compile(r"while waiting for send/recv from rank (\d+)")
_STALLED = re.compile(r"\[missing ranks: (\d+(?:, ?\d+)*)\]")  # Horovod up to 0.18
_STALLED_BY_RANK = re.compile(
    r"(?:^|[>:\s])(\d+): \[(?:[\w./-]*Horovod\w|(?:allreduce|allgather|broadcast|alltoall|reducescatter)\.)"
)
_CHILD_ENDED = re.compile(r"\[rank: (\d+)\] Child process with PID (\d+) terminated with code (-?\d+)")
_UNIQUE_ID = re.compile(r"retr(?:ie|ei)ving ncclUniqueId from \[(\d+)\]")
_CAUGHT = re.compile(
    r"Rank (\d+)\][^\[]{0,80}Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r"(?:, NumelIn=(\d+))?"
)
_OVERFLOW = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
_NUMBERS = re.compile(
    r"(?:PG (?:ID )?(?P<group>\S+)(?: PG GUID (?P<guid>\S+?))? )?[Rr]ank (?P<rank>\d+)\].*?(?:[Ww]ork(?: sequence id)?): ?(?P<work>\d+)"
    r".*last enqueued(?: NCCL)? work: (?P<enqueued>-?\d+), last completed(?: NCCL)? work: (?P<completed>-?\d+)"
)
_DUMPED = re.compile(
    r"(?:PG (?:ID )?(?P<group>\S+)(?: PG GUID (?P<guid>\S+?))? )?[Rr]ank (?P<rank>\d+)\] Received a dump signal"
    r".*Last enqueued \w+ work: (?P<enqueued>-?\d+), last completed \w+ work: (?P<completed>-?\d+)"
)
_FINGERPRINT = re.compile(r"[Rr]ank (\d+) is running (?:collective: )?(CollectiveFingerPrint\([^)]*\)?|\w+)")
_NCCL_RANK = re.compile(r"\brank (\d+) n(?:ranks|Ranks) \d+ cudaDev (\d+)(?:.*? busId ([0-9a-f]+))?")
_ADDRESS = re.compile(
    r"(?:Bootstrap ?: Using \[?\d*\]?\S*?|OOB \S+?|NET/Socket ?: Using \[0\]\S+?):(\d+\.\d+\.\d+\.\d+)<"
)
_COMPLETION = re.compile(
    r"Got completion from peer ([^\s<]+)<\d+> with (?:error |status=)(?:IBV_WC_\w+\()?(\d+)"
)
_CLOSED = re.compile(r"Connection closed by remote peer ([^\s<]+)<\d+>")
_NODE_RANK = re.compile(r"node[_-]rank['\"]?[= :]+(\d+)")
_GLOBAL_RANKS = re.compile(r"global_ranks=\[([\d, ]+)\]")
_OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory.*Killed process (\d+) \(([^)]*)\)")
_SEGFAULT = re.compile(r"\b(\S+)\[(\d+)\]: segfault at")
_POD_NAME = re.compile(r"^Name: +([\w.-]+)$")
_POD_NODE = re.compile(r"^Node: +([\w.-]+)/")
_UNAME = re.compile(r"\bLinux ([\w.-]+) \d\S* #\S+ ?(?:SMP|PREEMPT)")
_RETURNED = re.compile(r"exits with return code = (-\d+)\b")
_SAVED = re.compile(r"(?:[Ss]aved|[Ww]ritten|[Ww]rote|[Ss]aving)\b[^/]{0,60} (/[^\s'\",:;]+/[^\s'\",:;]+)")
_MAX_SAVED = 4096
_COUNTED_TASKS = 4096
_MAX_FINGERPRINTS = 4096
_MPI_NOTICED = re.compile(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)")

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


@dataclass(frozen=True, slots=True)
class Absence:
    """Somebody waited for ranks that did not come."""

    line: int
    speaker: Speaker
    at: datetime | None
    text: str
    ranks: tuple[int, ...] = ()  # that are missing, where the line says which
    joined: tuple[int, int] | None = None  # how many came, of how many


@dataclass(slots=True)
class Watchdog:
    """What torch's watchdog of one rank says of one process group."""

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
class RankTalk:
    """What one log says about ranks."""

    exits: list[Exit] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    watchdogs: dict[tuple[int, str], Watchdog] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)  # of ranks
    ranks_of_pids: dict[tuple[str, int], int] = field(default_factory=dict)  # by host (may be empty) and pid
    ranks_of_local: dict[tuple[str, int], int] = field(
        default_factory=dict
    )  # by host (may be empty) and local rank
    bus_ids: dict[tuple[str, str], int] = field(
        default_factory=dict
    )  # ranks by host and the bus id as NCCL writes it
    addresses: dict[str, str] = field(default_factory=dict)  # hosts
    peers: list[tuple[int, Speaker, str, int]] = field(
        default_factory=list
    )  # line, who, the peer's address, status
    lost: list[tuple[int, Speaker, str]] = field(default_factory=list)  # line, who, the other end that closed
    fingerprints: list[tuple[int, int, str]] = field(default_factory=list)  # line, rank, what it runs
    overflows: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # line, bytes that came, bytes asked for
    saved: dict[str, tuple[int, Speaker]] = field(default_factory=dict)  # files that someone wrote: line, who
    killed_pids: list[tuple[int, str, int, datetime | None, str]] = field(
        default_factory=list
    )  # line, host, pid, when, how
    stopped_pids: set[int] = field(default_factory=set)  # that an agent ended
    pod_hosts: dict[str, str] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)  # lines at which a launcher starts its ranks once more
    own_host: str = ""  # of a bug report or a single launcher
    node_rank: int | None = None
    _row: dict[str, str] = field(default_factory=dict)
    _row_line: int = 0
    _row_words: str = ""
    _is_first: bool = False
    pod: str = ""  # that `kubectl describe` is telling of
    row_rank: int | None = None  # of the row whose traceback is being printed

    def add(self, line: LogLine) -> None:
        """Note what the line says."""
        if self._add_row(line):
            return
        for mark, add in _READERS:
            if mark in line.whole:
                add(self, line)

    def _add_row(self, line: LogLine) -> bool:
        """One line of torchrun's table of failures; its last is `traceback`."""
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
        said = "" if how.startswith(("To enable", "Traceback")) else how
        exited = Exit(
            number if said else self._row_line, int(rank[1]), int(rank[2]), None, host, int(code[2]), int(code[1]),
            read_time(row.get("time", "")), self._is_first, said, self._row_words,
        )  # fmt: skip
        self._is_first = False
        self.exits.append(exited)
        if host:
            self.hosts[int(rank[1])] = host
            self.own_host = host
        for key in {host, ""}:
            self.ranks_of_pids[key, int(code[2])] = int(rank[1])
            self.ranks_of_local[key, int(rank[2])] = int(rank[1])

    def _add_agent_failed(self, line: LogLine) -> None:
        if match := _AGENT_FAILED.search(line.body):
            code, local, pid = (int(part) for part in match.groups())
            self.exits.append(
                Exit(
                    line.number, None, local, line.speaker.task, line.speaker.host, pid, code, line.at,
                    quote=line.body.strip(),
                )
            )  # fmt: skip

    def _add_agent_stopped(self, line: LogLine) -> None:
        if match := _AGENT_STOPPED.search(line.body):
            self.stopped_pids.add(int(match[1]))

    def _add_mpi_noticed(self, line: LogLine) -> None:
        if match := _MPI_NOTICED.search(line.whole):
            host, rank = short_host(match[3]), int(match[1])
            self.hosts.setdefault(rank, host)
            self.exits.append(
                Exit(
                    line.number, rank, None, None, host, int(match[2]), -int(match[4]), line.at,
                    quote=line.body.strip(),
                )
            )  # fmt: skip

    def _add_returned(self, line: LogLine) -> None:
        if match := _RETURNED.search(line.whole):  # DeepSpeed's launcher does not say of which rank
            self.exits.append(
                Exit(
                    line.number,
                    code=int(match[1]),
                    at=line.at,
                    host=line.speaker.host,
                    quote=line.body.strip(),
                )
            )

    def _add_srun(self, line: LogLine) -> None:
        match = _SRUN.search(line.whole)
        if match is None:
            return
        host, how = short_host(match[1]), match[3]
        exited = _SRUN_CODE.search(how)
        code = (
            int(exited[1])
            if exited
            else next((number for word, number in _SRUN_SIGNALS if word in how), None)
        )
        for task in numbers_of(match[2]):
            self.exits.append(
                Exit(
                    line.number,
                    None,
                    None,
                    task,
                    host,
                    None,
                    code,
                    line.at,
                    text=how,
                    quote=line.body.strip(),
                )
            )

    def _add_key(self, line: LogLine) -> None:
        if (match := _KEY.search(line.whole)) and "/default_pg/" in match[1] + "/":
            self._miss(line, (int(match[2]),))

    def _add_joined(self, line: LogLine) -> None:
        if match := _JOINED.search(line.whole):
            joined = (int(match[1]), int(match[2]))
            self.absences.append(
                Absence(line.number, line.speaker, line.at, shorten_text(line.body.strip(), 300), (), joined)
            )

    def _add_barrier(self, line: LogLine) -> None:
        match = _BARRIER_MISSED.search(line.whole) or _BARRIER_WAITED.search(line.whole)
        if match:
            self._miss(line, tuple(int(rank) for rank in match[1].split(",")))

    def _add_stalled(self, line: LogLine) -> None:
        if match := _STALLED.search(line.whole) or _STALLED_BY_RANK.search(line.whole):
            ranks = tuple(int(rank) for rank in match[1].split(","))
            text = line.whole[match.start(1) :] if match.re is _STALLED_BY_RANK else line.body
            self.absences.append(
                Absence(line.number, line.speaker, line.at, shorten_text(text.strip(), 300), ranks)
            )

    def _add_child_ended(self, line: LogLine) -> None:
        if match := _CHILD_ENDED.search(line.whole):
            rank, pid, code = (int(part) for part in match.groups())
            self.exits.append(
                Exit(
                    line.number,
                    rank,
                    None,
                    None,
                    line.speaker.host,
                    pid,
                    code,
                    line.at,
                    quote=line.body.strip(),
                )
            )

    def _add_unique_id(self, line: LogLine) -> None:
        if match := _UNIQUE_ID.search(line.whole):
            self._miss(line, (int(match[1]),))

    def _miss(self, line: LogLine, ranks: tuple[int, ...]) -> None:
        self.absences.append(
            Absence(line.number, line.speaker, line.at, shorten_text(line.body.strip(), 300), ranks)
        )

    def _add_watchdog(self, line: LogLine) -> None:
        if match := _CAUGHT.search(line.whole):
            found = self._watchdog(_rank_in_job(line, match[1]), "", line)
            found.work, found.operation = int(match[2]), match[3]
            found.elements = int(match[4]) if match[4] else -1
        if match := _NUMBERS.search(line.whole):
            found = self._watchdog(
                _rank_in_job(line, match["rank"]), match["guid"] or match["group"] or "", line
            )
            found.work, found.enqueued, found.completed = (
                int(match["work"]),
                int(match["enqueued"]),
                int(match["completed"]),
            )

        if match := _DUMPED.search(line.whole):
            found = self._watchdog(
                _rank_in_job(line, match["rank"]), match["guid"] or match["group"] or "", line
            )
            found.enqueued, found.completed = int(match["enqueued"]), int(match["completed"])

    def _watchdog(self, rank: int, group: str, line: LogLine) -> Watchdog:
        return self.watchdogs.setdefault((rank, group), Watchdog(rank, group, line.number, line.at))

    def _add_fingerprint(self, line: LogLine) -> None:
        if len(self.fingerprints) < _MAX_FINGERPRINTS:
            self.fingerprints += [
                (line.number, int(match[1]), match[2]) for match in _FINGERPRINT.finditer(line.whole)
            ]

    def _add_overflow(self, line: LogLine) -> None:
        if (match := _OVERFLOW.search(line.whole)) and len(self.overflows) < _MAX_FINGERPRINTS:
            self.overflows.append((line.number, int(match[1]), int(match[2])))

    def _add_nccl_rank(self, line: LogLine) -> None:
        match, speaker = _NCCL_RANK.search(line.whole), line.speaker
        if match is None or not speaker.host or not self._is_world(match):
            return
        rank, host = int(match[1]), short_host(speaker.host)
        self.hosts.setdefault(rank, host)
        self.ranks_of_local.setdefault((host, int(match[2])), rank)
        if speaker.pid is not None:
            self.ranks_of_pids.setdefault((host, speaker.pid), rank)
        if match[3]:
            self.bus_ids.setdefault((host, match[3]), rank)

    def _is_world(self, match: re.Match[str]) -> bool:
        """Whether the communicator may be the one of all ranks; ranks of smaller ones are other numbers."""
        size = int(match[0].split(" n", 1)[1].split()[1])
        self.world_size = max(self.world_size, size)
        return size == self.world_size

    def _add_address(self, line: LogLine) -> None:
        if (match := _ADDRESS.search(line.whole)) and line.speaker.host:
            self.addresses.setdefault(match[1], short_host(line.speaker.host))

    def _add_completion(self, line: LogLine) -> None:
        if match := _COMPLETION.search(line.whole):
            self.peers.append((line.number, line.speaker, match[1], int(match[2])))

    def _add_closed(self, line: LogLine) -> None:
        if (match := _CLOSED.search(line.whole)) and len(self.lost) < _MAX_FINGERPRINTS:
            self.lost.append((line.number, line.speaker, match[1]))

    def _add_restart(self, line: LogLine) -> None:
        if len(self.restarts) < _COUNTED_TASKS:
            self.restarts.append(line.number)

    def _add_saved(self, line: LogLine) -> None:
        if (match := _SAVED.search(line.whole)) and len(self.saved) < _MAX_SAVED:
            self.saved.setdefault(match[1], (line.number, line.speaker))

    def _add_node_rank(self, line: LogLine) -> None:
        if self.node_rank is None and (match := _NODE_RANK.search(line.whole)):
            self.node_rank = int(match[1])

    def _add_global_ranks(self, line: LogLine) -> None:
        if match := _GLOBAL_RANKS.search(line.whole):
            for local, rank in enumerate(match[1].split(",")):
                self.ranks_of_local.setdefault(("", local), int(rank))

    def _add_killed(self, line: LogLine) -> None:
        if match := _OUT_OF_MEMORY.search(line.whole):
            self.killed_pids.append(
                (line.number, short_host(line.speaker.host), int(match[1]), line.at, "out of memory")
            )
        elif match := _SEGFAULT.search(line.whole):
            self.killed_pids.append(
                (line.number, short_host(line.speaker.host), int(match[2]), line.at, "segfault")
            )

    def _add_pod(self, line: LogLine) -> None:
        if match := _POD_NAME.match(line.body):
            self.pod = match[1]
        elif (match := _POD_NODE.match(line.body)) and self.pod:
            self.pod_hosts[self.pod] = short_host(match[1])

    def _add_uname(self, line: LogLine) -> None:
        if not self.own_host and (match := _UNAME.search(line.whole)):
            self.own_host = short_host(match[1])

    world_size: int = 0


_READERS: tuple[tuple[str, Callable[[RankTalk, LogLine], None]], ...] = (
    ("exits with return code", RankTalk._add_returned),
    ("failed (exitcode", RankTalk._add_agent_failed), ("closing signal", RankTalk._add_agent_stopped), ("srun: error", RankTalk._add_srun), ("exited on signal", RankTalk._add_mpi_noticed),
    ("Child process", RankTalk._add_child_ended), ("[missing ranks: ", RankTalk._add_stalled), (": [", RankTalk._add_stalled),
    ("keys: /", RankTalk._add_key), ("clients joined", RankTalk._add_joined), ("monitoredBarrier", RankTalk._add_barrier),
    ("ncclUniqueId from", RankTalk._add_unique_id), ("WorkNCCL(", RankTalk._add_watchdog), ("last enqueued", RankTalk._add_watchdog), ("Last enqueued", RankTalk._add_watchdog),
    ("CollectiveFingerPrint", RankTalk._add_fingerprint), ("op.preamble.length", RankTalk._add_overflow), ("cudaDev", RankTalk._add_nccl_rank), ("Using", RankTalk._add_address),
    ("OOB ", RankTalk._add_address), ("Got completion", RankTalk._add_completion), ("closed by remote peer", RankTalk._add_closed), ("rank", RankTalk._add_node_rank),
    ("will restart worker group", RankTalk._add_restart),
    ("aved", RankTalk._add_saved), ("aving", RankTalk._add_saved), ("ritten", RankTalk._add_saved), ("rote", RankTalk._add_saved),
    ("global_ranks", RankTalk._add_global_ranks), ("Killed process", RankTalk._add_killed), ("segfault at", RankTalk._add_killed),
    ("Name: ", RankTalk._add_pod), ("Node: ", RankTalk._add_pod), ("Linux ", RankTalk._add_uname),
)  # fmt: skip


def _rank_in_job(line: LogLine, named: str) -> int:
    """The rank that a watchdog speaks of: by the line's prefix, for the line itself counts within a process group."""
    return line.speaker.rank if line.speaker.rank is not None else int(named)


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
                min(int(last) if last.isdecimal() else int(first), int(first) + _COUNTED_TASKS) + 1,
            )
    return found
