"""This agent's own ranks: started through one template process, watched from outside, and ended."""

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpudiag.linux.proc import (
    DEAD_STATES,
    STOPPED_STATES,
    Stat,
    find_process,
    has_gpu_open,
    is_alive,
    read_wait_channel,
)
from gpudiag.model import codec
from gpudiag.model.evidence import Evidence
from gpudiag.model.script import explanation
from gpudiag.model.untrusted_text import shorten_text
from gpudiag.ranks.agents.fork_server import ForkServer, OwnTemplate, TemplateProcess
from gpudiag.ranks.agents.own_addresses import find_listener
from gpudiag.ranks.agents.run_directory import RunDirectory
from gpudiag.ranks.agents.tcp_counters import is_connected_to
from gpudiag.ranks.diagnosis import evidence
from gpudiag.ranks.diagnosis.control_group import GroupWatch
from gpudiag.ranks.diagnosis.dump import DumpFiles, RankDump, collect_dumps
from gpudiag.ranks.diagnosis.host_load import HostLoad
from gpudiag.ranks.diagnosis.start_error import StartFailure, slow_start
from gpudiag.ranks.diagnosis.view import Life, RaisedError, RankView
from gpudiag.ranks.event_log import EventReader
from gpudiag.ranks.rank.board import PositionBoard
from gpudiag.ranks.rank.job import Job, LocalRank
from gpudiag.ranks.rank_run import EventKind, RankEvent
from gpudiag.ranks.stages import RENDEZVOUS, Position

# --- what is known of one rank

# The template reports a rank's end within milliseconds. If it cannot (it was stopped), a process that has
# looked dead for this long counts as ended without the report.
_UNKNOWN_END_SECONDS = 1.0

# A rank that has not moved for this long: read which collectives it entered last.
HISTORY_SECONDS = 0.3

# How often a rank's control groups are looked up, and how often their quota is read; and how long a rank
# must have stood still before it is checked for being frozen.
_GROUP_SECONDS = 0.5
_QUOTA_SECONDS = 1.0
_FROZEN_LOOK_SECONDS = 0.2
# Shown as the state of a process that its control group has frozen: /proc shows D (v1) or S (v2) then.
FROZEN_STATE = "F"

# How often to look whether a rank in the rendezvous has reached the store there.
_CONNECTION_SECONDS = 0.5

# Before a rank that stands still can be blamed, check once whether a GPU driver may be holding it.
_GPU_SECONDS = 0.7


