"""No loopback interface for ranks to meet on: the host's fault, told once and not rank by rank."""

from collections.abc import Iterable

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host import Machine
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.reading import Missing

LOOPBACK_DOWN = FindingKind(
    code="network.loopback_down",
    outcome=Outcome.FAIL,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning="The loopback interface is down or has no address: ranks of one machine meet on it.",
    remedy="Bring it up on that host, as root: `ip link set lo up`.",
    basis=Basis(
        reads="Before the ranks are started: the loopback interface's flags in"
        " /sys/class/net and its addresses by netlink; else what a rank's gloo says"
        " when it looks for its address (getifaddrs).",
        limit="Up, with an address: without one ranks of one machine cannot meet.",
        look_also=("ip -brief address show lo", "network.wrong_interface"),
    ),
)

# How gloo's transport/tcp/device.cc ends for an interface that getifaddrs(3) gives no address of, as
# torch 2.13 raises it; of another interface's name, the user's GLOO_SOCKET_IFNAME is to blame.
_GLOO_WORDS = "Unable to find address for: lo"


def judge_interfaces(machine: Machine) -> Finding | None:
    """The finding that gloo ranks of this machine would have no loopback interface to meet on; None if they have.

    A machine that shows no loopback interface at all leaves the choice to gloo, and is not judged.
    """
    interfaces = () if isinstance(machine.interfaces, Missing) else machine.interfaces
    loopback = next((interface for interface in interfaces if interface.loopback), None)
    if loopback is None or (loopback.up and loopback.addresses):
        return None
    fault = "has no address" if loopback.up else "is down"
    return LOOPBACK_DOWN.finding(
        HostSubject(machine.hostname),
        f"the loopback interface ({loopback.name}) of {machine.hostname} {fault}: "
        "ranks of one machine meet on it, so none can be started",
        Evidence("up", loopback.up, source=f"/sys/class/net/{loopback.name}"),
        Evidence("addresses", ", ".join(loopback.addresses) or "none", source="netlink"),
    )


def lacks_loopback(incident: Incident) -> bool:
    """Whether that rank raised because the loopback interface has no address."""
    if incident.kind is not IncidentKind.RAISED:
        return False
    said = (str(fact.value) for fact in incident.evidence if fact.name == "message")
    return any(words.strip().endswith(_GLOO_WORDS) for words in said)


def judge_loopback(incidents: Iterable[Incident]) -> tuple[Finding, ...]:
    """One finding for each host whose ranks found no address on the loopback interface."""
    first: dict[str, Incident] = {}
    ranks: dict[str, list[int]] = {}
    for incident in incidents:
        if lacks_loopback(incident):
            first.setdefault(incident.host, incident)
            ranks.setdefault(incident.host, []).append(incident.rank)
    return tuple(
        LOOPBACK_DOWN.finding(
            HostSubject(host),
            f"the loopback interface (lo) of {host} has no address, as when it is down: "
            "ranks cannot meet on it",
            Evidence("ranks", ", ".join(map(str, sorted(ranks[host]))), source="ranks that raised"),
            *incident.evidence,
        )
        for host, incident in first.items()
    )
