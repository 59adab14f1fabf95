"""Checks of where GPUs and network cards are plugged in: one apart from its like is in the wrong place.

A machine may be built unevenly. Only what is alone among several equal parts is a finding, and never a FAIL.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from gpudiag.checks.links.pcie import link_speed, link_words
from gpudiag.checks.links.topology import list_nics, path_to_nic, place_of, places
from gpudiag.checks.majority import majority_of
from gpudiag.checks.per_device import alike, answering
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.checks.subjects import device_subject, host_state, is_virtual, name_device, short_bus_id
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence, HostSubject, LinkSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.number_ranges import number_ranges
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.topology import TopologyNic
from gpudiag.reference.gpu_models import find_links

_LEAST_GPUS = 4  # fewer GPUs show no layout that one of them could deviate from: our choice
_ODD_SHARE = 4  # of so many equal parts one may deviate; more are how the machine is built: our choice
_BESIDE = ("board", "pcie_switch", "pcie_switches")

_TREE = "lspci -tv"
_NIC_BASIS = Basis(
    reads="The bridges above each GPU and each RDMA card in /sys/bus/pci/devices, and the cards' board_id.",
    limit=(
        f"a card below the switch of each GPU, where at least {_ODD_SHARE - 1} of {_ODD_SHARE} GPUs have one"
    ),
    look_also=("gpudiag topo", "nvidia-smi topo -m", _TREE),
)
_ROOT_BASIS = Basis(
    reads="The NUMA node and the host bridge of each GPU in /sys/bus/pci/devices.",
    limit="as many equal GPUs on each of two NUMA nodes; on baseboards (SXM) as many below each host bridge",
    look_also=("gpudiag topo", "nvidia-smi topo -m", _TREE),
)
_LINK_BASIS = Basis(
    reads="The generation and width of each network card's PCIe link in /sys/bus/pci/devices.",
    limit="what most equal cards of this machine have",
    look_also=("gpudiag topo", "lspci -vv -s BUS_ID | grep Lnk", "pcie.width_reduced"),
)
_kind = partial(
    FindingKind, outcome=Outcome.WARN, severity=Severity.TRIAGE, category=Category.HW_PCIE, owner=Owner.HOST
)
GPU_WITHOUT_NIC = _kind(
    code="topology.gpu_without_nic",
    meaning=(
        "A GPU has no RDMA card below its PCIe switch, and nearly all others have one: its traffic to other"
        " machines goes through a processor or over another GPU, and all ranks wait for it."
    ),
    remedy=(
        "Compare `lspci -tv` with that of a good machine: look for a card that is missing, in"
        " another slot, or on another cable."
    ),
    basis=_NIC_BASIS,
)
NIC_WITHOUT_GPU = _kind(
    code="topology.nic_without_gpu",
    meaning=(
        "The machine has one equal RDMA card for each GPU, and one card is below no GPU's"
        " PCIe switch: two GPUs share a card."
    ),
    remedy=(
        "Compare `lspci -tv` with that of a good machine: look for a card in"
        " another slot or on another cable."
    ),
    basis=_NIC_BASIS,
)
GPU_ON_OTHER_ROOT = _kind(
    code="topology.gpu_on_other_root",
    meaning=(
        "Equal GPUs are spread evenly over the processors, except for one: it is in another slot, or the"
        " firmware names a wrong NUMA node for it."
    ),
    remedy=(
        "Compare slots and `lspci -tv` with a good machine; look at the NUMA settings"
        " (NPS, SNC) in the firmware set-up."
    ),
    basis=_ROOT_BASIS,
)
NIC_LINK_SLOWER = _kind(
    code="topology.nic_link_slower",
    meaning=(
        "The PCIe link of a network card has fewer lanes or a lower generation than those of equal cards."
    ),
    remedy=(
        "[hardware] Reseat the card, its riser and cable; look at the slot's bifurcation in the firmware"
        " set-up."
    ),
    owner=Owner.HARDWARE,
    basis=_LINK_BASIS,
)


@check(
    "topology.placement",
    title="GPUs and network cards are evenly placed",
    needs=("gpus", "host_state"),
    reports=(GPU_WITHOUT_NIC, NIC_WITHOUT_GPU, GPU_ON_OTHER_ROOT, NIC_LINK_SLOWER),
    readings=("/sys/bus/pci/devices/* (bridges, numa_node, class)", "/sys/class/infiniband/*/device"),
)
def topology_placement(context: Context) -> Judgement:
    """WARN for one GPU or card placed otherwise than its like; not in a hypervisor's tree."""
    state, snapshot = host_state(context), context.snapshot
    if isinstance(state.pci_places, Missing):
        return not_readable("places on the PCI bus", state.pci_places)
    if is_virtual(state):
        return does_not_apply("in a virtual machine the places are the hypervisor's choice")
    gpus = [device for device in answering(snapshot) if place_of(snapshot, device) is not None]
    on_bus = [place for place in state.pci_places if place.kind == "gpu" and not place.virtual_function]
    slow = tuple(_judge_nic_links(snapshot))
    if len(gpus) < _LEAST_GPUS or len(gpus) < len(on_bus):
        reason = f"fewer than {_LEAST_GPUS} GPUs are here, or not all GPUs of the bus are listed"
        return judged(*slow) if slow else does_not_apply(reason)
    return judged(*_judge_pairs(snapshot, gpus), *_judge_roots(snapshot, gpus), *slow)


