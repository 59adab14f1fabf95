"""Ports of a host, or between two hosts, that are closed: to whom, in which way, and which ranges; pure.

    all others fail on one host's ports           -> that host lets nothing in
    one host fails on the ports of all others     -> that host gets nothing out
    two hosts fail on each other's, or one does   -> what is between them
    only the port where ranks meet fails          -> rank 0's host, or the way from those hosts to it

A host whose agent takes part in the survey is up and reports over an open connection, so what fails is no cut
cable.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Survey, Try, connects
from gpudiag.ranks.stages import RENDEZVOUS

_SOURCE = "connections between the agents' hosts"
# What shows which ports a firewall lets through: privileged and registered ones, those of agents, and
# ephemeral ones.
SAMPLE_PORTS = (22, 1024, 5000, 10000, 15000, 20000, 25000, 29500, 32768, 40000, 50000, 60999, 65535)
_MOST_SHOWN = 6
_FREE_PORTS = 1024  # no user but root listens below

_Way = tuple[int, int]  # who tried, whose ports


@dataclass(frozen=True, slots=True)
class OnlyOpenPort:
    """That other hosts reach the port where ranks meet, and none of those where rank 0's agent listens."""

    host: str  # rank 0's
    address: str  # as those hosts got it
    port: int
    agent_port: int  # one that they tried
    answers: tuple[str, ...]  # what these brought
    hosts: tuple[str, ...]  # that tried

    def incident(self, at_seconds: float) -> Incident:
        """The incident; its words are the same for rank 0's agent and for those of the other hosts."""
        facts = (
            Evidence("direction", "in", source=_SOURCE),
            Evidence("open_port", self.port, source=_SOURCE),
            Evidence("answers", ", ".join(self.answers), source=_SOURCE),
            Evidence("closed_to", ", ".join(self.hosts), source=_SOURCE),
            Evidence("closed_ports", str(self.agent_port), source=_SOURCE),
            Evidence("try_on", self.hosts[0], source=_SOURCE),
            Evidence("try_address", self.address, source=_SOURCE),
            Evidence("try_port", self.agent_port, source=_SOURCE),
            Evidence("look_on", self.host, source=_SOURCE),
        )
        return Incident(IncidentKind.FILTERED, 0, self.host, RENDEZVOUS, at_seconds, facts)


# What a host found on its way to rank 0's port, as an answer.
_OBSTACLES = {"no_answer": Answer.SILENT, "refused": Answer.REFUSED, "no_route": Answer.NO_ROUTE}


def join_unreached(
    incidents: Sequence[Incident], server: str, met: frozenset[str], agent_port: int
) -> tuple[Incident, ...]:
    """The incidents, with all hosts that do not reach `server`, rank 0's host, as one: it is that one's.

    Not if another of the `met` hosts has met. Where the rendezvous port refuses, its ranks are not up; its
    agent is, at `agent_port`.
    """
    unreached = [
        one
        for one in incidents
        if one.kind is IncidentKind.UNREACHED and one.facts.get("obstacle") in _OBSTACLES
    ]
    hosts = tuple(dict.fromkeys(one.host for one in unreached))
    if len(hosts) < 2 or met - {server}:
        return tuple(incidents)
    first = unreached[0]
    address, _, port = str(first.facts.get("rank_0", "")).rpartition(":")
    answers = {_answer_of(one) for one in unreached}
    if any(one.facts["obstacle"] == "refused" for one in unreached):
        port = str(agent_port)
    facts = (
        Evidence("direction", "in", source=_SOURCE),
        Evidence("closed_to", ", ".join(hosts), source=_SOURCE),
        Evidence("answers", ", ".join(sorted(one.value for one in answers)), source=_SOURCE),
        Evidence("closed_ports", port, source=_SOURCE),
        Evidence("found", str(first.facts.get("found", "")), source=_SOURCE),
        Evidence("try_on", hosts[0], source=_SOURCE),
        Evidence("try_address", address, source=_SOURCE),
        Evidence("try_port", port, source=_SOURCE),
        Evidence("look_on", server, source=_SOURCE),
    )
    joined = Incident(IncidentKind.FILTERED, 0, server, RENDEZVOUS, first.at_seconds, facts)
    return (joined, *(one for one in incidents if one not in unreached))


def _answer_of(unreached: Incident) -> Answer:
    """What a host got that does not reach rank 0's, by its words."""
    found = str(unreached.facts.get("found", ""))
    if "is prohibited" in found:
        return Answer.PROHIBITED
    return Answer.SILENT if "does not answer" in found else _OBSTACLES[str(unreached.facts["obstacle"])]


