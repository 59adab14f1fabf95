"""A simulated network of leaves, spines, pods and NVLink domains, with what its judge does not know.

Not known to it: how many uplinks a leaf has, which uplink the data of a pair takes, how many slots of a leaf
are the job's, which nodes have no label or another's, and that pairs which share an uplink share its speed.

Routing is one of three. `static`: by destination, as InfiniBand's forwarding tables do. `hash`: four flows
for each pair, each on an uplink by chance, drawn anew for each connection, as ECMP does. `adaptive`: spread
over all uplinks.
"""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpudiag.collectives.fabric import Pair
from gpudiag.collectives.localise import Round
from gpudiag.model.measure import Exchange, ExchangePhase, Node
from gpudiag.model.reading import NOT_ASKED

SPEED, NVLINK_SPEED = 40e9, 360e9
SLOTS = 16  # of a leaf
LEAVES_OF_POD = 8
DOMAIN_SLOTS = 18  # trays of an NVL72 rack
_FLOWS = 4

Cable = tuple[str, int]


@dataclass(frozen=True)
class Shape:
    """How a network is built, and how much of its labels is right."""

    routing: str = "static"
    oversubscribed: int = 1  # slots of a leaf for each of its uplinks
    nvlink: bool = False
    pods: bool = False
    unlabelled: float = 0.0  # share of the nodes
    swapped: int = 0  # nodes that have the label of another one
    noise: tuple[float, ...] = ()  # shares of the usual speed, as recorded; else around it by `sigma`
    full: bool = False  # all slots of each leaf are the job's
    sigma: float = 0.02  # of the noise
    tail: float = 0.0  # share of the exchanges that are 5 to 20 % slower by chance


@dataclass
class Fault:
    """What is bad, and the share of its speed that is left."""

    kind: str
    share: float
    nodes: tuple[int, ...] = ()
    leaves: tuple[str, ...] = ()
    cable: int = -1


