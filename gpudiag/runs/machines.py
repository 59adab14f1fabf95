"""A report of each machine of a launch: one process of each looks, rank 0 reports on all machines.

The others wait for rank 0's verdict and exit alike: none reports PASS for a machine that it did not test.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gpudiag.errors import ExitStatus, GpudiagError, LaunchError
from gpudiag.model.codec import dumps, to_document
from gpudiag.model.job import HangReport
from gpudiag.model.number_ranges import count_of
from gpudiag.model.report import CollectiveReport, MergedReport, Report
from gpudiag.model.training import TrainingReport
from gpudiag.ranks.agents.discovery import Discovery
from gpudiag.ranks.agents.link import Handshake, Link, LinkLostError, wait_readable
from gpudiag.ranks.agents.messages import MachineCaller, MachineReport, Message, SharedStatus
from gpudiag.ranks.agents.run_directory import RunDirectory, runtime_directory
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.ranks.launchers import POD_LAUNCHERS, Launcher, expand_nodes
from gpudiag.runs.gate import worst_status
from gpudiag.runs.merge import ReportSource, merge_documents
from gpudiag.runs.output import write_document
from gpudiag.store.state_folder import state_directory

# --- machines that a job should do without


def node_name(variables: Mapping[str, str]) -> str:
    """This machine's name by its launcher: Slurm's node, NODE_NAME of a pod, else the host's."""
    return variables.get("SLURMD_NODENAME") or variables.get("NODE_NAME") or socket.gethostname()


def launched_nodes(variables: Mapping[str, str]) -> tuple[str, ...]:
    """All machines of the launch, where the launcher gives their names; empty where it does not."""
    return expand_nodes(variables.get("SLURM_STEP_NODELIST", "")) if "SLURM_STEP_ID" in variables else ()


