"""The recipe of `gpudiag run`: start the job and an agent beside it, wait, leave the verdict in a file."""

import json
import os
import secrets
import select
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from gpudiag.checks.job.stall_rule import StallRule
from gpudiag.compat import UTC
from gpudiag.errors import GpudiagError, UsageError
from gpudiag.linux.child import die_with_parent, drop_standard_files, name_process
from gpudiag.model.codec import dumps
from gpudiag.model.finding import Outcome
from gpudiag.model.job_run import JobRun, Stall
from gpudiag.model.run import Run, RunState
from gpudiag.model.untrusted_text import mask_words
from gpudiag.render.report_formats import formats_of
from gpudiag.runs.job_run.agent import Agent, WatchPlan
from gpudiag.runs.job_run.environment import RUN_VARIABLE, build_environment
from gpudiag.runs.job_run.folder import (
    SUFFIX,
    default_name,
    make_folder,
    remove_if_empty,
    remove_left_folders,
)
from gpudiag.runs.job_run.process import (
    PassedSignal,
    Supervision,
    Witness,
    block_signals,
    signal_name,
    start_job,
)
from gpudiag.runs.job_run.scratch import find_prefix, remove_files, remove_left_files
from gpudiag.runs.job_run.verdict import RunStart, build_verdict, find_outputs
from gpudiag.runs.output import require_writable, write_document
from gpudiag.shortage import shortage_of
from gpudiag.store.history import write_job
from gpudiag.store.state_folder import default_store

_VERDICT_SECONDS = 30.0  # reading the kernel log and the job's output, on a busy machine
_NO_VERDICT = "there is no verdict: the agent beside the job ended too early"
_LAST_LOOK_SECONDS = 5.0  # a signal that ends a job which stands still waits so long for a look at it


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The command, and how it is watched."""

    command: tuple[str, ...]
    verdict: Path | None = None
    rule: StallRule = field(default_factory=StallRule)
    kill_on_stall: bool = False
    nan_check: bool = False  # torch looks for NaN in what each rank puts into a collective
    store: str = field(default_factory=default_store)
    flags: tuple[str, ...] = ()  # as they were given, to start it again
    quiet: bool = False  # nothing is printed where the job ends well


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How the command ended, and whether the verdict was written."""

    wait_status: int
    verdict: Path


# Prints a verdict; the last word is `stall`, `end`, or `unwritten`.
Show = Callable[[JobRun, Path, str], None]