@dataclass
class SimulatedFabric:
    """Nodes in leaves that are not full, and one fault or more."""

    nodes: int
    shape: Shape
    chance: random.Random
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Place the nodes: each leaf has between four tenths and all of its slots in the job."""
        slots = DOMAIN_SLOTS if self.shape.nvlink else SLOTS
        self.uplinks = max(2, slots // self.shape.oversubscribed)
        self.leaf_of: list[str] = []
        self.slot_of: list[int] = []
        leaf = 0
        while len(self.leaf_of) < self.nodes:
            taken = slots if self.shape.full else self.chance.randint(max(2, slots * 2 // 5), slots)
            for slot in self.chance.sample(range(slots), min(taken, self.nodes - len(self.leaf_of))):
                self.leaf_of.append(f"leaf {leaf}")
                self.slot_of.append(slot)
            leaf += 1
        mixed = list(zip(self.leaf_of, self.slot_of, strict=True))
        self.chance.shuffle(mixed)  # ranks are not in the order of the racks
        self.leaf_of = [one for one, _ in mixed]
        self.slot_of = [slot for _, slot in mixed]
        self.leaves = sorted(set(self.leaf_of))
        # A table of forwarding: which spine leads to a slot, another order in each leaf.
        self._spine_to = {
            name: self.chance.sample(range(max(slots, self.uplinks)), max(slots, self.uplinks))
            for name in self.leaves
        }

    def labelled(self) -> tuple[Node, ...]:
        """The nodes with the labels that the judge gets."""
        order = list(range(self.nodes))
        for _ in range(self.shape.swapped):
            one, other = self.chance.sample(order, 2)
            order[one], order[other] = order[other], order[one]
        without = set(self.chance.sample(range(self.nodes), round(self.shape.unlabelled * self.nodes)))
        made: list[Node] = []
        for node in range(self.nodes):
            leaf = self.leaf_of[order[node]]
            switches = (
                ((self._pod(leaf), leaf) if self.shape.pods else (leaf,))
                if node not in without
                else NOT_ASKED
            )
            domain = f"domain {leaf}" if self.shape.nvlink and node not in without else NOT_ASKED
            made.append(Node(f"n{node}", (node,), switches, domain))
        return tuple(made)

    def exchange(self, current: Round) -> Iterable[Exchange]:
        """What all pairs of a round exchange at the same time."""
        loads: Counter[object] = Counter()
        ways = {pair: [self._way(one, other) for one, other in (pair, pair[::-1])] for pair in current.pairs}
        ports: Counter[tuple[int, bool, int]] = Counter()
        turn_of = dict(zip(current.pairs, current.turns, strict=True))
        for pair, both in ways.items():
            for flows in both:
                for flow in flows:
                    loads.update((cable, turn_of[pair]) for cable in flow)
            ports.update((node, not both[0], turn_of[pair]) for node in pair)
        for pair, both in ways.items():
            speed = NVLINK_SPEED if not both[0] else SPEED
            share = 1 / max(ports[(node, not both[0], turn_of[pair])] for node in pair)
            share *= self._node_share(pair)
            for flows in both:
                for flow in flows:
                    for cable in flow:
                        # Each of a pair's flows has its part of the data: the slowest ends last.
                        left = self._cable_share(cable)
                        capacity = left * _capacity(cable, self)
                        share = min(share, capacity * len(flows) / loads[cable, turn_of[pair]])
                        if (
                            self.shape.routing == "hash"
                        ):  # a cable that loses segments slows each of its flows
                            share = min(share, left)
            share = min(share, self._link_share(pair))
            quiet = current.phase is not ExchangePhase.LOAD
            noise = (
                self.chance.choice(self.shape.noise)
                if self.shape.noise
                else self.chance.gauss(1.0, self.shape.sigma)
            )
            if self.chance.random() < self.shape.tail:
                noise *= self.chance.uniform(0.8, 0.95)
            yield Exchange(
                current.number,
                current.phase,
                pair,
                0,
                speed * share * noise,
                1e-4 if quiet else NOT_ASKED,
                2e-4 if quiet else NOT_ASKED,
            )

    def _way(self, one: int, other: int) -> list[list[object]]:
        """The cables of each flow in that direction; none over NVLink."""
        leaf, far = self.leaf_of[one], self.leaf_of[other]
        if leaf == far:
            return [] if self.shape.nvlink else [[]]
        pods = self._pod(leaf), self._pod(far)
        over_core: list[object] = [pods[0], pods[1]] if self.shape.pods and pods[0] != pods[1] else []
        if self.shape.routing == "adaptive":
            return [[(leaf, -1, "up"), (far, -1, "down"), *over_core]]
        if self.shape.routing == "static":
            spines = [self.spine_to(other)]
        else:
            spines = [self.chance.randrange(self.uplinks) for _ in range(_FLOWS)]
        return [[(leaf, spine, "up"), (far, spine, "down"), *over_core] for spine in spines]

    def spine_to(self, node: int) -> int:
        """The spine, and so the uplink, that leads to a node by the tables of forwarding."""
        return self._spine_to[self.leaf_of[node]][self.slot_of[node]] % self.uplinks

    def _pod(self, leaf: str) -> str:
        return f"pod {int(leaf.split()[1]) // LEAVES_OF_POD}"

    def _cable_share(self, cable: object) -> float:
        share = 1.0
        for fault in self.faults:
            if (
                isinstance(cable, tuple)
                and fault.kind in ("uplink", "uplinks")
                and cable[0] == fault.leaves[0]
            ):
                if fault.kind == "uplinks" or cable[1] == fault.cable:
                    share = min(share, fault.share)
                elif cable[1] == -1:
                    share = min(share, 1 - (1 - fault.share) / self.uplinks)
        return share

    def _node_share(self, pair: Pair) -> float:
        """What is left of a port, which all that its node exchanges share."""
        within = len({self.leaf_of[node] for node in pair}) == 1
        share = 1.0
        for fault in self.faults:
            is_node = fault.kind == "node" or (
                fault.kind in ("network", "nvlink") and (fault.kind == "nvlink") == within
            )
            if is_node and fault.nodes[0] in pair:
                share = min(share, fault.share)
        return share

    def _link_share(self, pair: Pair) -> float:
        leaves = {self.leaf_of[node] for node in pair}
        share = 1.0
        for fault in self.faults:
            is_between = fault.kind in ("path", "switch") and leaves == set(fault.leaves)
            is_link = fault.kind == "link" and set(pair) == set(fault.nodes)
            if is_between or is_link:
                share = min(share, fault.share)
        return share


def _capacity(cable: object, fabric: SimulatedFabric) -> float:
    """In units of a node's speed; all uplinks of a pod together, and where flows spread, all of a leaf."""
    if isinstance(cable, str):
        return LEAVES_OF_POD * fabric.uplinks / 2  # half of what its leaves have
    return fabric.uplinks if isinstance(cable, tuple) and cable[1] == -1 else 1.0
