"""Which rank and host a line of a log belongs to, from all the names in the logs of a job."""

import os
import re
from dataclasses import dataclass, field

from gpudiag.explain.lines import NOBODY, Speaker
from gpudiag.explain.log_facts import LogFacts
from gpudiag.explain.log_paths import LogPath, parse_log_path, without_previous
from gpudiag.explain.rank_facts import RankFacts, short_host


@dataclass(slots=True)
class LogOfJob:
    """One log of the job: what it shows, and of whom it is."""

    name: str
    facts: LogFacts
    place: LogPath
    host: str = ""
    rank: int | None = None  # where all of it is one rank's
    ranks_of_local: dict[int, int] = field(default_factory=dict)
    attempt: int = 0  # the how-manyeth start of the job, or of this container, it is of
    is_restart: bool = False  # a container's log beside that of its life before

    def attempt_at(self, line: int) -> int:
        """The attempt of a line: a launcher that restarts its ranks writes all attempts into one log."""
        return self.attempt + sum(restart < line for restart in self.facts.of_ranks.restarts)


@dataclass(slots=True)
class Identities:
    """The names of a job's ranks and hosts."""

    logs: list[LogOfJob]
    hosts: dict[int, str] = field(default_factory=dict)  # of ranks
    addresses: dict[str, str] = field(default_factory=dict)  # hosts of addresses
    pod_hosts: dict[str, str] = field(default_factory=dict)
    ranks_of_pids: dict[tuple[str, int], int] = field(default_factory=dict)
    bus_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    known_hosts: set[str] = field(default_factory=set)
    tasks_are_ranks: bool = True
    world_size: int = 0

    def rank_of(self, log: LogOfJob, speaker: Speaker) -> int | None:
        """The rank that printed a line."""
        if speaker.rank is not None:
            return speaker.rank
        host = short_host(speaker.host) or log.host
        if speaker.pid is not None and (host, speaker.pid) in self.ranks_of_pids:
            return self.ranks_of_pids[host, speaker.pid]
        local = speaker.local_rank if speaker.local_rank is not None else log.place.local_rank
        if local is not None and local in log.ranks_of_local:
            return log.ranks_of_local[local]
        if speaker.spawned is not None and len(self.logs) == 1 and not log.facts.of_ranks.node_rank:
            return log.ranks_of_local.get(speaker.spawned, speaker.spawned)
        if speaker.task is not None and self.tasks_are_ranks:
            return speaker.task
        return log.rank if speaker.task is None and not speaker.pod else None

    def host_of(self, log: LogOfJob, speaker: Speaker, rank: int | None) -> str:
        """The host on which a line was printed; empty where it is not known."""
        if speaker.host:
            return self.addresses.get(speaker.host, short_host(speaker.host))
        pod = speaker.pod or log.place.pod
        if pod and (host := self.pod_hosts.get(pod.split("/")[0])):
            return host
        if rank is not None and rank in self.hosts:
            return self.hosts[rank]
        return "" if speaker.pod or (speaker.task is not None and not log.host) else log.host


def identify(facts: list[tuple[str, LogFacts]]) -> Identities:
    """The names that all logs of a job give together."""
    below = _common_lengths([name for name, _ in facts])
    job = Identities(
        [LogOfJob(name, shown, parse_log_path(name, below[os.path.isabs(name)])) for name, shown in facts]
    )
    _number_attempts(job)
    for log in job.logs:
        _learn(job, log.facts.of_ranks)
    _name_hosts(job)
    _name_ranks(job)
    _count_ranks(job)
    _number_tasks(job)
    _place_ranks(job)
    return job


def _number_attempts(job: Identities) -> None:
    """The attempt of each log: by torchrun's folders, or by `previous` in its name beside one without it."""
    before = {without_previous(log.name) for log in job.logs if without_previous(log.name) != log.name}
    for log in job.logs:
        log.is_restart = log.name in before
        log.attempt = 1 if log.is_restart else log.place.attempt or 0


