"""Cases of the checks of links: PCIe, NVLink, fabric, peer access, RDMA ports."""

from dataclasses import replace

from gpudiag.model.device import PeerAccess
from gpudiag.model.host_state import FabricManager, IommuState
from gpudiag.model.reading import Missing, MissingReason
from tests.scenarios.gpu_cases import BUSY
from tests.scenarios.situations import (
    Change,
    case,
    gpu,
    gpus,
    machine,
    now,
    nvlink,
    part,
    port,
    state,
    without_port,
)

NOT_SUPPORTED = Missing(MissingReason.NOT_SUPPORTED)
HOUR = 3600.0


def unreadable(*, path: str, words: str = "topology_not_supported") -> Change:
    """GPUs 0 and 1 cannot read each other, over that path."""

    def change(snapshot):
        first, second = snapshot.devices[:2]
        for one, other in ((first, second), (second, first)):
            peers = tuple(
                PeerAccess(peer.bus_id, path, words, words) if peer.bus_id == other.id.bus_id else peer
                for peer in one.peers
            )
            snapshot = gpu(one.id.nvml_index, peers=peers)(snapshot)
        return snapshot

    return change


def down(index: int, *links: int) -> tuple[Change, ...]:
    return tuple(nvlink(index, link, active=False) for link in links)


def aer(index: int, **counts: int) -> Change:
    """The kernel's counts of PCIe errors of one GPU."""

    def change(snapshot):
        bus_id = snapshot.devices[index].id.bus_id
        pci = tuple(
            replace(one, **{f"errors_{kind}": count for kind, count in counts.items()})
            if one.bus_id == bus_id
            else one
            for one in snapshot.machine.pci_devices
        )
        return machine(pci_devices=pci)(snapshot)

    return change


ALL_DOWN = tuple(change for index in range(8) for change in down(index, *range(18)))
LINK_5_DOWN = tuple(nvlink(index, 5, active=False) for index in range(8))


def placed(place: int, kind: str = "nic", **facts: object) -> Change:
    """The card (or GPU, or switch) of that number in the order of the bus, with other facts of its place."""

    def change(snapshot):
        places = snapshot.machine.state.pci_places
        chosen = [one for one in places if one.kind == kind][place]
        return state(pci_places=tuple(replace(one, **facts) if one is chosen else one for one in places))(
            snapshot
        )

    return change


def unplugged(place: int) -> Change:
    """A network card that is not on the bus."""

    def change(snapshot):
        places = snapshot.machine.state.pci_places
        chosen = [one for one in places if one.kind == "nic"][place]
        return state(pci_places=tuple(one for one in places if one is not chosen))(snapshot)

    return change


ELSEWHERE = {"root": "pci0000:e0", "bridges": ("00000000:e0:01.0",)}

PCIE = (
    case("pcie.width", "pcie.width_reduced")(
        now(gpu(3, pcie_width=8)), now(gpu(3, pcie_width=8, pcie_width_slot_max=8))
    ),
    case("pcie.generation", "pcie.generation_reduced")(
        now(BUSY, gpu(3, pcie_generation=3)), now(BUSY, gpu(3, pcie_generation=1, utilization_percent=0))
    ),
    case("pcie.replay_rate", "pcie.replay_rate")(
        now(gpu(3, pcie_replay_count=1000), before=(gpu(3, pcie_replay_count=900),)),
        now(gpu(3, pcie_replay_count=9000), before=(gpu(3, pcie_replay_count=8990),)),
    ),
    case("pcie.replay_rate", "pcie.replay_storm")(
        now(gpu(3, pcie_replay_count=1000), before=(gpu(3, pcie_replay_count=500),)),
        now(gpu(3, pcie_replay_count=1000), before=(gpu(3, pcie_replay_count=1000),)),
    ),
    case("pcie.errors", "pcie.fatal_error")(
        now(aer(3, fatal=1), before=()), now(aer(3, corrected=9), before=())
    ),
    case("pcie.errors", "pcie.fatal_error_since_boot")(now(aer(3, fatal=1)), now(aer(3, corrected=1000))),
    case("pcie.errors", "pcie.nonfatal_errors")(
        now(aer(3, nonfatal=2), before=()), now(aer(3, nonfatal=2), before=(aer(3, nonfatal=2),))
    ),
    case("pcie.errors", "pcie.nonfatal_errors_since_boot")(
        now(aer(3, nonfatal=2)), now(aer(3, nonfatal=2), before=(aer(3, nonfatal=2),))
    ),
    case("pcie.errors", "pcie.corrected_rate")(
        now(aer(3, corrected=33), before=()), now(aer(3, corrected=32), before=())
    ),
)

