"""Why started ranks do not meet: the leading agent asks what every host reaches, and judges."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.agents.discovery import Address
from gpudiag.ranks.agents.host_surveys import HostSurveys
from gpudiag.ranks.agents.store_notes import StoreWatch
from gpudiag.ranks.diagnosis.addresses import find_wrong_addresses
from gpudiag.ranks.diagnosis.conflicts import find_conflicts
from gpudiag.ranks.diagnosis.firewalls import (
    OnlyOpenPort,
    failed_ways,
    find_closed_ports,
    is_needed,
    master_failures,
)
from gpudiag.ranks.diagnosis.paths import may_be_the_network
from gpudiag.ranks.diagnosis.survey import Survey
from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.stages import INIT, RENDEZVOUS

# Where nothing was found, or what was found had healed, the next survey starts so much later.
_AGAIN_SECONDS = 2.0
# From the first note on: those of other hosts are on their way, and look once more.
_NOTES_SECONDS = 4.0
# What an exception in these stages holds where the network, or an address, may be the cause: the words of
# gloo's transport (transport/tcp), of torch's sockets (c10d/socket.cpp) and of NCCL's.
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


def meeting_point(init_method: str) -> Address | None:
    """Rank 0's machine and port, where that `--init-method` has ranks meet.

    It is None where it names a file, or nothing.
    """
    if init_method == "env://":
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        return (host, int(port)) if host and port.isdecimal() else None
    url = urlsplit(init_method)
    known = url.scheme == "tcp" and url.hostname is not None and url.port is not None
    return (str(url.hostname), int(url.port or 0)) if known else None


class MeetingFaults:
    """Asks the hosts' agents once ranks stand still, or fail, before they are one process group."""

    def __init__(
        self, surveys: HostSurveys, point: Address | None, backend: str, store: StoreWatch | None = None
    ) -> None:
        """`backend` is gloo or nccl, or empty where it is unknown.

        `store` is rank 0's agent's look at the store. `point` is where ranks meet.
        """
        self._surveys = surveys
        self._point = point
        self._backend = backend
        self._store = store
        self._asked_at = -_AGAIN_SECONDS
        self._compared = False
        self.agent_port = 0  # at which agents of other hosts connect to rank 0's
        self.shut_out: OnlyOpenPort | None = None  # between this host and rank 0's, which is missed for that

    def find_early(self, views: Sequence[RankView], now: float) -> tuple[Incident, ...]:
        """What is certain before any rank fails; `now` is in seconds since the run started.

        A firewall that leaves the rendezvous port alone; once all agents are there, hosts with no or a
        loopback address.
        """
        if self.shut_out is not None:
            return (self.shut_out.incident(now),)
        if self._store is not None and self._store.waited_seconds >= _NOTES_SECONDS:
            absent = tuple(view.rank for view in views if view.life is Life.NOT_STARTED)
            found = self._find_shut_out(now, absent)
            if found:
                return found
        if self._compared or not self._backend or not self._surveys.has_all_addresses:
            return ()
        self._compared = True
        self.close()
        first = Incident(IncidentKind.STALLED, 0, "", RENDEZVOUS, now, ())
        return find_wrong_addresses(self._surveys.without_tries(self._library(views)), first)

    def find(
        self, waiting: Sequence[Incident], views: Sequence[RankView], *, certain: bool
    ) -> tuple[Incident, ...]:
        """What keeps the ranks apart, if addresses or ports explain `waiting`; without `certain` it may heal.

        Takes up to 3 s, and 6 s where ports are closed.
        """
        if not waiting or not all(map(_may_be_explained, waiting)):
            return ()
        if not certain and time.monotonic() - self._asked_at < _AGAIN_SECONDS:
            return ()
        found = self._judge(self._surveys.take(self._library(views)), waiting[0])
        self._asked_at = time.monotonic()
        return found

    def explain_absent(self, absent: tuple[Incident, ...]) -> tuple[Incident, ...]:
        """The incidents of ranks that never came.

        Those that reach the ranks' store are shut out by a firewall.
        """
        if self._store is None or any(one.kind is not IncidentKind.NOT_STARTED for one in absent):
            return absent
        noted = tuple(one.rank for one in absent if one.rank in self._store.notes)
        if not noted:
            return absent
        found = self._find_shut_out(absent[0].at_seconds, noted)
        return (*found, *(one for one in absent if one.rank not in noted))

    @property
    def noted(self) -> frozenset[int]:
        """The ranks that have left a note in the ranks' store: they reach that port of this host alone."""
        return frozenset() if self._store is None else frozenset(self._store.notes)

    def close(self) -> None:
        """Look at the store no longer."""
        if self._store is not None:
            self._store.stop()

    def _library(self, views: Sequence[RankView]) -> str:
        on_gpus = not self._backend and any(view.has_gpu for view in views)
        return "NCCL" if on_gpus or self._backend == "nccl" else "gloo"

    def _find_shut_out(self, now: float, ranks: tuple[int, ...]) -> tuple[Incident, ...]:
        """That these ranks reach the port of the store and not this agent.

        There is none where one of them left no note.
        """
        notes = {} if self._store is None else self._store.notes
        if self._point is None or not ranks or not all(rank in notes for rank in ranks):
            return ()
        words = [notes[rank].split() for rank in ranks]
        answers = sorted({answer for _, given in words for answer in given.split(",")})
        hosts = tuple(dict.fromkeys(host for host, _ in words))
        found = OnlyOpenPort(socket.gethostname(), *self._point, self.agent_port, tuple(answers), hosts)
        return (found.incident(now),)

    def _judge(self, survey: Survey, first: Incident) -> tuple[Incident, ...]:
        wrong = find_wrong_addresses(survey, first)
        if wrong:
            return wrong
        failed, master = failed_ways(survey), master_failures(survey)
        if not master and not any(is_needed(survey, way) for way in failed):
            return ()
        detail = self._surveys.take_again(survey)
        lasting = set(failed_ways(detail)) & set(failed)
        lasting_master = master_failures(detail).keys() & master.keys()
        if not lasting and not lasting_master:
            return ()
        known = _without_healed(survey, detail)
        conflicts = find_conflicts(survey, [one for one in failed.items() if one[0] in lasting], first)
        return conflicts or find_closed_ports(known, detail, first)


def _may_be_explained(incident: Incident) -> bool:
    """Whether addresses or ports may be why: of ranks that still meet and did not fail by themselves."""
    if incident.stage not in (RENDEZVOUS, INIT):
        return False
    if incident.kind is IncidentKind.RAISED:
        message = str(incident.facts.get("message", ""))
        return any(word in message for word in _OF_THE_NETWORK)
    return may_be_the_network(incident)


def _without_healed(survey: Survey, detail: Survey) -> Survey:
    """The survey with the later answer where a target that had failed answered the second time."""
    healed = {
        (source, one.target): one for source, row in detail.rows.items() for one in row if one.answer.is_open
    }
    rows = {
        source: tuple(healed.get((source, one.target), one) for one in row)
        for source, row in survey.rows.items()
    }
    return replace(survey, rows=rows)
