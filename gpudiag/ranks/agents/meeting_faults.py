"""Why ranks that have all been started do not meet: the leading agent asks every host what it reaches, and judges."""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.published import HostAddresses
from gpudiag.ranks.agents.remote import RemoteRanks
from gpudiag.ranks.agents.store_notes import StoreWatch
from gpudiag.ranks.diagnosis.addresses import find_wrong_addresses
from gpudiag.ranks.diagnosis.firewalls import (
    SAMPLE_PORTS,
    OnlyOpenPort,
    failed_ways,
    find_closed_ports,
    is_needed,
    master_failures,
)
from gpudiag.ranks.diagnosis.paths import may_be_the_network
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Survey, Target
from gpudiag.ranks.diagnosis.view import RankView
from gpudiag.ranks.stages import INIT, RENDEZVOUS

# Where nothing was found, or what was found had healed, the next survey starts so much later.
_AGAIN_SECONDS = 2.0
# From the first note on: those of other hosts are on their way, and look once more.
_NOTES_SECONDS = 4.0
_FREE_PORTS = 1024  # those below are root's
# What an exception in these stages holds where the network, or an address, may be the cause: the words of gloo's
# transport (transport/tcp), of torch's sockets (c10d/socket.cpp) and of NCCL's.
_OF_THE_NETWORK = (
    "gloo",
    "Unable to find address",
    "ss_family",
    "socket",
    "connect",
    "imed out",
    "imeout",
    "nreachable",
    "NCCL error",
)


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where ranks meet, as this process was told: rank 0's machine and port."""

    host: str
    port: int


def meeting_point(init_method: str) -> MeetingPoint | None:
    """Where that `--init-method` has ranks meet; None where it names a file, or nothing."""
    if init_method == "env://":
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        return MeetingPoint(host, int(port)) if host and port.isdecimal() else None
    url = urlsplit(init_method)
    known = url.scheme == "tcp" and url.hostname is not None and url.port is not None
    return MeetingPoint(str(url.hostname), int(url.port or 0)) if known else None


class MeetingFaults:
    """Asks the hosts' agents once ranks stand still, or fail, before they are one process group."""

    def __init__(
        self,
        remote: RemoteRanks,
        own: HostAddresses | None,
        point: MeetingPoint | None,
        backend: str,
        store: StoreWatch | None = None,
    ) -> None:
        """`own` is what this host has and publishes; `backend` is gloo or nccl, or empty where the job does not say.

        `store` is rank 0's agent's look at its ranks' store.
        """
        self._remote = remote
        self._store = store
        self._own = own
        self._point = point
        self._backend = backend
        self._agent_port = 0 if remote.port is None else remote.port
        self._asked_at = -_AGAIN_SECONDS
        self._compared = False
        self.shut_out: OnlyOpenPort | None = None  # between this host and rank 0's, which is missed for that

    def find_early(self, now: float) -> tuple[Incident, ...]:
        """Hosts that publish no address, or a loopback one: looked for once, when all agents are there.

        That needs no try and no symptom: their ranks and those of other hosts cannot connect. `now` is in seconds since
        the run started.
        """
        if self.shut_out is not None:
            return (self.shut_out.incident(now),)
        if self._remote.has_all_addresses:
            self.close()
        elif self._store is not None and self._store.waited_seconds >= _NOTES_SECONDS:
            return self._find_shut_out(now, tuple(self._remote.absent()))
        if self._compared or not self._backend or not self._remote.has_all_addresses:
            return ()
        self._compared = True
        seen = Incident(IncidentKind.STALLED, self._remote.own_rank, "", RENDEZVOUS, now, ())
        return find_wrong_addresses(self._empty_survey(()), seen)

    def find(
        self, waiting: Sequence[Incident], views: Sequence[RankView], *, certain: bool
    ) -> tuple[Incident, ...]:
        """What keeps the ranks apart, where the hosts' addresses or ports explain `waiting`; else nothing.

        Takes up to 3 s, and 6 s where ports are closed. What is not `certain` yet may heal: it is asked twice.
        """
        if not waiting or not all(map(_may_be_explained, waiting)):
            return ()
        if not certain and time.monotonic() - self._asked_at < _AGAIN_SECONDS:
            return ()
        survey = self._ask(views)
        found = self._judge(survey, waiting[0])
        self._asked_at = time.monotonic()
        return found

    def explain_absent(self, absent: tuple[Incident, ...]) -> tuple[Incident, ...]:
        """The incidents of ranks that never came; those that reach the ranks' store are shut out by a firewall."""
        if self._store is None or any(one.kind is not IncidentKind.NOT_STARTED for one in absent):
            return absent
        noted = tuple(one.rank for one in absent if one.rank in self._store.notes)
        if not noted:
            return absent
        found = self._find_shut_out(absent[0].at_seconds, noted)
        return (*found, *(one for one in absent if one.rank not in noted))

    def close(self) -> None:
        """Look at the store no longer."""
        if self._store is not None:
            self._store.stop()

    def _find_shut_out(self, now: float, ranks: tuple[int, ...]) -> tuple[Incident, ...]:
        """That these ranks reach the port of the store and not this agent; nothing where one of them left no note."""
        notes = {} if self._store is None else self._store.notes
        if self._point is None or not ranks or not all(rank in notes for rank in ranks):
            return ()
        words = [notes[rank].split() for rank in ranks]
        answers = sorted({answer for _, said in words for answer in said.split(",")})
        hosts = tuple(dict.fromkeys(host for host, _ in words))
        own = socket.gethostname()
        found = OnlyOpenPort(own, self._point.host, self._point.port, self._agent_port, tuple(answers), hosts)
        return (found.incident(now),)

    def _judge(self, survey: Survey, first: Incident) -> tuple[Incident, ...]:
        wrong = find_wrong_addresses(survey, first)
        if wrong:
            return wrong
        failed, master = failed_ways(survey), master_failures(survey)
        if not master and not any(is_needed(survey, way) for way in failed):
            return ()
        refusing = {way[1] for way, one in failed.items() if one.answer is Answer.REFUSED}
        if refusing:
            ports = tuple(port for port in SAMPLE_PORTS if port >= _FREE_PORTS)
            asked: dict[int, tuple[Target, ...]] = dict.fromkeys(refusing, ())
            self._remote.take_survey(asked, dict.fromkeys(refusing, ports))
        again = self._remote.take_survey(_detailed(survey))
        detail = replace(survey, rows=again)
        lasting = set(failed_ways(detail)) & set(failed)
        lasting_master = master_failures(detail).keys() & master.keys()
        if not lasting and not lasting_master:
            return ()
        return find_closed_ports(_merge(survey, detail), detail, first)

    def _ask(self, views: Sequence[RankView]) -> Survey:
        empty = self._empty_survey(views)
        targets = _first_targets(empty, self._remote, self._point)
        return replace(empty, rows=self._remote.take_survey(targets))

    def _empty_survey(self, views: Sequence[RankView]) -> Survey:
        remote = self._remote
        on_gpus = self._backend == "nccl" or (not self._backend and any(view.has_gpu for view in views))
        return Survey(
            remote.speakers(),
            addresses=remote.host_addresses(self._own),
            meets_at=remote.meeting_addresses(),
            rows={},
            library="NCCL" if on_gpus else "gloo",
            master="" if self._point is None else f"{self._point.host}:{self._point.port}",
            server=remote.speaker_of(0),
        )


