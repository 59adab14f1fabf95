"""The facts of all processes merged: communicators, each rank's host, the transport between each pair."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from gpudiag.explain.nccl.facts import CommunicatorFacts, NcclFacts, ProcessFacts, Way, ranks_of
from gpudiag.model.nccl_log import LogPlace
from gpudiag.model.number_ranges import count_of, name_ranks

# As nccl-tests names GPUs of SXM boards.
_WITH_NVSWITCH = (
    "H100 80GB HBM3",
    "H200",
    "H800",
    "H20",
    "B200",
    "B300",
)
_MAX_HOSTS = 4


@dataclass(frozen=True, slots=True)
class Who:
    """A rank, where it is known, and its host."""

    host: str
    rank: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One rank of a communicator, with all that is known of its process."""

    process: ProcessFacts
    communicator: CommunicatorFacts


@dataclass
class Group:
    """One communicator, over all processes that have lines of it."""

    name: str
    size: int
    members: dict[int, Member] = field(default_factory=dict)

    def host_of(self, rank: int) -> str | None:
        """The host of a rank, None where the rank has no lines here."""
        member = self.members.get(rank)
        return member.process.host if member else None

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of those ranks that have lines here."""
        return tuple(sorted({member.process.host for member in self.members.values()}))


@dataclass(frozen=True, slots=True)
class Sending:
    """A way that one rank printed, to or from ranks of its host or of others."""

    group: Group | None
    member: Member
    way: Way
    place: LogPlace
    channels: dict[int, int]  # by pair
    between_hosts: bool | None  # None where no line shows it


class Job:
    """All that NCCL's lines show of one job."""

    def __init__(self, facts: NcclFacts) -> None:
        self.facts = facts
        self.processes = [process for process in facts.processes.values() if process.has_facts]

    @cached_property
    def groups(self) -> list[Group]:
        """The communicators, the largest first."""
        groups: dict[tuple[str, int], Group] = {}
        for process in self.processes:
            for communicator in process.communicators.values():
                key = (communicator.name, communicator.size)
                if communicator.name.startswith("0x") and communicator.name in process.communicators:
                    key = (f"{process.host}:{process.pid} {communicator.name}", communicator.size)
                group = groups.setdefault(key, Group(communicator.name, communicator.size))
                group.members.setdefault(communicator.rank, Member(process, communicator))
        return sorted(groups.values(), key=lambda group: (-group.size, -len(group.members)))

    @cached_property
    def _ranks(self) -> dict[tuple[str, int, int], int]:
        """The rank in the largest communicator, by host, pid and CUDA ordinal."""
        ranks: dict[tuple[str, int, int], int] = {}
        for group in self.groups:
            for rank, member in group.members.items():
                key = (member.process.host, member.process.pid, member.communicator.cuda_ordinal)
                ranks.setdefault(key, rank)
        return ranks

    def who(self, process: ProcessFacts, ordinal: int | None = None) -> list[Who]:
        """The ranks of a process; those on one GPU where it is given."""
        ranks = sorted(
            rank
            for (host, pid, gpu), rank in self._ranks.items()
            if (host, pid) == (process.host, process.pid) and ordinal in (None, gpu)
        )
        return [Who(process.host, rank) for rank in ranks] or [Who(process.host)]

    def who_of(self, member: Member) -> Who:
        """The rank that a member of any communicator is in the largest."""
        process = member.process
        rank = self._ranks.get((process.host, process.pid, member.communicator.cuda_ordinal))
        return Who(process.host, rank)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that have lines here."""
        return tuple(sorted({process.host for process in self.processes if process.host}))

    @cached_property
    def spans_hosts(self) -> bool:
        """Whether a communicator reaches over several hosts."""
        if any(len(group.hosts) > 1 for group in self.groups):
            return True
        nodes = [known.nodes for process in self.processes for known in process.communicators.values()]
        if any(count is not None for count in nodes):
            return any(count is not None and count > 1 for count in nodes)
        if len(self.hosts) > 1 and not self.groups:
            return True
        return any(sending.between_hosts for sending in self.sendings)

    @property
    def is_on_one_host(self) -> bool:
        """Whether the lines show that all ranks are on one host."""
        known = [m.communicator.nodes for group in self.groups for m in group.members.values()]
        whole = all(len(group.members) == group.size and len(group.hosts) == 1 for group in self.groups)
        return bool(self.groups) and not self.spans_hosts and (whole or all(count == 1 for count in known))

    @property
    def may_span_hosts(self) -> bool:
        """Whether a communicator may reach over several hosts: it has ranks whose lines are not here."""
        nodes = [known.nodes for process in self.processes for known in process.communicators.values()]
        return self.spans_hosts or (
            all(count is None for count in nodes)
            and any(group.size > len(group.members) for group in self.groups)
        )

    @cached_property
    def sendings(self) -> list[Sending]:
        """Every way that a rank printed, apart by whether it leads to another host."""
        found = []
        for group in self.groups:
            for member in group.members.values():
                for way, known in member.communicator.ways.items():
                    for between, channels in _split(way, known.channels, group, member).items():
                        found.append(Sending(group, member, way, known.place, channels, between))
        for process in self.processes:
            if process.loose:
                member = Member(process, process.loose)
                for way, known in process.loose.ways.items():
                    is_net = way.transport.startswith("NET/")
                    found.append(Sending(None, member, way, known.place, known.channels, is_net))
        return found

    @cached_property
    def _sendings_by_process(self) -> dict[tuple[str, int], list[Sending]]:
        by_process: dict[tuple[str, int], list[Sending]] = {}
        for sending in self.sendings:
            process = sending.member.process
            by_process.setdefault((process.host, process.pid), []).append(sending)
        return by_process

    def sendings_of(self, process: ProcessFacts) -> list[Sending]:
        """The ways that a process printed."""
        return self._sendings_by_process.get((process.host, process.pid), [])

    @cached_property
    def ranks_of_host(self) -> dict[str, int]:
        """How many ranks each host has, by its communicators' lines."""
        counts: dict[str, int] = Counter(process.host for process in self.processes)
        for group in self.groups:
            for host, count in Counter(m.process.host for m in group.members.values()).items():
                counts[host] = max(counts[host], count)
            for member in group.members.values():
                local = member.communicator.local_ranks or 0
                counts[member.process.host] = max(counts[member.process.host], local)
        return counts

    def has_nvswitch(self, host: str) -> bool:
        """Whether the GPUs of a host are, by their names, of a board whose NVSwitches can do NVLS."""
        return self.facts.gpus.get(host, "").endswith(_WITH_NVSWITCH)

    def has_nvlink(self, host: str) -> bool:
        """Whether a line shows that NVLink connects the GPUs of a host."""
        return self.has_nvswitch(host) or any(
            process.nvlink or any(there for there, _ in process.nvls.values())
            for process in self.processes
            if process.host == host
        )