def failed_ways(survey: Survey) -> dict[_Way, Try]:
    """The directions in which a host does not reach the port where another one's agent answers."""
    return {
        way: tries[0]
        for way, tries in survey.tries(Purpose.AGENT).items()
        if not tries[0].answer.is_open and way[0] != way[1]
    }


def is_needed(survey: Survey, way: _Way) -> bool:
    """Whether ranks have to connect in that direction: with gloo, those of the greater address connect."""
    if survey.library != "gloo":
        return True
    source, target = (survey.published(rank) for rank in way)
    known = [
        (one.address, other.address) for one in source for other in target if one.address and other.address
    ]
    return not known or any((":" in one) != (":" in other) or connects(one, other) for one, other in known)


def master_failures(survey: Survey) -> dict[int, Try]:
    """The hosts that do not reach the port where ranks meet, while rank 0's host itself does."""
    server = survey.server
    tries = {source: found[0] for (source, _), found in survey.tries(Purpose.MASTER).items()}
    if server is None or server not in tries or not tries[server].answer.is_open:
        return {}
    return {source: one for source, one in tries.items() if not one.answer.is_open and source != server}


def find_closed_ports(survey: Survey, detail: Survey, first: Incident) -> tuple[Incident, ...]:
    """An incident for each host or pair with closed ports; `detail`: samples' answers."""
    failed = failed_ways(survey)
    if failed:
        return _of_ways(survey, detail, failed, first)
    return _of_master(survey, detail, first)


def _of_ways(
    survey: Survey, detail: Survey, failed: Mapping[_Way, Try], first: Incident
) -> tuple[Incident, ...]:
    hosts = sorted(survey.hosts)
    rest = dict(failed)
    found: list[Incident] = []
    if len(hosts) > 2:
        for direction, side in (("in", 1), ("out", 0)):
            for rank in hosts:
                ways = [way for way in failed if way[side] == rank]
                left = [way for way in ways if way in rest]
                tried = {way for way in survey.tries(Purpose.AGENT) if way[side] == rank}
                if len(ways) < len(hosts) - 1 or len(ways) < len(tried) or not left:
                    continue
                both = all((way[1], way[0]) in failed for way in ways)
                found.append(_closed(survey, detail, rank, ways, "both" if both else direction, first))
                for way in ways:
                    rest.pop(way, None)
                    if both:
                        rest.pop((way[1], way[0]), None)
    pairs = sorted({(min(way), max(way)) for way in rest})
    return (*found, *(_parted(survey, detail, pair, rest, first) for pair in pairs))


def _closed(
    survey: Survey, detail: Survey, rank: int, ways: Sequence[_Way], direction: str, first: Incident
) -> Incident:
    others = [way[0] if way[1] == rank else way[1] for way in ways]
    facts = (
        Evidence("direction", direction, source=_SOURCE),
        Evidence("closed_to", survey.name(others), source=_SOURCE),
        *_facts(survey, detail, ways),
    )
    return _incident(survey, IncidentKind.FILTERED, rank, facts, first)


def _parted(
    survey: Survey, detail: Survey, pair: _Way, failed: Mapping[_Way, Try], first: Incident
) -> Incident:
    ways = [way for way in (pair, pair[::-1]) if way in failed]
    one, other = pair if len(ways) > 1 else ways[0]
    both = [
        rank
        for rank in survey.hosts
        if rank not in pair and not any(way in failed for end in pair for way in ((rank, end), (end, rank)))
    ]
    facts = (
        Evidence("one_side", survey.hosts[one], source=_SOURCE),
        Evidence("other_side", survey.hosts[other], source=_SOURCE),
        *((Evidence("only_one_way", True, source=_SOURCE),) if len(ways) == 1 else ()),
        *((Evidence("reached_both", survey.name(both), source=_SOURCE),) if both else ()),
        *_facts(survey, detail, ways),
    )
    return _incident(survey, IncidentKind.PARTED, other, facts, first)


