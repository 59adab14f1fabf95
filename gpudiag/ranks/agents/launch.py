"""Run `module:function` on N ranks: start them, watch them, leave nothing behind."""

import contextlib
import errno
import importlib.util
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpudiag.errors import RankStartError, UsageError
from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.number_ranges import number_ranges
from gpudiag.ranks.agents.addresses import look_up
from gpudiag.ranks.agents.agent import Agent, Assignment
from gpudiag.ranks.agents.announce import Announcer, own_addresses
from gpudiag.ranks.agents.discovery import Discovery, Siblings
from gpudiag.ranks.agents.fork_server import ForkServer
from gpudiag.ranks.agents.interrupts import Interrupts, TerminatedError, noted_interrupts
from gpudiag.ranks.agents.local import LocalRanks
from gpudiag.ranks.agents.membership import Membership
from gpudiag.ranks.agents.messages import Card
from gpudiag.ranks.agents.own_addresses import (
    NoAddressError,
    loopback_interface,
    names_are_late,
    require_address,
)
from gpudiag.ranks.agents.reach import Meeting, MeetingWatch, Obstacle, Reach
from gpudiag.ranks.agents.refusal import shared_search
from gpudiag.ranks.agents.run_directory import RunDirectory, runtime_directory
from gpudiag.ranks.diagnosis.start_error import absent_module
from gpudiag.ranks.diagnosis.view import ViewListener
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.event_log import EventLog
from gpudiag.ranks.inject import Fault
from gpudiag.ranks.launchers import Launcher, job_hosts, job_name
from gpudiag.ranks.rank.job import Job, LocalRank
from gpudiag.ranks.rank_run import RankEvent, RankRun
from gpudiag.ranks.stages import RENDEZVOUS, Budgets

TORCH = ("torch", "torch.distributed")

# So long a name without an address is looked up again, where names do not come late by design. It is enough
# for the leader of the others to learn of it, and to report it for all.
_NAME_SECONDS = 4.0

# torch's own timeouts are this much longer than ours, so that the agent, which knows more, reports first.
_TORCH_GRACE_SECONDS = 30.0

# A launcher that lost one of its processes sends SIGTERM to the others (torchrun: within 0.1 s) and
# SIGKILL 30 s later: time to find out what happened.
_LAUNCHER_GRACE_SECONDS = 1.5


def run_ranks(
    entry: str,
    *,
    run_id: str,
    world_size: int,
    arguments: Mapping[str, Any],
    environment: RankEnvironment | None = None,
    budgets: Budgets | None = None,
    faults: Sequence[Fault] = (),
    on_event: Callable[[RankEvent], None] | None = None,
    on_views: ViewListener | None = None,
    is_over: Callable[[], bool] | None = None,
    goes_on: Callable[[RankRun], bool] | None = None,
    notice: Callable[[str], None] | None = None,
    python: str | None = None,
    variables: Mapping[str, str] | None = None,
    preload: Sequence[str] = TORCH,
    try_preload: Sequence[str] = (),
    explanations: Callable[[], Sequence[str]] | None = None,
    server: ForkServer | None = None,
) -> RankRun:
    """Run `entry` (`module:function`, see `context`) on every rank; return what became of each.

    Without an `environment` all ranks are spawned here; with one, this process runs its launcher's rank and
    agrees with the others on one result. `run_id` is the same in all processes of a launch, and unique to
    each run. `arguments` must be a JSON object. `python` is the ranks' interpreter, `variables` are added to
    their environment. `preload`, and what is installed of `try_preload`, is imported once before they are
    forked. In the leading process only, `on_event` gets each event that an entry emits, `on_views` ten times
    a second where all ranks are, `is_over` is polled (True ends the run), and `goes_on` decides whether all
    processes run something more (`RankRun.goes_on`). `notice` gets a sentence after 5 s of waiting for other
    machines. `explanations` is called if this agent's only rank ends badly, for a library's words. `server`
    forks the ranks' template.

    Raises:
        UsageError: `python` cannot run ranks, or a module of `preload` is not installed.
        RankStartError: the ranks could not be started.
        KeyboardInterrupt: Ctrl-C, after every rank was killed.
        TerminatedError: SIGTERM or SIGHUP, after every rank was killed.
    """
    if python is None:
        _refuse_absent_modules(preload)
    if server is not None and not server.is_usable:
        server = None
    budgets = budgets or Budgets()
    if environment is not None and environment.master is not None:
        began = time.monotonic()
        place = f"{environment.master}:{environment.master_port}"
        longest = budgets.seconds_for(RENDEZVOUS)
        patience = longest if names_are_late() else min(longest, _NAME_SECONDS)
        with shared_search(environment.rank, environment.world_size, place) as search:
            try:
                require_address(environment.master, patience, notice=notice, meanwhile=search)
            except NoAddressError as error:
                search.await_report()
                return _nameless_run(environment, error.words, time.monotonic() - began, search.others())
    with (
        _interrupts(environment) as interrupts,
        _run_directory(environment, run_id) as (directory, discovery),
    ):
        job = Job(
            entry=entry,
            arguments=dict(arguments),
            ranks=_local_ranks(environment, world_size),
            world_size=world_size,
            local_world_size=world_size if environment is None else environment.local_world_size,
            init_method=_init_method(environment, directory.path),
            rendezvous_timeout_seconds=budgets.seconds_for(RENDEZVOUS) + _TORCH_GRACE_SECONDS,
            operation_timeout_seconds=_longest_wait_seconds(budgets) + _TORCH_GRACE_SECONDS,
            preload=tuple(preload),
            try_preload=tuple(try_preload),
            faults=tuple(faults),
            run_directory=str(directory.path),
            agent_pid=os.getpid() if server is None else server.pid,
            store_port=None if environment is None else environment.master_port,
        )
        local = LocalRanks(job, directory, explanations)
        siblings = _siblings(environment)
        assignment = Assignment(
            job, local, budgets, interrupts, on_event, is_over, goes_on, siblings, notice, on_views
        )
        try:
            with _membership(environment, discovery, directory, notice, run_id) as membership:
                given = {**_rank_variables(environment), **(variables or {})}
                _start(assignment.local, python, given, server)
                run = _run_alone(assignment) if membership is None else membership.run(assignment)
        finally:
            assignment.local.end()
    if run is None:  # another agent of this launch was interrupted, and reported it
        raise TerminatedError(signal.SIGTERM)
    return run


