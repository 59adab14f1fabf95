"""Ranks that came and do not become a process group: a wrong address is published, or ports are closed."""

from collections.abc import Mapping

from gpudiag.checks.host.network import NAME_LOOPBACK
from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.checks.software.settings import INTERFACE_ABSENT
from gpudiag.model.evidence import Scalar
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.measure import Incident, IncidentKind

Facts = Mapping[str, Scalar]

ADDRESS_NOT_REACHED = FindingKind(
    code="network.address_not_reached",
    outcome=Outcome.FAIL,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning=(
        "The address that the ranks of a host give to the others is one that the other hosts"
        " do not reach, or of another family."
    ),
    remedy=(
        "Name the interface of the network between the hosts: GLOO_SOCKET_IFNAME,"
        " NCCL_SOCKET_IFNAME; `ip -brief address` shows it."
    ),
    basis=Basis(
        reads=(
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, the host's own name and its interfaces, by the rules"
            " of gloo and NCCL; whether the other hosts' agents connect to that address."
        ),
        limit=(
            "1.5 s for a connection, 1 s for the agent's reply; most of the other hosts;"
            " only where ranks fail or stand still before they are a process group, and where a rank"
            " has to connect to that address."
        ),
        look_also=(
            "ip -brief address",
            "ip route get ADDRESS",
            "getent hosts $(hostname)",
            "network.wrong_interface",
        ),
    ),
)
PORTS_CLOSED = FindingKind(
    code="network.ports_closed",
    outcome=Outcome.FAIL,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning=(
        "A host is up, and connections to its ports, or from it to the ports of other"
        " hosts, do not come through: a firewall."
    ),
    remedy=(
        "Open all TCP ports between the hosts of a job (NCCL and gloo take any): `nft list ruleset`,"
        " `iptables -S`, the security group."
    ),
    basis=Basis(
        reads=(
            "Whether each host's agent connects to the port where each other's answers, and to the"
            " rendezvous port; then 13 sample ports of what failed."
        ),
        limit=(
            "1.5 s for a connection, twice; only where ranks fail or stand still"
            " before they are a process group."
        ),
        look_also=("nft list ruleset", "ss -ltn", "network.hosts_parted", "rendezvous.unreachable"),
    ),
)
SETUP_CONFLICT = FindingKind(
    code="network.setup_conflict",
    outcome=Outcome.FAIL,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning=(
        "A host has the address of another one, or sends what is for another one by an interface that does"
        " not lead there: a container's bridge or a tunnel with the network of the hosts, a route."
    ),
    remedy=(
        "Give each host its own addresses, and containers and tunnels other networks than that of the hosts:"
        " `ip -brief address`, `ip -brief link`, `ip route`."
    ),
    basis=Basis(
        reads=(
            "The addresses and hardware addresses of each host's interfaces, and the one that its routes"
            " take to the hosts that its agent does not reach."
        ),
        limit=(
            "1.5 s for a connection, twice; only where ranks fail or stand still"
            " before they are a process group."
        ),
        look_also=("ip route get ADDRESS", "ip neighbour", "arping -D", "network.ports_closed"),
    ),
)
MEETING_FINDINGS = (ADDRESS_NOT_REACHED, PORTS_CLOSED, SETUP_CONFLICT)

_NONE = "none"
# What came back, and what that shows.
_ANSWERS = {
    "silent": "no answer: a firewall drops them, or the way is cut",
    "refused": "refused, though a program listens there: a firewall resets them",
    "prohibited": "prohibited: an ICMP message or the host's own rules refuse them",
    "no route": "no route",
    "no address": "the name has no address there",
}
# The same for an address at which no rank is known to listen.
_ANSWERS_OF_AN_ADDRESS = {
    "silent": "no answer",
    "refused": "refused",
    "prohibited": "prohibited by an ICMP message or their own rules",
    "no route": "no route",
    "their own": "others have the same address themselves",
}


def kind_of(incident: Incident) -> FindingKind | None:
    """The kind of finding for a wrong address; None for any other incident."""
    if incident.kind is not IncidentKind.MISNAMED:
        return None
    facts = incident.facts
    if facts.get("own_address") == _NONE:
        return INTERFACE_ABSENT if "decided_by" in facts else NAME_LOOPBACK
    return NAME_LOOPBACK if "decided_by" not in facts and _is_loopback(facts) else ADDRESS_NOT_REACHED


def describe_address(incident: Incident) -> str:
    """Which host publishes which address, what decides that, who does not reach it, and which is right."""
    facts, host = incident.facts, incident.host
    by = facts.get("decided_by", f"its own name {facts.get('own_name', '')}".rstrip())
    address, interface = str(facts.get("own_address", _NONE)), facts.get("own_interface")
    if address == _NONE:
        what = f"{by} {'names no interface with an address' if 'decided_by' in facts else 'has no address'}"
        return f"on {host} {what}: its ranks have none to give to the others{_right(facts)}"
    if "decided_by" in facts:
        given = f"{by} gives the address {address}"
    elif "own_name" not in facts and interface is not None:
        given = f"{facts.get('library', 'the library')} chooses {interface}, {address}"
    elif facts.get("resolves_to") == _NONE:
        given = f"{by} has no address, so gloo takes {address}"
    elif "resolves_to" in facts:
        given = f"{by} is {facts['resolves_to']}, which this host does not have, so gloo takes {address}"
    else:
        given = f"{by} is {address}" + (
            f" ({interface})" if interface is not None and not _is_loopback(facts) else ""
        )
    if _is_loopback(facts):
        why = "the ranks of other hosts then connect to themselves"
    elif "others_family" in facts:
        why = (
            f"the other hosts give one of {facts['others_family']}, and gloo"
            " connects only addresses of one family"
        )
    elif "not_reached_by" not in facts:
        why = "the other hosts give addresses of another network"
    else:
        why = (
            f"{facts.get('not_reached_by', 'the other hosts')} {_do(facts.get('not_reached_by'))} not reach"
            f" it ({_answer(facts, _ANSWERS_OF_AN_ADDRESS)})"
        )
    return f"on {host} {given}: {why}{_right(facts)}"