PLACES = (
    case("pcie.slot", "pcie.slot_slower")(
        now(gpu(3, pcie_width=8, pcie_width_slot_max=8)), now(gpus(pcie_width=8, pcie_width_slot_max=8))
    ),
    case("pcie.slot", "pcie.slot_slower", base="rtx4090x2")(
        now(gpu(1, pcie_width_slot_max=4)), now(gpu(1, pcie_width_slot_max=32))
    ),
    case("nvlink.rate", "nvlink.rate_lower")(
        now(gpu(3, nvlink_bytes_per_second=20e9)), now(gpus(nvlink_bytes_per_second=20e9))
    ),
    case("topology.placement", "topology.gpu_without_nic")(
        now(placed(3, **ELSEWHERE)), now(*(placed(place, **ELSEWHERE) for place in (1, 3, 5)))
    ),
    case("topology.placement", "topology.nic_without_gpu", base="b200x8")(
        now(placed(3, **ELSEWHERE)), now(unplugged(3))
    ),
    case("topology.placement", "topology.gpu_on_other_root")(
        now(gpu(3, numa_node=1)), now(gpu(3, numa_node=1), gpu(4, numa_node=0))
    ),
    case("topology.placement", "topology.gpu_on_other_root", base="b200x8")(
        now(
            placed(
                4,
                "gpu",
                root="pci0000:93",
                bridges=("00000000:93:01.0", "00000000:94:00.0", "00000000:95:05.0"),
            )
        ),
        now(*(placed(place, "gpu", root=f"pci0000:{place}") for place in range(8))),
    ),
    case("topology.placement", "topology.nic_link_slower")(
        now(placed(3, link_width=8)), now(*(placed(place, link_width=8) for place in range(8)))
    ),
)
NVLINK = (
    case("nvlink.state", "nvlink.link_down")(now(*down(3, 5)), now(*down(3, 5), gpu(3, mig_mode="enabled"))),
    case("nvlink.state", "nvlink.shared_links_down")(
        now(*LINK_5_DOWN), now(*LINK_5_DOWN, gpus(name="NVIDIA H100 NVL"))
    ),
    case("nvlink.state", "nvlink.all_links_down")(
        now(*ALL_DOWN), now(*ALL_DOWN, machine(pci_devices=()), gpus(name="NVIDIA H100 NVL"))
    ),
    case("nvlink.errors", "nvlink.crc_errors")(
        now(nvlink(3, 5, crc_flit_errors=6000), before=()), now(nvlink(3, 5, crc_flit_errors=5000), before=())
    ),
    case("nvlink.errors", "nvlink.errors")(
        now(nvlink(3, 5, replay_errors=1), before=()),
        now(nvlink(3, 5, replay_errors=7), before=(nvlink(3, 5, replay_errors=7),)),
    ),
    case("nvlink.errors", "nvlink.recovery_failed", base="b200x8")(
        now(nvlink(3, 5, recovery_failures=1), before=(nvlink(3, 5, recovery_failures=0),)),
        now(nvlink(3, 5, recovery_failures=1), before=(nvlink(3, 5, recovery_failures=1),)),
    ),
    case("nvlink.errors", "nvlink.bit_error_rate", base="b200x8")(
        now(nvlink(3, 5, bit_error_rate=1e-10), before=()), now(nvlink(3, 5, bit_error_rate=1e-14), before=())
    ),
)

