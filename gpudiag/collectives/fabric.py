"""The fabric that labels describe, and what the data of two nodes passes in it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from gpudiag.model.measure import Node
from gpudiag.model.reading import value_or

_T = TypeVar("_T")
Pair = tuple[int, int]

NVLINK, INSIDE, UNKNOWN = "nvlink", "inside", "unknown"


@dataclass(frozen=True, slots=True)
class Way:
    """What the data of a pair passes.

    `kind` is NVLINK (one domain), INSIDE (one leaf), UNKNOWN (a node has no label) or the number of levels
    that it climbs; exchanges are held against those of their kind. `left` are the switches whose uplinks it
    takes, `ends` pairs of them: the two highest, and the two leaves. `inside` is the leaf or the domain that
    it stays in.
    """

    kind: str
    left: tuple[str, ...] = ()
    ends: tuple[tuple[str, str], ...] = ()
    inside: str | None = None


class Fabric:
    """What the labels of the nodes show."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Describe the fabric of these nodes, some of which may have no labels."""
        self.nodes = nodes
        self._switches = [value_or(node.switches, ()) for node in nodes]
        self._domains = [value_or(node.nvlink_domain, None) for node in nodes]
        self._ways: dict[Pair, Way] = {}

    @cached_property
    def is_divided(self) -> bool:
        """Whether labels divide the nodes: two leaves or domains at least, and one that has two nodes."""
        groups = Counter(filter(None, (self.home(node) for node in range(len(self.nodes)))))
        return len(groups) > 1 and max(groups.values()) > 1

    @property
    def labelled(self) -> int:
        """How many of the nodes have a leaf or a domain."""
        return sum(self.home(node) is not None for node in range(len(self.nodes)))

    def leaf(self, node: int) -> str | None:
        """The leaf of a node; None where no label names it."""
        switches = self._switches[node]
        return switches[-1] if switches else None

    def domain(self, node: int) -> str | None:
        """The NVLink domain that the node shares with others; None where no label names it."""
        return self._domains[node]

    def home(self, node: int) -> str | None:
        """What is crossed to reach other parts of the fabric: the leaf, or else the domain."""
        return self.leaf(node) or self.domain(node)

    def above(self, node: int) -> tuple[str, ...]:
        """The switches above its leaf, from the outermost on; none where no label names them."""
        return self._switches[node][:-1]

    def rail(self, node: int, place: int) -> str:
        """The name of the rail at that place of a node."""
        names = value_or(self.nodes[node].rails, ())
        return names[place] if place < len(names) else str(place)

    def way(self, pair: Pair) -> Way:
        """What the data of these two passes."""
        if (way := self._ways.get(pair)) is None:
            way = self._ways[pair] = self._find_way(pair)
        return way

    def _find_way(self, pair: Pair) -> Way:
        one, other = pair
        domain, domain_of_other = self.domain(one), self.domain(other)
        if domain is not None and domain == domain_of_other:
            return Way(NVLINK, inside=domain)
        up, down = self._switches[one], self._switches[other]
        if not up or not down:
            if domain is None or domain_of_other is None or up or down:
                return Way(UNKNOWN)
            return Way("1", (domain, domain_of_other), (sorted_names(domain, domain_of_other),))
        if up[-1] == down[-1]:
            return Way(INSIDE, inside=up[-1])
        shared = 0
        while shared < min(len(up), len(down)) and up[shared] == down[shared]:
            shared += 1
        climbed = max(len(up), len(down)) - shared
        ends = dict.fromkeys((sorted_names(up[shared], down[shared]), sorted_names(up[-1], down[-1])))
        return Way(str(climbed), (*up[shared:], *down[shared:]), tuple(ends))


def sorted_names(one: str, other: str) -> tuple[str, str]:
    """These two, as a key that does not depend on their order."""
    return (one, other) if one < other else (other, one)
