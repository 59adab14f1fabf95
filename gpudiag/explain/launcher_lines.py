"""Lines of launchers, watchdogs, schedulers and kernels that show something of ranks, each with its reader.

A new line is one entry here: a function under `@_reads`, with the words of which such a line holds one, and
the pattern.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpudiag.explain.lines import LogLine
from gpudiag.explain.rank_facts import Absence, Exit, RankFacts, numbers_of, short_host
from gpudiag.model.untrusted_text import shorten_text

_MAX_NOTED = 4096  # of one kind of line
_FINGERPRINT = re.compile(r"[Rr]ank (\d+) is running (?:collective: )?(CollectiveFingerPrint\([^)]*\)?|\w+)")
_SRUN_CODE = re.compile(r"Exited with exit code (\d+)")
_SRUN_SIGNALS = (
    ("Killed", -9),
    ("Out Of Memory", -9),
    ("Segmentation fault", -11),
    ("Aborted", -6),
    ("Bus error", -7),
    ("Terminated", -15),
)

Match = re.Match[str]
_Read = Callable[[RankFacts, LogLine, Match], None]


@dataclass(frozen=True, slots=True)
class LauncherLine:
    """One kind of line."""

    words: tuple[str, ...]  # of which such a line holds one; without digits, for shapes of lines have none
    pattern: re.Pattern[str]
    read: _Read
    mark: str  # finds the shape of such a line


_LINES: list[LauncherLine] = []


def _reads(*words: str, pattern: str, mark: str = "") -> Callable[[_Read], _Read]:
    """Add the function to the table: it notes what a line with one of the words and the pattern shows."""

    def add(read: _Read) -> _Read:
        found = mark or "|".join(map(re.escape, words))
        _LINES.append(LauncherLine(words, re.compile(pattern), read, found))
        return read

    return add


def read_launcher_line(facts: RankFacts, line: LogLine) -> None:
    """Note what the line shows of ranks."""
    if facts.read_row(line):
        return
    for one in _LINES:
        if any([word in line.whole for word in one.words]) and (match := one.pattern.search(line.whole)):
            one.read(facts, line, match)


# --- how ranks ended


@_reads("exits with return code", pattern=r"exits with return code = (-\d+)\b")
def _deepspeed_returned(facts: RankFacts, line: LogLine, match: Match) -> None:
    # DeepSpeed's launcher does not name the rank.
    facts.exits.append(_exit(line, code=int(match[1]), host=line.speaker.host))


@_reads("failed (exitcode", pattern=r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
def _torchrun_failed(facts: RankFacts, line: LogLine, match: Match) -> None:
    code, local, pid = (int(part) for part in match.groups())
    facts.exits.append(
        _exit(line, local_rank=local, task=line.speaker.task, host=line.speaker.host, pid=pid, code=code)
    )


@_reads("died, exit code", pattern=r"Worker \w+ pid (\d+) died, exit code: (-?\d+)")
def _vllm_worker_ended(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.exits.append(_exit(line, host=line.speaker.host, pid=int(match[1]), code=int(match[2])))


@_reads(
    "process unexpectedly failed",
    pattern=r"process unexpectedly failed with (?:an )?exit ?code[ =](-?\d+)\. pid=(\d+)",
)
def _sglang_child_ended(facts: RankFacts, line: LogLine, match: Match) -> None:
    code = int(match[1])
    status = code >> 8 if code > 255 else code  # older releases print what wait() returns
    facts.exits.append(_exit(line, host=line.speaker.host, pid=int(match[2]), code=status))


@_reads(
    *("exited with code", "crashed with exit code"),
    pattern=r"(?:Global rank (\d+) \(PID (\d+)\) exited with|\bRank (\d+) crashed with exit) code (-?\d+)",
)
def _composer_ended(facts: RankFacts, line: LogLine, match: Match) -> None:
    rank, pid = int(match[1] or match[3]), int(match[2]) if match[2] else None
    facts.exits.append(replace(_exit(line, rank=rank, pid=pid, code=int(match[4])), is_first=pid is None))


@_reads(
    *("scheduler is dead", "scheduler died during"),
    pattern=r"Rank (\d+) scheduler (?:is dead|died during initialization \(exit code: (-?\d+)\))",
)
def _sglang_scheduler_ended(facts: RankFacts, line: LogLine, match: Match) -> None:
    code = int(match[2]) if match[2] else None
    facts.exits.append(_exit(line, rank=int(match[1]), host=line.speaker.host, code=code))


@_reads("Exit code: ", pattern=r"Exit code: (-?\d+)$")
def _sglang_scheduler_had_code(facts: RankFacts, line: LogLine, match: Match) -> None:
    # Older releases write the number in a line of its own, after the one that names the rank.
    last = facts.exits[-1] if facts.exits else None
    if last is not None and last.code is None and "scheduler is dead" in last.quote:
        facts.exits[-1] = replace(last, code=int(match[1]))


@_reads("exited with code", pattern=r"Pod: (?:[\w-]+\.)?([\w-]+) exited with code (\d+)")
def _operator_saw_pod_end(facts: RankFacts, line: LogLine, match: Match) -> None:
    # Kubeflow's training operator.
    facts.exits.append(replace(_exit(line, code=int(match[2])), pod=match[1]))


@_reads("closing signal", pattern=r"Sending process (\d+) closing signal (?:Signals\.)?(SIG\w+)")
def _torchrun_stopped(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.stopped_pids.add(int(match[1]))


@_reads("will restart worker group", pattern="will restart worker group")
def _torchrun_restarts(facts: RankFacts, line: LogLine, match: Match) -> None:
    if len(facts.restarts) < _MAX_NOTED:
        facts.restarts.append(line.number)


@_reads("srun: error", pattern=r"srun: error: (\S+): tasks? ([\d,\-]+): (.*)")
def _srun_ended(facts: RankFacts, line: LogLine, match: Match) -> None:
    how = match[3]
    exited = _SRUN_CODE.search(how)
    signal = next((number for word, number in _SRUN_SIGNALS if word in how), None)
    code = int(exited[1]) if exited else signal
    for task in numbers_of(match[2]):
        facts.exits.append(_exit(line, task=task, host=short_host(match[1]), code=code, text=how))


@_reads(
    *("MPI_ABORT was invoked", "called MPI_Abort"),
    pattern=r"MPI_ABORT was invoked on rank (\d+) in communicator MPI_COMM_WORLD"
    r"|called MPI_Abort\(MPI_COMM_WORLD, -?\d+\) - process (\d+)",
)
def _rank_called_abort(facts: RankFacts, line: LogLine, match: Match) -> None:
    # The number that it gave is any: that it is no success is what counts.
    facts.exits.append(_exit(line, rank=int(match[1] or match[2]), code=1, text=match[0]))


@_reads("exited on signal", pattern=r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)")
def _mpirun_ended(facts: RankFacts, line: LogLine, match: Match) -> None:
    host, rank = short_host(match[3]), int(match[1])
    facts.hosts.setdefault(rank, host)
    facts.exits.append(_exit(line, rank=rank, host=host, pid=int(match[2]), code=-int(match[4])))


@_reads(
    "Child process with PID",
    pattern=r"\[rank: (\d+)\] Child process with PID (\d+) terminated with code (-?\d+)",
)
def _lightning_ended(facts: RankFacts, line: LogLine, match: Match) -> None:
    rank, pid, code = (int(part) for part in match.groups())
    facts.exits.append(_exit(line, rank=rank, host=line.speaker.host, pid=pid, code=code))


@_reads("Killed process", pattern=r"[Oo]ut of memory.*Killed process (\d+) \(([^)]*)\)")
def _kernel_killed(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.killed_pids.append(
        (line.number, short_host(line.speaker.host), int(match[1]), line.at, "out of memory")
    )


@_reads("segfault at", pattern=r"\b\S+\[(\d+)\]: segfault at")
def _kernel_saw_segfault(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.killed_pids.append((line.number, short_host(line.speaker.host), int(match[1]), line.at, "segfault"))


def _exit(
    line: LogLine,
    *,
    rank: int | None = None,
    local_rank: int | None = None,
    task: int | None = None,
    host: str = "",
    pid: int | None = None,
    code: int | None = None,
    text: str = "",
) -> Exit:
    quote = line.body.strip()
    return Exit(line.number, rank, local_rank, task, host, pid, code, line.at, text=text, quote=quote)


# --- who is missing


@_reads("keys: /", pattern=r"wait timeout after \d+ ?ms, keys: (/\S*?)/?(\d+)(?![\w/])")
def _store_waited(facts: RankFacts, line: LogLine, match: Match) -> None:
    if "/default_pg/" in match[1] + "/":
        facts.miss(line, (int(match[2]),), at_start=True)


@_reads("clients joined", pattern=r"(\d+)/(\d+) clients joined")
def _store_counted(facts: RankFacts, line: LogLine, match: Match) -> None:
    text, joined = shorten_text(line.body.strip(), 300), (int(match[1]), int(match[2]))
    facts.absences.append(Absence(line.number, line.speaker, line.at, text, (), joined))


@_reads(
    "monitoredBarrier",
    pattern=r"[Rr]anks? (?P<missed>\d+(?:, ?\d+)*) failed to pass monitoredBarrier"
    r"|while waiting for send/recv from rank (?P<waited>\d+)",
)
def _barrier_missed(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.miss(line, _ranks_in(match["missed"] or match["waited"]), by_rank_0=match["missed"] is not None)


@_reads("[missing ranks: ", pattern=r"\[missing ranks: (\d+(?:, ?\d+)*)\]")
def _horovod_missed(facts: RankFacts, line: LogLine, match: Match) -> None:
    # Horovod up to 0.18.
    facts.miss(line, _ranks_in(match[1]))


_OF_HOROVOD = r"(?:[\w./-]*Horovod\w|(?:allreduce|allgather|broadcast|alltoall|reducescatter)\.)"


@_reads(
    *("Horovod", "allreduce.", "allgather.", "broadcast.", "alltoall.", "reducescatter."),
    pattern=r"(?:^|[>:\s])(\d+): \[" + _OF_HOROVOD,
    mark=r": \[" + _OF_HOROVOD,
)
def _horovod_missed_by_rank(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.miss(line, _ranks_in(match[1]), line.whole[match.start(1) :])


@_reads("ncclUniqueId from", pattern=r"retr(?:ie|ei)ving ncclUniqueId from \[(\d+)\]")
def _unique_id_missed(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.miss(line, (int(match[1]),), at_start=True)


@_reads(
    "/job:",
    pattern=r"^/job:\w+/replica:\d+/task:(\d+)$|/job:\w+/replica:\d+/task:(\d+) "
    r"(?:heartbeat timeout|unexpectedly tried to connect with a different incarnation)",
    mark=r"^/job:|/job:.*(?:heartbeat timeout|different incarnation)",
)
def _jax_missed(facts: RankFacts, line: LogLine, match: Match) -> None:
    # Below `Barrier timed out. ... Timed out task names:`; or its heartbeat stopped, or it started anew.
    facts.miss(line, (int(match[1] or match[2]),))


def _ranks_in(text: str) -> tuple[int, ...]:
    return tuple(int(rank) for rank in text.split(","))


# --- what watchdogs counted


@_reads(
    "WorkNCCL(",
    pattern=r"Rank (\d+)\][^\[]{0,80}Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?(?:, NumelOut=(\d+))?",
)
def _watchdog_caught(facts: RankFacts, line: LogLine, match: Match) -> None:
    found = facts.watchdog(_rank_in_job(line, match[1]), "", line)
    found.work, found.operation = int(match[2]), match[3]
    found.elements = int(match[4]) if match[4] else -1
    if match[5] and ("ALLGATHER" in match[3] or "REDUCE_SCATTER" in match[3]):
        small, large = sorted((int(match[4]), int(match[5])))
        # Each rank has one part of the larger.
        facts.world_size = max(facts.world_size, large // max(small, 1))


_OF_GROUP = r"(?:PG (?:ID )?(?P<group>\S+)(?: PG GUID (?P<guid>\S+?))? )?[Rr]ank (?P<rank>\d+)\]"


@_reads(
    "last enqueued",
    pattern=_OF_GROUP + r".*?(?:[Ww]ork(?: sequence id)?): ?(?P<work>\d+)"
    r".*last enqueued(?: NCCL)? work: (?P<enqueued>-?\d+),"
    r" last completed(?: NCCL)? work: (?P<completed>-?\d+)",
)
def _watchdog_counted(facts: RankFacts, line: LogLine, match: Match) -> None:
    found = facts.watchdog(_rank_in_job(line, match["rank"]), match["guid"] or match["group"] or "", line)
    found.work = int(match["work"])
    found.enqueued, found.completed = int(match["enqueued"]), int(match["completed"])


@_reads(
    "Last enqueued",
    pattern=_OF_GROUP + r" Received a dump signal"
    r".*Last enqueued \w+ work: (?P<enqueued>-?\d+), last completed \w+ work: (?P<completed>-?\d+)",
)
def _watchdog_dumped(facts: RankFacts, line: LogLine, match: Match) -> None:
    found = facts.watchdog(_rank_in_job(line, match["rank"]), match["guid"] or match["group"] or "", line)
    found.enqueued, found.completed = int(match["enqueued"]), int(match["completed"])


@_reads(
    "CollectiveFingerPrint",
    pattern=_FINGERPRINT.pattern,
)
def _ranks_differ(facts: RankFacts, line: LogLine, match: Match) -> None:
    # One line names two ranks.
    if len(facts.fingerprints) < _MAX_NOTED:
        facts.fingerprints += [
            (line.number, int(rank), what) for rank, what in _FINGERPRINT.findall(line.whole)
        ]


@_reads("op.preamble.length", pattern=r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
def _gloo_overflowed(facts: RankFacts, line: LogLine, match: Match) -> None:
    if len(facts.overflows) < _MAX_NOTED:
        facts.overflows.append((line.number, int(match[1]), int(match[2])))


def _rank_in_job(line: LogLine, named: str) -> int:
    """The rank that a watchdog names, by the line's prefix: the line itself counts within a process group."""
    return line.speaker.rank if line.speaker.rank is not None else int(named)


