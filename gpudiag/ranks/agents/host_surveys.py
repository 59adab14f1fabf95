"""The leading agent's questions to the agents of all hosts: what each reaches, on which ports."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from gpudiag.model.published import HostAddresses
from gpudiag.ranks.agents import messages
from gpudiag.ranks.agents.discovery import Address
from gpudiag.ranks.agents.path_watch import PathWatch
from gpudiag.ranks.agents.remote import RemoteRanks
from gpudiag.ranks.agents.survey import SURVEY_SECONDS
from gpudiag.ranks.agents.tcp_counters import plain_address
from gpudiag.ranks.diagnosis.firewalls import SAMPLE_PORTS, failed_ways, master_failures
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Survey, Target, Try

# A leader that sends nothing for three seconds is taken for dead.
_SEND_SECONDS = 0.5
_FREE_PORTS = 1024  # those below are root's

Targets = Mapping[int, tuple[Target, ...]]
_NOTHING: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class HostSurveys:
    """Asks the agent that speaks for each host: that of its lowest rank which is connected."""

    def __init__(
        self, remote: RemoteRanks, paths: PathWatch, own: HostAddresses, own_host: str, master: Address | None
    ) -> None:
        """`own` is what this host has and publishes, `master` where ranks meet."""
        self._remote = remote
        self._paths = paths
        self._own = own
        self._own_host = own_host
        self._master = master
        self._number = 0
        self._sent_at = 0.0

    @property
    def has_all_addresses(self) -> bool:
        """Whether every other rank's agent has sent what its host publishes."""
        return all(record.host_addresses is not None for record in self._remote.records.values())

    def without_tries(self, library: str) -> Survey:
        """The hosts and what they publish for that library."""
        speakers = self._speakers()
        addresses = {rank: record.host_addresses for rank, record in self._remote.records.items()}
        addresses[self._remote.own_rank] = self._own
        return Survey(
            speakers,
            addresses={rank: found for rank in speakers if (found := addresses[rank]) is not None},
            meets_at=self._meeting_addresses(speakers),
            rows={},
            library=library,
            master="" if self._master is None else f"{self._master[0]}:{self._master[1]}",
            server=self._speaker_of(0, speakers),
        )

    def take(self, library: str) -> Survey:
        """What each host finds of the others: agents at known and published addresses, the rendezvous."""
        empty = self.without_tries(library)
        targets: dict[int, tuple[Target, ...]] = {}
        for source in empty.hosts:
            wanted: list[Target] = []
            for rank, (address, port) in self._agents_seen_from(source, empty.hosts).items():
                wanted.append(Target(rank, address, port, Purpose.AGENT))
                published = {one.address for one in empty.published(rank) if one.address is not None}
                wanted += [
                    Target(rank, one, port, Purpose.PUBLISHED) for one in sorted(published - {address})
                ]
            if self._master is not None and empty.server is not None:
                wanted.append(Target(empty.server, *self._master, Purpose.MASTER))
            targets[source] = tuple(wanted)
        return replace(empty, rows=self._ask(targets))

    def take_again(self, survey: Survey) -> Survey:
        """What failed once more, with sample ports of those hosts, on which their agents listen."""
        failed, master = failed_ways(survey), master_failures(survey)
        refusing = {way[1] for way, one in failed.items() if one.answer is Answer.REFUSED}
        if refusing:
            ports = tuple(port for port in SAMPLE_PORTS if port >= _FREE_PORTS)
            self._ask(dict.fromkeys(refusing, ()), dict.fromkeys(refusing, ports))
        targets: dict[int, tuple[Target, ...]] = {}
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
            targets[source] = (*again, *samples)
        return replace(survey, rows=self._ask(targets))

    def _ask(
        self, targets: Targets, listen: Mapping[int, tuple[int, ...]] = _NOTHING
    ) -> dict[int, tuple[Try, ...]]:
        """What each of these hosts' agents finds at its targets, within 3 s, listening from then on."""
        self._number += 1
        own_rank, records = self._remote.own_rank, self._remote.records
        if own_rank in listen:
            self._paths.surveyor.listen(listen[own_rank])
        asked = []
        for rank in targets:
            link = records[rank].link if rank in records else None
            if link is not None:
                link.send(messages.SurveyRequest(self._number, targets[rank], listen.get(rank, ())))
                asked.append(rank)
        own: list[tuple[Try, ...]] = []
        if own_rank in targets:
            look = threading.Thread(
                target=lambda: own.append(self._paths.surveyor.try_all(targets[own_rank])), daemon=True
            )
            look.start()
        deadline = time.monotonic() + SURVEY_SECONDS + _SEND_SECONDS
        while time.monotonic() < deadline and (
            (own_rank in targets and not own) or any(self._is_awaited(rank) for rank in asked)
        ):
            self._remote.receive()
            now = time.monotonic()
            if now - self._sent_at >= _SEND_SECONDS:
                self._sent_at = now
                self._remote.send(messages.ClockQuestion(now))
            time.sleep(0.01)
        rows = {
            rank: row.tries
            for rank in asked
            if (row := records[rank].survey) is not None and row.number == self._number
        }
        return {**rows, **({own_rank: own[0]} if own else {})}

    def _is_awaited(self, rank: int) -> bool:
        record = self._remote.records[rank]
        return not record.lost and (record.survey is None or record.survey.number != self._number)

    def _speakers(self) -> dict[int, str]:
        first = {self._remote.own.machine.network: (self._remote.own_rank, self._own_host)}
        for rank, record in sorted(self._remote.records.items()):
            if record.location is not None and record.link is not None:
                first.setdefault(record.location.machine.network, (rank, record.view.host))
        return dict(sorted(first.values()))

    def _speaker_of(self, rank: int, speakers: Mapping[int, str]) -> int | None:
        """The rank that speaks for that rank's host; None where its agent has not come."""
        network = self._network_of(rank)
        return next(
            (one for one in speakers if network is not None and self._network_of(one) == network), None
        )

    def _network_of(self, rank: int) -> str | None:
        if rank == self._remote.own_rank:
            return self._remote.own.machine.network
        location = self._remote.records[rank].location
        return None if location is None else location.machine.network

    def _meeting_addresses(self, speakers: Mapping[int, str]) -> dict[int, str]:
        """The address by which agents know each host."""
        own_rank, own = self._remote.own_rank, self._remote.own_addresses
        seen = {rank: self._remote.records[rank].addresses for rank in speakers if rank != own_rank}
        found = {rank: addresses[0] for rank, addresses in seen.items() if addresses}
        return {**found, own_rank: own[0]} if own else found

    def _agents_seen_from(self, source: int, speakers: Mapping[int, str]) -> dict[int, Address]:
        """Where the other hosts' agents answer; this one's as that host reaches it."""
        found: dict[int, Address] = {}
        for rank in speakers:
            if rank == source:
                continue
            if rank == self._remote.own_rank:
                link = self._remote.records[source].link
                address = None if link is None else link.own_address
                if address is not None:
                    found[rank] = (plain_address(address), self._paths.port)
            else:
                location = self._remote.records[rank].location
                if location is not None and location.paths_address is not None:
                    address, port = location.paths_address
                    found[rank] = (plain_address(address), port)
        return found