def _nameless_run(
    environment: RankEnvironment, words: str, seconds: float, others: Sequence[Card]
) -> RankRun:
    """The run of a process that has no address of rank 0's machine.

    Of those that have none, the lowest reports it.
    """
    place = f"{environment.master}:{environment.master_port}"
    host = socket.gethostname()
    found = Reach(Obstacle.NO_ADDRESS, words, place).evidence()
    if others:
        hosts = ", ".join(sorted({one.host for one in others}))
        ranks = number_ranges(sorted({one.rank for one in others}))
        found = (*found, Evidence("others", f"{ranks} on {hosts}", source="what each agent announced"))
    incident = Incident(IncidentKind.UNREACHED, environment.rank, host, RENDEZVOUS, seconds, found)
    return RankRun(
        world_size=environment.world_size,
        launcher=environment.launcher,
        host=host,
        ranks=(),
        incidents=(incident,),
        injected=(),
        seconds=seconds,
        reporter=environment.local_rank == 0 and all(one.rank >= environment.rank for one in others),
    )


def _run_alone(assignment: Assignment) -> RankRun | None:
    """The run, where all ranks are this agent's own; None if it is given up."""
    log = EventLog(assignment.started, assignment.on_event)
    agent = Agent(assignment, None, log)
    finished = agent.watch()
    unkillable = assignment.local.end()
    return agent.build_run(Launcher.SPAWN, unkillable) if finished else None


@contextlib.contextmanager
def _membership(
    environment: RankEnvironment | None,
    discovery: Discovery | None,
    directory: RunDirectory,
    notice: Callable[[str], None] | None,
    run_id: str,
) -> Iterator[Membership | None]:
    """This agent's membership of its launch, findable by the others; None if it is the only agent."""
    if environment is None or discovery is None:
        yield None
        return
    announcer = _announcer(environment, discovery, run_id)
    watch = _watch(environment, discovery, notice)
    membership = Membership(environment.launcher, discovery, directory.path, watch, announcer)
    try:
        yield membership
    finally:
        membership.close()


def _watch(
    environment: RankEnvironment, discovery: Discovery, notice: Callable[[str], None] | None
) -> MeetingWatch | None:
    """What looks for rank 0 at its address; None where a launcher started all ranks on this machine."""
    port = environment.master_port
    if (
        environment.master is None
        or port is None
        or environment.rank == 0
        or not _may_be_elsewhere(environment)
    ):
        return None
    meeting = Meeting(
        environment.master,
        port,
        tuple(discovery.candidate_ports()),
        elsewhere=environment.rank > environment.local_rank,
        by_launcher=environment.launcher not in (Launcher.EXPLICIT, Launcher.VARIABLES),
        names_are_late=names_are_late(),
        key=discovery.key,
    )
    return MeetingWatch(meeting, environment.rank, notice)


