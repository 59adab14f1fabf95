"""How well bad parts of a labelled network are found among 64 to 1,000 nodes, in how many rounds.

    python -m benchmarks.localise_fabric [--runs N] [--routing NAME] [--messy] [--exchange-ms MS] [NODES ...]

Nothing is sent: `benchmarks/simulated_fabric.py` is the network, and knows what the judge does not. A bad
part has 0.3 to 0.7 of its speed. `found` is the share of the networks in which that part is named; `most`
what any choice of pairs could find with labels in as many rounds (`bound`); `false` how many others are named
in each network; `rounds` the most that were needed. In the uneven networks one exchange in ten is 5 to 20 %
slower by chance.
"""

import argparse
import random
from collections import Counter
from dataclasses import dataclass, replace

from benchmarks.simulated_fabric import Fault, Shape, SimulatedFabric
from gpudiag.collectives.fabric import Fabric
from gpudiag.collectives.fabric_localiser import ROUND_SECONDS, FabricLocaliser
from gpudiag.collectives.fabric_rounds import MOST_CROSSING, MOST_TURNS, SCREEN_ROUNDS
from gpudiag.collectives.localise import SLOW_SHARE, Localiser
from gpudiag.model.measure import FabricPart, Node, Suspect

NODES = (64, 256, 1000)
EXCHANGE_SECONDS = 0.02  # what a pair takes at least
KINDS = ("none", "uplink", "uplinks", "path", "node", "four nodes", "three", "link")
NVLINK_KINDS = ("none", "uplink", "uplinks", "path", "network", "nvlink", "node", "three")
SHAPES = {
    "static": Shape("static"),
    "static, 2 nodes an uplink": Shape("static", oversubscribed=2),
    "static, pods": Shape("static", pods=True),
    "hash": Shape("hash"),
    "adaptive": Shape("adaptive"),
    "NVLink, static": Shape("static", nvlink=True),
    "adaptive, 2 nodes an uplink": Shape("adaptive", oversubscribed=2),
    "adaptive, full leaves": Shape("adaptive", full=True),
    "adaptive, uneven": Shape("adaptive", oversubscribed=2, tail=0.1),
    "NVLink, hash": Shape("hash", nvlink=True),
    "static, uneven": Shape("static", tail=0.1),
    "hash, uneven": Shape("hash", tail=0.1),
    "NVLink, static, uneven": Shape("static", nvlink=True, tail=0.1),
}


@dataclass(frozen=True)
class Found:
    """What was named, and in how many rounds."""

    suspects: tuple[Suspect, ...]
    rounds: int


def localise(
    network: SimulatedFabric,
    nodes: tuple[Node, ...],
    seed: int,
    *,
    labels: bool,
    exchange_seconds: float = EXCHANGE_SECONDS,
) -> Found:
    """What gpudiag finds, with the labels or without, where an exchange takes so long at least."""
    share = SLOW_SHARE["gloo" if network.shape.noise else "nccl"]
    localiser: Localiser = (
        FabricLocaliser(Fabric(nodes), seed=seed, slow_share=share)
        if labels
        else Localiser(len(nodes), seed=seed, slow_share=share)
    )
    rounds = 0
    while (current := localiser.next_round()) is not None:
        rounds += 1
        turns = 1 + max(current.turns, default=0)
        localiser.add(network.exchange(current), max(ROUND_SECONDS, turns * exchange_seconds))
    return Found(localiser.conclude(), rounds)


def make_faults(network: SimulatedFabric, kind: str) -> list[Fault]:
    """The faults of a network, where its nodes and its cables allow it."""
    chance = network.chance
    if kind == "none":
        return []
    if kind == "four nodes":
        return [
            Fault("node", chance.uniform(0.3, 0.7), (node,))
            for node in chance.sample(range(network.nodes), 4)
        ]
    if kind == "three":
        return [fault for one in ("uplink", "path", "node") for fault in make_faults(network, one)]
    share = chance.uniform(0.3, 0.7)
    leaves = tuple(chance.sample(network.leaves, 2))
    if kind == "uplink":
        # Of the uplinks that data of this job can take.
        return [Fault(kind, share, leaves=leaves[:1], cable=_used_uplink(network, leaves[0]))]
    if kind == "uplinks":
        return [Fault(kind, share, leaves=leaves[:1])]
    if kind == "path":
        return [Fault(kind, share, leaves=leaves)]
    return [Fault(kind, share, tuple(chance.sample(range(network.nodes), 2 if kind == "link" else 1)))]


def _used_uplink(network: SimulatedFabric, leaf: str) -> int:
    if network.shape.routing != "static":
        return network.chance.randrange(network.uplinks)
    node = network.chance.choice([node for node in range(network.nodes) if network.leaf_of[node] == leaf])
    return network.spine_to(node)