@dataclass(slots=True)
class RankRecord:
    """What has been seen of one rank so far; `view` is what the watchdog gets of it."""

    local: LocalRank
    events: EventReader
    seen: RankView  # times are CLOCK_MONOTONIC
    cpu_seconds_total: float = 0.0
    cpu_seconds_when_moved: float = 0.0
    looked_for_gpu: bool = False  # since it last moved
    store_port: int | None = None  # where ranks have their rendezvous, if that is by TCP
    connected: bool = False  # to the store there, since it entered that stage
    connection_looked_at: float = 0.0
    groups: GroupWatch = field(default_factory=GroupWatch)
    groups_looked_at: float = 0.0
    quota_read_at: float = 0.0
    dead_since: float | None = None  # when it was first seen dead, until the template reports its end
    traced: bool = False

    def add_start(self, pid: int, at: float) -> None:
        """Record that the rank was forked."""
        self.seen = replace(self.seen, pid=pid, life=Life.ALIVE, changed_at=at, still_seconds=0.0)

    def add_end(self, exit_status: int | None, at: float) -> None:
        """Record the end of the rank's process: its exit status or minus a signal; None if not known."""
        self.seen = replace(self.seen, exit=exit_status, life=Life.ENDED, changed_at=at)

    def add_traces(self, *traces: Evidence) -> None:
        """Record evidence of how the rank ended."""
        self.seen = replace(self.seen, traces=(*self.seen.traces, *traces))

    def add_events(self, events: Sequence[RankEvent]) -> None:
        """Record from the rank's events how its entry ended."""
        for event in events:
            data = event.data
            if event.kind is EventKind.RESULT:
                self.seen = replace(self.seen, finished=True, finished_at=event.at_seconds)
            elif event.kind is EventKind.RAISED:
                error = RaisedError(data["type"], data["message"], data["place"], event.at_seconds)
                self.seen = replace(self.seen, raised=error)

    def add_look(
        self,
        now: float,
        watched: float,
        position: Position | None,
        state: Stat | None,
        load: float = 1.0,
    ) -> None:
        """Record a look at the rank, `watched` seconds after the last one, on a host with this load."""
        if self.seen.running:
            self._add_process(now, state, load)
        if position is None or position.is_same_place(self.seen.position):
            still_seconds = self.seen.still_seconds + watched
        else:
            still_seconds, self.cpu_seconds_when_moved = 0.0, self.cpu_seconds_total
            self.looked_for_gpu, self.connected = False, False
        self.seen = replace(self.seen, seen_at=now, position=position, still_seconds=still_seconds)
        self._look_for_connection(now)

    @property
    def connecting(self) -> bool:
        """Whether it is in the rendezvous, without a connection to the store yet, as far as can be seen."""
        return self.seen.stage == RENDEZVOUS and self.store_port is not None and not self.connected

    @property
    def knows_history(self) -> bool:
        """Whether its last collectives are worth reading: they change until it stands still or has ended."""
        return self.seen.life is Life.ENDED or self.seen.still_seconds >= HISTORY_SECONDS

    def view(self, host: str, load: float = 1.0) -> RankView:
        """The record for the watchdog, with the host's load; times are CLOCK_MONOTONIC."""
        cpu_seconds = self.cpu_seconds_total - self.cpu_seconds_when_moved
        return replace(self.seen, host=host, load=load, cpu_seconds=cpu_seconds, connecting=self.connecting)

    def _look_for_connection(self, now: float) -> None:
        pid = self.seen.pid
        if not self.connecting or pid is None or self.store_port is None:
            return
        if now - self.connection_looked_at >= _CONNECTION_SECONDS:
            self.connection_looked_at = now
            self.connected = bool(is_connected_to(pid, self.store_port))

    def _add_process(self, now: float, state: Stat | None, load: float) -> None:
        if state is None or state.state in DEAD_STATES:
            self._add_unknown_end(now, _UNKNOWN_END_SECONDS * load)
            return
        self.seen, self.cpu_seconds_total = replace(self.seen, process_state=state.state), state.cpu_seconds
        if not self.looked_for_gpu and self.seen.still_seconds >= _GPU_SECONDS:
            self.looked_for_gpu, has_gpu = True, has_gpu_open(state.pid)
            channel = read_wait_channel(state.pid) or None
            self.seen = replace(self.seen, has_gpu=has_gpu, wait_channel=channel)
        self._look_at_groups(now, state.pid)
        stopped = state.state in STOPPED_STATES or self.seen.frozen_by is not None
        if stopped != (self.seen.life is Life.STOPPED):
            life = Life.STOPPED if stopped else Life.ALIVE
            self.seen = replace(self.seen, life=life, changed_at=now, still_seconds=0.0)

    def _look_at_groups(self, now: float, pid: int) -> None:
        if now - self.groups_looked_at >= _GROUP_SECONDS:
            self.groups_looked_at = now
            self.groups.look(pid)
            # Read rarely: a quota need not be noticed within seconds, and its files are read one by one.
            if now - self.quota_read_at >= _QUOTA_SECONDS:
                self.quota_read_at = now
                self.seen = replace(self.seen, quota=self.groups.quota())
        seen = self.seen
        rests = seen.still_seconds >= _FROZEN_LOOK_SECONDS or seen.frozen_by is not None
        frozen_by = self.groups.frozen_by() if rests else None
        shown = seen.process_state if frozen_by is None else FROZEN_STATE
        if (frozen_by, shown) != (seen.frozen_by, seen.process_state):
            self.seen = replace(seen, frozen_by=frozen_by, process_state=shown)

    def _add_unknown_end(self, now: float, patience_seconds: float) -> None:
        if self.dead_since is None:
            self.dead_since = now
        elif now - self.dead_since >= patience_seconds:
            self.add_end(None, self.dead_since)
            self.add_traces(evidence.of_unknown_end())


# --- all ranks of this agent

_WHOLE_BYTES = 3000
_HEAD_BYTES = 500
_TAIL_BYTES = 1500
_LINES_AT_MOST = 12
_LINE_CHARACTERS = 300
_READ_BYTES = 1 << 20  # from the start, and from the end: a rank may write for hours
_EXPLAINS = re.compile(
    r"error|exception|warn|fatal|failed|out of memory|terminate called|what\(\)|abort|assert|xid|timed? ?out",
    re.IGNORECASE,
)
# Of a C++ or Python stack: never an explaining line.
_FRAME = re.compile(r"^\s*(frame #\d+|#\d+ |File \"|at )")