# --- network cards


def _judge_pairs(snapshot: Snapshot, gpus: Sequence[Device]) -> Iterator[Finding]:
    cards = [
        nic for nic in list_nics(snapshot) if not isinstance(nic.number, Missing) and not nic.virtual_function
    ]
    beside = {nic.name: [gpu for gpu in gpus if path_to_nic(snapshot, gpu, nic) in _BESIDE] for nic in cards}
    served = [gpu for own in beside.values() for gpu in own]
    without = [gpu for gpu in gpus if not any(gpu is one for one in served)]
    alone = [
        nic
        for nic in cards
        if not beside[nic.name] and _is_odd(snapshot, nic, cards, beside, wanted=len(gpus))
    ]
    where = ", ".join(f"{nic.name} (at {short_bus_id(nic.bus_id)})" for nic in alone)
    if without and len(without) * _ODD_SHARE <= len(gpus):
        for gpu in without:
            message = (
                f"{name_device(gpu)} has no RDMA card below its PCIe switch;"
                f" {len(gpus) - len(without)} of {len(gpus)} GPUs have one"
            )
            message += f"; {where} is below no GPU's switch" if alone else ""
            facts = [Evidence("nics_beside", 0, "cards", 1, "/sys/bus/pci/devices; limit: peers")]
            facts += [Evidence("nic_without_gpu", nic.name, source="/sys/bus/pci/devices") for nic in alone]
            yield GPU_WITHOUT_NIC.finding(device_subject(snapshot, gpu), message, *facts)
        return
    for nic in alone:
        message = (
            f"{nic.name} (at {short_bus_id(nic.bus_id)}) is below no GPU's PCIe"
            " switch; the equal cards here are"
        )
        evidence = Evidence("gpus_beside", 0, "GPUs", 1, "/sys/bus/pci/devices; limit: peers")
        yield NIC_WITHOUT_GPU.finding(_nic_subject(snapshot, nic), message, evidence)


def _is_odd(
    snapshot: Snapshot,
    nic: TopologyNic,
    cards: Sequence[TopologyNic],
    beside: dict[str, list[Device]],
    *,
    wanted: int,
) -> bool:
    """Whether there is a like card for each GPU, beside nearly all of them: no storage network."""
    like = _equal_cards(snapshot, nic, cards)
    alone = [one for one in like if not beside[one.name]]
    return len(like) == wanted and len(alone) * _ODD_SHARE <= len(like)


def _equal_cards(snapshot: Snapshot, nic: TopologyNic, cards: Sequence[TopologyNic]) -> list[TopologyNic]:
    kind = _kind_of_card(snapshot, nic)
    return [one for one in cards if _kind_of_card(snapshot, one) == kind]


def _kind_of_card(snapshot: Snapshot, nic: TopologyNic) -> tuple[object, ...]:
    """The maker's id of the board, where the kernel shows it; else what its port is."""
    state = snapshot.machine.state
    ports = (
        ()
        if isinstance(state, Missing) or isinstance(state.infiniband_ports, Missing)
        else state.infiniband_ports
    )
    board: Reading[str] = next(
        (port.board for port in ports if port.device == nic.name), Missing(MissingReason.NOT_ASKED)
    )
    return (nic.link_layer, nic.rate_gbit_per_second) if isinstance(board, Missing) else (board,)


