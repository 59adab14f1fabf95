"""Rack, leaf, NVLink and rail labels of nodes: by Slurm's topology.conf, Kubernetes' nodes, or a plain file.

Switches are named with their kind (`leaf s12`), from the outermost to the leaf, as sentences name them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.measure import Node
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.ranks.launchers import expand_nodes

_MAX_BYTES = 256 * 1024**2  # `kubectl get nodes -o json` has some 20 KiB a node
_SHOWN_HOSTS = 3
_HINT = (
    "it may be Slurm's topology.conf, `kubectl get nodes,pods -o json`, or lines such as"
    " `gpu[01-16] leaf=s1 rack=r1 nvlink=d1`"
)

# What clouds and NVIDIA's programs write, from the outermost switch to the leaf; the first that any node has
# counts. docs.nvidia.com/topograph; AWS, GKE, OKE and CoreWeave: their pages on topology-aware scheduling
# (read 2026-11).
_SWITCH_KEYS: tuple[tuple[tuple[str, str], ...], ...] = (
    (
        ("core", "network.topology.nvidia.com/core"),
        ("spine", "network.topology.nvidia.com/spine"),
        ("leaf", "network.topology.nvidia.com/leaf"),
    ),
    (
        ("core", "network.topology.nvidia.com/datacenter"),
        ("spine", "network.topology.nvidia.com/spine"),
        ("leaf", "network.topology.nvidia.com/block"),
    ),
    (
        ("core", "fabric.topograph.run/tier-2"),
        ("spine", "fabric.topograph.run/tier-1"),
        ("leaf", "fabric.topograph.run/tier-0"),
    ),
    tuple(("layer", f"topology.k8s.aws/network-node-layer-{layer}") for layer in range(1, 5)),
    (
        ("block", "cloud.google.com/gce-topology-block"),
        ("subblock", "cloud.google.com/gce-topology-subblock"),
    ),
    (
        ("island", "oci.oraclecloud.com/rdma.hpc_island_id"),
        ("network block", "oci.oraclecloud.com/rdma.network_block_id"),
        ("local block", "oci.oraclecloud.com/rdma.local_block_id"),
    ),
    tuple((kind, f"backend.coreweave.cloud/{kind}") for kind in ("fabric", "superpod", "leafgroup")),
    tuple((kind, f"ib.coreweave.cloud/{kind}") for kind in ("fabric", "superpod", "leafgroup")),
    (("zone", "topology.kubernetes.io/zone"), ("rack", "topology.kubernetes.io/rack")),
)
_NVLINK_KEYS = (
    "nvidia.com/gpu.clique",
    "network.topology.nvidia.com/accelerator",
    "accelerator.topograph.run/domain",
    "topology.k8s.aws/ultraserver-id",
    "ds.coreweave.com/nvlink.domain",
)
# The keys of a plain file that name switches, from the outermost to the innermost.
_PLAIN_SWITCHES = ("core", "spine", "pod", "block", "rack", "leaf")
_PLAIN_KEYS = (*_PLAIN_SWITCHES, "nvlink", "rails")
_PAIR = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The labels of one node; empty where it has none."""

    switches: tuple[str, ...] = ()
    nvlink_domain: str = ""
    rails: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelFile:
    """The labels of a file, by host name."""

    source: str
    of_host: Mapping[str, NodeLabels]


def read_labels(path: str) -> LabelFile:
    """The labels of that file.

    Raises:
        UsageError: it cannot be read, is none of the known formats, or contradicts itself; one sentence names
            the line.
    """
    try:
        size = Path(path).stat().st_size
        if size > _MAX_BYTES:
            raise UsageError(f"--labels {path} has {size} bytes, which is more than labels have", hint=_HINT)
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"--labels {path} cannot be read: {why}", hint=_HINT) from error
    found = parse_labels(text, path)
    if not found:
        raise UsageError(f"--labels {path} names no node with a label", hint=_HINT)
    return LabelFile(path, MappingProxyType(found))


def parse_labels(text: str, name: str) -> dict[str, NodeLabels]:
    """The labels of a text, by host name; `name` is the file's, for errors.

    Raises:
        UsageError: it is none of the known formats, or contradicts itself.
    """
    if text.lstrip()[:1] in ("{", "["):
        return _parse_kubernetes(text, name)
    lines = list(_lines(text))
    if any(re.match(r"(?i)(switch|block)name\s*=", line) for _, line in lines):
        return _parse_slurm(lines, name)
    return _parse_plain(lines, name)