_KERNEL_LOG = "/dev/kmsg"
_KILLED = re.compile(r"out of memory: killed process (?P<pid>\d+) ", re.IGNORECASE)
# The line before it, which names the group whose limit was reached (mm/oom_kill.c of the kernel).
_LIMITED = re.compile(r"oom-kill:.*oom_memcg=(?P<group>[^,]*),.*\bpid=(?P<pid>\d+),")

# What torch's TCPStore raises if it cannot listen (torch/csrc/distributed/c10d/socket.cpp).
_TAKEN_PORT = re.compile(r"port: (?P<port>\d+),.*EADDRINUSE", re.DOTALL)

# A killed process is gone within milliseconds, unless it is in uninterruptible sleep.
_END_SECONDS = 2.0
# The driver destroys CUDA contexts one after the other before their processes are gone: memory is unmapped,
# kernels end. Three seconds is our choice; more than two seconds for eight contexts have been published.
_CONTEXT_SECONDS = 3.0

# The agent polls ten times a second. If it did not for this long, it was not running itself (a suspended,
# paused or overloaded machine), and neither did the ranks: that time counts as one look.
_OWN_PAUSE_SECONDS = 0.5
_ONE_LOOK_SECONDS = 0.1


def read_last_words(path: Path) -> str:
    """The text of the file, shortened if it is long; empty if the file is empty or missing."""
    try:
        with path.open("rb") as file:
            data = file.read(_READ_BYTES)
            rest = max(len(data), path.stat().st_size - _READ_BYTES)
            file.seek(rest)
            data += file.read(_READ_BYTES)
    except OSError:
        return ""
    return shorten(data)


def shorten(data: bytes) -> str:
    """The text; if it is long, its start, the explaining lines in between (errors, warnings), and its end."""
    if len(data) <= _WHOLE_BYTES:
        return data.decode(errors="replace").strip()
    head = data[:_HEAD_BYTES].rpartition(b"\n")[0] or data[:_HEAD_BYTES]
    tail = data[-_TAIL_BYTES:].partition(b"\n")[2] or data[-_TAIL_BYTES:]
    between = data[len(head) : len(data) - len(tail)].decode(errors="replace").splitlines()
    explaining = list(
        dict.fromkeys(
            shorten_text(line.strip(), _LINE_CHARACTERS)
            for line in between
            if _EXPLAINS.search(line) and not _FRAME.match(line)
        )
    )
    parts = [head.decode(errors="replace").strip(), *_cut(explaining), tail.decode(errors="replace").strip()]
    return "\n".join(parts)


def _cut(lines: list[str]) -> list[str]:
    """The first of the lines, between marks that show that lines were left out."""
    return ["[...]", *lines[:_LINES_AT_MOST], "[...]"] if lines else ["[...]"]


class OomWatch:
    """Reads the kernel log from where it ended at the start, so that only later OOM kills count."""

    def __init__(self) -> None:
        """Seek to the end of the kernel log, if we may read it."""
        self._lines: list[str] = []
        self._log = -1
        with contextlib.suppress(OSError):  # kernel.dmesg_restrict, or a container without the device
            self._log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def read_evidence(self, pid: int) -> tuple[Evidence, ...]:
        """What the kernel log has about process `pid`; empty if nothing, or if it cannot be read."""
        self._lines += self._read_log()
        facts = [
            Evidence("oom_killer", line, source="kernel log")
            for line in self._lines
            if killed_pid(line) == pid
        ]
        groups = [group for line in self._lines if (group := limited_group(line, pid)) is not None]
        return (*facts, *(Evidence("oom_group", group, source="kernel log") for group in groups[-1:]))

    def close(self) -> None:
        """Close the kernel log; a second call does nothing."""
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
            except BrokenPipeError:  # the kernel has overwritten the next records; continue with what is left
                continue
            if not record:
                break
            lines.append(record.decode(errors="replace").partition(";")[2].partition("\n")[0])
        return lines


def killed_pid(line: str) -> int | None:
    """The pid of the process that, by this line of the kernel log, the OOM killer killed; None if none."""
    match = _KILLED.search(line)
    return int(match["pid"]) if match else None


def limited_group(line: str, pid: int) -> str | None:
    """The control group whose limit got process `pid` killed, by this line of the log; None if none."""
    match = _LIMITED.search(line)
    return match["group"] if match and int(match["pid"]) == pid else None


