"""How GPUs reach each other: peer access, the path between two GPUs, and what redirects their traffic."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from gpudiag.checks.gpu.products import is_consumer
from gpudiag.checks.per_device import Gap, alike, answering, conclude, judge_devices
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.checks.subjects import (
    device_subject,
    host_finding,
    host_state,
    is_virtual,
    name_device,
    short_bus_id,
)
from gpudiag.model.active import BandwidthResult
from gpudiag.model.context import Context
from gpudiag.model.device import Device, NvLink, PeerAccess, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host import DISPLAY_CLASSES
from gpudiag.model.reading import Missing

# --- what PCIe does to traffic between GPUs

_redirection_kind = partial(FindingKind, outcome=Outcome.WARN, severity=Severity.CONFIG, owner=Owner.HOST)
ACS_REDIRECTS = _redirection_kind(
    code="host.acs_redirects",
    category=Category.HW_PCIE,
    meaning=(
        "PCI bridges above GPUs send traffic between GPUs up to the processor (ACS redirection"
        " is on): it is slow, and NCCL may hang in its first collective (NVIDIA/nccl issue"
        " 1999). NCCL_P2P_DISABLE=1 avoids it."
    ),
    remedy="On bare metal, turn ACS off for these bridges in the firmware set-up, or with `setpci` at boot.",
    basis=Basis(
        reads="The ACS control register of every PCI bridge above a GPU; the kernel shows it to root only.",
        limit="no bridge with ACS P2P Request or Completion Redirect (NCCL's guide)",
        look_also=("lspci -vvv | grep ACSCtl (as root)", "gpu.peer_access_broken"),
    ),
)
IOMMU_TRANSLATES = _redirection_kind(
    code="host.iommu_translates",
    category=Category.SW_CONFIG,
    meaning=(
        "The IOMMU translates the GPUs' reads and writes, which slows or stops traffic between them:"
        " NCCL may hang in its first collective (NVIDIA/nccl issue 1999). NCCL_P2P_DISABLE=1 avoids it."
    ),
    remedy="[host] On bare metal add `iommu=pt` to the kernel's command line and reboot.",
    basis=Basis(
        reads="The type of the IOMMU groups that GPUs are in, /sys/kernel/iommu_groups/*/type.",
        limit="pass-through (identity) on bare metal with several GPUs (NCCL's guide)",
        look_also=("cat /proc/cmdline", "gpu.peer_access_broken"),
    ),
)


@check(
    "host.acs",
    title="no bridge sends GPU traffic up to the processor",
    needs=("gpus", "host_state"),
    reports=(ACS_REDIRECTS,),
    readings=("PCI configuration space of the bridges above GPUs (root)",),
)
def host_acs(context: Context) -> Judgement:
    """WARN for ACS redirection above GPUs of a machine with two or more, on bare metal."""
    state = host_state(context)
    if len(context.snapshot.devices) < 2 or is_virtual(state):
        return does_not_apply("it matters only between GPUs on bare metal")
    bridges = state.redirecting_bridges
    if isinstance(bridges, Missing):
        return not_readable("ACS settings of the bridges", bridges)
    if not bridges:
        return judged()
    message = (
        f"ACS redirects traffic at {len(bridges)} bridges above GPUs"
        f" ({', '.join(map(short_bus_id, bridges[:4]))}): NCCL may hang"
    )
    evidence = Evidence("redirecting_bridges", len(bridges), "bridges", 0, "PCI configuration space")
    return judged(host_finding(context, ACS_REDIRECTS, message, evidence))


@check(
    "host.iommu",
    title="the IOMMU passes GPU traffic through",
    needs=("gpus", "host_state"),
    reports=(IOMMU_TRANSLATES,),
    readings=("/sys/kernel/iommu_groups/*/type",),
)
def host_iommu(context: Context) -> Judgement:
    """WARN where the IOMMU translates for GPUs of a machine with two or more, on bare metal."""
    state = host_state(context)
    if len(context.snapshot.devices) < 2 or is_virtual(state):
        return does_not_apply("it matters only between GPUs on bare metal")
    iommu = state.iommu
    if isinstance(iommu, Missing):
        return not_readable("IOMMU groups", iommu)
    translating = [kind for kind in iommu.kinds if kind.lower() != "identity"]
    if not translating:
        return judged()
    message = f"the IOMMU translates for the GPUs (domain type {', '.join(translating)}): NCCL may hang"
    evidence = Evidence(
        "iommu_domain", translating[0], limit="identity", source="/sys/kernel/iommu_groups/*/type"
    )
    return judged(host_finding(context, IOMMU_TRANSLATES, message, evidence))


# --- how GPUs reach each other

_BASIS = Basis(
    reads="nvmlDeviceGetP2PStatus and nvmlDeviceGetTopologyCommonAncestor of each pair of GPUs.",
    limit="pairs of GPUs with the same path between them",
    look_also=("nvidia-smi topo -p2p r", "nvidia-smi topo -m", "host.acs_redirects", "host.iommu_translates"),
)

NVLINK = "nvlink"
NVSWITCH = "nvswitch"
PCIE = "pcie"
HOST = "host"
UNKNOWN = "unknown"

_kind = partial(FindingKind, outcome=Outcome.WARN, severity=Severity.CONFIG, owner=Owner.HOST, basis=_BASIS)
PEER_ACCESS_LOST = _kind(
    code="gpu.peer_access_broken",
    severity=Severity.TRIAGE,
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    meaning="Two GPUs cannot read each other's memory, although other pairs with the same path can.",
    remedy="Compare with `nvidia-smi topo -p2p r`; look at ACS and the IOMMU between the two.",
)
PEER_ACCESS_DISABLED = _kind(
    code="gpu.peer_access_disabled",
    category=Category.SW_CONFIG,
    meaning="A driver setting forbids that GPUs read each other's memory.",
    remedy="[driver] Look for NVreg_ options in /etc/modprobe.d, remove them, and reload the driver.",
)


@check(
    "peer.access",
    title="GPUs with the same path between them can read each other's memory",
    needs=("gpus",),
    reports=(PEER_ACCESS_LOST, PEER_ACCESS_DISABLED),
    readings=("peers", "nvlinks"),
)
def peer_access(context: Context) -> Judgement:
    """WARN for a pair without peer access where pairs of the same kind have it, or where it is disabled."""
    snapshot = context.snapshot
    if len(answering(snapshot)) < 2:
        return does_not_apply("there are fewer than two GPUs")
    if all(is_consumer(device) for device in answering(snapshot)):
        return does_not_apply("the driver gives GeForce GPUs no peer access")
    if all(device.mig_mode == "enabled" for device in answering(snapshot)):
        return does_not_apply("MIG is on: instances have no peer access")
    judgement = judge_devices(snapshot, ("peers",), _judge_peers)
    pairs = [(device, peer) for device in answering(snapshot) for peer in _peers(device)]
    gaps = [gap for device, peer in pairs for gap in _unread(device, peer)]
    return conclude(list(judgement.findings), len(pairs) - len(gaps), gaps) if gaps else judgement


def _peers(device: Device) -> tuple[PeerAccess, ...]:
    return () if isinstance(device.peers, Missing) else device.peers


def _unread(device: Device, peer: PeerAccess) -> Iterator[Gap]:
    """A gap for what the driver does not report of a pair of GPUs, once per pair."""
    for name, value in (("path", peer.path), ("read", peer.read)):
        if isinstance(value, Missing):
            yield Gap(device, f"{name} to the GPU at {short_bus_id(peer.bus_id)}", value)
            return


def _judge_peers(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    if device.mig_mode == "enabled" or is_consumer(device) or isinstance(device.peers, Missing):
        return
    for peer in device.peers:
        if isinstance(peer.read, Missing) or peer.read == "ok" or not _first(device, peer):
            continue
        if any(
            _has_link_down(snapshot, one)
            for one in answering(snapshot)
            if one.id.bus_id in (device.id.bus_id, peer.bus_id)
        ):
            continue  # nvlink.state has the cause
        far = short_bus_id(peer.bus_id)
        evidence = Evidence("p2p_read", peer.read, limit="ok", source="nvmlDeviceGetP2PStatus")
        subject = device_subject(snapshot, device)
        if peer.read == "disabled":
            message = f"{name_device(device)} may not read the GPU at {far}: a driver setting forbids it"
            yield PEER_ACCESS_DISABLED.finding(subject, message, evidence)
        elif _others_can(snapshot, device, peer):
            message = f"{name_device(device)} cannot read the GPU at {far} ({peer.read.replace('_', ' ')})"
            yield PEER_ACCESS_LOST.finding(subject, message, evidence)


def _has_link_down(snapshot: Snapshot, device: Device) -> bool:
    """Whether one of its links is down, or it lists none where identical GPUs list some."""
    links = device.nvlinks
    if isinstance(links, Missing):
        return any(not isinstance(peer.nvlinks, Missing) for peer in alike(snapshot, device))
    return any(link.active is False for link in links)


def _first(device: Device, peer: PeerAccess) -> bool:
    """Whether the finding is this GPU's of the pair: one fault, one finding."""
    return isinstance(device.id.bus_id, Missing) or device.id.bus_id < peer.bus_id