def _of_master(survey: Survey, detail: Survey, first: Incident) -> tuple[Incident, ...]:
    failed = master_failures(survey)
    server = survey.server
    if server is None or not failed:
        return ()
    others = [rank for rank in survey.hosts if rank != server]
    port = survey.master.rpartition(":")[2]
    ways = [(source, server) for source in sorted(failed)]
    facts = (
        Evidence("only_port", port, source="the launcher's variables or --init-method"),
        *_facts(survey, detail, ways, Purpose.MASTER),
    )
    if len(failed) == len(others) and len(others) > 1:
        closed = (
            Evidence("direction", "in", source=_SOURCE),
            Evidence("closed_to", survey.name(failed), source=_SOURCE),
        )
        return (_incident(survey, IncidentKind.FILTERED, server, (*closed, *facts), first),)
    return tuple(
        _incident(
            survey,
            IncidentKind.PARTED,
            source,
            (
                Evidence("one_side", survey.hosts[source], source=_SOURCE),
                Evidence("other_side", survey.hosts[server], source=_SOURCE),
                Evidence("only_one_way", True, source=_SOURCE),
                *facts,
            ),
            first,
        )
        for source in sorted(failed)
    )


def _facts(
    survey: Survey, detail: Survey, ways: Sequence[_Way], purpose: Purpose = Purpose.AGENT
) -> tuple[Evidence, ...]:
    """What came back, which ports are closed and which open, and where and how to see it."""
    tries = [survey.tries(purpose)[way][0] for way in ways]
    tried = "; ".join(
        f"{survey.hosts[way[0]]} to {survey.hosts[way[1]]}"
        f" ({one.address or one.target.address}:{one.target.port}): {_words(one)}"
        for way, one in list(zip(ways, tries, strict=True))[:_MOST_SHOWN]
    )
    source, target = ways[0]
    facts = [
        Evidence("answers", ", ".join(sorted({one.answer.value for one in tries})), source=_SOURCE),
        Evidence("tried", tried, source=_SOURCE),
        Evidence("try_on", survey.hosts[source], source=_SOURCE),
        Evidence("try_address", tries[0].address or tries[0].target.address, source=_SOURCE),
        Evidence("try_port", tries[0].target.port, source=_SOURCE),
        Evidence("look_on", survey.hosts[target], source=_SOURCE),
    ]
    ports = _ports(detail, ways)
    if purpose is Purpose.AGENT:
        for way, one in zip(ways, tries, strict=True):
            ports.setdefault(one.target.port, set()).add(one.answer)
            for master in survey.tries(Purpose.MASTER).get((way[0], survey.server or 0), ()):
                if way[1] == survey.server:
                    ports.setdefault(master.target.port, set()).add(master.answer)
    closed, opened = describe_ports(ports, {one.answer for one in tries})
    if closed:
        facts.append(Evidence("closed_ports", closed, source=_SOURCE))
    if opened:
        facts.append(Evidence("open_ports", opened, source=_SOURCE))
    return tuple(facts)


def _ports(detail: Survey, ways: Iterable[_Way]) -> dict[int, set[Answer]]:
    found: dict[int, set[Answer]] = {}
    tries = detail.tries(Purpose.PORT)
    for way in ways:
        for one in tries.get(way, ()):
            found.setdefault(one.target.port, set()).add(one.answer)
    return found


def describe_ports(ports: Mapping[int, set[Answer]], how: set[Answer]) -> tuple[str, str]:
    """The ports that are closed in that way, and those that are open: `22, 29500`, `32768 to 65535`.

    Behind a firewall that drops or prohibits, a refused port is open. Where it refuses, agents listen on
    samples.
    """
    refuses = Answer.REFUSED in how
    closed, opened = [], []
    for port, answers in sorted(ports.items()):
        if answers & how:
            closed.append(port)
        elif all(answer.is_open or (answer is Answer.REFUSED and not refuses) for answer in answers):
            opened.append(port)
    if refuses:
        closed = [port for port in closed if port >= _FREE_PORTS]
    return _ranges(closed, opened), _ranges(opened, closed)


def _ranges(ports: Sequence[int], others: Sequence[int]) -> str:
    """Ports with none of the others between them, as a range."""
    spans: list[list[int]] = []
    for port in sorted(ports):
        if spans and not any(spans[-1][-1] < other < port for other in others):
            spans[-1][1:] = [port]
        else:
            spans.append([port])
    return ", ".join(" to ".join(map(str, span)) for span in spans)


def _words(one: Try) -> str:
    is_known = one.words and one.answer is not Answer.REFUSED
    return f"{one.answer.value} ({one.words})" if is_known else one.answer.value


def _incident(
    survey: Survey, kind: IncidentKind, rank: int, facts: tuple[Evidence, ...], first: Incident
) -> Incident:
    noticed = Evidence("noticed_as", f"rank {first.rank} {first.kind.value}", source="side channel")
    return Incident(kind, rank, survey.hosts[rank], first.stage, first.at_seconds, (*facts, noticed))
