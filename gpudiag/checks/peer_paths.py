"""How one GPU reaches another: by the NVLinks of that pair, through a switch, over PCIe, or through the host."""

from dataclasses import dataclass

from gpudiag.model.active import BandwidthResult
from gpudiag.model.device import Device, NvLink, Snapshot
from gpudiag.model.device_details import PeerAccess
from gpudiag.model.host import DISPLAY_CLASSES
from gpudiag.model.reading import Missing

NVLINK = "nvlink"
NVSWITCH = "nvswitch"
PCIE = "pcie"
HOST = "host"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PeerPath:
    """The kind of path between two GPUs; only pairs with equal paths are compared.

    `links` is how many NVLinks that are up it has, `way` the nearest common ancestor of a path over PCIe.
    """

    kind: str
    links: int = 0
    way: str = ""


def path_between(snapshot: Snapshot, source: Device, target: Device, result: BandwidthResult) -> PeerPath:
    """The path that a copy from one GPU to the other took, by what both GPUs say of their links."""
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
    # A guest, and newer drivers, do not say where links lead; whether NVLink joins the pair they say.
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
    """Whether the links lead from GPU to GPU: to one that is listed, or to one that the PCI bus has."""
    gpus = {device.id.bus_id for device in snapshot.devices}
    functions = snapshot.machine.pci_devices
    if not isinstance(functions, Missing):
        gpus |= {one.bus_id for one in functions if one.class_id in DISPLAY_CLASSES}
    return any(link.remote_bus_id in gpus for link in links)