class LocalRanks:
    """The template process and its ranks; `poll` looks at each of them once, `end` kills them all."""

    def __init__(
        self, job: Job, directory: RunDirectory, explanations: Callable[[], Sequence[str]] | None = None
    ) -> None:
        """Prepare to run `job` without starting it; `explanations` returns what libraries printed."""
        self._explanations = explanations
        own_groups = GroupWatch()
        own_groups.look(os.getpid())
        self.records = tuple(
            RankRecord(
                local,
                EventReader(directory.events_path(local.rank), local.rank),
                RankView(local.rank, local.local_rank, host="", life=Life.NOT_STARTED),
                store_port=job.store_port,
                groups=GroupWatch(own_groups),
            )
            for local in job.ranks
        )
        self.start_failure: StartFailure | None = None
        self.import_seconds: float | None = None
        self.settings: dict[str, str] = {}  # what the template has that all ranks of the run need alike
        self._by_rank = {record.local.rank: record for record in self.records}
        self._job = job
        self._directory = directory
        self._oom = OomWatch()
        self._load = HostLoad()
        self._board = PositionBoard.create(len(job.ranks))
        self._socket, self._template_socket = socket.socketpair()
        self._socket.setblocking(False)
        self._received = b""
        self._template: TemplateProcess | None = None
        self._template_ended = False
        self._ended = False
        self._looked_at = time.monotonic()

    @property
    def world_size(self) -> int:
        """How many ranks the run has, on all machines."""
        return self._job.world_size

    @property
    def load(self) -> float:
        """How many times longer things take on this host than if it were idle."""
        return self._load.factor()

    def filenos(self) -> list[int]:
        """The descriptors to wait for; none once the template has closed its socket."""
        return [] if self._ended or self._template_ended else [self._socket.fileno()]

    def start(
        self,
        python: str | None = None,
        variables: Mapping[str, str] | None = None,
        server: ForkServer | None = None,
    ) -> None:
        """Start the template, with `variables` in its environment too: forked by the server, or in `python`.

        Raises:
            OSError: the interpreter cannot be executed.
        """
        job_path = self._directory.path / "job.json"
        job_path.write_text(json.dumps(codec.encode(self._job)))
        output = self._directory.path / "template.stderr"
        descriptors = (self._template_socket.fileno(), self._board.descriptor)
        given = variables or {}
        if server is None:
            self._template = OwnTemplate(python, job_path, output, descriptors, given)
        else:
            self._template = server.fork_template(job_path, output, descriptors, given, self._job.preload)
        self._template_socket.close()

    def poll(self) -> list[RankEvent]:
        """Look at every rank once; return the events written since the last call, by CLOCK_MONOTONIC."""
        if self._ended:
            return []
        self._read_messages()
        now = time.monotonic()
        watched, self._looked_at = watched_seconds(now - self._looked_at), now
        load = self._load.factor()
        events: list[RankEvent] = []
        for index, record in enumerate(self.records):
            state = None if record.seen.pid is None else find_process(record.seen.pid)
            position = self._board.read_position(index, history=record.knows_history)
            record.add_look(now, watched, position, state, load)
            new = record.events.read_new()
            record.add_events(new)
            events += new
            if record.seen.life is Life.ENDED and record.seen.exit != 0:
                self._keep_traces(record)
        return events

    def views(self, host: str) -> tuple[RankView, ...]:
        """Every rank as the watchdog sees it; times are CLOCK_MONOTONIC."""
        load = self._load.factor()
        return tuple(record.view(host, load) for record in self.records)

    def limit_start(self, seconds: float, limit_seconds: float) -> None:
        """Take the start for failed if it took that long, and longer than the limit on this host's load."""
        limit = limit_seconds * self.load
        starting = any(record.seen.life is Life.NOT_STARTED for record in self.records)
        if starting and self.start_failure is None and seconds > limit:
            self.start_failure = slow_start(limit, self._job.preload)

    def live_pids(self) -> list[int]:
        """The processes of ranks that have not ended."""
        return [
            record.seen.pid
            for record in self.records
            if record.seen.pid is not None and record.seen.life is not Life.ENDED
        ]

    def dump(self) -> tuple[RankDump, ...]:
        """Ask live ranks for their stacks; the answers that come within half a second."""
        asked = []
        for record in self.records:
            if record.seen.life is Life.ALIVE and record.seen.pid is not None:
                files = DumpFiles(self._directory.path, record.local.rank)
                files.ask(record.seen.pid)
                asked.append(files)
        return collect_dumps(asked)

    def _keep_traces(self, record: RankRecord) -> None:
        """Keep as evidence what a rank that ended badly wrote last, and what the OOM killer did to it."""
        if record.traced:
            return
        record.traced = True
        # If its exit status could not be read, the kernel log matters all the more.
        if record.seen.exit in (None, -signal.SIGKILL) and record.seen.pid is not None:
            record.add_traces(*self._oom.read_evidence(record.seen.pid), *record.groups.memory_evidence())
        port = None if record.seen.raised is None else taken_port(record.seen.raised.message)
        if port is not None and (who := find_listener(port)) is not None:
            record.add_traces(Evidence("port_taken_by", who, source="/proc/net/tcp"))
        crash = DumpFiles(self._directory.path, record.local.rank).stack_of_crash()
        if crash:
            record.add_traces(Evidence("stack", "\n".join(crash), source="stack when the signal came"))
        tail = self.stderr_tail(record.local.rank)
        if tail:
            record.add_traces(Evidence("stderr", tail, source=f"rank {record.local.rank}'s standard error"))
        if (
            self._explanations is not None and len(self.records) == 1
        ):  # with several ranks it is unknown which one a line came from
            record.add_traces(*map(explanation, self._explanations()))

    def stderr_tail(self, rank: int | None = None) -> str:
        """What a rank, or by default the template, wrote to stderr, shortened; empty if nothing."""
        if rank is not None:
            return read_last_words(self._directory.stderr_path(rank))
        own = read_last_words(self._directory.path / "template.stderr")
        return own or ("" if self._template is None else self._template.error_text())

    def end(self) -> tuple[int, ...]:
        """Kill all processes that are left; return the pids of ranks that did not die in time.

        They have two seconds, and three more for each that uses a GPU. A death that we cause is no incident.
        """
        if self._ended:
            return ()
        self._ended = True
        pids = [record.seen.pid for record in self.records if record.seen.pid is not None]
        contexts = sum(map(has_gpu_open, pids))
        self._socket.close()  # the template kills and reaps its ranks, and ends
        self._template_socket.close()
        deadline = time.monotonic() + end_seconds(contexts)
        if self._template is not None:
            self._template.end(deadline)
        for record in self.records:
            record.events.close()
        self._board.close()
        self._oom.close()
        while (alive := tuple(filter(is_alive, pids))) and time.monotonic() < deadline:
            time.sleep(0.005)
        return alive

    def _read_messages(self) -> None:
        ended = False
        with contextlib.suppress(BlockingIOError):
            while chunk := self._socket.recv(65536):
                self._received += chunk
            ended = True
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._add_message(json.loads(line))
        if ended:
            self._add_end_of_template()

    def _add_end_of_template(self) -> None:
        """Record why ranks ended, or never started, if the template ended before its ranks."""
        if self._template_ended:
            return
        self._template_ended = True
        status = None if self._template is None else self._template.exit_status()
        if all(record.seen.pid is None for record in self.records) and self.start_failure is None:
            self.start_failure = StartFailure("ended", {"exit": status})
        for record in self.records:
            if record.seen.pid is not None and record.seen.life is not Life.ENDED:
                # The kernel kills the ranks with their parent, and no process is left to reap their status.
                record.add_end(-signal.SIGKILL, time.monotonic())
                record.add_traces(evidence.of_lost_parent(status))

    def _add_message(self, message: dict[str, Any]) -> None:
        kind = message.pop("kind")
        if kind == "imported":
            self.import_seconds = message["seconds"]
            self.settings = message["settings"]
        elif kind == "forked":
            record = self._by_rank[message["rank"]]
            record.add_start(message["pid"], time.monotonic())
        elif kind == "exited":
            record = self._by_rank[message["rank"]]
            record.add_end(message["exit"], message["at"])
        else:
            self.start_failure = StartFailure(kind, message)


def end_seconds(contexts: int) -> float:
    """How many seconds killed ranks may take to be gone, if `contexts` of them use a GPU."""
    return _END_SECONDS + _CONTEXT_SECONDS * contexts


def taken_port(message: str) -> int | None:
    """The port that, by this exception's message, another process has taken; None if it names none."""
    match = _TAKEN_PORT.search(message)
    return int(match["port"]) if match else None


def watched_seconds(gap_seconds: float) -> float:
    """Seconds of the gap between two looks that count as watched: one look's if this process was paused."""
    return gap_seconds if gap_seconds <= _OWN_PAUSE_SECONDS else _ONE_LOOK_SECONDS