# --- who is where


@_reads(
    *("Init COMPLETE", "Init START"),
    pattern=r"\brank (\d+) n(?:ranks|Ranks) (\d+) cudaDev (\d+)(?:.*? busId ([0-9a-f]+))?",
)
def _nccl_placed_rank(facts: RankFacts, line: LogLine, match: Match) -> None:
    if not line.speaker.host:
        return
    # Only of the communicator that may be the one of all ranks: ranks of smaller ones are other numbers.
    size = int(match[2])
    facts.world_size = max(facts.world_size, size)
    if size != facts.world_size:
        return
    rank, host = int(match[1]), short_host(line.speaker.host)
    facts.hosts.setdefault(rank, host)
    facts.ranks_of_local.setdefault((host, int(match[3])), rank)
    if line.speaker.pid is not None:
        facts.ranks_of_pids.setdefault((host, line.speaker.pid), rank)
    if match[4]:
        facts.bus_ids.setdefault((host, match[4]), rank)


@_reads(
    *("Bootstrap : Using", "Bootstrap: Using", "OOB "),
    pattern=r"(?:Bootstrap ?: Using \[?\d*\]?\S*?|OOB \S+?):(\d+\.\d+\.\d+\.\d+)<",
)
def _nccl_has_address(facts: RankFacts, line: LogLine, match: Match) -> None:
    if line.speaker.host:
        facts.addresses.setdefault(match[1], short_host(line.speaker.host))