def _common_lengths(names: list[str]) -> dict[bool, int]:
    """How many characters the names of one kind begin with alike, a whole folder.

    They are counted by whether they are absolute. People mix both, and standard input has a name without a
    folder.
    """
    lengths = {}
    for absolute in (False, True):
        folders = [os.path.dirname(name) for name in names if os.path.isabs(name) == absolute]
        shared = os.path.commonpath(folders) if folders else ""
        lengths[absolute] = len(shared) + 1 if shared not in ("", "/") else 0
    return lengths


def _learn(job: Identities, shown: RankFacts) -> None:
    for rank, host in shown.hosts.items():
        job.hosts.setdefault(rank, host)
    job.addresses.update(shown.addresses)
    job.pod_hosts.update(shown.pod_hosts)
    for (host, pid), rank in shown.ranks_of_pids.items():
        job.ranks_of_pids.setdefault((host, pid), rank)
    job.bus_ids.update(shown.bus_ids)
    job.known_hosts |= {host for host in shown.hosts.values() if host} | set(shown.addresses.values())
    job.known_hosts |= {gone.host for gone in shown.exits if gone.host} | set(shown.pod_hosts.values())
    joined = [absence.joined[1] for absence in shown.absences if absence.joined]
    job.world_size = max([job.world_size, shown.world_size, *joined])


def _name_hosts(job: Identities) -> None:
    """Each log's host: by a known name in its path, its own lines, or what looks like a name in its path."""
    spoken = {
        log.name: {short_host(who.host) for who in _speakers(log) if who.host and not who.host[0].isdigit()}
        for log in job.logs
    }
    job.known_hosts |= {host for hosts in spoken.values() for host in hosts}
    ordered = sorted(job.known_hosts, key=len, reverse=True)
    of_nodes: dict[int, str] = {}
    for log in job.logs:
        log.host = _host_of_log(job, log, ordered, spoken[log.name])
        if log.host and log.place.node is not None:
            of_nodes.setdefault(log.place.node, log.host)
    for log in job.logs:
        if log.host or len(spoken[log.name]) > 1:
            continue
        node = log.place.node
        log.host = log.place.host if node is None else of_nodes.get(node, f"node{node}")
    by_folder = {log.place.folder: log.host for log in job.logs if log.host and log.place.attempt is not None}
    for log in job.logs:
        log.host = log.host or by_folder.get(log.place.folder, "")


def _host_of_log(job: Identities, log: LogOfJob, known: list[str], spoken: set[str]) -> str:
    """The host that a log is of: named in its path, by its launcher's table, or by all of its lines."""
    parts = [part for part in log.name.split("/") if part]
    named = next((host for part in reversed(parts[-6:]) for host in known if _is_in(host, part)), "")
    rows = {gone.host for gone in log.facts.of_ranks.exits if gone.host and gone.rank is not None}
    alone = (next(iter(hosts)) for hosts in (rows, spoken) if len(hosts) == 1)
    return named or job.pod_hosts.get(log.place.pod, "") or log.facts.of_ranks.own_host or next(alone, "")


def _is_in(host: str, part: str) -> bool:
    return host in part and re.search(rf"(?<![A-Za-z0-9-]){re.escape(host)}(?![A-Za-z0-9])", part) is not None