def run_job(plan: RunPlan, show: Show) -> RunEnd:
    """Run the command to its end; `show` prints in the agent's process.

    Raises:
        UsageError: the verdict cannot be written where it is to be.
        CommandNotFoundError: there is no such command.
        CommandRefusedError: it cannot be executed.
    """
    path = plan.verdict or default_verdict()
    require_writable(path)
    folder = path.resolve().with_suffix(SUFFIX)
    remove_left_folders(folder.parent)
    run_id = secrets.token_hex(8)
    remove_left_files(RUN_VARIABLE)
    scratch = find_prefix(run_id)
    environment = build_environment(
        plan.command, os.environ, folder, run_id, scratch, nan_check=plan.nan_check
    )
    made = make_folder(folder)
    start = RunStart(
        command=plan.command,
        host=socket.gethostname(),
        run_id=run_id,
        started=datetime.now(UTC),
        torch_version=environment.torch_version,
        variables=environment.added,
        folder=folder,
        outputs=find_outputs(),
        scratch=scratch,
        nan_check=plan.nan_check,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    mask = block_signals()
    try:
        witness = Witness()
        job_pid = start_job(plan.command, environment.variables, mask)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _remove_own(folder if made else None, scratch)
        raise
    try:
        link = _start_agent(plan, start, path, job_pid, show)
    except OSError as error:  # the job runs: it goes on
        words = (shortage_of(error) or error).args[0]
        print(f"gpudiag: the job is not watched, and has no verdict: {words}", file=sys.stderr)
        link = _AgentLink(None, *os.pipe())
    supervision = Supervision(job_pid, witness, link.look_before, link.send_signal)
    status = supervision.wait()
    link.send_end(status)
    if link.pid is not None and not supervision.wait_for(link.pid, _VERDICT_SECONDS):
        with suppress(ProcessLookupError):
            os.kill(link.pid, signal.SIGKILL)
    if witness.pid not in supervision.ended:  # else its pid may be another's by now
        witness.end()
    agent_status = None if link.pid is None else supervision.ended.get(link.pid)
    if agent_status != 0 and link.pid is not None:
        print("gpudiag: the agent beside the job did not write a verdict", file=sys.stderr)
        if agent_status is not None:  # else it was not waited for: its disk hangs, or the user wants to go
            _remember(plan, start, status, None)
    _remove_own(folder if made else None, scratch)
    return RunEnd(status, path)


def _remove_own(folder: Path | None, scratch: str | None) -> None:
    """Remove what gpudiag made for the job, but for a folder in which something is."""
    if folder is not None:
        remove_if_empty(folder)
    if scratch is not None:
        remove_files(scratch)


def default_verdict() -> Path:
    """`gpudiag-run-HOST-TIME-PID.json` in this folder.

    Raises:
        UsageError: no file can be made there, or the folder was removed.
    """
    hint = "name a file in a folder that you can write to: gpudiag run --verdict FILE -- COMMAND"
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise UsageError("the verdict cannot be written to this folder: it was removed", hint=hint) from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the verdict cannot be written to {folder}: no permission, or read-only", hint=hint)
    return folder / f"{default_name()}.json"


class _AgentLink:
    """The line to the agent's process; where it is gone, or never came (None), the job goes on without it."""

    def __init__(self, pid: int | None, replies: int, commands: int) -> None:
        self.pid = pid
        self._commands, self._replies = commands, replies

    def send_signal(self, seen: PassedSignal) -> None:
        """Send the agent a signal that came."""
        self._write({"signal": signal_name(seen.number), "at": seen.at, "passed_on": not seen.to_group})

    def look_before(self, number: int) -> None:
        """Let the agent look at a job that stands still, before a signal ends it; not for long."""
        self._write({"look": signal_name(number)})
        if select.select([self._replies], [], [], _LAST_LOOK_SECONDS)[0]:
            with suppress(OSError):
                os.read(self._replies, 64)

    def send_end(self, status: int) -> None:
        """Send the agent the end of the command."""
        self._write({"ended": status})

    def _write(self, command: dict[str, object]) -> None:
        with suppress(OSError):
            os.write(self._commands, json.dumps(command).encode() + b"\n")


def _start_agent(plan: RunPlan, start: RunStart, path: Path, job_pid: int, show: Show) -> _AgentLink:
    commands_read, commands = os.pipe()
    replies, replies_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(commands)
        os.close(replies)
        _run_agent(plan, start, path, job_pid, show, parent, (commands_read, replies_write))
    os.close(commands_read)
    os.close(replies_write)
    return _AgentLink(pid, replies, commands)


def _run_agent(
    plan: RunPlan,
    start: RunStart,
    path: Path,
    job_pid: int,
    show: Show,
    parent: int,
    descriptors: tuple[int, int],
) -> NoReturn:
    """Watch the job and write the verdict; the exit status shows whether it was written."""
    status = 1
    try:
        die_with_parent(parent)
        name_process("gpudiag-agent")
        drop_standard_files(0, 1)  # the job's input is the job's

        def report_stall(agent: Agent, stall: Stall) -> None:
            verdict = build_verdict(start, agent, None)
            with suppress(GpudiagError):
                write_document(path, dumps(verdict) + "\n")
            show(verdict, path, "stall")

        def announce(sentence: str) -> None:
            print(f"gpudiag: {sentence}", file=sys.stderr, flush=True)

        watch = WatchPlan(
            start.run_id, plan.rule, plan.command, plan.kill_on_stall, str(start.folder), start.scratch
        )
        agent = Agent(watch, job_pid, descriptors, report_stall, announce)
        wait_status = agent.watch()
        verdict = build_verdict(start, agent, wait_status)
        status = _leave(verdict, path, show)
        _remember(plan, start, wait_status, verdict)
    # Whatever it is, the job's end is reported by the other process.
    except BaseException as error:  # noqa: BLE001
        print(
            f"gpudiag: the agent beside the job failed, a bug of gpudiag: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        if os.environ.get("GPUDIAG_DEBUG"):
            import traceback

            traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def _leave(verdict: JobRun, path: Path, show: Show) -> int:
    """Write and print the verdict; the exit status of the agent."""
    try:
        write_document(path, dumps(verdict) + "\n")
    except GpudiagError as error:
        show(verdict, path, "unwritten")
        print(f"gpudiag: {error.message}: these lines are all that is left of the verdict", file=sys.stderr)
        return 0
    show(verdict, path, "end")
    return 0


def _remember(plan: RunPlan, start: RunStart, status: int, verdict: JobRun | None) -> None:
    """Store the ended run as one of this machine, and report where that fails; it never fails the job."""
    code = os.waitstatus_to_exitcode(status)
    run = Run(
        id=f"{start.started:%Y%m%d-%H%M%S}-{start.run_id[:6]}",
        kind="run",
        state=RunState.FAILED if verdict is None else RunState.SUCCEEDED,
        plan={},
        gpus=(),
        lock=(),
        command=shlex.join(mask_words(("gpudiag", "run", *plan.flags, "--", *plan.command))),
        deadline_seconds=None,
        requested_at=start.started,
        started_at=start.started,
        ended_at=datetime.now(UTC),
        outcome=None if verdict is None else verdict.outcome.value,
        exit_status=128 - code if code < 0 else code,
        reason=_NO_VERDICT if verdict is None else verdict.headline,
        has_report=verdict is not None,
        report_formats=() if verdict is None else formats_of(JobRun),
    )
    warning = write_job(plan.store, run, None if verdict is None else dumps(verdict))
    ended_well = verdict is not None and verdict.outcome in (Outcome.PASS, Outcome.SKIP)
    if warning and not (plan.quiet and ended_well):
        print(f"gpudiag: this run is not remembered: {warning}", file=sys.stderr)