FABRIC = (
    case("fabric.state", "fabric.not_ready")(
        now(part(3, "fabric", state="in_progress")),
        now(*(part(index, "fabric", state="not_started") for index in range(8)), machine(pci_devices=())),
    ),
    case("fabric.state", "fabric.unhealthy")(
        now(part(3, "fabric", health="unhealthy")), now(part(3, "fabric", health="healthy"))
    ),
    case("fabric.state", "fabric.limited")(
        now(part(3, "fabric", health="limited_capacity")), now(part(3, "fabric", health="healthy"))
    ),
    case("fabric.state", "fabric.clique_differs")(
        now(part(3, "fabric", clique_id=7)), now(*(part(index, "fabric", clique_id=7) for index in range(8)))
    ),
    case("fabric.manager", "fabric.manager_not_running")(
        now(state(fabric_manager=FabricManager(False, NOT_SUPPORTED))),
        now(state(fabric_manager=FabricManager(False, NOT_SUPPORTED)), machine(pci_devices=())),
    ),
    case("fabric.manager", "fabric.manager_version_differs")(
        now(state(fabric_manager=FabricManager(True, "580.95.05"))),
        now(state(fabric_manager=FabricManager(True, NOT_SUPPORTED))),
    ),
)

PEERS = (
    case("peer.access", "gpu.peer_access_broken")(
        now(unreadable(path="numa_node")), now(unreadable(path="pcie_switch"))
    ),
    case("peer.access", "gpu.peer_access_disabled")(
        now(unreadable(path="numa_node", words="disabled")), now(gpus(peers=()))
    ),
    case("host.acs", "host.acs_redirects")(
        now(state(redirecting_bridges=("00000000:52:00.0",))), now(state(redirecting_bridges=()))
    ),
    case("host.iommu", "host.iommu_translates")(
        now(state(iommu=IommuState(88, ("DMA-FQ",)))), now(state(iommu=IommuState(88, ("identity",))))
    ),
)

RDMA = (
    case("infiniband.port", "infiniband.port_down")(
        now(port(2, state="DOWN", physical_state="Polling")),
        now(port(2, state="DOWN", physical_state="Disabled", link_layer="Ethernet")),
    ),
    case("infiniband.port", "infiniband.port_disabled")(
        now(port(2, state="DOWN", physical_state="Disabled")),
        now(port(2, state="DOWN", physical_state="Disabled", link_layer="Ethernet")),
    ),
    case("infiniband.port", "infiniband.port_slow")(
        now(port(2, rate_gbit_per_second=200.0)),
        now(*(port(index, rate_gbit_per_second=200.0) for index in range(8))),
    ),
    case("infiniband.errors", "infiniband.link_downed")(
        now(port(2, counters={"link_downed": 3}), before=(port(2, counters={"link_downed": 2}),)),
        now(port(2, counters={"link_downed": 3}), before=(port(2, counters={"link_downed": 3}),)),
    ),
    case("infiniband.errors", "infiniband.symbol_errors")(
        now(
            port(2, counters={"symbol_error": 121}),
            before=(port(2, counters={"symbol_error": 0}),),
            seconds=HOUR,
        ),
        now(
            port(2, counters={"symbol_error": 120}),
            before=(port(2, counters={"symbol_error": 0}),),
            seconds=HOUR,
        ),
    ),
    case("infiniband.errors", "infiniband.link_recoveries")(
        now(
            port(2, counters={"link_error_recovery": 301}),
            before=(port(2, counters={"link_error_recovery": 0}),),
            seconds=HOUR,
        ),
        now(
            port(2, counters={"link_error_recovery": 300}),
            before=(port(2, counters={"link_error_recovery": 0}),),
            seconds=HOUR,
        ),
    ),
    case("infiniband.peer_memory", "infiniband.no_peer_memory")(
        now(machine(kernel_modules=("nvidia",), kernel_driver_flavor="proprietary")),
        now(machine(kernel_modules=("nvidia",), kernel_driver_flavor="open")),
    ),
    case("machine.ports", "infiniband.port_gone")(
        now(without_port(2), recorded=()), now(without_port(2), recorded=(without_port(2),))
    ),
)

LINK_CASES = (*PCIE, *PLACES, *NVLINK, *FABRIC, *PEERS, *RDMA)
