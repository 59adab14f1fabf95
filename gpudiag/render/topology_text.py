"""`gpudiag topo` as text: the verdict, the GPUs, the matrices, what NCCL would choose, and the PCI tree.

It has 80 columns.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from gpudiag.checks.subjects import short_bus_id
from gpudiag.model.number_ranges import count_of, number_ranges
from gpudiag.model.reading import Missing, Reading, value_or
from gpudiag.model.topology import NcclLevels, Topology, TopologyDevice, TopologyLink, TopologyNic
from gpudiag.reference.reading_names import describe_missing
from gpudiag.render.joined_findings import join_findings
from gpudiag.render.style import (
    PLAIN,
    Column,
    Footnotes,
    Style,
    columns,
    next_lines,
    one_line,
    render_table,
    sentence,
    wrapped,
)
from gpudiag.units import format_rate, significant

_MEANINGS = {
    "NV": "that many NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the host bridge of a processor",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}
_NO_VALUE = "-"
_MOST_PAIRS = 6  # named in a line about NCCL; more are counted
_LETTERS = 4  # the widest label of a cell: NODE, NV18


def render_topology(topology: Topology, style: Style = PLAIN) -> str:
    """The whole page, as wide as the terminal."""
    lines = _head(topology, style)
    notes = Footnotes()
    nics = [nic for nic in topology.nics if _is_rdma(nic) and (style.verbose or not nic.virtual_function)]
    if topology.devices:
        lines += ["", *_gpus(topology, notes, style)]
    if len(topology.devices) > 1 and topology.links:
        lines += ["", *_between_gpus(topology, notes, style)]
    if nics and topology.devices:
        lines += ["", *_to_nics(topology, nics, notes, style)]
    if any(link.measured for link in topology.links):
        lines += ["", *_measured(topology, style)]
    lines += _cards(topology, nics, style)
    lines += ["", *_nodes(topology, nics), *_tree(topology, style)]
    lines += notes.lines()
    if topology.links or (nics and topology.devices):
        lines += ["", *_nccl(topology)]
    lines += _legend(topology)
    next_commands = ["gpudiag topo --json", "gpudiag preflight"]
    if not topology.devices:
        next_commands = ["gpudiag list", "gpudiag doctor", "gpudiag simulate h100x8 -- gpudiag topo"]
    if len(topology.devices) > 1 and not any(link.measured for link in topology.links):
        next_commands.insert(0, "gpudiag bandwidth")
    return "\n".join([*lines, *next_lines(*next_commands)]) + "\n"


def _head(topology: Topology, style: Style) -> list[str]:
    word = "" if topology.verdict is None else f"{topology.verdict.value.upper()} "
    parts = [_kinds(topology.devices)]
    if topology.switches:
        parts.append(count_of(len(topology.switches), "NVSwitch").replace("NVSwitchs", "NVSwitches"))
    cards = [nic for nic in topology.nics if _is_rdma(nic) and not nic.virtual_function]
    parts += [count_of(len(cards), "RDMA card")] if cards else []
    nodes = topology.numa_nodes
    parts += [] if isinstance(nodes, Missing) else [count_of(len(nodes), "NUMA node")]
    lines = wrapped(f"{word}{one_line(topology.host, 60)}: {', '.join(parts)}", indent="  ")
    if topology.verdict is not None:
        lines[0] = style.paint_outcome(lines[0], topology.verdict.value)
    if not topology.devices:
        lines += wrapped(
            "Without a GPU there are no links, and there is no verdict.", first="  ", indent="  "
        )
    if topology.simulated is not None:
        lines += wrapped(f"SIMULATED {topology.simulated}: no real GPU was read", first="  ", indent="  ")
    for one in join_findings(topology.findings):
        outcome = one.finding.outcome.value
        message = one.finding.message if one.count == 1 else f"{one.subject}: {one.message}"
        found = wrapped(
            f"{outcome.upper()} {one.finding.code}: {sentence(message)}", first="  ", indent="    "
        )
        found[0] = style.paint_outcome(found[0], outcome)
        lines += [*found, *wrapped(one.remedy, first="    Do: ", indent="        ")]
    return lines


def _kinds(devices: Sequence[TopologyDevice]) -> str:
    """`8x NVIDIA H100 80GB HBM3`; of several kinds each with its number; `no GPU`."""
    counts: dict[str, int] = defaultdict(int)
    for device in devices:
        counts[one_line(value_or(device.name, "GPU"), 40)] += 1
    return ", ".join(f"{count}x {name}" for name, count in counts.items()) or "no GPU is listed"


# --- GPUs


def _gpus(topology: Topology, notes: Footnotes, style: Style) -> list[str]:
    headings = (
        Column("GPU", right=True),
        Column("BUS ID"),
        Column("NUMA", right=True),
        Column("PCIE NOW"),
        Column("SLOT"),
        Column("NVLINKS"),
        Column("NCCL'S CARDS", gives_way=True),
    )
    rows = [
        (
            _index(device),
            _cell(device.bus_id, notes, "BUS ID", short_bus_id),
            _cell(device.numa_node, notes, "NUMA", str),
            _link(device.pcie_generation, device.pcie_width, notes, "PCIE NOW"),
            _link(device.pcie_generation_slot_max, device.pcie_width_slot_max, notes, "SLOT"),
            _nvlinks(device, notes),
            " ".join(device.nics) or _NO_VALUE,
        )
        for device in topology.devices
    ]
    heading, *table = render_table(headings, rows)
    return [style.paint(heading, "bold"), *table]


def _index(device: TopologyDevice) -> str:
    return "?" if isinstance(device.nvml_index, Missing) else str(device.nvml_index)


def _cell(reading: Reading[object], notes: Footnotes, heading: str, words: Callable[..., str]) -> str:
    if isinstance(reading, Missing):
        return _NO_VALUE + notes.mark(f"{heading}: {describe_missing(reading)}.")
    return words(reading)


def _link(generation: Reading[int], width: Reading[int], notes: Footnotes, heading: str) -> str:
    if isinstance(generation, Missing):
        return _cell(generation, notes, heading, str)
    return f"{generation}.0 x{_NO_VALUE if isinstance(width, Missing) else width}"


def _nvlinks(device: TopologyDevice, notes: Footnotes) -> str:
    """`18 x 26.6 GB/s` each way; `17 of 18 x 26.6 GB/s` where some are down."""
    active, total = device.nvlinks_active, device.nvlinks_total
    if isinstance(active, Missing) or isinstance(total, Missing):
        return _cell(active, notes, "NVLINKS", str)
    count = str(active) if active == total else f"{active} of {total}"
    rate = device.nvlink_bytes_per_second
    return count if isinstance(rate, Missing) or not active else f"{count} x {format_rate(rate)}"


# --- matrices


def _matrix(
    corner: str, names: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], style: Style
) -> list[str]:
    """A table of short cells, in as many blocks below each other as the width needs."""
    rows = list(rows)
    first = max(len(corner), *(len(name) for name, _ in rows))
    each = max(_LETTERS, *(len(name) for name in names), *(len(cell) for _, cells in rows for cell in cells))
    most = max(1, (columns() - first) // (each + 1))
    lines: list[str] = []
    for start in range(0, len(names), most):
        part = slice(start, start + most)
        headings = (Column(corner), *(Column(name) for name in names[part]))
        heading, *table = render_table(headings, [(name, *cells[part]) for name, cells in rows])
        lines += [*([""] if lines else []), style.paint(heading, "bold"), *table]
    return lines


def _between_gpus(topology: Topology, notes: Footnotes, style: Style) -> list[str]:
    found = {(link.from_uuid, link.to_uuid): link for link in topology.links}
    rows = []
    for one in topology.devices:
        links = [found.get((one.uuid, other.uuid)) for other in topology.devices]
        cells = [
            "X" if one is other else _NO_VALUE if link is None else _cell(link.label, notes, "PATH", str)
            for other, link in zip(topology.devices, links, strict=True)
        ]
        rows.append((f"GPU{_index(one)}", cells))
    return _matrix("", [name for name, _ in rows], rows, style)


def _to_nics(topology: Topology, nics: Sequence[TopologyNic], notes: Footnotes, style: Style) -> list[str]:
    found = {(path.uuid, path.nic): path for path in topology.nic_paths}
    rows = [
        (
            f"GPU{_index(device)}",
            [_cell(found[device.uuid, nic.name].label, notes, "PATH", str) for nic in nics],
        )
        for device in topology.devices
    ]
    return _matrix("", [f"NIC{nic.number}" for nic in nics], rows, style)


def _measured(topology: Topology, style: Style) -> list[str]:
    """What was measured from each GPU (row) to each other, in GB/s."""
    found = {(link.from_uuid, link.to_uuid): link.measured for link in topology.links}
    latest = max(one.at for one in found.values() if one is not None)
    rows = []
    for one in topology.devices:
        values = [found.get((one.uuid, other.uuid)) for other in topology.devices]
        cells = [
            "X" if one is other else _NO_VALUE if value is None else significant(value.value / 1e9)
            for other, value in zip(topology.devices, values, strict=True)
        ]
        rows.append((f"GPU{_index(one)}", cells))
    head = f"Copies measured from row to column, in GB/s (last: {latest:%Y-%m-%d %H:%M} UTC)"
    return [*wrapped(head), *_matrix("", [name for name, _ in rows], rows, style)]


# --- network cards


def _is_rdma(nic: TopologyNic) -> bool:
    return not isinstance(nic.number, Missing)


def _cards(topology: Topology, nics: Sequence[TopologyNic], style: Style) -> list[str]:
    """What each column of the matrix is, and the interfaces without RDMA."""
    others = [
        nic for nic in topology.nics if not _is_rdma(nic) and (style.verbose or not nic.virtual_function)
    ]
    hidden = sum(nic.virtual_function for nic in topology.nics) if not style.verbose else 0
    if not nics and not others:
        return []
    headings = (
        Column("CARD"),
        Column("NAME", gives_way=True),
        Column("BUS ID"),
        Column("NUMA", right=True),
        Column("PCIE NOW"),
        Column("PORT"),
    )
    rows = [
        (
            f"NIC{nic.number}" if _is_rdma(nic) else "",
            " ".join((nic.name, *nic.interfaces)) if _is_rdma(nic) else nic.name,
            short_bus_id(nic.bus_id),
            _plain(nic.numa_node),
            _NO_VALUE
            if isinstance(nic.pcie_generation, Missing)
            else f"{nic.pcie_generation}.0 x{_plain(nic.pcie_width)}",
            _port(nic),
        )
        for nic in (*nics, *others)
    ]
    heading, *table = render_table(headings, rows)
    more = [f"and {count_of(hidden, 'virtual function')}: --verbose has all"] if hidden else []
    return ["", style.paint(heading, "bold"), *table, *more]


def _plain(reading: Reading[int]) -> str:
    return _NO_VALUE if isinstance(reading, Missing) else str(reading)


def _port(nic: TopologyNic) -> str:
    rate = nic.rate_gbit_per_second
    words = [] if isinstance(rate, Missing) else [f"{rate:g} Gbit/s"]
    words += [] if isinstance(nic.link_layer, Missing) else [nic.link_layer]
    words += ["down"] if nic.active is False else []
    return " ".join(words) or _NO_VALUE


# --- nodes and the PCI tree


def _nodes(topology: Topology, nics: Sequence[TopologyNic]) -> list[str]:
    nodes = topology.numa_nodes
    if isinstance(nodes, Missing):
        return [f"NUMA nodes: {describe_missing(nodes)}."]
    lines = []
    for one in nodes:
        parts = [f"Node {one.node}: CPUs {one.processors or 'none'}"]
        gpus = [device.nvml_index for device in topology.devices if device.bus_id in one.gpus]
        cards = [nic.number for nic in nics if nic.bus_id in one.nics]
        for word, found in (("GPU", gpus), ("NIC", cards)):
            known = [number for number in found if not isinstance(number, Missing)]
            parts += [f"{word}{'s' * (len(known) > 1)} {number_ranges(known)}"] if known else []
        lines += wrapped("; ".join(parts), indent="  ")
    return lines


def _tree(topology: Topology, style: Style) -> list[str]:
    """Each host bridge, and below it the switches with what is plugged in there.

    With `--verbose` every bridge.
    """
    leaves = [
        *((_root(device), f"GPU{_index(device)}") for device in topology.devices),
        *(
            ((nic.root, nic.bridges), f"NIC{nic.number}" if _is_rdma(nic) else nic.name)
            for nic in topology.nics
            if style.verbose or not nic.virtual_function
        ),
        *(
            ((switch.root, switch.bridges), f"NVSwitch {short_bus_id(switch.bus_id)}")
            for switch in topology.switches
        ),
    ]
    by_root: dict[str, list[tuple[tuple[str, ...], str]]] = defaultdict(list)
    for (root, bridges), name in leaves:
        if root:
            by_root[root].append((bridges, name))
    lines = []
    for root, below in sorted(by_root.items()):
        lines += wrapped(f"{root}: {_branch(below, 0, verbose=style.verbose)}", indent="  ", width=columns())
    return ["", "Below each host bridge, what one switch joins in brackets:", *lines] if lines else []


def _root(device: TopologyDevice) -> tuple[str, tuple[str, ...]]:
    return value_or(device.root, ""), value_or(device.bridges, ())


def _branch(below: Sequence[tuple[tuple[str, ...], str]], depth: int, *, verbose: bool) -> str:
    """What is below one bridge: `[GPU0 NIC0]` is one switch.

    Each bracket is a switch, and `bridge > ` one bridge.
    """
    groups: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    words: list[str] = []
    for bridges, name in below:
        if len(bridges) <= depth:
            words.append(name)
        else:
            groups.setdefault(bridges[depth], []).append((bridges, name))
    for bridge, own in groups.items():
        inner = _branch(own, depth + 1, verbose=verbose)
        several = len({bridges[depth + 1 : depth + 2] for bridges, _ in own}) > 1
        shown = f"[{inner}]" if several else inner
        words.append(f"{short_bus_id(bridge)} > {shown}" if verbose or several else shown)
    return ", ".join(words)


# --- NCCL


def _nccl(topology: Topology) -> list[str]:
    levels = topology.nccl
    if levels is None:
        return []
    lines = wrapped(f"NCCL {levels.version} would use {_levels(levels)}.", indent="  ")
    ways: dict[tuple[str, str, Reading[float]], list[TopologyLink]] = defaultdict(list)
    for link in topology.links:
        if not isinstance(link.nccl_transport, Missing) and not isinstance(link.nccl_path, Missing):
            ways[link.nccl_transport, link.nccl_path, link.bytes_per_second].append(link)
    indices = {device.uuid: _index(device) for device in topology.devices}
    for (transport, path, rate), links in ways.items():
        pairs = list(dict.fromkeys(_pair(link, indices) for link in links))
        named = f" ({' '.join(pairs)})" if len(pairs) <= _MOST_PAIRS and len(ways) > 1 else ""
        carries = "" if isinstance(rate, Missing) else f", links of {format_rate(rate)} each way"
        words = (
            f"{_TRANSPORTS[transport]} over {path}: {count_of(len(pairs), 'pair')} of GPUs{carries}{named}"
        )
        lines += wrapped(words, first="  ", indent="    ")
    return [*lines, *_gpu_direct(topology)]


def _gpu_direct(topology: Topology) -> list[str]:
    """Whether NCCL lets the cards that it takes reach the GPUs' memory, and over which paths it does not."""
    refused: dict[str, list[str]] = defaultdict(list)
    taken = {device.uuid: device.nics for device in topology.devices if device.nics}
    for path in topology.nic_paths:
        if path.nic in taken.get(path.uuid, ()) and path.gpu_direct is False:
            refused[value_or(path.nccl_path, "?")].append(path.nic)
    if not taken:
        return []
    if not refused:
        return ["  GPUDirect RDMA between each GPU and its cards"]
    words = (
        f"no GPUDirect RDMA over {path}: {', '.join(dict.fromkeys(nics))}" for path, nics in refused.items()
    )
    return [line for text in words for line in wrapped(text, first="  ", indent="    ")]