def names(suspect: Suspect, fault: Fault, network: SimulatedFabric) -> bool:
    """Whether the suspect is that fault."""
    if fault.kind in ("uplink", "uplinks"):
        # Of a node that is slow with other leaves alone, it is the uplink that leads to it.
        parts = (FabricPart.UPLINK, FabricPart.UPLINKS, FabricPart.REACH)
        if suspect.part is FabricPart.ALONE:
            return suspect.switches == fault.leaves
        if suspect.part is FabricPart.NETWORK and network.leaf_of[suspect.nodes[0]] == fault.leaves[0]:
            return network.spine_to(suspect.nodes[0]) == fault.cable
        return suspect.part in parts and suspect.switches == fault.leaves
    if fault.kind == "path":
        return suspect.part is FabricPart.PATH and set(suspect.switches) == set(fault.leaves)
    if fault.kind == "link":
        return set(suspect.nodes) == set(fault.nodes)
    return suspect.nodes == fault.nodes


def bound(network: SimulatedFabric, fault: Fault, exchange_seconds: float) -> float:
    """The most that any choice of pairs could find of such faults in as many rounds.

    One pair must meet: a leaf has one pair that leaves it in each turn. Uplinks behind adaptive routing carry
    a part of each pair's data, and slow none by a tenth: they show only where the nodes of their leaf
    together exceed what is left, and only beside two other leaves that send as much at once. That is no bound
    on the noise: one uplink of 16 that has lost 0.3 of its speed takes 1.9 % from its leaf.
    """
    size = Counter(network.leaf_of)
    if fault.kind == "link":
        leaves = {network.leaf_of[node] for node in fault.nodes}
        if len(leaves) == 1:
            return 1.0
        turns = min(MOST_TURNS, max(MOST_CROSSING, round(1.5 * ROUND_SECONDS / exchange_seconds)))
        needed = max(count * (network.nodes - count) for count in size.values())
        if needed > SCREEN_ROUNDS * MOST_TURNS:
            turns = MOST_CROSSING
        return min(1.0, *(_met(size[leaf], network.nodes, turns) for leaf in leaves))
    if fault.kind in ("uplink", "uplinks") and network.shape.routing == "adaptive":
        left = network.uplinks * fault.share if fault.kind == "uplinks" else network.uplinks - 1 + fault.share
        others = [count for leaf, count in size.items() if leaf != fault.leaves[0]]
        return float(min(size[fault.leaves[0]], sorted(others)[-2]) > left)
    return 1.0


def _met(size: int, nodes: int, turns: int) -> float:
    """The share of a leaf's pairs with others that have a turn in the screen."""
    return ((SCREEN_ROUNDS - 1) * turns + MOST_CROSSING) / (size * (nodes - size))


def row(
    name: str, shape: Shape, nodes: int, kind: str, runs: int, *, labels: bool, exchange_seconds: float
) -> str:
    """Recall, the bound, false ones and rounds over so many networks."""
    right = wanted = wrong = rounds = 0
    most = 0.0
    for seed in range(runs):
        # The numbers are to be reproducible, not secret.
        network = SimulatedFabric(nodes, shape, random.Random(f"{name} {nodes} {kind} {seed}"))  # noqa: S311
        network.faults = make_faults(network, kind)
        found = localise(network, network.labelled(), seed, labels=labels, exchange_seconds=exchange_seconds)
        named = [
            fault for fault in network.faults if any(names(one, fault, network) for one in found.suspects)
        ]
        right, wanted = right + len(named), wanted + len(network.faults)
        most += sum(bound(network, fault, exchange_seconds) for fault in network.faults)
        wrong += sum(
            not any(names(one, fault, network) for fault in network.faults) for one in found.suspects
        )
        rounds = max(rounds, found.rounds)
    recall = f"{right / wanted:6.3f} {most / wanted:6.3f}" if wanted else f"{'-':>6} {'-':>6}"
    return f"{name:28}{nodes:6}  {kind:11}{recall} {wrong / runs:6.3f} {rounds:6}"


def main() -> None:
    """Print a table with labels, and one without."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", type=int, nargs="*", default=NODES)
    parser.add_argument("--runs", type=int, default=50, help="networks for each row")
    parser.add_argument("--routing", default="", help="only shapes whose name has this")
    parser.add_argument("--kind", default="", help="only this fault")
    parser.add_argument("--sigma", type=float, default=0.02, help="spread of the speeds as a share of them")
    parser.add_argument(
        "--messy", action="store_true", help="5 %% of nodes without a label, 2 with another's"
    )
    parser.add_argument(
        "--exchange-ms", type=float, default=20.0, help="what a pair takes at least, its line opened anew"
    )
    parser.add_argument("--labels", choices=("both", "with", "without"), default="both")
    options = parser.parse_args()
    for labels in (True, False):
        if options.labels == ("without" if labels else "with"):
            continue
        print(
            "\n"
            f"{'with' if labels else 'without'} labels\n"
            f"{'network':28} nodes  bad         found   most  false rounds"
        )
        for name, shape in SHAPES.items():
            if options.routing not in name:
                continue
            used = replace(shape, sigma=options.sigma)
            used = replace(used, unlabelled=0.05, swapped=1) if options.messy else used
            for nodes in options.nodes:
                for kind in NVLINK_KINDS if shape.nvlink else KINDS:
                    if options.kind in ("", kind):
                        print(
                            row(
                                name,
                                used,
                                nodes,
                                kind,
                                options.runs,
                                labels=labels,
                                exchange_seconds=options.exchange_ms / 1000,
                            ),
                            flush=True,
                        )


if __name__ == "__main__":
    main()