def _may_be_elsewhere(environment: RankEnvironment) -> bool:
    """Whether ranks may be on other machines, also where each process got a loopback address by hand."""
    by_hand = environment.launcher in (Launcher.EXPLICIT, Launcher.VARIABLES)
    return environment.world_size > 1 and (by_hand or not environment.on_one_machine)


def _announcer(environment: RankEnvironment, discovery: Discovery, run_id: str) -> Announcer | None:
    """What finds other agents of the job that do not find this one.

    It is None where all ranks are on this machine.
    """
    if environment.master is None or environment.master_port is None or not _may_be_elsewhere(environment):
        return None
    discovery.is_announced = True
    name = f"[{environment.master}]" if ":" in environment.master else environment.master
    card = Card(
        discovery.key,
        run_id,
        job_name(os.environ),
        os.getuid(),
        environment.rank,
        environment.world_size,
        socket.gethostname(),
        f"{name}:{environment.master_port}",
    )
    return Announcer(card, job_hosts(os.environ))


@contextlib.contextmanager
def _run_directory(
    environment: RankEnvironment | None, run_id: str
) -> Iterator[tuple[RunDirectory, Discovery | None]]:
    """The run's directory, named so that other agents of the launch find it, and the means to find theirs."""
    base = runtime_directory()
    if environment is None:
        with RunDirectory(base) as directory:
            yield directory, None
        return
    run_key = f"{environment.run_key}|{run_id}"
    master = None if environment.on_one_machine else environment.master
    discovery = Discovery(base, run_key, environment.rank, master)
    with RunDirectory(base, discovery.label) as directory:
        yield directory, discovery


def _local_ranks(environment: RankEnvironment | None, world_size: int) -> tuple[LocalRank, ...]:
    if environment is None:
        return tuple(LocalRank(rank, rank) for rank in range(world_size))
    return (LocalRank(environment.rank, environment.local_rank),)


def _init_method(environment: RankEnvironment | None, directory: Path) -> str:
    """Where torch's process group has its rendezvous: the launcher's, or a file, which needs no port."""
    return f"file://{directory}/rendezvous" if environment is None else environment.init_method


def _longest_wait_seconds(budgets: Budgets) -> float:
    """The longest that ranks may wait for each other before the agent reports a hang."""
    return max(budgets.run_seconds or 0.0, *budgets.stage_seconds.values())


def _start(
    local: LocalRanks, python: str | None, variables: Mapping[str, str], server: ForkServer | None
) -> None:
    try:
        local.start(python, variables, server)
    except OSError as error:
        if python is None:
            few = error.errno in (errno.EMFILE, errno.ENFILE)
            hint = "raise the limit of open files, for example: ulimit -n 4096" if few else ""
            raise RankStartError(
                f"cannot start a process for the ranks: {error.strerror}", hint=hint
            ) from None
        hint = "name the interpreter of your job"
        raise UsageError(f"--python {python}: {error.strerror}", hint=hint) from None


def _rank_variables(environment: RankEnvironment | None) -> dict[str, str]:
    """Environment variables that ranks need and the user has not set.

    One OpenMP thread per rank, as torchrun; the loopback interface for gloo on one machine, which would look
    up the host's own name.
    """
    defaults = {"OMP_NUM_THREADS": "1"}
    if environment is None or (environment.on_one_machine and not _is_found_by_name(environment)):
        defaults["GLOO_SOCKET_IFNAME"] = loopback_interface()
    return {name: value for name, value in defaults.items() if value and name not in os.environ}


def _is_found_by_name(environment: RankEnvironment) -> bool:
    """Whether gloo itself finds an address that other machines reach, where ranks may be on several."""
    if not _may_be_elsewhere(environment):
        return False
    return bool(set(look_up(socket.gethostname()) or ()) & set(own_addresses()))


def _refuse_absent_modules(preload: Sequence[str]) -> None:
    """Raise if a module is not installed here, without importing it; of `--python` the template reports."""
    for name in preload:
        if "." not in name and importlib.util.find_spec(name) is None:
            raise absent_module(name)


def _siblings(environment: RankEnvironment | None) -> Siblings | None:
    """The processes that the same torchrun started; None for other launchers, not long-lived parents."""
    if environment is None or environment.launcher is not Launcher.TORCHRUN:
        return None
    first = environment.rank - environment.local_rank
    return Siblings(os.getppid(), range(first, first + environment.local_world_size))


def _interrupts(environment: RankEnvironment | None) -> contextlib.AbstractContextManager[Interrupts]:
    if environment is None:
        return noted_interrupts()
    launcher_pid = os.getppid() if environment.launcher is Launcher.TORCHRUN else None
    return noted_interrupts(launcher_pid=launcher_pid, grace_seconds=_LAUNCHER_GRACE_SECONDS)
