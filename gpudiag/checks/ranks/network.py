"""What is wrong between the hosts of a run: where ranks are to meet, and the network between them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.measure import Incident, IncidentKind

_MEETING_BASIS = Basis(
    reads="The addresses of rank 0's machine as this host looks them up, and what comes of connecting to them: to the"
    " ranks' port, and to those of rank 0's agent.",
    limit="1 s for each connection, 2 s for the name; after `--rendezvous-timeout`, and said on standard error after 5 s.",
    look_also=("getent hosts MASTER_ADDR", "ss -ltnp", "ip route get ADDRESS", "rank.not_started"),
)
MEETING_WRONG_ADDRESS = FindingKind(
    code="rendezvous.wrong_address",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="The name of rank 0's machine has no address on this host, or leads back to this host.",
    remedy="Correct MASTER_ADDR, or how this host resolves it: `getent hosts` and that name, /etc/hosts, the resolver.",
    basis=_MEETING_BASIS,
)
MEETING_UNREACHABLE = FindingKind(
    code="rendezvous.unreachable",
    outcome=Outcome.ERROR,
    severity=Severity.TRIAGE,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning="This host cannot reach rank 0's machine: there is no answer, no route, or only one open port.",
    remedy="Open the network between the two hosts, all ports (NCCL and gloo take any): firewall, security group, "
    "routes, the interface; `ip route get` and that address shows the way.",
    basis=_MEETING_BASIS,
)
MEETING_FOREIGN_SERVER = FindingKind(
    code="rendezvous.foreign_server",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="Another server listens where the ranks are to meet.",
    remedy="Give the job another MASTER_PORT; `ss -ltnp` on rank 0's machine shows who has this one.",
    basis=_MEETING_BASIS,
)
_PATHS_BASIS = Basis(
    reads="Whether each host's agent connects to those of the other hosts, at a port that the kernel chose, and"
    " whether these reply.",
    limit="1.5 s for a connection, 2 s for the reply; where ranks hang, and once more after 1.5 s before that"
    " counts as a hang.",
    look_also=("ip -s link", "ip route get ADDRESS", "nft list ruleset", "collective.stalled"),
)
NETWORK_HOST_CUT_OFF = FindingKind(
    code="network.host_cut_off",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning="No other host of the run reaches this one, and these reach each other: it is off, or cut off.",
    remedy="See whether the host is up (its console, `ping`), then its interface, cable and switch port: `ip -s link`. "
    "Leave it out until then. `gpudiag merge` joins what its own agent wrote with this report.",
    basis=_PATHS_BASIS,
)
NETWORK_HOSTS_PARTED = FindingKind(
    code="network.hosts_parted",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning="Two hosts of the run, or two groups of them, do not reach each other.",
    remedy="Look at what is between them: routes, firewall and security group on both (NCCL and gloo take any port), "
    "the switches on the way. `ip route get` and the other's address shows the way.",
    basis=_PATHS_BASIS,
)
NETWORK_PATH_LOSSY = FindingKind(
    code="network.path_lossy",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning="Segments from one host to another are lost, and TCP sends them again: such a path is slow and uneven.",
    remedy="Look at both ends and the switches between for errors and drops: `ip -s link`, `ethtool -S` and the "
    "interface, cable, transceiver, MTU, a full queue. `gpudiag nccl-test --localise` measures every pair.",
    basis=Basis(
        reads="What the kernel of each sender counts of its ranks' TCP connections (tcp_info), by the host at the other"
        " end, twice a second. Data that goes by RDMA is not counted here.",
        limit="0.5 % of at least 500 data segments, and at least 10 of them.",
        look_also=("ss -ti", "ip -s link", "ethtool -S", "rank.late"),
    ),
)
# By the obstacle that was found, where it is not the network's.
MEETING_KINDS: Mapping[str, FindingKind] = MappingProxyType(
    {
        "no_address": MEETING_WRONG_ADDRESS,
        "own_address": MEETING_WRONG_ADDRESS,
        "foreign_server": MEETING_FOREIGN_SERVER,
    }
)


def _unreached(incident: Incident) -> str:
    found = incident.facts.get("found", "its machine does not answer")
    return f"rank {incident.rank} cannot reach rank 0: {found}"


def _cut_off(incident: Incident) -> str:
    facts = incident.facts
    if "does_not_reach" in facts:
        return f"{incident.host} reaches no other host ({facts['does_not_reach']}): it is cut off from the network"
    others = facts.get("not_reached_by", "the other hosts")
    return (
        f"{incident.host} answers none of the other hosts ({others}): it is off, or cut off from the network"
    )


def _parted(incident: Incident) -> str:
    facts = incident.facts
    one, other = facts.get("one_side", "the others"), facts.get("other_side", incident.host)
    both = f"; both still reach {facts['reached_both']}" if "reached_both" in facts else ""
    return f"the network between {one} and {other} is cut{both}"


def _misnamed(incident: Incident) -> str:
    address = incident.facts.get("own_address", "none")
    what = "has no address" if address == "none" else f"is {address}"
    return (
        f"on {incident.host} its own name {what}: gloo tells the ranks of other hosts to connect there, "
        "and they never meet"
    )


def _lossy(incident: Incident) -> str:
    facts = incident.facts
    one, other = facts.get("one_side", incident.host), facts.get("other_side", "another host")
    share = f"{float(facts['sent_again']):.1%} of what" if "sent_again" in facts else "part of what"
    return f"{share} {one} sends to {other} is lost on the way and sent again"


NETWORK_MESSAGES: Mapping[IncidentKind, Callable[[Incident], str]] = MappingProxyType(
    {
        IncidentKind.UNREACHED: _unreached,
        IncidentKind.CUT_OFF: _cut_off,
        IncidentKind.PARTED: _parted,
        IncidentKind.MISNAMED: _misnamed,
        IncidentKind.LOSSY: _lossy,
    }
)
