"""Which node, rail, link or part of a labelled fabric stands out among pairs of nodes that exchanged data."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.evidence import Evidence, HostSubject, LinkSubject, RankSubject, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.measure import (
    CollectiveMeasurement,
    FabricPart,
    Incident,
    IncidentKind,
    Localisation,
    Node,
    Suspect,
    Symptom,
)
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.units import format_rate, format_seconds

_SPEED_BASIS = Basis(
    reads=(
        "How fast pairs of nodes exchange data, each rank with the rank of the same rail in the other node:"
        " random disjoint pairs in three rounds (all pairs of up to eight nodes), suspects again with two"
        " good nodes or with each other, then all nodes at once in rings."
    ),
    limit=(
        "0.9 of the median of the nodes' best with NCCL, 0.6 with gloo, or five robust standard deviations"
        " if that is less; under load 0.6 of that; of the uplinks of a leaf together five standard errors"
        " and 1.5 %. In every exchange of the node, or of the pair if both are good with other nodes."
    ),
    look_also=("ib_write_bw", "ethtool -S", "nvidia-smi topo -m", "rank.late", "network.path_lossy"),
)
_TAIL_BASIS = Basis(
    reads=(
        "What the kernel counts of the ranks' TCP connections (tcp_info) while pairs of nodes exchange data;"
        " for data over RDMA, the slowest and the median of 64 small exchanges (256 KiB)."
    ),
    limit=(
        "0.5 % of at least 500 segments, and at least 10 of them; without a count a slowest one of ten"
        " times its own median, ten times the nodes' usual, and 40 ms. The fastest large one reaches a"
        " tenth of the usual: else it is slow."
    ),
    look_also=("ip -s link", "ethtool -S", "network.path_lossy", "network.link_slow"),
)


def _slow(code: str, meaning: str, remedy: str) -> FindingKind:
    return FindingKind(
        code=code,
        outcome=Outcome.WARN,
        severity=Severity.TRIAGE,
        category=Category.PERF_THRESHOLD,
        owner=Owner.HOST,
        meaning=meaning,
        remedy=remedy,
        basis=_SPEED_BASIS,
    )


NODE_SLOW = _slow(
    "network.node_slow",
    "One node exchanges data more slowly than the others, with every partner.",
    "Keep it out of jobs and examine it: link speed and width of its interfaces (`ethtool`, `ibstat`,"
    " `lspci -vv`), the clocks of its GPUs, what else runs there.",
)
RAIL_SLOW = _slow(
    "network.rail_slow",
    "The ranks of one rail exchange data more slowly than those of the other rails:"
    " their network card, cable or switch is slow.",
    "Find the card that serves that rank (`gpudiag topo`), its speed and its errors;"
    " on all nodes: the switch of that rail.",
)
LINK_SLOW = _slow(
    "network.link_slow",
    "Two nodes exchange data slowly with each other, and both are as fast as usual with others.",
    "Look at what only their traffic uses: cables, uplinks and the switch ports"
    " between them, the routes that ECMP chose.",
)
UPLINK_SLOW = _slow(
    "network.uplink_slow",
    "What leaves one switch is slow, or a part of it: an uplink, its cable or its port. Inside the"
    " switch nodes are as fast as usual.",
    "Look at the uplinks of the named switch: link state, width, speed and error counters of each port"
    " (`ibdiagnet --pc`, `mlxlink -d DEVICE`, the switch's own `show interfaces counters`).",
)
SWITCH_SLOW = _slow(
    "network.switch_slow",
    "Nodes of one leaf switch exchange data slowly with each other.",
    "Look at that switch: its ports' speed and error counters, its buffers, its firmware,"
    " and what its nodes have in common.",
)
NVLINK_SLOW = _slow(
    "network.nvlink_slow",
    "NVLink between nodes is slow: of one node, or of all nodes of an NVLink domain.",
    "[driver] Compare `nvidia-smi nvlink -s` and `nvidia-smi nvlink -e` of its nodes, look at the fabric"
    " manager and"
    " IMEX, and at the NVLink switch trays.",
)
ALL_SLOW = FindingKind(
    code="network.all_slow",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.PERF_THRESHOLD,
    owner=Owner.HOST,
    meaning=(
        "No two hosts exchange data faster than Fast Ethernet carries: every link, the switch, or the"
        " interface that was chosen is slow."
    ),
    remedy=(
        "Check which interface carries the data, and its speed (`ip route`,"
        " `ethtool IFACE | grep Speed`); name the fast one with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME."
    ),
    basis=Basis(
        reads=(
            "How fast pairs of hosts exchange data, each rank with the rank of"
            " the same rail in the other host."
        ),
        limit=(
            "20 MB/s as the median of the hosts' best; Fast Ethernet carries 12.5"
            " MB/s, gigabit Ethernet 125 MB/s."
        ),
        look_also=("ethtool IFACE", "ip route get ADDRESS", "network.node_slow", "network.wrong_interface"),
    ),
)
NODE_LOSSY = FindingKind(
    code="network.node_lossy",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning="Some exchanges of one node take as long as a retransmission, with every partner.",
    remedy=(
        "Look at its interface, cable, transceiver and switch port for errors and"
        " drops: `ip -s link`, `ethtool -S`."
    ),
    basis=_TAIL_BASIS,
)
LINK_LOSSY = FindingKind(
    code="network.link_lossy",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning=(
        "Some exchanges between two nodes take as long as a retransmission;"
        " exchanges with other nodes do not."
    ),
    remedy=(
        "Look at what only their traffic uses: the switches and cables between them,"
        " a full queue, the MTU on the way."
    ),
    basis=_TAIL_BASIS,
)
EXCHANGE_HANGS = FindingKind(
    code="network.exchange_hangs",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning="A node, or one pair of nodes, does not finish an exchange that others finish in milliseconds.",
    remedy=(
        "Look for a firewall, a route or an interface between them that lets small messages pass only (MTU),"
        " and at the output of NCCL_DEBUG=INFO."
    ),
    basis=Basis(
        reads="Whether each exchange of a pair ends.",
        limit="8 s for one exchange; then the pair again, or other good partners.",
        look_also=("collective.stalled", "network.hosts_parted", "NCCL_DEBUG=INFO"),
    ),
)
NOT_LOCALISED = FindingKind(
    code="network.not_localised",
    outcome=Outcome.ERROR,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="The nodes did not finish exchanging data in pairs, so no node is cleared.",
    remedy=(
        "Read what happened to the ranks, and run `gpudiag nccl-test"
        " --localise` again without the named node."
    ),
    basis=_SPEED_BASIS,
)

LOCALISATION_FINDINGS = (
    NODE_SLOW,
    RAIL_SLOW,
    LINK_SLOW,
    UPLINK_SLOW,
    SWITCH_SLOW,
    NVLINK_SLOW,
    ALL_SLOW,
    NODE_LOSSY,
    LINK_LOSSY,
    EXCHANGE_HANGS,
    NOT_LOCALISED,
)

_BETWEEN_SWITCHES = (FabricPart.UPLINKS, FabricPart.UPLINK, FabricPart.PATH)
_SLOW_PARTS: Mapping[FabricPart | None, FindingKind] = MappingProxyType(
    {
        FabricPart.UPLINKS: UPLINK_SLOW,
        FabricPart.UPLINK: UPLINK_SLOW,
        FabricPart.REACH: UPLINK_SLOW,
        FabricPart.SWITCH: SWITCH_SLOW,
        FabricPart.DOMAIN: NVLINK_SLOW,
        FabricPart.NVLINK: NVLINK_SLOW,
    }
)
# Where the exchanges were, and what follows.
_PART_WORDS: Mapping[FabricPart, tuple[str, str]] = MappingProxyType(
    {
        FabricPart.UPLINKS: ("that left {switches}", "its uplinks are {bad}"),
        FabricPart.UPLINK: ("that left {switches}", "one of its uplinks is {bad}"),
        FabricPart.REACH: (
            "of {node} that left {switches}",
            "the uplink of {switches} that leads to it is {bad}; inside {switches} it is good",
        ),
        FabricPart.PATH: (
            "between {switches}",
            "what only their traffic uses is {bad}; both are good with others",
        ),
        FabricPart.SWITCH: ("inside {switches}", "the switch is {bad}"),
        FabricPart.DOMAIN: ("over NVLink in domain {switches}", "NVLink of this domain is {bad}"),
        FabricPart.NVLINK: (
            "of {node} over NVLink in domain {switches}",
            "its NVLink is {bad}; its network is good",
        ),
        FabricPart.NETWORK: (
            "of {node} over the network",
            "its network, or the uplink that leads to it, is {bad}; its NVLink is good",
        ),
        FabricPart.ALONE: (
            "of {node}",
            "the node is {bad}, or an uplink of {switches}, where this run has no other node",
        ),
    }
)

_SOURCE = "exchanges between pairs of nodes"
# Fast Ethernet carries 12.5 MB/s: IEEE 802.3u.
_SLOWEST_BYTES_PER_SECOND = 20e6
_MAX_RANKS = 16  # two nodes of eight


def judge_localisation(measurement: CollectiveMeasurement) -> list[Finding]:
    """A finding for each node, rail or link that stands out; one if it could not be looked at."""
    found = measurement.localisation
    if isinstance(found, Missing):
        if found.reason is not MissingReason.ERROR:
            return []
        words = f"the search for a bad node or link failed: {found.detail}"
        why = Evidence("reason", found.detail, source=_SOURCE)
        return [NOT_LOCALISED.finding(HostSubject(measurement.host), words, why)]
    if isinstance(found.usual_bytes_per_second, Missing):
        words = f"no exchange finished between any two of {len(found.nodes)} nodes"
        failed = next((one.bytes_per_second for one in found.exchanges), found.usual_bytes_per_second)
        detail = f": {failed.detail}" if isinstance(failed, Missing) and failed.detail else ""
        return [NOT_LOCALISED.finding(HostSubject(measurement.host), f"{words}{detail}")]
    suspects = [
        _kind_of(suspect).finding(
            _subject(suspect, found, measurement),
            _message(suspect, found),
            *_evidence(suspect, found),
            *_ways(suspect, found, measurement.incidents),
        )
        for suspect in found.suspects
    ]
    if _is_acted(found) or found.usual_bytes_per_second >= _SLOWEST_BYTES_PER_SECOND:
        return suspects
    words = (
        f"all {len(found.nodes)} hosts exchange data slowly:"
        f" {format_rate(found.usual_bytes_per_second)} is usual"
    )
    usual = Evidence(
        "usual_speed",
        found.usual_bytes_per_second,
        unit="B/s",
        limit=_SLOWEST_BYTES_PER_SECOND,
        source=_SOURCE,
    )
    ends = LinkSubject(("each host", "all other hosts"), measurement.host)
    return [*suspects, ALL_SLOW.finding(ends, words, usual)]


def is_localised(incident: Incident, measurement: CollectiveMeasurement) -> bool:
    """Whether the localisation explains this incident: lost segments of what it names."""
    found = measurement.localisation
    if incident.kind is not IncidentKind.LOSSY or isinstance(found, Missing):
        return False
    ends = {incident.host, str(incident.facts.get("other_side", ""))}
    return any(
        suspect.nodes and {found.nodes[node].host for node in suspect.nodes} <= ends
        for suspect in found.suspects
    )


def _kind_of(suspect: Suspect) -> FindingKind:
    is_link = len(suspect.nodes) == 2 or suspect.part in _BETWEEN_SWITCHES
    if suspect.symptom is Symptom.FAILED:
        return EXCHANGE_HANGS
    if suspect.symptom is Symptom.LOSSY:
        return LINK_LOSSY if is_link else NODE_LOSSY
    if suspect.part in _SLOW_PARTS:
        return _SLOW_PARTS[suspect.part]
    if is_link:
        return LINK_SLOW
    return NODE_SLOW if suspect.rail is None else RAIL_SLOW


def _message_of_uplinks_together(suspect: Suspect) -> str:
    """Which leaf, by how much; not which uplink, for each pair uses all of them."""
    assert suspect.value is not None  # noqa: S101 - of what is slow under load both are known
    assert suspect.usual is not None  # noqa: S101
    (leaf,) = suspect.switches
    lack = 1 - suspect.value / suspect.usual
    return (
        f"{suspect.exchanges} nodes of {leaf} at once exchanged {format_rate(suspect.value)} with other"
        f" leaves, where {format_rate(suspect.usual)} is usual ({lack:.1%} less): its uplinks together are"
        " slow. One or more of them are slow or down, or it has fewer; no pair of nodes alone is slow"
    )


def _message_of_part(suspect: Suspect, part: FabricPart, found: Localisation) -> str:
    """With labels: how many of the exchanges that passed the part were bad, and what follows."""
    node = _name(found.nodes[suspect.nodes[0]], found) if suspect.nodes else ""
    switches = " and ".join(suspect.switches)
    where, conclusion = _PART_WORDS[part]
    rail = f" on {_rail(suspect, found)}" if _rail(suspect, found) else ""
    if suspect.symptom is Symptom.FAILED or suspect.value is None or suspect.usual is None:
        what, bad = f"did not finish{f' ({suspect.words})' if suspect.words else ''}", "broken"
    elif suspect.symptom is Symptom.LOSSY:
        longest = f"{format_seconds(suspect.value)} where {format_seconds(suspect.usual)} is usual"
        what, bad = f"lost data, and a small one took up to {longest}", "lossy"
    else:
        usual = format_rate(suspect.usual)
        what, bad = f"reached {format_rate(suspect.value)} at best, where {usual} is usual", "slow"
    count = f"{suspect.exchanges} of {suspect.measured} exchanges"
    place = where.format(node=node, switches=switches)
    return f"{count} {place}{rail} {what}: {conclusion.format(bad=bad, switches=switches)}"


def _rail(suspect: Suspect, found: Localisation) -> str:
    if suspect.rail is None or not any(len(node.ranks) > 1 for node in found.nodes):
        return ""
    return f"rail {suspect.rail_name or suspect.rail}"


def _message(suspect: Suspect, found: Localisation) -> str:
    if suspect.part is FabricPart.UPLINKS and suspect.under_load:
        return _message_of_uplinks_together(suspect)
    if suspect.part is not None:
        return _message_of_part(suspect, suspect.part, found)
    names = [_name(found.nodes[node], found) for node in suspect.nodes]
    rail = _rail(suspect, found)
    several = len(names) > 1
    if several:
        who = " and ".join(names) + (f" on {rail}" if rail else "")
    else:
        who = " of ".join(filter(None, (rail, *(names or ("all nodes",)))))
    mutual = " with each other" if several else ""
    others = "; both are good with others" if several else ", with every partner" if names or rail else ""
    if suspect.under_load:
        others += "; it shows only while all nodes exchange at once"
    if suspect.symptom is Symptom.FAILED or suspect.value is None or suspect.usual is None:
        error = f" ({suspect.words})" if suspect.words else ""
        return f"{who} do{'' if several else 'es'} not finish an exchange{mutual}{error}{others}"
    if suspect.symptom is Symptom.LOSSY:
        longest = (
            f"takes up to {format_seconds(suspect.value)} where {format_seconds(suspect.usual)} is usual"
        )
        if suspect.sent_again is None:
            return f"a small exchange of {who}{mutual} {longest}, as if segments were lost{others}"
        way = f"{who} send each other" if several or not names else f"is sent between {who} and others"
        return (
            f"{suspect.sent_again:.1%} of what {way} is lost on the way; a small exchange {longest}{others}"
        )
    reached = f"{format_rate(suspect.value)} at best, where {format_rate(suspect.usual)} is usual"
    return f"{who} exchange{'' if several else 's'} data{mutual} at {reached}{others}"


def _evidence(suspect: Suspect, found: Localisation) -> tuple[Evidence, ...]:
    facts: list[Evidence] = []
    if suspect.value is not None and suspect.usual is not None:
        unit, name = ("s", "tail") if suspect.symptom is Symptom.LOSSY else ("B/s", "speed")
        facts = [
            Evidence(name, suspect.value, unit=unit, source=_SOURCE),
            Evidence(f"usual_{name}", suspect.usual, unit=unit, source=_SOURCE),
        ]
    if suspect.sent_again is not None:
        facts.append(Evidence("sent_again", round(suspect.sent_again, 4), source=_SOURCE))
    ranks = [rank for node in suspect.nodes for rank in _ranks(found.nodes[node], suspect.rail)]
    if ranks and len(ranks) <= _MAX_RANKS:
        facts.append(Evidence("ranks", ", ".join(map(str, ranks)), source=_SOURCE))
    return (
        *facts,
        Evidence("exchanges", suspect.exchanges, source=_SOURCE),
        *([Evidence("exchanges_measured", suspect.measured, source=_SOURCE)] if suspect.measured else []),
    )


def _ways(suspect: Suspect, found: Localisation, incidents: Sequence[Incident]) -> tuple[Evidence, ...]:
    """The ways on which the suspect's segments were lost before, by the senders' kernels."""
    hosts = {found.nodes[node].host for node in suspect.nodes}
    lossy = [incident for incident in incidents if incident.kind is IncidentKind.LOSSY]
    ways = [
        f"{incident.host} to {incident.facts.get('other_side', 'another host')}"
        for incident in lossy
        if hosts and hosts <= {incident.host, str(incident.facts.get("other_side"))}
    ]
    return (Evidence("lost_on_the_way", ", ".join(ways), source=lossy[0].evidence[0].source),) if ways else ()


def _subject(suspect: Suspect, found: Localisation, measurement: CollectiveMeasurement) -> Subject:
    nodes = [found.nodes[node] for node in suspect.nodes]
    if suspect.switches and not nodes:
        ends = (*suspect.switches, "other switches" if suspect.part in _BETWEEN_SWITCHES else "its nodes")
        return LinkSubject((ends[0], ends[1]), measurement.host)
    if not nodes:
        what = "each node" if suspect.rail is None else f"rail {suspect.rail}"
        return LinkSubject((what, "all nodes"), measurement.host)
    if len(nodes) > 1:
        return LinkSubject((_name(nodes[0], found), _name(nodes[1], found)), nodes[0].host)
    ranks = _ranks(nodes[0], suspect.rail)
    is_rank = len(ranks) == 1 and (suspect.rail is not None or _is_acted(found))
    return RankSubject(ranks[0], nodes[0].host) if is_rank else HostSubject(nodes[0].host)


def _ranks(node: Node, rail: int | None) -> Sequence[int]:
    return node.ranks if rail is None else node.ranks[rail : rail + 1]


def _name(node: Node, found: Localisation) -> str:
    return f"rank {node.ranks[0]}" if _is_acted(found) else node.host


def _is_acted(found: Localisation) -> bool:
    """Whether the nodes are ranks of one host."""
    return len({node.host for node in found.nodes}) == 1
