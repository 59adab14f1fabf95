"""Checks of the host's network: a loopback interface for ranks to meet on, and how other machines find it."""

from collections.abc import Iterable
from functools import partial

from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.checks.subjects import host_finding, host_state
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host import Machine, NetworkInterface
from gpudiag.model.host_state import Settings
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.number_ranges import number_ranges
from gpudiag.model.reading import Missing, MissingReason

LOOPBACK_DOWN = FindingKind(
    code="network.loopback_down",
    outcome=Outcome.FAIL,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning="The loopback interface is down or has no address: ranks of one machine connect over it.",
    remedy="Bring it up on that host, as root: `ip link set lo up`.",
    basis=Basis(
        reads="Before the ranks are started: the loopback interface's flags in"
        " /sys/class/net and its addresses by netlink; else the error of a rank's gloo"
        " when it looks for its address (getifaddrs).",
        limit="Up, with an address: without it ranks of one machine cannot connect.",
        look_also=("ip -brief address show lo", "network.wrong_interface"),
    ),
)

# How gloo's transport/tcp/device.cc ends for an interface that getifaddrs(3) gives no address of, as
# torch 2.13 raises it; of another interface's name, the user's GLOO_SOCKET_IFNAME is to blame.
_GLOO_WORDS = "Unable to find address for: lo"

_NETWORK_NAME_BASIS = Basis(
    reads="What the host's own name resolves to, and by the launcher's variables whether the job spans"
    " machines.",
    limit="an address other than loopback, where the job spans machines",
    look_also=(
        "getent hosts $(hostname)",
        "cat /etc/hosts",
        "rendezvous.name_unresolved",
        "network.wrong_interface",
    ),
)
# What NCCL ignores by itself (docker*, lo), and what it would use though it leads nowhere.
_LEFT_OUT = ("docker", "lo")
_VIRTUAL = ("virbr", "br-", "veth", "cni", "flannel", "cali", "lxc", "lxdbr", "vmnet", "tap")


def judge_interfaces(machine: Machine) -> Finding | None:
    """The finding that gloo ranks here lack a loopback interface, else None; not where none is listed."""
    interfaces = () if isinstance(machine.interfaces, Missing) else machine.interfaces
    loopback = next((interface for interface in interfaces if interface.loopback), None)
    if loopback is None or (loopback.up and loopback.addresses):
        return None
    fault = "has no address" if loopback.up else "is down"
    return LOOPBACK_DOWN.finding(
        HostSubject(machine.hostname),
        f"the loopback interface ({loopback.name}) of {machine.hostname} {fault}: "
        "ranks of one machine connect over it, so none can be started",
        Evidence("up", loopback.up, source=f"/sys/class/net/{loopback.name}"),
        Evidence("addresses", ", ".join(loopback.addresses) or "none", source="netlink"),
    )


def lacks_loopback(incident: Incident) -> bool:
    """Whether that rank raised because the loopback interface has no address."""
    if incident.kind is not IncidentKind.RAISED:
        return False
    messages = (str(fact.value) for fact in incident.evidence if fact.name == "message")
    return any(words.strip().endswith(_GLOO_WORDS) for words in messages)


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
            f"the loopback interface (lo) of {host} has no address, as when it is"
            " down: ranks cannot connect over it",
            Evidence("ranks", number_ranges(ranks[host]), source="ranks that raised"),
            *incident.evidence,
        )
        for host, incident in first.items()
    )


_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.HOST)
NAME_LOOPBACK = _kind(
    code="network.name_is_loopback",
    outcome=Outcome.FAIL,
    meaning=(
        "The host's own name resolves to a loopback address: gloo sends"
        " ranks of other machines to that address."
    ),
    remedy=(
        "Take the 127.0.1.1 line out of /etc/hosts, or set GLOO_SOCKET_IFNAME to"
        " the network between the machines."
    ),
    basis=_NETWORK_NAME_BASIS,
)
NAME_UNRESOLVED = _kind(
    code="network.name_unresolved",
    outcome=Outcome.WARN,
    meaning="The host's own name does not resolve: gloo and torchrun fall back to the loopback address.",
    remedy="Add the name with this machine's address to /etc/hosts or DNS, or set GLOO_SOCKET_IFNAME.",
    basis=_NETWORK_NAME_BASIS,
)
ONLY_VIRTUAL = _kind(
    code="network.only_virtual_interfaces",
    outcome=Outcome.WARN,
    meaning="The only interfaces that NCCL would use are virtual ones, which do not reach other machines.",
    remedy="Bring up the real network, or name it in NCCL_SOCKET_IFNAME.",
    basis=Basis(
        reads="The interfaces that are up and have an address, in the order in which NCCL would use them.",
        limit="an interface that is up, has an address, and is not virtual (NCCL's own order)",
        look_also=("ip -brief address", "network.wrong_interface"),
    ),
)


