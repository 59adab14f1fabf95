"""What is wrong between the hosts of a run: how they reach each other, which node, rail or link is odd."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from gpudiag.checks.ranks.rendezvous import (
    describe_address,
    describe_closed,
    describe_conflict,
    describe_parted,
)
from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.measure import (
    Incident,
    IncidentKind,
)
from gpudiag.units import format_seconds

# --- between the hosts of a run

_MEETING_BASIS = Basis(
    reads=(
        "The addresses of rank 0's machine as this host looks them up, and what happens on connecting to"
        " them: to the rendezvous port, and to the ports of rank 0's agent."
    ),
    limit=(
        "1 s for each connection, 2 s for the name. What lasts for 3 s and does not go away because another"
        " rank starts ends the wait; else `--rendezvous-timeout` does, and standard error has it after 5 s."
    ),
    look_also=("getent hosts MASTER_ADDR", "ss -ltnp", "ip route get ADDRESS", "rank.not_started"),
)
MEETING_WRONG_ADDRESS = FindingKind(
    code="rendezvous.wrong_address",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="The name of rank 0's machine has no address on this host, or leads back to this host.",
    remedy=(
        "Correct MASTER_ADDR, or how this host resolves it: `getent hosts` and"
        " that name, /etc/hosts, the resolver."
    ),
    basis=_MEETING_BASIS,
)
MEETING_UNREACHABLE = FindingKind(
    code="rendezvous.unreachable",
    outcome=Outcome.ERROR,
    severity=Severity.TRIAGE,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning="This host cannot reach rank 0's machine: there is no answer, no route, or only one open port.",
    remedy=(
        "Open the network between the two hosts, all ports (NCCL and gloo take any): firewall, security"
        " group, routes, the interface; `ip route get` and that address shows the way."
    ),
    basis=_MEETING_BASIS,
)
MEETING_FOREIGN_SERVER = FindingKind(
    code="rendezvous.foreign_server",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="Another server listens on the rendezvous port.",
    remedy=(
        "Give the job another MASTER_PORT; `ss -ltnp` on rank 0's machine"
        " shows the program that has this one."
    ),
    basis=_MEETING_BASIS,
)
_SPLIT_BASIS = Basis(
    reads=(
        "The rank, host, address, port and WORLD_SIZE that each process announces to its own networks while"
        " it misses others, and what it finds on connecting to that address."
    ),
    limit="1 s after the last of the missing ranks was found elsewhere, 5 s where others are still missing.",
    look_also=("env | grep MASTER_", "getent hosts MASTER_ADDR", "rank.not_started"),
)
MEETING_SPLIT = FindingKind(
    code="rendezvous.split",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning=(
        "A part of the ranks looks for rank 0 at another address or port than the others,"
        " or was started with another WORLD_SIZE."
    ),
    remedy=(
        "Give all processes of the job the same MASTER_ADDR, which leads to rank 0's machine, MASTER_PORT"
        " and WORLD_SIZE; two jobs need two ports."
    ),
    basis=_SPLIT_BASIS,
)
MEETING_ALONE = FindingKind(
    code="rendezvous.alone",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="This process has met no other of its job: where it looks for rank 0 nobody listens.",
    remedy=(
        "Compare MASTER_ADDR and MASTER_PORT with those of the other processes, and check"
        " whether rank 0 runs on that machine."
    ),
    basis=_SPLIT_BASIS,
)
_PATHS_BASIS = Basis(
    reads=(
        "Whether each host's agent connects to those of the other hosts, at a port that the"
        " kernel chose, and whether these reply."
    ),
    limit=(
        "1.5 s for a connection, 2 s for the reply; again and again while ranks wait."
        " While they meet, two looks in a row; after that 10 s, so that a link that comes back"
        " is a warning: network.interrupted."
    ),
    look_also=("ip -s link", "ip route get ADDRESS", "nft list ruleset", "collective.stalled"),
)
NETWORK_HOST_CUT_OFF = FindingKind(
    code="network.host_cut_off",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning=(
        "No other host of the run reaches this one, while the others reach each other:"
        " it is off, or its network is cut."
    ),
    remedy=(
        "Check whether the host is up (its console, `ping`), then its interface, cable and"
        " switch port: `ip -s link`. Keep it out of jobs until then. `gpudiag merge` joins its"
        " own agent's report with this one."
    ),
    basis=_PATHS_BASIS,
)
NETWORK_HOSTS_PARTED = FindingKind(
    code="network.hosts_parted",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning="Two hosts of the run, or two groups of hosts, do not reach each other.",
    remedy=(
        "Look at what is between them: routes, firewall and security group on both (NCCL and gloo take any"
        " port), the switches on the way. `ip route get` and the other's address shows the way."
    ),
    basis=_PATHS_BASIS,
)
_kind = partial(FindingKind, category=Category.HW_OTHER, owner=Owner.HOST)
NETWORK_LARGE_PACKETS_LOST = _kind(
    code="network.large_packets_lost",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning=(
        "Small packets pass between hosts, and large ones are lost each time (an MTU hole): ranks connect,"
        " and then hang at the first large message."
    ),
    remedy=(
        "Give every interface and switch on the way the same MTU, and let ICMP `fragmentation needed`"
        " pass: `ip link` on both ends, `tracepath` and the other host's address. Until then set the MTU"
        " of that host's interface to 1400."
    ),
    basis=Basis(
        reads=(
            "Whether each host's agent gets a message back that fills one packet; where it does not, whether"
            " small ones come back, and the largest that does."
        ),
        limit="1.6 s, in which TCP sends a lost packet four times; in two looks in a row.",
        look_also=("ip link", "tracepath ADDRESS", "ping -M do -s 1472 ADDRESS", "collective.stalled"),
    ),
)
NETWORK_INTERRUPTED = _kind(
    code="network.interrupted",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning=(
        "For some seconds the network carried nothing to a host, or between two hosts. Then it carried"
        " data again, and the ranks continued."
    ),
    remedy=(
        "Look for a link that went down and up at that time: `dmesg -T | grep -i link`, `ip -s link`,"
        " the switch's log; the cable, the transceiver, spanning tree."
    ),
    basis=Basis(
        reads=(
            "Whether each host's agent connects to those of the other hosts while ranks wait,"
            " and since when nothing came from them."
        ),
        limit="1 s to 10 s; what lasts longer is network.host_cut_off or network.hosts_parted.",
        look_also=("dmesg -T", "ip -s link", "collective.interrupted", "network.path_lossy"),
    ),
)
NETWORK_PATH_LOSSY = _kind(
    code="network.path_lossy",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="TCP segments from one host to another are lost and retransmitted: the path is slow and uneven.",
    remedy=(
        "Look at both ends and the switches between for errors and drops: `ip -s link`,"
        " `ethtool -S` and the interface, cable, transceiver, MTU, a full queue."
        " `gpudiag nccl-test --localise` measures every pair."
    ),
    basis=Basis(
        reads=(
            "What the kernel of each sender counts of its ranks' TCP connections (tcp_info), by the host at"
            " the other end, twice a second. Data over RDMA is not counted here."
        ),
        limit="0.5 % of at least 500 data segments, and at least 10 of them.",
        look_also=("ss -ti", "ip -s link", "ethtool -S", "rank.late"),
    ),
)
RENDEZVOUS_FINDINGS = (
    MEETING_WRONG_ADDRESS,
    MEETING_UNREACHABLE,
    MEETING_FOREIGN_SERVER,
    MEETING_SPLIT,
    MEETING_ALONE,
)

# By the obstacle that was found, where it is not the network's.
MEETING_KINDS: Mapping[str, FindingKind] = MappingProxyType(
    {
        "no_address": MEETING_WRONG_ADDRESS,
        "own_address": MEETING_WRONG_ADDRESS,
        "foreign_server": MEETING_FOREIGN_SERVER,
        "refused": MEETING_ALONE,
        "not_found": MEETING_ALONE,
    }
)


def kind_of_meeting(incident: Incident, kind: FindingKind) -> FindingKind:
    """What was found at rank 0's address, if that explains more than the incident's own `kind`."""
    found = MEETING_KINDS.get(str(incident.facts.get("obstacle")), kind)
    return kind if found is MEETING_ALONE and incident.kind is not IncidentKind.UNREACHED else found


def _unreached(incident: Incident) -> str:
    found = incident.facts.get("found", "its machine does not answer")
    others = incident.facts.get("others")
    too = "" if others is None else f"; ranks that cannot either: {others}"
    if incident.rank == 0:
        return f"rank 0 cannot open the rendezvous: {found}{too}"
    return f"rank {incident.rank} cannot reach rank 0: {found}{too}"


def _split(incident: Incident) -> str:
    facts = incident.facts
    if "started_twice" in facts:
        place = facts.get("uses", "the same place")
        return f"two jobs meet at {place}, or processes of one were started twice: {facts['started_twice']}"
    ranks, hosts = str(facts.get("ranks", incident.rank)), facts.get("hosts", incident.host)
    alone = ranks.isdecimal()
    who = f"rank {ranks} on {hosts}" if alone else f"ranks {ranks} on {hosts}"
    if "world_size" in facts:
        others = facts.get("others_world_size", "another one")
        were = "was" if alone else "were"
        return f"{who} {were} started with WORLD_SIZE {facts['world_size']}, the others with {others}"
    found = f": {facts['found']}" if "found" in facts else ""
    if "rank_0_host" in facts:
        return (
            f"rank 0 runs on {facts['rank_0_host']}, and all ranks look for it at {facts.get('uses')}{found}"
        )
    use = "uses" if alone else "use"
    return (
        f"{who} {use} {facts.get('uses', 'another address')}, the others"
        f" {facts.get('others_use', 'another')}{found}"
    )


def _cut_off(incident: Incident) -> str:
    facts = incident.facts
    if "does_not_reach" in facts:
        return (
            f"{incident.host} reaches no other host"
            f" ({facts['does_not_reach']}): it is cut off from the network"
        )
    others = facts.get("not_reached_by", "the other hosts")
    return (
        f"{incident.host} answers none of the other hosts ({others}): it is off, or cut off from the network"
    )


def _parted(incident: Incident) -> str:
    facts = incident.facts
    if "answers" in facts:
        return describe_parted(incident)
    one, other = facts.get("one_side", "the others"), facts.get("other_side", incident.host)
    both = f"; both still reach {facts['reached_both']}" if "reached_both" in facts else ""
    return f"the network between {one} and {other} is cut{both}"


def _narrowed(incident: Incident) -> str:
    facts = incident.facts
    size = f"packets over {facts['largest_packet']} bytes" if "largest_packet" in facts else "large packets"
    if "one_side" in facts:
        return f"{size} are lost between {facts['one_side']} and {facts['other_side']}, and smaller ones pass"
    return f"{incident.host}'s path loses {size}, and smaller ones pass: to and from all other hosts"


def _outage(incident: Incident) -> str:
    facts = incident.facts
    lasted = format_seconds(float(facts.get("lasted", 0.0)))
    times = int(facts.get("times", 1))
    often = f" at most, {times} times" if times > 1 else ""
    if "one_side" in facts:
        who = f"the network between {facts['one_side']} and {facts['other_side']}"
    else:
        who = f"{incident.host}'s link"
    return f"{who} stood still for {lasted}{often}, and then carried data again"


def _lossy(incident: Incident) -> str:
    facts = incident.facts
    one, other = facts.get("one_side", incident.host), facts.get("other_side", "another host")
    share = f"{float(facts['sent_again']):.1%} of what" if "sent_again" in facts else "part of what"
    return f"{share} {one} sends to {other} is lost on the way and retransmitted"


NETWORK_MESSAGES: Mapping[IncidentKind, Callable[[Incident], str]] = MappingProxyType(
    {
        IncidentKind.UNREACHED: _unreached,
        IncidentKind.SPLIT: _split,
        IncidentKind.CUT_OFF: _cut_off,
        IncidentKind.PARTED: _parted,
        IncidentKind.NARROWED: _narrowed,
        IncidentKind.OUTAGE: _outage,
        IncidentKind.MISNAMED: describe_address,
        IncidentKind.FILTERED: describe_closed,
        IncidentKind.CONFLICTING: describe_conflict,
        IncidentKind.LOSSY: _lossy,
    }
)