def _others_can(snapshot: Snapshot, device: Device, peer: PeerAccess) -> bool:
    """Whether most pairs joined alike (the same path, NVLink or not) have peer access."""
    linked = _is_linked(device, peer)
    pairs = [
        other.read
        for one in answering(snapshot)
        if one.name == device.name and not isinstance(one.peers, Missing)
        for other in one.peers
        if other.path == peer.path
        and _is_linked(one, other) is linked
        and not isinstance(other.read, Missing)
    ]
    return pairs.count("ok") > len(pairs) / 2


def _is_linked(device: Device, peer: PeerAccess) -> bool:
    """Whether an NVLink leads from the GPU straight to the other one: a mesh or a bridge, not a switch."""
    links = device.nvlinks
    return not isinstance(links, Missing) and any(link.remote_bus_id == peer.bus_id for link in links)


@dataclass(frozen=True, slots=True)
class PeerPath:
    """The kind of path between two GPUs; only pairs with equal paths are compared.

    `links` is how many of its NVLinks are up, `way` the nearest common ancestor of a path over PCIe.
    """

    kind: str
    links: int = 0
    way: str = ""


def path_between(snapshot: Snapshot, source: Device, target: Device, result: BandwidthResult) -> PeerPath:
    """The path of a copy from one GPU to the other, by both GPUs' links."""
    if result.direct is not True:
        return PeerPath(HOST)
    access = _access(source, target)
    links = () if isinstance(source.nvlinks, Missing) else source.nvlinks
    up = [link for link in links if link.active is True]
    if not up:
        return _over_pcie(access)
    straight = sum(link.remote_bus_id == target.id.bus_id for link in up)
    if straight:
        return PeerPath(NVLINK, straight)
    if _lead_to_gpus(snapshot, up):
        return _over_pcie(access)  # the links of this GPU lead to others
    if any(not isinstance(link.remote_bus_id, Missing) for link in up):
        return PeerPath(NVSWITCH, len(up))
    # Guests and newer drivers report whether NVLink joins the pair, and not where its links lead.
    joined = access is not None and access.nvlink == "ok"
    return PeerPath(NVSWITCH, len(up)) if joined else PeerPath(UNKNOWN, len(up))


def _over_pcie(access: PeerAccess | None) -> PeerPath:
    known = access is not None and not isinstance(access.path, Missing)
    return PeerPath(PCIE, way=str(access.path) if known and access is not None else "")


def _access(source: Device, target: Device) -> PeerAccess | None:
    if isinstance(source.peers, Missing):
        return None
    return next((peer for peer in source.peers if peer.bus_id == target.id.bus_id), None)


def _lead_to_gpus(snapshot: Snapshot, links: list[NvLink]) -> bool:
    """Whether the links lead to GPUs: to a listed one, or to one on the PCI bus."""
    gpus = {device.id.bus_id for device in snapshot.devices}
    functions = snapshot.machine.pci_devices
    if not isinstance(functions, Missing):
        gpus |= {one.bus_id for one in functions if one.class_id in DISPLAY_CLASSES}
    return any(link.remote_bus_id in gpus for link in links)