_TRANSPORTS = {
    "P2P": "P2P",
    "SHM": "SHM (the host's memory)",
    "NET": "NET (network cards, within this machine too)",
}


def _levels(levels: NcclLevels) -> str:
    p2p = "no P2P" if levels.p2p == "LOC" else f"P2P up to {levels.p2p}"
    gdr = f"GPUDirect RDMA up to {levels.gpu_direct}"
    if levels.gpu_direct_ready is False:
        gdr = "no GPUDirect RDMA (neither nvidia_peermem nor dma-buf)"
    parts = [(p2p, levels.p2p_setting), (gdr, levels.gpu_direct_setting)]
    return " and ".join(f"{words} ({setting})" if setting else words for words, setting in parts)


def _pair(link: TopologyLink, indices: dict[Reading[str], str]) -> str:
    return "-".join(sorted((indices.get(link.from_uuid, "?"), indices.get(link.to_uuid, "?"))))


def _legend(topology: Topology) -> list[str]:
    """One line with the letters that the matrices use."""
    labels = [*(link.label for link in topology.links), *(path.label for path in topology.nic_paths)]
    used = {"NV" if label.startswith("NV") else label for label in labels if not isinstance(label, Missing)}
    words = [
        f"{'NV#' if label == 'NV' else label} {meaning}"
        for label, meaning in _MEANINGS.items()
        if label in used
    ]
    return wrapped(f"Paths over: {'; '.join(words)}.", indent="  ") if words else []
