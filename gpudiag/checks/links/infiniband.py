"""Checks of RDMA network ports: up, as fast as their neighbours, without errors, open to GPU memory."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from gpudiag.checks import limits
from gpudiag.checks.logged_reasons import with_logged_reason
from gpudiag.checks.per_device import SECONDS_PER_HOUR
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import Evidence, HostSubject, LinkSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host import Machine
from gpudiag.model.host_state import HostState, InfinibandPort
from gpudiag.model.reading import Missing, Reading

_T = TypeVar("_T")
# DEVICE is the card that the finding is about.
_CABLE = (
    "[hardware] Look at cable, optic and switch port (`ibstat`, `mlxlink -d DEVICE`);"
    " clean or replace the optic."
)
# The link is up, and the port has no address yet.
_NO_SUBNET_MANAGER = (
    "Look for the fabric's subnet manager (`sminfo`, `systemctl status opensm` on its host, UFM): the link is"
    " up, and the port waits for an address from it. If it gives other ports theirs, take this one out and in"
    " (`mlxlink -d DEVICE --port_state TG`)."
)
_WAITING = ("INIT", "ARMED")  # states of a port whose link is up (InfiniBand specification, PortState)
_kind = partial(
    FindingKind,
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    remedy=_CABLE,
)
_INFINIBAND_PORT_BASIS = Basis(
    reads="/sys/class/infiniband/*/ports/*: state, phys_state, rate and counters; counters now and in the"
    " earlier snapshot.",
    limit="ACTIVE (an Ethernet port that is turned off is not used); the rate that most ports of equal"
    " cards have",
    look_also=("ibstat", "ip -brief link", "dmesg -T | grep -i mlx5", "network.rdma_error"),
)
_INFINIBAND_ERRORS_BASIS = replace(
    _INFINIBAND_PORT_BASIS,
    limit=f"0 times down, {limits.SYMBOL_ERRORS_PER_HOUR:.0f} symbol errors and"
    f" {limits.LINK_RECOVERIES_PER_HOUR:.0f} recoveries an hour since the earlier reading",
)
PORT_DOWN = _kind(
    code="infiniband.port_down",
    meaning="A port is down that nobody turned off: it has no cable, or its link does not come up.",
    basis=_INFINIBAND_PORT_BASIS,
)
PORT_SLOW = _kind(
    code="infiniband.port_slow",
    meaning="A port runs at a lower rate than most ports of this machine.",
    basis=_INFINIBAND_PORT_BASIS,
)
PORT_DISABLED = _kind(
    code="infiniband.port_disabled",
    severity=Severity.CONFIG,
    owner=Owner.HOST,
    meaning=(
        "An InfiniBand port is turned off: by someone, or by the subnet manager after errors on its link."
    ),
    remedy=(
        "Turn it on from the switch's side (`ibportstate`), or with `mlxlink -d DEVICE --port_state UP`;"
        " if nobody here turned it off, ask the administrator of the fabric."
    ),
    basis=_INFINIBAND_PORT_BASIS,
)
LINK_FLAPS = _kind(
    code="infiniband.link_downed",
    meaning="The link of a port went down and came back since the earlier reading.",
    basis=_INFINIBAND_ERRORS_BASIS,
)
SYMBOL_ERRORS = _kind(
    code="infiniband.symbol_errors",
    meaning="A port has more symbol errors than a good link may have.",
    basis=_INFINIBAND_ERRORS_BASIS,
)
LINK_RECOVERIES = _kind(
    code="infiniband.link_recoveries",
    meaning="The link of a port recovers from errors again and again.",
    basis=_INFINIBAND_ERRORS_BASIS,
)
NO_PEER_MEMORY = _kind(
    code="infiniband.no_peer_memory",
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.HOST,
    meaning="The network cards cannot reach GPU memory directly: every message is copied through the host.",
    remedy="[driver] Load nvidia_peermem: `sudo modprobe nvidia-peermem`.",
    basis=Basis(
        reads="/proc/modules, the kernel's release and the flavor of the NVIDIA driver.",
        limit="nvidia_peermem, or the open kernel driver on Linux 5.12 or later (dma-buf)",
        look_also=("lsmod | grep peermem", "NCCL_DEBUG=INFO (GDRDMA)"),
    ),
)

# Error counters of a port (kernel documentation, ABI/stable/sysfs-class-infiniband), and what they may be.
_COUNTERS = (
    ("link_downed", LINK_FLAPS, 0.0, "link-down events"),
    ("symbol_error", SYMBOL_ERRORS, limits.SYMBOL_ERRORS_PER_HOUR, "symbol errors"),
    ("link_error_recovery", LINK_RECOVERIES, limits.LINK_RECOVERIES_PER_HOUR, "link recoveries"),
)
_NAMED_ONE_BY_ONE = 3  # more ports with the same fault are one finding with a count: our choice
_OTHERS_UP = 2  # ports of another kind of card that show which fabric the machine uses: our choice
_OF_MELLANOX = "mlx"  # nvidia_peermem serves these cards; EFA and others bring modules of their own
_DMA_BUF_KERNEL = (5, 12)  # the first that lets a network card use a GPU's memory as a dma-buf


@check(
    "infiniband.port",
    title="RDMA ports are up and equally fast",
    needs=("host_state",),
    reports=(PORT_DOWN, PORT_DISABLED, PORT_SLOW),
    readings=("/sys/class/infiniband/*/ports/*/{state,phys_state,rate}", "/sys/class/infiniband/*/board_id"),
)
def infiniband_port(context: Context) -> Judgement:
    """WARN for a port that is down or slower than most; a missing cable looks the same as a broken port."""
    ports = _ports(context)
    if isinstance(ports, Judgement):
        return ports
    found = [fault for port in ports for fault in _judge_port(context.snapshot, port, ports)]
    return judged(*_counted_alike(context.snapshot, found))


@dataclass(frozen=True, slots=True)
class _PortFault:
    """A finding about one port, and what the port is or does: the end of its sentence."""

    finding: Finding
    state: str


def _counted_alike(snapshot: Snapshot, found: list[_PortFault]) -> Iterator[Finding]:
    """The findings, those of many ports alike as one with a count: none of them is at fault."""
    for code in dict.fromkeys(fault.finding.code for fault in found):
        alike = [fault for fault in found if fault.finding.code == code]
        if len(alike) <= _NAMED_ONE_BY_ONE:
            yield from (fault.finding for fault in alike)
            continue
        first = alike[0].finding
        subjects = (fault.finding.subject for fault in alike)
        ports = [subject.ends[0] for subject in subjects if isinstance(subject, LinkSubject)]
        states = ", ".join(dict.fromkeys(fault.state for fault in alike))
        message = f"{len(alike)} ports alike ({', '.join(ports[:_NAMED_ONE_BY_ONE])} ...): each {states}"
        yield replace(first, subject=HostSubject(snapshot.host), message=message)


@check(
    "infiniband.errors",
    title="RDMA links stay up and have few errors",
    needs=("host_state", "earlier"),
    reports=(LINK_FLAPS, SYMBOL_ERRORS, LINK_RECOVERIES),
    readings=("/sys/class/infiniband/*/ports/*/counters/{link_downed,symbol_error,link_error_recovery}",),
)
def infiniband_errors(context: Context) -> Judgement:
    """WARN for link losses and errors that were counted between two readings."""
    ports, earlier = _ports(context), context.earlier
    if isinstance(ports, Judgement):
        return ports
    assert not isinstance(earlier, Missing)  # noqa: S101 - the runner answers for the need
    before = _ports_of(earlier)
    if isinstance(before, Missing):
        return not_readable("RDMA ports of the earlier reading", before)
    if earlier.machine.boot_id != context.snapshot.machine.boot_id:
        return does_not_apply("the machine was restarted since the earlier reading")
    seconds = (context.snapshot.taken_at - earlier.taken_at).total_seconds()
    known = {(port.device, port.port): port for port in before}
    findings = (
        finding
        for port in ports
        if (port.device, port.port) in known
        for finding in _judge_counters(context.snapshot, port, known[port.device, port.port], seconds)
    )
    return judged(*findings)


@check(
    "infiniband.peer_memory",
    title="network cards can reach GPU memory",
    needs=("gpus", "host_state"),
    reports=(NO_PEER_MEMORY,),
    readings=("/proc/modules (nvidia_peermem)", "kernel_release", "kernel_driver_flavor"),
)
def infiniband_peer_memory(context: Context) -> Judgement:
    """WARN where there are RDMA ports and neither way for them to reach GPU memory."""
    ports, machine = _ports(context), context.snapshot.machine
    if isinstance(ports, Judgement):
        return ports
    if not any(port.device.startswith(_OF_MELLANOX) for port in ports):
        return does_not_apply("the RDMA cards have their own way to reach GPU memory")
    reaches = reaches_gpu_memory(machine)
    if isinstance(reaches, Missing):
        return not_readable("the kernel's modules", reaches)
    if reaches:
        return judged()
    message = (
        f"{len(ports)} RDMA ports, and no direct way for them to reach GPU"
        " memory (nvidia_peermem is not loaded)"
    )
    evidence = Evidence("nvidia_peermem", False, limit=True, source="/proc/modules")
    first = ports[0]
    finding = NO_PEER_MEMORY.finding(_subject(context.snapshot, first), message, evidence)
    return judged(with_logged_reason(context.snapshot, finding))


def reaches_gpu_memory(machine: Machine) -> Reading[bool]:
    """Whether network cards can reach GPU memory: nvidia_peermem, or dma-buf of the open driver."""
    modules = machine.kernel_modules
    if isinstance(modules, Missing):
        return modules
    has_dma_buf = machine.kernel_driver_flavor == "open" and _has_dma_buf(machine.kernel_release)
    return has_dma_buf or "nvidia_peermem" in modules


def _ports(context: Context) -> tuple[InfinibandPort, ...] | Judgement:
    ports = _ports_of(context.snapshot)
    if isinstance(ports, Missing):
        return not_readable("RDMA ports", ports)
    own = tuple(
        port for port in ports if port.virtual_function is not True and not _is_of_idle_card(port, ports)
    )
    if ports and not own:
        return does_not_apply("all RDMA ports are virtual functions, for guests and pods")
    return own or does_not_apply("there are no RDMA ports")


def _ports_of(snapshot: Snapshot) -> Reading[tuple[InfinibandPort, ...]]:
    state = snapshot.machine.state
    return state.infiniband_ports if isinstance(state, HostState) else state


def _judge_port(
    snapshot: Snapshot, port: InfinibandPort, ports: tuple[InfinibandPort, ...]
) -> Iterator[_PortFault]:
    subject, name = _subject(snapshot, port), f"{port.device} port {port.port}"
    source = f"/sys/class/infiniband/{port.device}/ports/{port.port}"
    if not isinstance(port.state, Missing) and port.state != "ACTIVE":
        disabled = port.physical_state == "Disabled"
        if disabled and port.link_layer != "InfiniBand":  # an Ethernet interface that is not used
            return
        up = sum(1 for one in ports if one.state == "ACTIVE")
        what = "turned off" if disabled else port.state
        state = f"is {what}; {up} of {len(ports)} ports here are up"
        physical = Evidence("phys_state", str(port.physical_state), source=f"{source}/phys_state")
        evidence = Evidence("state", port.state, limit="ACTIVE", source=f"{source}/state")
        kind = PORT_DISABLED if disabled else PORT_DOWN
        waits = port.state in _WAITING and port.link_layer == "InfiniBand"
        remedy = _on(_NO_SUBNET_MANAGER if waits else kind.written_remedy, port)
        yield _PortFault(kind.finding(subject, f"{name} {state}", evidence, physical, remedy=remedy), state)
        return
    rate = port.rate_gbit_per_second
    usual = _most([one.rate_gbit_per_second for one in ports if _is_alike(one, port)], rate)
    if not isinstance(rate, Missing) and not isinstance(usual, Missing) and rate < usual:
        state = f"runs at {rate:g} Gbit/s; most ports of its kind here at {usual:g}"
        evidence = Evidence("rate", rate, "Gbit/s", usual, f"{source}/rate; limit: peers")
        remedy = _on(PORT_SLOW.written_remedy, port)
        yield _PortFault(PORT_SLOW.finding(subject, f"{name} {state}", evidence, remedy=remedy), state)


def _is_of_idle_card(port: InfinibandPort, ports: tuple[InfinibandPort, ...]) -> bool:
    """Whether the port belongs to another fabric that this machine does not use.

    No port of its kind of card is up, and two or more of another kind are: a storage network that is not
    connected.
    """
    if isinstance(port.board, Missing):
        return False
    up = [one for one in ports if one.state == "ACTIVE" and one.virtual_function is not True]
    return len(up) >= _OTHERS_UP and not any(one.board == port.board for one in up)


def _is_alike(port: InfinibandPort, other: InfinibandPort) -> bool:
    """Whether both ports are of one kind of card: a slower storage network is no fault."""
    boards = (port.board, other.board)
    known = not any(isinstance(board, Missing) for board in boards)
    return port.link_layer == other.link_layer and (not known or boards[0] == boards[1])


def _on(remedy: str, port: InfinibandPort) -> str:
    return remedy.replace("DEVICE", port.device)


def _judge_counters(
    snapshot: Snapshot, now: InfinibandPort, before: InfinibandPort, seconds: float
) -> Iterator[Finding]:
    for name, kind, per_hour, words in _COUNTERS:
        rise = now.counters.get(name, 0) - before.counters.get(name, 0)
        # A second or two give no rate: what a whole minute allows is always allowed.
        allowed = per_hour * max(seconds, 60.0) / SECONDS_PER_HOUR
        if name in before.counters and rise > allowed:
            message = f"{now.device} port {now.port}: {rise} {words} in {seconds / 60:.0f} min"
            source = f"/sys/class/infiniband/{now.device}/ports/{now.port}/counters/{name}"
            yield kind.finding(
                _subject(snapshot, now),
                message,
                Evidence(name, rise, "events", allowed, source),
                remedy=_on(kind.written_remedy, now),
            )


def _most(values: list[_T], otherwise: _T) -> _T:
    """The majority's value; `otherwise` where none has a majority."""
    value, votes = Counter(values).most_common(1)[0]
    return value if votes > len(values) / 2 else otherwise


def _subject(snapshot: Snapshot, port: InfinibandPort) -> LinkSubject:
    return LinkSubject((f"{port.device}:{port.port}", "switch"), snapshot.host)


def _has_dma_buf(release: Reading[str]) -> bool:
    if isinstance(release, Missing):
        return False
    numbers = release.split("-")[0].split(".")[:2]
    return all(number.isdecimal() for number in numbers) and tuple(map(int, numbers)) >= _DMA_BUF_KERNEL