@check(
    "network.name",
    title="the host's name leads other machines to this one",
    needs=("host_state",),
    reports=(NAME_LOOPBACK, NAME_UNRESOLVED),
    readings=("getaddrinfo(hostname)", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NNODES"),
    confirmed="glibc's resolver and gloo, on Debian 12 with 127.0.1.1",
)
def network_name(context: Context) -> Judgement:
    """FAIL for a loopback name in a job of several machines; WARN for a name that resolves to nothing."""
    state = host_state(context)
    addresses = state.name_addresses
    if isinstance(addresses, Missing):
        if addresses.reason is not MissingReason.SOURCE_ABSENT:
            return not_readable("the host's name", addresses)
        evidence = Evidence("addresses", 0, limit=1, source="getaddrinfo")
        return judged(host_finding(context, NAME_UNRESOLVED, addresses.detail, evidence))
    loopback = [address for address in addresses if address.startswith("127.") or address == "::1"]
    if len(loopback) < len(addresses):
        return judged()
    resolution = f"{context.snapshot.machine.hostname} resolves to {', '.join(loopback)} only"
    settings = state.settings
    if isinstance(settings, Missing) or not spans_machines(settings):
        return Judgement(Outcome.PASS, reason=f"{resolution}; that is enough for ranks on one machine")
    if settings.environment.get("GLOO_SOCKET_IFNAME"):
        return Judgement(Outcome.PASS, reason=f"{resolution}; GLOO_SOCKET_IFNAME decides instead")
    evidence = Evidence("addresses", ", ".join(loopback), source="getaddrinfo")
    return judged(host_finding(context, NAME_LOOPBACK, f"{resolution}, and the job spans machines", evidence))


@check(
    "network.loopback",
    title="ranks of this machine can connect over its loopback interface",
    needs=("host_state",),
    reports=(LOOPBACK_DOWN,),
    readings=("interfaces",),
    confirmed="a network namespace of Linux: its loopback interface is down at first",
)
def network_loopback(context: Context) -> Judgement:
    """FAIL where the loopback interface is down or has no address; SKIP where none is shown."""
    interfaces = context.snapshot.machine.interfaces
    if isinstance(interfaces, Missing):
        return not_readable("network interfaces", interfaces)
    if not any(interface.loopback for interface in interfaces):
        return does_not_apply("this machine shows no loopback interface")
    finding = judge_interfaces(context.snapshot.machine)
    return judged() if finding is None else judged(finding)


@check(
    "network.interface",
    title="there is a network that reaches other machines",
    needs=("host_state",),
    reports=(ONLY_VIRTUAL,),
    readings=("interfaces", "NCCL_SOCKET_IFNAME"),
    confirmed="the Linux kernel's /sys/class/net",
)
def network_interface(context: Context) -> Judgement:
    """WARN where every interface that NCCL would choose by itself is a virtual one."""
    state, interfaces = host_state(context), context.snapshot.machine.interfaces
    if isinstance(interfaces, Missing):
        return not_readable("network interfaces", interfaces)
    if not isinstance(state.settings, Missing) and state.settings.environment.get("NCCL_SOCKET_IFNAME"):
        return does_not_apply("NCCL_SOCKET_IFNAME decides")
    container = context.snapshot.machine.container
    if container is not None:
        return does_not_apply(f"in a container ({container.words}) every interface is virtual")
    candidates = [interface for interface in interfaces if _is_candidate(interface)]
    if not candidates:
        return does_not_apply("no interface but the loopback is up: ranks can connect on this machine only")
    if any(not interface.name.startswith(_VIRTUAL) for interface in candidates):
        return judged()
    names = ", ".join(interface.name for interface in candidates)
    evidence = Evidence("interfaces", names, source="/sys/class/net")
    return judged(
        host_finding(context, ONLY_VIRTUAL, f"NCCL would use {names}: virtual interfaces", evidence)
    )


def spans_machines(settings: Settings) -> bool:
    """Whether the job's ranks are on several machines by the launcher's variables."""
    variables = settings.environment
    world, local = variables.get("WORLD_SIZE", ""), variables.get("LOCAL_WORLD_SIZE", "")
    if world.isdecimal() and local.isdecimal():
        return int(world) > int(local)
    nodes = variables.get("SLURM_NNODES") or variables.get("SLURM_JOB_NUM_NODES") or "1"
    return nodes.isdecimal() and int(nodes) > 1


def _is_candidate(interface: NetworkInterface) -> bool:
    left_out = interface.loopback or interface.name.startswith(_LEFT_OUT)
    return interface.up and bool(interface.addresses) and not left_out