def _may_be_explained(incident: Incident) -> bool:
    """Whether addresses or ports may be why: of ranks that are still meeting, and that did not fail by themselves."""
    if incident.stage not in (RENDEZVOUS, INIT):
        return False
    if incident.kind is IncidentKind.RAISED:
        said = str(incident.facts.get("message", ""))
        return any(word in said for word in _OF_THE_NETWORK)
    return may_be_the_network(incident)


def _first_targets(
    survey: Survey, remote: RemoteRanks, point: MeetingPoint | None
) -> Mapping[int, tuple[Target, ...]]:
    """For each host the agents of the others, at the addresses by which they are known and that ranks publish."""
    found: dict[int, tuple[Target, ...]] = {}
    for source in survey.hosts:
        targets: list[Target] = []
        for rank, (address, port) in remote.agents_seen_from(source).items():
            targets.append(Target(rank, address, port, Purpose.AGENT))
            published = {one.address for one in survey.published(rank)} - {None, address}
            targets += [
                Target(rank, str(one), port, Purpose.PUBLISHED) for one in sorted(map(str, published))
            ]
        if point is not None and survey.server is not None:
            targets.append(Target(survey.server, point.host, point.port, Purpose.MASTER))
        found[source] = tuple(targets)
    return found


def _detailed(survey: Survey) -> Mapping[int, tuple[Target, ...]]:
    """What failed once more, and sample ports of the same hosts: some are as open as the failed one was closed."""
    failed, master = failed_ways(survey), master_failures(survey)
    found: dict[int, tuple[Target, ...]] = {}
    for source, row in survey.rows.items():
        again = [
            one.target
            for one in row
            if one.target.purpose is Purpose.MASTER or (source, one.target.rank) in failed
        ]
        samples = [
            Target(one.target.rank, one.target.address, port, Purpose.PORT)
            for one in row
            if (one.target.purpose is Purpose.AGENT and (source, one.target.rank) in failed)
            or (one.target.purpose is Purpose.MASTER and source in master)
            for port in SAMPLE_PORTS
        ]
        found[source] = (*again, *samples)
    return found


def _merge(survey: Survey, detail: Survey) -> Survey:
    """The survey without what had failed once and did not the second time."""
    healed = {
        (source, one.target) for source, row in detail.rows.items() for one in row if one.answer.is_open
    }
    rows = {
        source: tuple(
            next((new for new in detail.rows[source] if new.target == one.target), one)
            if (source, one.target) in healed
            else one
            for one in row
        )
        for source, row in survey.rows.items()
    }
    return replace(survey, rows=rows)