def _judge_nic_links(snapshot: Snapshot) -> Iterator[Finding]:
    cards = [
        nic for nic in list_nics(snapshot) if not isinstance(nic.number, Missing) and not nic.virtual_function
    ]
    for nic in cards:
        links = [(one.pcie_generation, one.pcie_width) for one in _equal_cards(snapshot, nic, cards)]
        usual = majority_of(_lanes(*link) for link in links)
        own = _lanes(nic.pcie_generation, nic.pcie_width)
        if isinstance(usual, tuple) and isinstance(own, tuple) and link_speed(own) < link_speed(usual):
            message = (
                f"{nic.name} (at {short_bus_id(nic.bus_id)}): PCIe {link_words(own)}, and"
                f" {link_words(usual)} on most equal cards here"
            )
            evidence = Evidence("pcie_link", link_words(own), None, link_words(usual), "sysfs; limit: peers")
            yield NIC_LINK_SLOWER.finding(_nic_subject(snapshot, nic), message, evidence)


def _nic_subject(snapshot: Snapshot, nic: TopologyNic) -> LinkSubject:
    return LinkSubject((nic.name, "PCIe"), snapshot.host)


# --- roots


def _judge_roots(snapshot: Snapshot, gpus: Sequence[Device]) -> Iterator[Finding]:
    if len(gpus) % _LEAST_GPUS or any(len(alike(snapshot, gpu)) + 1 != len(gpus) for gpu in gpus):
        return
    nodes = [gpu.numa_node for gpu in gpus]
    known = Counter(node for node in nodes if not isinstance(node, Missing))
    if known.total() == len(gpus) and len(known) == 2 and max(known.values()) - min(known.values()) == 2:
        yield _of_node(snapshot, gpus, known)
        return
    if all(_is_on_baseboard(gpu) for gpu in gpus):
        yield from _of_host_bridge(snapshot, gpus)


def _of_node(snapshot: Snapshot, gpus: Sequence[Device], known: Counter[int]) -> Finding:
    """The finding about the GPU that breaks the order of the bus; about the machine where none does."""
    counts = ", ".join(f"{count} on node {node}" for node, count in sorted(known.items()))
    half = len(gpus) // 2
    usual = [majority_of(gpu.numa_node for gpu in part) for part in (gpus[:half], gpus[half:])]
    odd = [gpu for place, gpu in enumerate(gpus) if gpu.numa_node != usual[place >= half]]
    evidence = Evidence("gpus_per_numa_node", counts, source="sysfs; limit: evenly")
    if len(odd) == 1 and usual[0] != usual[1]:
        message = (
            f"{name_device(odd[0])} is on NUMA node {odd[0].numa_node}, apart from its neighbours: {counts}"
        )
        return GPU_ON_OTHER_ROOT.finding(device_subject(snapshot, odd[0]), message, evidence)
    message = f"equal GPUs are spread unevenly over NUMA nodes: {counts}"
    return GPU_ON_OTHER_ROOT.finding(HostSubject(snapshot.host), message, evidence)


def _of_host_bridge(snapshot: Snapshot, gpus: Sequence[Device]) -> Iterator[Finding]:
    """The finding where one host bridge has a GPU more than most, and another one less or none."""
    by_root: dict[str, list[Device]] = {}
    known = places(snapshot)
    for gpu in gpus:
        by_root.setdefault(known[str(gpu.id.bus_id)].root, []).append(gpu)
    sizes = Counter(len(own) for own in by_root.values())
    usual, _ = sizes.most_common(1)[0]
    more = [root for root, own in by_root.items() if len(own) == usual + 1]
    others = [root for root, own in by_root.items() if len(own) not in (usual, usual + 1)]
    fewer = [root for root in others if len(by_root[root]) == usual - 1]
    if len(more) != 1 or len(others) != len(fewer) or len(fewer) != (usual > 1):
        return
    indices = [gpu.id.nvml_index for gpu in by_root[more[0]]]
    listed = number_ranges(index for index in indices if not isinstance(index, Missing))
    message = f"GPUs {listed} are below one host bridge ({more[0]}), where the others have {usual} each"
    message += f" and {fewer[0]} has {usual - 1}" if fewer else ""
    evidence = Evidence(
        "gpus_below_host_bridge", usual + 1, "GPUs", usual, "/sys/bus/pci/devices; limit: peers"
    )
    yield GPU_ON_OTHER_ROOT.finding(HostSubject(snapshot.host), message, evidence)


def _is_on_baseboard(device: Device) -> bool:
    links = None if isinstance(device.name, Missing) else find_links(device.name)
    return links is not None and links.wiring != "bridge"


def _lanes(generation: Reading[int], width: Reading[int]) -> tuple[int, int] | Missing:
    if isinstance(generation, Missing):
        return generation
    return width if isinstance(width, Missing) else (generation, width)