def address_remedy(incident: Incident) -> str:
    """What to set, on which host, and how to see it."""
    facts, host = incident.facts, incident.host
    variable = str(facts.get("variable", "GLOO_SOCKET_IFNAME"))
    if "right_interface" not in facts:
        where = f" in {facts['network_of_the_others']}" if "network_of_the_others" in facts else ""
        return (
            f"Give {host} an address{where}, or name an interface that the others reach in {variable};"
            " `ip -brief address` shows what it has."
        )
    setting = f"{variable}={facts['right_interface']}"
    by_name = "own_name" in facts
    name = f", or correct its own name to {facts['right_address']} in /etc/hosts or DNS" if by_name else ""
    return f"Set {setting} for the ranks of {host}{name}; `ip -brief address` there shows what it has."


def describe_closed(incident: Incident) -> str:
    """Which host's ports are closed to whom, in which way, which range, and which are open."""
    facts, host = incident.facts, incident.host
    others = facts.get("closed_to", "the other hosts")
    how = _answer(facts)
    if "only_port" in facts:
        return (
            f"the rendezvous port {facts['only_port']} of {host} is closed to {others}"
            f" ({how}); other ports of it are open"
        )
    if "open_port" in facts:
        return (
            f"{host} accepts connections of other hosts on the rendezvous port {facts['open_port']}, and on"
            f" no other port that was tried ({how})"
        )
    ports = _ports(facts)
    if facts.get("direction") == "out":
        return f"{host} opens no connection to {others}{ports} ({how})"
    both = " and opens none to them" if facts.get("direction") == "both" else ""
    return f"{host} accepts no connection of {others}{both}{ports} ({how})"


def describe_conflict(incident: Incident) -> str:
    """What the host has that is another one's, or by which interface it sends, and by which it should."""
    facts, host, other = incident.facts, incident.host, incident.facts.get("with", "another host")
    interface = facts.get("own_interface", "an interface")
    if "shared_address" in facts:
        return (
            f"{interface} on {host} has {facts['shared_address']}, which is the address of {other}:"
            " they do not reach each other"
        )
    if "shared_hardware" in facts:
        return (
            f"{interface} on {host} has the hardware address {facts['shared_hardware']}, and {other} has the"
            " same: a switch delivers to only one of them"
        )
    sends_by, known_by = facts.get("sends_by", "another interface"), facts.get("known_by", interface)
    return (
        f"{host} sends what is for {other} by {sends_by}; the others know it by {known_by}, which is in the"
        f" network of {other}"
    )


def describe_parted(incident: Incident) -> str:
    """Which of two hosts does not reach the other, in which way, and on which ports."""
    facts = incident.facts
    one, other = facts.get("one_side", "the others"), facts.get("other_side", incident.host)
    both = f"; both still reach {facts['reached_both']}" if "reached_both" in facts else ""
    how = _answer(facts)
    if "only_port" in facts:
        return (
            f"{one} does not reach the rendezvous port {facts['only_port']} of"
            f" {other} ({how}); other ports are open"
        )
    if facts.get("only_one_way"):
        return f"{one} does not reach {other}{_ports(facts)} ({how}), and {other} reaches {one}{both}"
    return f"{one} and {other} do not reach each other{_ports(facts)} ({how}){both}"


def closed_remedy(incident: Incident) -> str:
    """Where to look, and the command that shows it."""
    facts = incident.facts
    look_on = facts.get("look_on", incident.host)
    port = facts.get("only_port")
    what = f"port {port}" if port is not None else "all TCP ports (NCCL and gloo take any)"
    shown = (
        f"`nc -vz -w 3 {facts.get('try_address', look_on)} {facts.get('try_port', 'PORT')}` on"
        f" {facts.get('try_on', 'the other host')}"
    )
    return (
        f"Open {what} between them: `nft list ruleset` or `iptables -S` on {look_on}, the security"
        f" group. {shown} shows it during a run."
    )


def _right(facts: Facts) -> str:
    if "right_interface" in facts:
        alike = ", as on the others" if "as_on" in facts else ""
        return f"; right is {facts['right_interface']}, {facts['right_address']}{alike}"
    if "network_of_the_others" in facts:
        return f"; it has no address in {facts['network_of_the_others']}, the network of the others"
    return ""


def _is_loopback(facts: Facts) -> bool:
    return str(facts.get("own_address", "")).startswith("127.") or facts.get("own_address") == "::1"


def _do(names: Scalar | None) -> str:
    return "do" if "," in str(names or ",") else "does"


def _answer(facts: Facts, words: Mapping[str, str] = _ANSWERS) -> str:
    answers = str(facts.get("answers", "silent")).split(", ")
    return "; ".join(words.get(one, one) for one in answers)


def _ports(facts: Facts) -> str:
    if "closed_ports" not in facts:
        return ""
    opened = f", open: {facts['open_ports']}" if "open_ports" in facts else ""
    closed = str(facts["closed_ports"])
    return f" on port{'' if closed.isdecimal() else 's'} {closed}{opened}"