def _split(
    way: Way, channels: dict[int, int], group: Group, member: Member
) -> dict[bool | None, dict[int, int]]:
    """The pairs of one way by whether they lead to another host."""
    parts: dict[bool | None, dict[int, int]] = {}
    for pair, count in channels.items():
        source, destination = ranks_of(pair)
        between = _between_hosts(
            way, group.host_of(source), group.host_of(destination), group, member.communicator
        )
        parts.setdefault(between, {})[pair] = count
    return {next(iter(parts)): channels} if len(parts) == 1 else parts


def _between_hosts(
    way: Way, source: str | None, destination: str | None, group: Group, communicator: CommunicatorFacts
) -> bool | None:
    is_net = way.transport.startswith("NET/")
    if source is not None and destination is not None:
        of_one_name = len(group.members) == group.size and (communicator.nodes or 1) > len(group.hosts)
        if not (of_one_name and is_net):
            return source != destination
    if communicator.nodes == 1:
        return False
    if is_net:
        return True  # the other end has no lines here; NET inside a host is rare
    return None if communicator.mnnvl else False


def sort_ranks(who: Iterable[Who]) -> list[Who]:
    """Each of them once, by rank; those whose rank is not known last."""
    return sorted(set(who), key=lambda one: (one.rank is None, one.rank or 0, one.host))


def name_ranks_and_hosts(who: Iterable[Who]) -> str:
    """The ranks and their hosts in words: `ranks 0-7 on node-a, rank 9 on node-b`."""
    by_host: dict[str, list[int]] = {}
    for one in who:
        ranks = by_host.setdefault(one.host, [])
        if one.rank is not None:
            ranks.append(one.rank)
    named = [_name_on(host, sorted(set(ranks))) for host, ranks in [*by_host.items()][:_MAX_HOSTS]]
    more = len(by_host) - _MAX_HOSTS
    return ", ".join(named) + (f" and those of {count_of(more, 'more host')}" if more > 0 else "")


def _name_on(host: str, ranks: list[int]) -> str:
    if not ranks:
        return host or "a rank"
    return name_ranks(ranks) + (f" on {host}" if host else "")