def _name_ranks(job: Identities) -> None:
    """The rank of each log that is one rank's, and the ranks behind the local ranks in it."""
    local_size = _local_world_size(job)
    for log in job.logs:
        pairs = {
            who.local_rank: who.rank
            for who in _speakers(log)
            if who.local_rank is not None and who.rank is not None
        }
        rows = {
            local: rank
            for (host, local), rank in log.facts.of_ranks.ranks_of_local.items()
            if not host or host == log.host
        }
        log.ranks_of_local = {**rows, **{local: rank for local, rank in pairs.items() if rank is not None}}
        spoken = {who.rank for who in _speakers(log) if who.rank is not None}
        if log.place.rank is not None:
            log.rank = log.place.rank
        elif len(spoken) == 1 and (log.place.local_rank is not None or not log.facts.of_ranks.exits):
            log.rank = next(iter(spoken))
    shared: dict[str, dict[int, int]] = {}
    for log in job.logs:
        for local, rank in log.ranks_of_local.items():
            shared.setdefault(log.host, {}).setdefault(local, rank)
        if log.rank is not None and log.place.local_rank is not None:
            shared.setdefault(log.host, {}).setdefault(log.place.local_rank, log.rank)
    for log in job.logs:
        if log.host:
            log.ranks_of_local = {**shared.get(log.host, {}), **log.ranks_of_local}
        own, node = log.place.local_rank, _node_of(job, log)
        if own is not None and own not in log.ranks_of_local and node is not None and local_size:
            log.ranks_of_local[own] = node * local_size + own


def _count_ranks(job: Identities) -> None:
    """At least as many ranks as the hosts of launchers have each."""
    hosts = {
        log.host
        for log in job.logs
        if log.host and (log.facts.of_ranks.exits or log.place.attempt is not None)
    }
    known = {rank for log in job.logs for rank in log.ranks_of_local.values()}
    size = _local_world_size(job)
    if size > 0 and len(hosts) * size > max(known, default=-1):
        job.world_size = max(job.world_size, len(hosts) * size)


def _local_world_size(job: Identities) -> int:
    """Ranks per host, as far as local ranks show it."""
    local = [log.place.local_rank for log in job.logs if log.place.local_rank is not None]
    logged = [key[1] for log in job.logs for key in log.facts.of_ranks.ranks_of_local]
    return max([*local, *logged], default=-1) + 1


def _node_of(job: Identities, log: LogOfJob) -> int | None:
    """The node's number: from the launcher, from the path, or 0 where there is only one folder of logs."""
    if log.facts.of_ranks.node_rank is not None or log.place.node is not None:
        return log.facts.of_ranks.node_rank if log.facts.of_ranks.node_rank is not None else log.place.node
    folders = {other.place.folder for other in job.logs if other.place.local_rank is not None}
    return 0 if len(folders) == 1 else None


def _number_tasks(job: Identities) -> None:
    """Whether the numbers of `srun --label` are ranks: not where a task prints for several ranks."""
    pairs = {
        (who.task, who.rank)
        for log in job.logs
        for who in _speakers(log)
        if who.task is not None and who.rank is not None
    }
    if any(task != rank for task, rank in pairs):
        job.tasks_are_ranks = False


def _place_ranks(job: Identities) -> None:
    """The hosts of ranks known only by the logs that the ranks print in, or by srun where tasks are ranks."""
    if job.tasks_are_ranks:
        for gone in [gone for log in job.logs for gone in log.facts.of_ranks.exits]:
            if gone.task is not None and gone.host:
                job.hosts.setdefault(gone.task, gone.host)
    size = _local_world_size(job)
    for log in job.logs:
        for local, rank in log.ranks_of_local.items() if log.host and not job.pod_hosts else ():
            for other in range(size):  # torchrun counts its ranks host by host
                job.hosts.setdefault(rank - local + other, log.host)
    for log in job.logs:
        if not log.host:
            continue
        for who in _speakers(log):
            speaking = job.rank_of(log, who)
            if speaking is not None and not who.host and not who.pod:
                job.hosts.setdefault(speaking, log.host)
        if log.rank is not None:
            job.hosts.setdefault(log.rank, log.host)


def _speakers(log: LogOfJob) -> set[Speaker]:
    """Everybody who printed something that was kept."""
    facts = log.facts
    spoken = {who for found in facts.found.values() for who in found.speakers}
    spoken |= {raised.speaker for raised in facts.raised} | {line.speaker for line in facts.last_lines}
    return spoken - {NOBODY}