@_reads(
    "Got completion",
    pattern=r"Got completion from peer ([^\s<]+)<\d+> with (?:error |status=)(?:IBV_WC_\w+\()?(\d+)",
)
def _nccl_completed_with_error(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.peers.append((line.number, line.speaker, match[1], int(match[2])))


@_reads("closed by remote peer", pattern=r"Connection closed by remote peer ([^\s<]+)<\d+>")
def _nccl_lost_peer(facts: RankFacts, line: LogLine, match: Match) -> None:
    if len(facts.lost) < _MAX_NOTED:
        facts.lost.append((line.number, line.speaker, match[1]))


@_reads("node_rank", "node-rank", pattern=r"node[_-]rank['\"]?[= :]+(\d+)")
def _launcher_has_node_rank(facts: RankFacts, line: LogLine, match: Match) -> None:
    if facts.node_rank is None:
        facts.node_rank = int(match[1])


@_reads("global_ranks", pattern=r"global_ranks=\[([\d, ]+)\]")
def _torchrun_assigned(facts: RankFacts, line: LogLine, match: Match) -> None:
    for local, rank in enumerate(match[1].split(",")):
        facts.ranks_of_local.setdefault(("", local), int(rank))


@_reads("Name:", pattern=r"^Name: +([\w.-]+)$", mark="^Name: ")
def _kubectl_named_pod(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.pod = match[1]


@_reads("Node:", pattern=r"^Node: +([\w.-]+)/", mark=r"^Node: ")
def _kubectl_named_node(facts: RankFacts, line: LogLine, match: Match) -> None:
    if facts.pod:
        facts.pod_hosts[facts.pod] = short_host(match[1])


@_reads(
    "Linux ",
    pattern=r"\bLinux ([\w.-]+) \d\S* #\S+ ?(?:SMP|PREEMPT)",
    mark=r"Linux \S+ .*(?:SMP|PREEMPT)",
)
def _uname_printed(facts: RankFacts, line: LogLine, match: Match) -> None:
    facts.own_host = facts.own_host or short_host(match[1])


_WRITES = r"(?:[Ss]aved|[Ww]ritten|[Ww]rote|[Ss]aving)\b[^/]{0,60} /"


@_reads(*("aved", "aving", "ritten", "rote"), pattern=_WRITES + r"[^\s'\",:;]+/[^\s'\",:;]+", mark=_WRITES)
def _file_written(facts: RankFacts, line: LogLine, match: Match) -> None:
    if len(facts.saved) < _MAX_NOTED:
        path = match[0][match[0].index(" /") + 1 :]
        facts.saved.setdefault(path, (line.number, line.speaker))


# --- the table as a whole

LAUNCHER_LINES = tuple(_LINES)
# torchrun's table of failures: its lines are read together, by `RankFacts.read_row`.
_ROW_WORDS = ("      : ", "exitcode", "error_file: ", "traceback : ", "Root Cause (first")
_ROW_MARK = r"(?:time|host|rank)      : |exitcode  ?: |error_file: |traceback : |Root Cause \(first"
LAUNCHER_WORDS = (*_ROW_WORDS, *(word for one in LAUNCHER_LINES for word in one.words))
# A line whose shape it does not find is not read.
LAUNCHER_MARK = re.compile("|".join((_ROW_MARK, *(one.mark for one in LAUNCHER_LINES))).encode())
