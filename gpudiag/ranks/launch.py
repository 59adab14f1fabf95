"""Run `module:function` on N ranks: start them, watch them, leave nothing behind."""

import importlib.util
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpudiag.errors import RankStartError, UsageError
from gpudiag.ranks.agent import Agent
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.inject import Fault
from gpudiag.ranks.interrupts import noted_interrupts
from gpudiag.ranks.job import Job, LocalRank
from gpudiag.ranks.local import LocalRanks
from gpudiag.ranks.run import RankEvent, RankRun
from gpudiag.ranks.run_directory import RunDirectory
from gpudiag.ranks.stages import RENDEZVOUS, Budgets

TORCH = ("torch", "torch.distributed")

# torch's own limits lie this far beyond ours, so that the agent, which knows more, speaks first.
_TORCH_GRACE_SECONDS = 30.0


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
    _refuse_absent_modules(python, preload)
    budgets = budgets or Budgets()
    with noted_interrupts() as interrupts, RunDirectory() as directory:
        job = _plan_job(
            entry,
            world_size,
            dict(arguments),
            environment,
            budgets,
            tuple(faults),
            tuple(preload),
            directory.path,
        )
        local = LocalRanks(job, directory)
        agent = Agent(local, job, budgets, interrupts, on_event)
        try:
            _start(local, python, {**_rank_variables(), **(variables or {})})
            agent.watch()
        finally:
            unkillable = local.end()
        return agent.build_run(unkillable)


def _plan_job(
    entry: str,
    world_size: int,
    arguments: dict[str, Any],
    environment: RankEnvironment | None,
    budgets: Budgets,
    faults: tuple[Fault, ...],
    preload: tuple[str, ...],
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
        arguments=arguments,
        ranks=ranks,
        world_size=world_size,
        local_world_size=local_world_size,
        init_method=init_method,
        rendezvous_timeout_seconds=budgets.seconds_for(RENDEZVOUS) + _TORCH_GRACE_SECONDS,
        operation_timeout_seconds=max(budgets.stage_seconds.values()) + _TORCH_GRACE_SECONDS,
        preload=preload,
        faults=faults,
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


def _rank_variables() -> dict[str, str]:
    """Environment variables that ranks need, where the user has not set them.

    One OpenMP thread per rank, as torchrun does it. gloo on one machine looks up the host's own name
    to find an address, which a bad /etc/hosts breaks; the loopback interface needs no lookup.
    """
    defaults = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": _loopback_interface()}
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


def _refuse_absent_modules(python: str | None, preload: Sequence[str]) -> None:
    """Say at once that torch is not installed, without importing it; another interpreter says so itself."""
    if python is not None:
        return
    for name in preload:
        if "." not in name and importlib.util.find_spec(name) is None:
            raise absent_module(name)


def absent_module(name: str, python: str | None = None) -> UsageError:
    """The sentence for a module that ranks need and that the interpreter does not have."""
    where = f" in {python}" if python else ""
    hint = "pip install 'gpudiag[torch]'" if name == "torch" else f"install {name}"
    return UsageError(f"{name} is not installed{where}, and ranks need it", hint=hint)