def describe_leaving_out(launcher: Launcher, unfit: Sequence[str], fit: Sequence[str]) -> str | None:
    """The flag or setting that starts the job on the others; None where there is nothing to leave out.

    Slurm's `--exclude`, a node affinity of Kubernetes; mpirun and torchrun get the hosts to run on instead.
    """
    if not unfit:
        return None
    if launcher is Launcher.SRUN:
        return f"--exclude={','.join(unfit)}"
    if launcher in POD_LAUNCHERS:
        term = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(unfit)}
        terms = [{"matchExpressions": [term]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return f"affinity: {json.dumps({'nodeAffinity': required})}"
    if launcher in (Launcher.MPIRUN, Launcher.HYDRA) and fit:
        return f"{'--host' if launcher is Launcher.MPIRUN else '-hosts'} {','.join(fit)}"
    return None


# --- one report of all

_RETRY_SECONDS = 0.2
_LOOK_SECONDS = 0.1
_RECEIVED_SECONDS = 2.0  # for the others to receive the verdict before rank 0 ends


@dataclass(frozen=True, slots=True)
class Look:
    """What every process does to its machine: a command's name, and how long they wait for each other."""

    name: str
    # Rank 0 for the other machines once it has its own report: all began at about the same time.
    patience_seconds: float
    # A process that does not look for the verdict, from its start.
    verdict_seconds: float


PREFLIGHT_LOOKS = {
    "instant": Look("preflight", 30.0, 90.0),
    "quick": Look("preflight", 60.0, 180.0),
    "standard": Look("preflight", 240.0, 720.0),
    "long": Look("preflight", 900.0, 9000.0),
    "acceptance": Look("preflight", 900.0, 9000.0),
}
BANDWIDTH_LOOK = Look("bandwidth", 240.0, 720.0)
HANG_LOOK = Look("hang", 45.0, 120.0)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The merged report of all machines, and the exit status of all processes."""

    merged: MergedReport
    status: ExitStatus
    passed: int  # machines
    by_quorum: bool = False  # not all machines pass, and enough do


@dataclass(frozen=True, slots=True)
class Collected:
    """The documents of all machines, and the exit status of each; `is_whole`: none is missing."""

    sources: tuple[ReportSource, ...]
    statuses: list[ExitStatus]
    nodes: dict[str, ExitStatus]
    is_whole: bool


class MachinesLaunch:
    """This process among those that a launcher started; a context manager, findable within."""

    def __init__(self, environment: RankEnvironment, look: Look) -> None:
        """Be findable, where this is rank 0.

        Raises:
            LaunchError: there is no address or directory for the rendezvous.
        """
        self._environment = environment
        self._look = look
        self._began = time.monotonic()
        master = None if environment.on_one_machine else environment.master
        base = runtime_directory()
        self._discovery = Discovery(base, f"{look.name}|{environment.run_key}", environment.rank, master)
        self._directory = RunDirectory(base, self._discovery.label)
        self._handshake: Handshake | None = None
        self._links: list[Link] = []
        try:
            if self.is_reporter:
                self._listeners = self._discovery.listen(self._directory.path)
                self._handshake = Handshake(self._listeners, self._discovery.key)
        except (OSError, LaunchError):
            self._directory.remove()
            raise

    def __enter__(self) -> "MachinesLaunch":
        """This process's place."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop being findable."""
        for link in self._links:
            link.close()
        if self._handshake is not None:
            self._handshake.close()
            for listener in self._listeners:
                listener.close()
        self._directory.remove()

    @property
    def looks(self) -> bool:
        """Whether this process tests its machine: one process per machine does."""
        return self._environment.local_rank == 0 or self.is_reporter

    @property
    def is_reporter(self) -> bool:
        """Whether this process prints the report."""
        return self._environment.rank == 0

    @property
    def on_one_machine(self) -> bool:
        """Whether all processes are on this machine."""
        return self._environment.on_one_machine

    def gather(self, report: Report, status: ExitStatus, quorum: int | None = None) -> Gathered:
        """In rank 0: merge its own report with those of the other machines; a missing one is ERROR.

        With a `quorum` it is PASS where so many machines pass, whatever the others are.
        """
        collected = self.collect(to_document(report), status)
        place, statuses, nodes = self._environment, collected.statuses, collected.nodes
        fit = [node for node, one in nodes.items() if one is ExitStatus.PASS]
        unfit = tuple(node for node in (launched_nodes(os.environ) or nodes) if node not in fit)
        merged = replace(
            merge_documents(collected.sources),
            unfit=unfit,
            leave_out=describe_leaving_out(place.launcher, unfit, fit),
        )
        passed, worst = statuses.count(ExitStatus.PASS), worst_status(statuses)
        enough = quorum is not None and passed >= quorum and worst is not ExitStatus.PASS
        return Gathered(merged, ExitStatus.PASS if enough else worst, passed, enough)

    def collect(self, document: Any, status: ExitStatus) -> Collected:
        """In rank 0: its own document and those of the other machines, by rank, as they hand them in.

        The last of them names what is missing, where machines sent none in time.
        """
        place = self._environment
        sources = {place.rank: ReportSource(f"rank {place.rank}", document)}
        statuses = [status]
        nodes = {node_name(os.environ): status}
        counted = place.local_world_size
        until = time.monotonic() + self._look.patience_seconds
        while counted < place.world_size and time.monotonic() < until:
            for handed_in in self._receive(_LOOK_SECONDS):
                if handed_in.rank not in sources:
                    sources[handed_in.rank] = ReportSource(f"rank {handed_in.rank}", handed_in.document)
                    statuses.append(ExitStatus(handed_in.status))
                    nodes[handed_in.node] = ExitStatus(handed_in.status)
                    counted += handed_in.ranks
        absent = place.world_size - counted
        if absent > 0:
            name = f"{count_of(absent, 'rank')} without a report"
            sources[place.world_size] = ReportSource(name, None, "no report came from their machines")
            statuses.append(ExitStatus.ERROR)
        return Collected(tuple(sources[rank] for rank in sorted(sources)), statuses, nodes, absent == 0)

    def announce(self, status: ExitStatus) -> None:
        """In rank 0: send the others the exit status, including latecomers."""
        informed: set[int] = set()
        until = time.monotonic() + _RECEIVED_SECONDS
        expected = self._environment.world_size - 1
        while len(informed) < expected and time.monotonic() < until:
            for link in self._links:
                if id(link) not in informed:
                    link.send(SharedStatus(int(status)))
                    informed.add(id(link))
            for _ in self._receive(_LOOK_SECONDS):
                pass

    def hand_in(self, report: Report | HangReport, status: ExitStatus) -> ExitStatus | None:
        """In another machine's process: send rank 0 the report; return its verdict, None without reply."""
        place = self._environment
        own = MachineReport(
            place.rank, place.local_world_size, int(status), node_name(os.environ), to_document(report)
        )
        return self._ask(own, time.monotonic() + 2 * self._look.patience_seconds)

    def await_verdict(self) -> ExitStatus | None:
        """In a process that does not look: the exit status of all; None if rank 0 gives none."""
        return self._ask(None, self._began + self._look.verdict_seconds)

    def _ask(self, report: MachineReport | None, until: float) -> ExitStatus | None:
        while time.monotonic() < until:
            link = self._discovery.connect(0, {})
            if link is None:
                time.sleep(_RETRY_SECONDS)
                continue
            link.send(MachineCaller(self._discovery.key))
            if report is not None:
                link.send(report)
            try:
                for message in _listen(link, until):
                    if isinstance(message, SharedStatus):
                        return ExitStatus(message.status)
            except LinkLostError:
                time.sleep(_RETRY_SECONDS)
            finally:
                link.close()
        return None

    def _receive(self, seconds: float) -> list[MachineReport]:
        """The reports that arrived, after waiting at most `seconds`."""
        assert self._handshake is not None  # noqa: S101 - only rank 0 takes reports
        waiting = [*self._handshake.filenos(), *(link.fileno() for link in self._links)]
        wait_readable(waiting, seconds)
        messages: list[Message] = []
        for caller in self._handshake.poll():
            if caller.hello == MachineCaller(self._discovery.key):
                self._links.append(caller.link)
                messages += caller.messages
            else:
                caller.link.close()
        for link in tuple(self._links):
            try:
                messages += link.receive()
            except LinkLostError:
                self._links.remove(link)
                link.close()
        return [message for message in messages if isinstance(message, MachineReport)]


def _listen(link: Link, until: float) -> Iterator[Message]:
    """Each message that comes on the link until time `until`. Raises LinkLostError: the other end is gone."""
    while (remaining := until - time.monotonic()) > 0:
        wait_readable((link.fileno(),), min(remaining, _LOOK_SECONDS))
        yield from link.receive()


# --- each machine's own report

_KEPT = 64  # reports; the oldest go


def keep_own_report(
    report: CollectiveReport | TrainingReport, environment: RankEnvironment | None
) -> Path | None:
    """Where this machine's copy of the report is.

    It is None where the run was on one machine, or another process has it. The processes of a launch write
    one copy for each machine. All hosts may share the folder: the name has the rank.

    Raises:
        GpudiagError: it could not be written.
    """
    if environment is None or environment.on_one_machine or environment.local_rank != 0:
        return None
    folder = state_directory() / "reports"
    kind = report.SCHEMA.partition("/")[0].rpartition(".")[2]
    launch = hashlib.sha256(environment.run_key.encode()).hexdigest()[:12]
    path = folder / f"{kind}-{launch}-rank{environment.rank}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GpudiagError(f"cannot write to {folder}: {error.strerror or error}") from error
    write_document(path, dumps(report) + "\n")
    _forget_old(folder)
    return path


def _forget_old(folder: Path) -> None:
    dated: list[tuple[float, Path]] = []
    for path in folder.glob("*.json"):
        try:
            dated.append((os.stat(path).st_mtime, path))
        except FileNotFoundError:  # another process has removed it
            continue
    for _, path in sorted(dated)[:-_KEPT]:
        path.unlink(missing_ok=True)
