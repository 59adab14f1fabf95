"""The ranks of this machine: started through one template process, watched from outside, and ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudiag.model import codec
from gpudiag.model.evidence import Evidence
from gpudiag.ranks import evidence, process
from gpudiag.ranks.events import EventKind, EventReader
from gpudiag.ranks.job import Job, LocalRank
from gpudiag.ranks.position import Position, PositionBoard
from gpudiag.ranks.run_directory import RunDirectory
from gpudiag.ranks.start_error import StartFailure
from gpudiag.ranks.view import Life, RaisedError, RankView

_BOOT = Path(__file__).with_name("boot.py")

# A killed process is gone within milliseconds, unless it is in uninterruptible sleep.
_END_SECONDS = 2.0

# Between two looks at a rank at most this much counts as watched: when the agent itself did not run
# (a suspended or overloaded machine), neither did the ranks.
_WATCHED_AT_MOST_SECONDS = 0.5

_STDERR_TAIL_BYTES = 2000


@dataclass(slots=True)
class RankRecord:
    """What has been seen of one rank so far; `view` is the frozen form for the watchdog."""

    local: LocalRank
    events: EventReader
    life: Life = Life.NOT_STARTED
    pid: int | None = None
    exit: int | None = None
    seen_at: float = 0.0
    changed_at: float = 0.0
    finished: bool = False
    raised: RaisedError | None = None
    position: Position | None = None
    still_seconds: float = 0.0
    cpu_seconds_total: float = 0.0
    cpu_seconds_when_moved: float = 0.0
    process_state: str = ""
    traces: tuple[Evidence, ...] = ()

    def view(self, host: str) -> RankView:
        """The record as the watchdog sees it; its times are CLOCK_MONOTONIC."""
        return RankView(
            rank=self.local.rank,
            local_rank=self.local.local_rank,
            host=host,
            life=self.life,
            pid=self.pid,
            exit=self.exit,
            seen_at=self.seen_at,
            changed_at=self.changed_at,
            finished=self.finished,
            raised=self.raised,
            position=self.position,
            still_seconds=self.still_seconds,
            cpu_seconds=self.cpu_seconds_total - self.cpu_seconds_when_moved,
            process_state=self.process_state,
            traces=self.traces,
        )


class LocalRanks:
    """The template process and its ranks; `poll` looks at all of them once, `end` leaves none alive."""

    def __init__(self, job: Job, directory: RunDirectory) -> None:
        """Prepare to run `job`; nothing is started yet."""
        self.records = tuple(
            RankRecord(local, EventReader(directory.events_path(local.rank))) for local in job.ranks
        )
        self.start_failure: StartFailure | None = None
        self.import_seconds: float | None = None
        self._by_rank = {record.local.rank: record for record in self.records}
        self._job = job
        self._directory = directory
        self._board = PositionBoard.create(len(job.ranks))
        self._socket, self._template_socket = socket.socketpair()
        self._socket.setblocking(False)
        self._received = b""
        self._template: subprocess.Popen[bytes] | None = None
        self._template_ended = False
        self._ended = False
        self._looked_at = time.monotonic()

    def fileno(self) -> int:
        """A descriptor that is readable when the template has something to say."""
        return self._socket.fileno()

    def start(self, python: str | None = None, variables: Mapping[str, str] | None = None) -> None:
        """Start the template in `python` (this interpreter by default), with `variables` set beside ours.

        Raises:
            OSError: the interpreter cannot be executed.
        """
        job_path = self._directory.path / "job.json"
        job_path.write_text(json.dumps(codec.encode(self._job)))
        descriptors = (self._template_socket.fileno(), self._board.descriptor)
        with (self._directory.path / "template.stderr").open("wb") as output:
            self._template = subprocess.Popen(
                [python or sys.executable, str(_BOOT), str(job_path), *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=descriptors,
                start_new_session=True,  # the terminal's signals go to the agent alone
                env={**os.environ, **(variables or {})},
            )
        self._template_socket.close()

    def poll(self) -> list[tuple[int, dict[str, Any]]]:
        """Look at everything once; the events that ranks wrote since the last look, with their rank."""
        if self._ended:
            return []
        self._read_messages()
        now = time.monotonic()
        watched, self._looked_at = min(now - self._looked_at, _WATCHED_AT_MOST_SECONDS), now
        events: list[tuple[int, dict[str, Any]]] = []
        for index, record in enumerate(self.records):
            record.seen_at = now
            self._look_at(index, record, watched)
            new = record.events.read_new()
            _take_events(record, new)
            events += [(record.local.rank, event) for event in new]
            if record.life is Life.ENDED and record.exit != 0:
                self._keep_stderr(record)
        return events

    def views(self, host: str) -> tuple[RankView, ...]:
        """Every rank as the watchdog sees it; times are CLOCK_MONOTONIC."""
        return tuple(record.view(host) for record in self.records)

    def _keep_stderr(self, record: RankRecord) -> None:
        """Make what a rank that ended badly wrote last part of the evidence."""
        if any(trace.name == "stderr" for trace in record.traces):
            return
        tail = self.stderr_tail(record.local.rank)
        if tail:
            record.traces += (Evidence("stderr", tail, source=f"rank {record.local.rank}'s standard error"),)

    def stderr_tail(self, rank: int | None = None) -> str:
        """The last lines that a rank, or the template, wrote to its standard error; empty if none."""
        path = self._directory.path / "template.stderr" if rank is None else self._directory.stderr_path(rank)
        try:
            data = path.read_bytes()
        except OSError:
            return ""
        return data[-_STDERR_TAIL_BYTES:].decode(errors="replace").strip()

    def end(self) -> tuple[int, ...]:
        """Kill everything that is left; the pids of ranks that have not died within two seconds.

        What was last seen of the ranks stays as it is: an end that we bring about is no incident.
        """
        if self._ended:
            return ()
        self._ended = True
        self._socket.close()  # the template kills and reaps its ranks, and ends
        self._template_socket.close()
        deadline = time.monotonic() + _END_SECONDS
        if self._template is not None:
            self._end_template(self._template, deadline)
        for record in self.records:
            record.events.close()
        self._board.close()
        pids = [record.pid for record in self.records if record.pid is not None]
        while (alive := tuple(filter(process.is_alive, pids))) and time.monotonic() < deadline:
            time.sleep(0.005)
        return alive

    def _end_template(self, template: subprocess.Popen[bytes], deadline: float) -> None:
        """Give the template time to reap its ranks, then kill its process group, then reap it.

        In that order: the number of a group cannot be given to another one before it is reaped.
        """
        patience = min(deadline, time.monotonic() + 1.0)
        while not _has_ended(template.pid) and time.monotonic() < patience:
            time.sleep(0.002)
        process.kill_group(template.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            template.wait(max(0.1, deadline - time.monotonic()))

    def _read_messages(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := self._socket.recv(65536):
                self._received += chunk
            self._take_end_of_template()
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._take_message(json.loads(line))

    def _take_end_of_template(self) -> None:
        """Draw the conclusion from the template's end, where it did not end because its ranks had."""
        if self._template_ended:
            return
        self._template_ended = True
        status = None if self._template is None else _exit_of(self._template.pid)
        if all(record.pid is None for record in self.records) and self.start_failure is None:
            self.start_failure = StartFailure("ended", {"exit": status})
        for record in self.records:
            if record.pid is not None and record.life is not Life.ENDED:
                # The kernel kills the ranks with their parent, and nobody was left to read how they ended.
                record.life, record.changed_at = Life.ENDED, time.monotonic()
                record.exit = -signal.SIGKILL
                record.traces += (evidence.of_lost_parent(status),)

    def _take_message(self, message: dict[str, Any]) -> None:
        kind = message.pop("kind")
        if kind == "imported":
            self.import_seconds = message["seconds"]
        elif kind == "forked":
            record = self._by_rank[message["rank"]]
            record.pid, record.life, record.changed_at = message["pid"], Life.ALIVE, time.monotonic()
            record.still_seconds = 0.0
        elif kind == "exited":
            record = self._by_rank[message["rank"]]
            record.exit, record.life, record.changed_at = message["exit"], Life.ENDED, message["at"]
        else:
            self.start_failure = StartFailure(kind, message)

    def _look_at(self, index: int, record: RankRecord, watched: float) -> None:
        position = self._board.read_position(index)
        if record.pid is None or record.life is Life.ENDED:
            record.still_seconds += watched
            record.position = position
            return
        state = process.read_process(record.pid)
        if state is not None:
            record.process_state, record.cpu_seconds_total = state.state, state.cpu_seconds
        stopped = record.process_state in process.STOPPED_STATES
        if stopped != (record.life is Life.STOPPED):
            record.life = Life.STOPPED if stopped else Life.ALIVE
            record.changed_at = time.monotonic()
            record.still_seconds = 0.0
        if position != record.position:
            record.position = position
            record.still_seconds, record.cpu_seconds_when_moved = 0.0, record.cpu_seconds_total
        else:
            record.still_seconds += watched


def _has_ended(pid: int) -> bool:
    """Whether our child has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody reaped it already
        return True


def _exit_of(pid: int) -> int | None:
    """How our child that closed its socket ended, as a status or minus a signal, without reaping it."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        time.sleep(0.002)
    return None


def _take_events(record: RankRecord, events: list[dict[str, Any]]) -> None:
    for event in events:
        data = event["data"]
        if event["kind"] == EventKind.RESULT:
            record.finished = True
        elif event["kind"] == EventKind.RAISED:
            record.raised = RaisedError(data["type"], data["message"], data["place"], event["at"])