def label_nodes(nodes: Sequence[Node], labels: LabelFile) -> tuple[tuple[Node, ...], Reading[str]]:
    """The nodes with their labels, and where these came from, or why there are none.

    Hosts are found by their short names too. Ranks of one host that act as nodes are called `rank0`, `rank1`
    and so on.
    """
    are_ranks = len({node.host for node in nodes}) == 1
    names = [f"rank{node.ranks[0]}" if are_ranks else node.host for node in nodes]
    found = [_find(name, labels.of_host) for name in names]
    known = sum(one != NodeLabels() for one in found)
    if not known:
        shown = ", ".join(names[:_SHOWN_HOSTS]) + (", ..." if len(names) > _SHOWN_HOSTS else "")
        there = ", ".join(list(labels.of_host)[:_SHOWN_HOSTS])
        words = f"{labels.source} names none of the nodes of this run ({shown}); it has {there}"
        return tuple(nodes), Missing(MissingReason.SOURCE_ABSENT, words)
    labelled = tuple(label_node(node, one) for node, one in zip(nodes, found, strict=True))
    return labelled, f"{labels.source}: {known} of {len(nodes)} nodes"


def labels_of_slurm(address: str, pattern: str) -> NodeLabels:
    """The labels in SLURM_TOPOLOGY_ADDR and its pattern, which Slurm sets for each task; empty without them.

    srun(1): `s0.s4.s8.node1` and `switch.switch.switch.node`; with topology/block `block.node`.
    """
    names, kinds = address.split("."), pattern.split(".")
    if len(names) != len(kinds) or kinds[-1:] != ["node"]:
        return NodeLabels()
    switches = [name for name, kind in zip(names, kinds, strict=True) if kind == "switch" and name]
    blocks = [name for name, kind in zip(names, kinds, strict=True) if kind == "block" and name]
    return NodeLabels(_named(switches), blocks[-1] if blocks else "")


def label_node(node: Node, labels: NodeLabels) -> Node:
    """The node with these labels."""
    return replace(
        node,
        switches=labels.switches or NOT_ASKED,
        nvlink_domain=labels.nvlink_domain or NOT_ASKED,
        rails=labels.rails[: len(node.ranks)] or NOT_ASKED,
    )


def _find(host: str, of_host: Mapping[str, NodeLabels]) -> NodeLabels:
    return of_host.get(host) or of_host.get(host.partition(".")[0]) or NodeLabels()


def _named(switches: Sequence[str]) -> tuple[str, ...]:
    """The names of switches with their kinds; the last is the leaf."""
    last = len(switches) - 1
    return tuple(f"{'leaf' if place == last else 'switch'} {name}" for place, name in enumerate(switches))


