"""Machines of tests/corpus/topology, built as the probes would read them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gpudiag.model.device import Device, NvLink, PeerAccess, Snapshot
from gpudiag.model.host_state import HostState, InfinibandPort, NumaNode, PciPlace, ProcessorLayout
from gpudiag.reference.gpu_models import find_model
from gpudiag.reference.vocabulary import PATH_LABELS
from gpudiag.toml import tomllib
from tests.unit.model.nouns import NOT_SUPPORTED, make_device, make_machine, make_snapshot

_CORPUS = Path(__file__).parent / "corpus/topology/machines.toml"
_WORDS = {label: word for word, label in PATH_LABELS.items() if word != "board"}
_SWITCH = "00000000:c5:00.0"
_NEAR = ("PIX", "PXB")


def read_machines() -> list[dict[str, Any]]:
    """Every machine of the corpus."""
    machines: list[dict[str, Any]] = tomllib.loads(_CORPUS.read_text(encoding="utf-8"))["machine"]
    return machines


def build_snapshot(machine: dict[str, Any]) -> Snapshot:
    """What `gpudiag topo` reads on the machine."""
    gpus, nics = machine["gpus"], machine.get("nics", [])
    cards = [nic.split() for nic in nics]
    written = [*gpus, *(card[1] for card in cards)]
    paths = _made_up(machine, written) if machine["tree"] == "matrix" else written
    count = len(gpus)
    places = [
        _place(path, "gpu" if at < count else "nic", () if at < count else (cards[at - count][0],))
        for at, path in enumerate(paths)
    ]
    devices = [_device(machine, index, places) for index in range(count)]
    state = HostState(**dict.fromkeys((field.name for field in fields(HostState)), NOT_SUPPORTED))
    nodes = sorted({place.numa_node for place in places})
    layout = ProcessorLayout("0-63", tuple(NumaNode(node, f"{node}") for node in nodes), NOT_SUPPORTED, False)
    ports = tuple(_port(card[0], card[2] if len(card) > 2 else "200") for card in cards)
    state = replace(state, pci_places=tuple(places), infiniband_ports=ports, processor_layout=layout)
    host = make_machine(
        state=state,
        processor=machine.get("processor", "Intel(R) Xeon(R) Platinum 8480C"),
        processor_architecture="x86_64",
        kernel_modules=("nvidia", "nvidia_peermem"),
        pci_devices=(),
    )
    return make_snapshot(*devices, machine=host)


def _port(name: str, gbit: str) -> InfinibandPort:
    """The card's only port; cards of one rate are of one board."""
    return InfinibandPort(
        name, 1, "InfiniBand", "ACTIVE", "LinkUp", float(gbit), 0, {}, board=f"of {gbit} Gbit/s"
    )


def _place(path: str, kind: str, rdma: tuple[str, ...]) -> PciPlace:
    folders, _, node = path.partition("@")
    root, *chain = folders.split("/")
    *bridges, own = (f"0000{address}" for address in chain)
    return PciPlace(own, kind, root, tuple(bridges), int(node), "0-63", 5, 16, rdma)


def _device(machine: dict[str, Any], index: int, places: list[PciPlace]) -> Device:
    count = len(machine["gpus"])
    device = make_device(index, name=machine["model"], mig_mode="disabled")
    peers = tuple(_peer(machine, index, other, places) for other in range(count) if other != index)
    model = find_model(machine["model"])
    return replace(
        device,
        id=replace(device.id, bus_id=places[index].bus_id),
        numa_node=places[index].numa_node,
        peers=peers,
        nvlinks=_links(machine, index, places),
        nvlink_bytes_per_second=model.nvlink_bytes_per_second
        if model and model.nvlink_count
        else NOT_SUPPORTED,
        pcie_generation_gpu_max=4,
        pcie_width_gpu_max=16,
    )


def _links(machine: dict[str, Any], index: int, places: list[PciPlace]) -> Any:
    ends: list[str] = []
    if "links" in machine:
        counts = [int(word) for word in machine["links"][index].split()]
        ends = [places[other].bus_id for other, links in enumerate(counts) for _ in range(links)]
    ends = ends or [_SWITCH] * machine.get("nvlinks", 0)
    down = index in machine.get("no_nvlink", ())
    return tuple(NvLink(at, not down, end, 0, 0, 0, 0) for at, end in enumerate(ends)) or NOT_SUPPORTED


def _peer(machine: dict[str, Any], index: int, other: int, places: list[PciPlace]) -> PeerAccess:
    rows = machine.get("matrix")
    label = rows[index].split()[other] if rows else ""
    own, far = places[index], places[other]
    one_node = machine.get("one_node", "numa_node")
    word = _WORDS.get(label) or (one_node if own.numa_node == far.numa_node else "system")
    if not rows and own.root == far.root:
        word = "pcie_switch"
    linked = label.startswith("NV") or (not rows and machine.get("nvlinks", 0) > 0)
    nvlink = "ok" if linked else "not_supported"
    return PeerAccess(far.bus_id, word, machine.get("peers", "ok"), nvlink)


def _made_up(machine: dict[str, Any], written: list[str]) -> list[str]:
    """Places that fit the matrix: what is PIX shares a switch, what is PXB chips of one, what is PHB a host
    bridge.
    """
    rows = [row.split() for row in machine["matrix"]]
    chip, switch, root = (
        _joined(rows, len(written), labels) for labels in (("PIX",), _NEAR, (*_NEAR, "PHB"))
    )
    paths = []
    for at, text in enumerate(written):
        node = text.rpartition("@")[2]
        bus, port, up, part = (f"{one + 1:02x}" for one in (root[at], switch[at], switch[at], chip[at]))
        chips = {chip[other] for other in range(len(written)) if switch[other] == switch[at]}
        own = f"0000:{0x80 + at:02x}:00.0"
        head = f"pci0000:{bus}/0000:{bus}:{port}.0/0001:{up}:00.0"
        below = (
            f"/0002:{part}:00.0/0003:{part}:00.0/0004:{at:02x}:00.0"
            if len(chips) > 1
            else f"/0002:{at:02x}:00.0"
        )
        paths.append(f"{head}{below}/{own}@{node}")
    return paths


def _joined(rows: list[list[str]], count: int, labels: tuple[str, ...]) -> list[int]:
    """The lowest place of those that these labels join, for each place."""
    group = list(range(count))
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            if cell in labels:
                low, high = sorted((group[row], group[column]))
                group = [low if one == high else one for one in group]
    return group
