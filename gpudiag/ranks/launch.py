"""Run `module:function` on N ranks: start them, watch them, leave nothing behind."""

import contextlib
import importlib.util
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpudiag.errors import RankStartError, UsageError
from gpudiag.ranks.agent import Agent
from gpudiag.ranks.environment import Launcher, RankEnvironment
from gpudiag.ranks.inject import Fault
from gpudiag.ranks.interrupts import Interrupts, TerminatedError, noted_interrupts
from gpudiag.ranks.job import Job, LocalRank
from gpudiag.ranks.ledger import Ledger
from gpudiag.ranks.link import Meeting
from gpudiag.ranks.local import LocalRanks
from gpudiag.ranks.run import RankEvent, RankRun
from gpudiag.ranks.run_directory import RunDirectory, runtime_directory
from gpudiag.ranks.stages import RENDEZVOUS, Budgets
from gpudiag.ranks.start_error import absent_module
from gpudiag.ranks.together import Companions

TORCH = ("torch", "torch.distributed")

# torch's own limits lie this far beyond ours, so that the agent, which knows more, speaks first.
_TORCH_GRACE_SECONDS = 30.0

# A launcher that lost one of its processes sends SIGTERM to the others, within 0.1 s in torchrun,
# and SIGKILL 30 s later: time to find out what happened.
_LAUNCHER_GRACE_SECONDS = 1.5

_runs = itertools.count()  # processes that were started together start their runs in the same order


def run_ranks(
    entry: str,
    *,
    world_size: int,
    arguments: Mapping[str, Any],
    environment: RankEnvironment | None = None,
    budgets: Budgets | None = None,
    faults: Sequence[Fault] = (),
    on_event: Callable[[RankEvent], None] | None = None,
    python: str | None = None,
    variables: Mapping[str, str] | None = None,
    preload: Sequence[str] = TORCH,
) -> RankRun:
    """Run `entry` (`module:function`, see `context`) on every rank and tell what became of each.

    Without an `environment` all ranks are spawned on this machine; with one, this process runs the
    rank that its launcher gave it and agrees with the others on one result. `arguments` must be a
    JSON object. `python` is the interpreter for the ranks; `variables` are set for them beside this
    process's own. `preload` is imported once, before the ranks are forked.

    Raises:
        UsageError: `python` cannot run ranks, or a module of `preload` is not installed.
        RankStartError: the ranks could not be started.
        KeyboardInterrupt: Ctrl-C, after every rank was killed.
        TerminatedError: SIGTERM or SIGHUP, after every rank was killed.
    """
    if python is None:
        _refuse_absent_modules(preload)
    budgets = budgets or Budgets()
    base = runtime_directory()
    meeting = None if environment is None else Meeting(base, _run_key(environment), environment.rank)
    with (
        _interrupts(environment) as interrupts,
        RunDirectory(base, "" if meeting is None else meeting.label) as directory,
    ):
        job = _plan_job(entry, world_size, arguments, environment, budgets, faults, preload, directory.path)
        run = _run_job(
            job, directory, environment, meeting, budgets, interrupts, on_event, python, variables or {}
        )
    if run is None:  # another agent of this launch was interrupted, and said so
        raise TerminatedError(signal.SIGTERM)
    return run


def _run_job(
    job: Job,
    directory: RunDirectory,
    environment: RankEnvironment | None,
    meeting: Meeting | None,
    budgets: Budgets,
    interrupts: Interrupts,
    on_event: Callable[[RankEvent], None] | None,
    python: str | None,
    variables: Mapping[str, str],
) -> RankRun | None:
    host = socket.gethostname()
    local = LocalRanks(job, directory)
    ledger = Ledger(time.monotonic(), on_event)
    companions = None
    try:
        if environment is not None and meeting is not None:
            companions = Companions(environment, meeting, directory.path, host)
        _start(local, python, {**_rank_variables(environment), **variables})
        if companions is not None:
            return companions.run(local, job, budgets, interrupts, on_event)
        agent = Agent(local, None, job, budgets, ledger, host)
        finished = agent.watch(interrupts)
        unkillable = local.end()
        return agent.build_run(Launcher.SPAWN, unkillable) if finished else None
    finally:
        local.end()
        if companions is not None:
            companions.close()


def _plan_job(
    entry: str,
    world_size: int,
    arguments: Mapping[str, Any],
    environment: RankEnvironment | None,
    budgets: Budgets,
    faults: Sequence[Fault],
    preload: Sequence[str],
    directory: Path,
) -> Job:
    if environment is None:
        ranks = tuple(LocalRank(rank, rank) for rank in range(world_size))
        local_world_size = world_size
        init_method = f"file://{directory}/rendezvous"  # needs no port, so none can be taken or left behind
    else:
        ranks = (LocalRank(environment.rank, environment.local_rank),)
        local_world_size = environment.local_world_size
        init_method = environment.init_method
    return Job(
        entry=entry,
        arguments=dict(arguments),
        ranks=ranks,
        world_size=world_size,
        local_world_size=local_world_size,
        init_method=init_method,
        rendezvous_timeout_seconds=budgets.seconds_for(RENDEZVOUS) + _TORCH_GRACE_SECONDS,
        operation_timeout_seconds=max(budgets.stage_seconds.values()) + _TORCH_GRACE_SECONDS,
        preload=tuple(preload),
        faults=tuple(faults),
        run_directory=str(directory),
        agent_pid=os.getpid(),
    )


def _start(local: LocalRanks, python: str | None, variables: Mapping[str, str]) -> None:
    try:
        local.start(python, variables)
    except OSError as error:
        if python is None:
            raise RankStartError(f"cannot start a process for the ranks: {error.strerror}") from None
        raise UsageError(
            f"--python {python}: {error.strerror}", hint="name the interpreter of your job"
        ) from None


def _rank_variables(environment: RankEnvironment | None) -> dict[str, str]:
    """Environment variables that ranks need, where the user has not set them.

    One OpenMP thread per rank, as torchrun does it. gloo looks up the host's own name to find an
    address, which a bad /etc/hosts breaks; on one machine the loopback interface needs no lookup.
    """
    defaults = {"OMP_NUM_THREADS": "1"}
    if environment is None or environment.local_world_size == environment.world_size:
        defaults["GLOO_SOCKET_IFNAME"] = _loopback_interface()
    return {name: value for name, value in defaults.items() if value and name not in os.environ}


def _loopback_interface() -> str:
    """The name of the loopback interface; empty if there is none, which leaves the choice to gloo."""
    loopback_flag = 0x8  # IFF_LOOPBACK of linux/if.h
    for _, name in socket.if_nameindex():
        try:
            flags = int(Path(f"/sys/class/net/{name}/flags").read_text(), 16)
        except (OSError, ValueError):
            continue
        if flags & loopback_flag:
            return name
    return ""


def _refuse_absent_modules(preload: Sequence[str]) -> None:
    """Say at once that torch is not installed, without importing it; another interpreter says so itself."""
    for name in preload:
        if "." not in name and importlib.util.find_spec(name) is None:
            raise absent_module(name)


def _interrupts(environment: RankEnvironment | None) -> contextlib.AbstractContextManager[Interrupts]:
    if environment is None:
        return noted_interrupts()
    launcher_pid = os.getppid() if environment.launcher is Launcher.TORCHRUN else None
    return noted_interrupts(launcher_pid=launcher_pid, grace_seconds=_LAUNCHER_GRACE_SECONDS)


def _run_key(environment: RankEnvironment) -> str:
    """The same text in all processes of a run, and another one for every run of the same processes."""
    return f"{environment.run_key}|{next(_runs)}"