# --- Slurm


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines without comments, with their numbers; one that ends in a backslash goes on."""
    begun, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        content = line.partition("#")[0].rstrip()
        if content.endswith("\\"):
            begun += content[:-1] + " "
            continue
        whole = (begun + content).strip()
        if whole:
            yield start, whole
        begun, start = "", 0
    if begun.strip():
        yield start, begun.strip()


def _parse_slurm(lines: Sequence[tuple[int, str]], name: str) -> dict[str, NodeLabels]:
    """topology.conf(5), or `scontrol show topology`: switches with nodes or switches, and blocks."""
    leaf_of: dict[str, str] = {}
    above: dict[str, str] = {}
    block_of: dict[str, str] = {}
    for number, line in lines:
        found = {key.lower(): value for key, value in _PAIR.findall(line)}
        switch, block = found.get("switchname"), found.get("blockname")
        if switch is None and block is None:
            if {"blocksizes", "level"} & set(found):
                continue
            raise UsageError(f"line {number} of --labels {name} names no switch and no block", hint=_HINT)
        nodes = _expand(found.get("nodes", ""), number, name)
        if block is not None:
            block_of.update(dict.fromkeys(nodes, block))
        elif switch is not None:
            # `scontrol show topology` lists all nodes below a switch that has switches.
            below = _expand(found.get("switches", ""), number, name)
            above.update((one, switch) for one in below)
            if not below:
                leaf_of.update(dict.fromkeys(nodes, switch))
    made: dict[str, NodeLabels] = {}
    for node in {**leaf_of, **block_of}:
        way = [leaf_of[node]] if node in leaf_of else []
        while way and way[0] in above:
            if above[way[0]] in way:
                raise UsageError(f"--labels {name}: switch {way[0]} is above and below itself", hint=_HINT)
            way.insert(0, above[way[0]])
        made[node] = NodeLabels(_named(way), block_of.get(node, ""))
    return made


def _expand(text: str, number: int, name: str) -> tuple[str, ...]:
    nodes = expand_nodes(text) if text and text != "(null)" else ()
    if (text and text != "(null)" and not nodes) or any(one in node for node in nodes for one in "[],"):
        raise UsageError(f"line {number} of --labels {name}: {text[:60]} is no list of names", hint=_HINT)
    return nodes


# --- Kubernetes


def _parse_kubernetes(text: str, name: str) -> dict[str, NodeLabels]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--labels {name} is no whole JSON: {error}", hint=_HINT) from error
    items = document.get("items", [document]) if isinstance(document, dict) else document
    items = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    nodes = [item for item in items if item.get("kind") == "Node"]
    if not nodes:
        raise UsageError(f"--labels {name} has no object of kind Node", hint=_HINT)
    of_node = {str(_of(node, "metadata").get("name", "")): node for node in nodes}
    labels = {node: _of(_of(item, "metadata"), "labels") for node, item in of_node.items()}
    keys = next((keys for keys in _SWITCH_KEYS if _any_has(labels, keys)), ())
    made: dict[str, NodeLabels] = {}
    for node, item in of_node.items():
        one = _of_kubernetes(labels[node], keys)
        addresses = _of(item, "status").get("addresses") or []
        aliases = [str(each.get("address", "")) for each in addresses if isinstance(each, dict)]
        if one != NodeLabels():
            made.update(
                dict.fromkeys(filter(None, (node, labels[node].get("kubernetes.io/hostname"), *aliases)), one)
            )
    for item in items:
        node = str(_of(item, "spec").get("nodeName"))
        if item.get("kind") == "Pod" and node in made:
            names = (_of(item, "metadata").get("name"), _of(item, "spec").get("hostname"))
            made.update(dict.fromkeys(filter(None, names), made[node]))
    return made


def _of(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def _any_has(labels: Mapping[str, Mapping[str, Any]], keys: Sequence[tuple[str, str]]) -> bool:
    return any(one.get(key) for one in labels.values() for _, key in keys)


def _of_kubernetes(labels: Mapping[str, Any], keys: Sequence[tuple[str, str]]) -> NodeLabels:
    switches = tuple(f"{kind} {labels[key]}" for kind, key in keys if labels.get(key))
    domains = (str(labels[key]) for key in _NVLINK_KEYS if labels.get(key))
    return NodeLabels(switches, next(domains, ""))


# --- the plain file


def _parse_plain(lines: Sequence[tuple[int, str]], name: str) -> dict[str, NodeLabels]:
    """`HOSTS key=value ...`: hosts as Slurm lists them, and any of the keys."""
    made: dict[str, NodeLabels] = {}
    for number, line in lines:
        hosts, *words = line.split()
        found = dict(word.split("=", 1) for word in words if "=" in word)
        wrong = [word for word in words if "=" not in word] + [key for key in found if key not in _PLAIN_KEYS]
        if not words or wrong:
            what = f"{wrong[0]!r} is none of {', '.join(_PLAIN_KEYS)}" if wrong else f"{hosts!r} has no label"
            raise UsageError(f"line {number} of --labels {name}: {what}", hint=_HINT)
        one = NodeLabels(
            tuple(f"{key} {found[key]}" for key in _PLAIN_SWITCHES if found.get(key)),
            found.get("nvlink", ""),
            tuple(filter(None, found.get("rails", "").split(","))),
        )
        for host in _expand(hosts, number, name):
            if made.get(host, one) != one:
                raise UsageError(
                    f"line {number} of --labels {name}: {host} has other labels above", hint=_HINT
                )
            made[host] = one
    return made
