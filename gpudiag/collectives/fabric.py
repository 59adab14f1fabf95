"""The fabric that labels describe, and pairs of nodes that use every part of it in a few rounds.

A pair inside a leaf uses no uplink, a pair of two leaves uses uplinks of both, a pair of one NVLink domain uses no network.
So in some rounds half of a leaf's nodes exchange data inside it; all others reach as many different leaves as there are. Pairs that leave a leaf take turns: two that share an uplink by chance are slow, and nothing is bad.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from gpudiag.model.measure import Node
from gpudiag.model.reading import Missing, Reading

_T = TypeVar("_T")
Pair = tuple[int, int]
Group = Callable[[int], str | None]

MOST_CROSSING = 16  # nodes of a leaf in a round: so many turns
_MIXED_EVERY = 4  # rounds: so each node stays in its leaf once in eight of them
NVLINK, INSIDE, UNKNOWN = "nvlink", "inside", "unknown"


@dataclass(frozen=True, slots=True)
class Way:
    """What the data of a pair passes.

    `kind` is NVLINK (one domain), INSIDE (one leaf), UNKNOWN (a node has no label) or the number of levels that it climbs;
    exchanges are held against those of their kind. `left` are the switches whose uplinks it takes, `ends` pairs of them: the
    two highest, and the two leaves. `inside` is the leaf or the domain that it stays in.
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
        self._switches = [_value(node.switches) or () for node in nodes]
        self._domains = [_value(node.nvlink_domain) for node in nodes]

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

    def rail(self, node: int, place: int) -> str:
        """The name of the rail at that place of a node."""
        names = _value(self.nodes[node].rails) or ()
        return names[place] if place < len(names) else str(place)

    def way(self, pair: Pair) -> Way:
        """What the data of these two passes."""
        one, other = pair
        domain, domain_of_other = self.domain(one), self.domain(other)
        if domain is not None and domain == domain_of_other:
            return Way(NVLINK, inside=domain)
        up, down = self._switches[one], self._switches[other]
        if not up or not down:
            if domain is None or domain_of_other is None or up or down:
                return Way(UNKNOWN)
            return Way("1", (domain, domain_of_other), (_sorted(domain, domain_of_other),))
        if up[-1] == down[-1]:
            return Way(INSIDE, inside=up[-1])
        shared = 0
        while shared < min(len(up), len(down)) and up[shared] == down[shared]:
            shared += 1
        climbed = max(len(up), len(down)) - shared
        ends = dict.fromkeys((_sorted(up[shared], down[shared]), _sorted(up[-1], down[-1])))
        return Way(str(climbed), (*up[shared:], *down[shared:]), tuple(ends))


class MixedRounds:
    """Rounds of disjoint pairs, in which nodes of each leaf reach other leaves: half of them, or as many as take turns."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        """Begin with no pair that has met."""
        self._fabric = fabric
        self._chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._met: Counter[Pair] = Counter()
        self._homes_met: Counter[tuple[str, str]] = Counter()
        self._crossed: Counter[int] = Counter()
        self._number = 0

    def next_round(self, forced: Iterable[Pair] = (), *, confirms: bool = False) -> tuple[Pair, ...]:
        """The pairs of the next round; the forced ones first, as far as they are disjoint."""
        half = confirms or self._number % _MIXED_EVERY == 0
        self._number += 1
        pairs: list[Pair] = []
        free = set(range(len(self._fabric.nodes)))
        for pair in forced:
            if free >= set(pair):
                self._add(pairs, free, pair)
        left = Counter(home for pair in pairs for home in map(self._fabric.home, pair) if self._crosses(pair))
        self._cross(pairs, free, left, half=half)
        for group in (self._fabric.domain, self._fabric.leaf)[:: 1 if self._number % 2 else -1]:
            self._stay(pairs, free, group)
        # What is left over is alone in its group, or has no label.
        unlabelled = [node for node in self._shuffled(free) if self._fabric.home(node) is None]
        for one, other in list(zip(unlabelled[::2], unlabelled[1::2], strict=False))[:MOST_CROSSING]:
            self._add(pairs, free, (min(one, other), max(one, other)))
        return tuple(pairs)

    def _cross(self, pairs: list[Pair], free: set[int], crossing: Counter[str | None], *, half: bool) -> None:
        """Pairs of nodes of different leaves, which have met least."""
        ready: dict[str, list[int]] = defaultdict(list)
        for node in self._shuffled(free):
            home = self._fabric.home(node)
            if home is not None:
                ready[home].append(node)
        for home, nodes in ready.items():
            nodes.sort(key=lambda node: self._crossed[node])  # the order is random among equals
            most = -(-len(nodes) // 2) if half else len(nodes)
            del nodes[max(0, min(MOST_CROSSING, most) - crossing[home]) :]
        while len(open_homes := [home for home, nodes in ready.items() if nodes]) > 1:
            one = min(
                open_homes, key=lambda home: len(ready[home])
            )  # small ones choose: others would miss them
            other = min(
                (home for home in open_homes if home != one),
                key=lambda home: (self._homes_met[_sorted(one, home)], -len(ready[home])),
            )
            first = ready[one].pop(0)
            second = min(ready[other], key=lambda node: self._met[_pair(first, node)])
            ready[other].remove(second)
            self._add(pairs, free, _pair(first, second))

    def _stay(self, pairs: list[Pair], free: set[int], group: Group) -> None:
        """Pairs of nodes of one group, which have met least."""
        groups: dict[str, list[int]] = defaultdict(list)
        for node in self._shuffled(free):
            name = group(node)
            if name is not None:
                groups[name].append(node)
        for nodes in groups.values():
            while len(nodes) > 1:
                one = nodes.pop(0)
                other = min(nodes, key=lambda node: self._met[_pair(one, node)])
                nodes.remove(other)
                self._add(pairs, free, _pair(one, other))

    def _add(self, pairs: list[Pair], free: set[int], pair: Pair) -> None:
        pairs.append(pair)
        free -= set(pair)
        self._met[pair] += 1
        if self._crosses(pair):
            self._crossed.update(pair)
            one, other = (self._fabric.home(node) or "" for node in pair)
            self._homes_met[_sorted(one, other)] += 1

    def _crosses(self, pair: Pair) -> bool:
        homes = {self._fabric.home(node) for node in pair}
        return len(homes) > 1 or None in homes

    def _shuffled(self, nodes: Iterable[int]) -> list[int]:
        order = sorted(nodes)
        self._chance.shuffle(order)
        return order

    def waits(self, pairs: Sequence[Pair]) -> tuple[tuple[int, ...], ...]:
        """For each pair that leaves a leaf, the places of those before it that leave one of the same leaves.

        What has no label may share uplinks with any: it waits for all that leave a leaf.
        """
        last: dict[str | None, int] = {}
        found: list[tuple[int, ...]] = []
        for place, pair in enumerate(pairs):
            homes = {self._fabric.home(node) for node in pair} if self._crosses(pair) else set()
            if None in homes:
                homes = {*last, None}
            elif homes and None in last:
                homes.add(None)
            found.append(tuple(sorted({last[home] for home in homes if home in last})))
            last.update(dict.fromkeys(homes, place))
        return tuple(found)


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)


def _sorted(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


def _value(reading: Reading[_T]) -> _T | None:
    return None if isinstance(reading, Missing) else reading
