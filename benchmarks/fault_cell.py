"""One cell of the fault matrix: a fault injected into `gpudiag nccl-test` at a stage, and the report."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.launchers import command_of
from gpudiag.linux.proc import is_alive
from gpudiag.ranks.stages import INIT, MEASURE, STAGES, TEARDOWN, WARMUP

SPAWN = "spawn"
FAULTS = ("kill", "stop", "skip", "oom", "mismatch:op", "mismatch:size", "mismatch:dtype")

_COMMAND = ("-m", "gpudiag", "nccl-test", "--backend", "gloo", "--max-bytes", "8K", "--json")
_LIMIT_SECONDS = 120.0  # of one run; only a hang of gpudiag itself comes near it
_GONE_SECONDS = 2.0  # what is killed last needs a moment in the kernel
_LISTEN = "0A"  # state of a listening socket in /proc/net/tcp

_STAGES_WITH_COLLECTIVES = (INIT, WARMUP, MEASURE)  # nccl-test verifies without any
_KINDS = {"kill": "died", "stop": "stopped", "skip": "silent", "oom": "raised", "mismatch": "mismatched"}
_NO_CAUSE = ("late", "throttled", "paused", "interrupted")  # warnings of what ended no run
_MARK = "GPUDIAG_BENCHMARK_MARK"


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault at one stage, as a launcher's ranks meet it."""

    launcher: str
    fault: str  # kill, or mismatch:size
    stage: str

    def specification(self, rank: int) -> str:
        """The argument of `--inject`."""
        kind, _, what = self.fault.partition(":")
        return f"{kind}:{rank}@{self.stage}" + (f":{what}" if what else "")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one run reported, held against what was injected."""

    right: bool  # the only cause: that kind, that rank, that stage; and the exit status for it
    seconds: float | None  # from the fault to the verdict; None where one of them did not come
    processes_left: int
    ports_left: int
    answer: str


def all_cells(launchers: Sequence[str]) -> Iterator[Cell]:
    """Every fault at every stage where it makes sense."""
    for launcher in launchers:
        for fault in FAULTS:
            for stage in _STAGES_WITH_COLLECTIVES if fault.startswith("mismatch") else STAGES:
                yield Cell(launcher, fault, stage)


def observe(cell: Cell, rank: int, ranks: int) -> Observation:
    """Inject the fault once, and hold what comes back against it."""
    mark = uuid.uuid4().hex
    listening = _listening_sockets()
    try:
        program = subprocess.run(
            _command_line(cell, rank, ranks),
            capture_output=True,
            env={**os.environ, _MARK: mark},
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Observation(False, None, *_count_left(mark, listening), f"no end in {_LIMIT_SECONDS:.0f} s")
    left = _count_left(mark, listening)
    try:
        report: dict[str, Any] = json.loads(program.stdout)
    except ValueError:
        words = program.stderr.decode(errors="replace").strip()[-400:]
        return Observation(False, None, *left, f"exit {program.returncode}, no report: {words}")
    answer = _describe_cause(report, cell)
    kind = cell.fault.partition(":")[0]
    expected = f"{_KINDS[kind]} rank {rank} {cell.stage}, exit {_exit_status(cell)}"
    fault_at = report["injected"][0]["at_seconds"]
    seconds = None if fault_at is None else report["seconds"] - fault_at
    answer = f"{answer}, exit {program.returncode}"
    return Observation(answer == expected and seconds is not None, seconds, *left, answer)


def _command_line(cell: Cell, rank: int, ranks: int) -> list[str]:
    inject = ("--inject", cell.specification(rank))
    if cell.launcher == SPAWN:
        return [sys.executable, *_COMMAND, "--nproc", str(ranks), *inject]
    return [*command_of(cell.launcher, ranks), *_COMMAND, *inject]


def _describe_cause(report: dict[str, Any], cell: Cell) -> str:
    """Kind, rank and stage of the report's only cause, or of all of them."""
    incidents = [incident for incident in report["incidents"] if incident["kind"] not in _NO_CAUSE]
    described = []
    for incident in incidents:
        facts = {fact["name"]: fact["value"] for fact in incident["evidence"]}
        # A rank that stays out of a stage is still in the one before, and the report names both.
        skips = cell.fault == "skip"
        stage = facts.get("not_reached", "").removeprefix("stage ") if skips else incident["stage"]
        described.append(f"{incident['kind']} rank {incident['rank']} {stage}")
    return "; ".join(described) or "no incident"


def _exit_status(cell: Cell) -> int:
    """1; but a rank that ends badly after all results were complete is a warning."""
    return 0 if cell.stage == TEARDOWN and cell.fault in ("kill", "oom") else 1


def _count_left(mark: str, listening: frozenset[str]) -> tuple[int, int]:
    """Processes and listening ports of the run that are still there a moment after it has ended."""
    deadline = time.monotonic() + _GONE_SECONDS
    while any(left := (len(_marked(mark)), len(_left_ports(mark, listening)))):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def _marked(mark: str) -> list[int]:
    """The living processes that carry the mark in their environment."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes() and is_alive(int(path.parent.name)):
                found.append(int(path.parent.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def _left_ports(mark: str, before: frozenset[str]) -> frozenset[str]:
    """Listening sockets that are new and belong to no process but those of the run."""
    new = _listening_sockets() - before
    if not new:
        return new
    ours = {str(pid) for pid in _marked(mark)}
    return new - {inode for pid, inode in _sockets_by_process() if pid not in ours}


def _listening_sockets() -> frozenset[str]:
    """The inodes of all TCP sockets that listen on this machine."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return frozenset(row[9] for row in rows if row[3] == _LISTEN)


def _sockets_by_process() -> Iterator[tuple[str, str]]:
    """Process id and inode of every socket that a process holds."""
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield path.parts[2], target[len("socket:[") : -1]
