"""A bad uplink behind adaptive routing: what leaves a leaf while many of its nodes send, beside other leaves.

Adaptive routing spreads the data of each pair over all N uplinks of a leaf. One that has lost half of its
speed leaves N - 1/2: no pair is slow by itself, and as many nodes as there are uplinks are slow together, by
1/2N. So equally many nodes of each leaf exchange data with other leaves, one with one, all at once, again and
again with others, and the pairs of a leaf are held against those of the other leaves. It takes three leaves
with more nodes of the job than what is left of the uplinks carries. What is found is the leaf: which of its
uplinks it is, and whether the leaf has fewer by design, only its switch can show.

Where routes are static or by hash, two pairs share an uplink by chance, and pairs differ by far more than
that: then nothing is judged here, and the turns of the other rounds find an uplink.
"""

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from gpudiag.collectives.fabric import Fabric, Pair, sorted_names
from gpudiag.model.measure import Exchange
from gpudiag.model.reading import Missing

_LEAVES_AT_LEAST = 3  # of two, either may be the odd one
_FEWEST_PAIRS = 6  # of a leaf and beside it
# Pairs that differ by more than this share of their mean do not have all uplinks in common.
_MOST_SPREAD = 0.1
# Standard errors by which a leaf is below the others. One leaf in 40 is 2 below by chance and is measured
# again; with 5 `benchmarks/localise_fabric.py` accuses nothing healthy.
_LOW, _CERTAIN, _LOW_AGAIN = 2.0, 5.0, 2.0
_LEAST_LACK = 0.015  # 1/2N of 32 uplinks: less than that nodes differ by their age
_ALIKE_FROM = 5  # other leaves, whose spread is known then
TURNS = 8  # of a round, each with other pairs
# Share of a lone pair's speed, below which the uplinks are full; both ways at once a node may have less.
_SATURATED = 0.8
_ROUNDED = (
    0.95  # what fills 8 uplinks is measured as 7.6 to 8.4: not 9 nodes, for then leaves with 8 show nothing
)


@dataclass(frozen=True, slots=True)
class WeakLeaf:
    """A leaf that sent less at once than others did, in bytes per second, by so many pairs at once."""

    leaf: str
    bytes_per_second: float
    usual_bytes_per_second: float
    at_once: int
    exchanges: int


class LeafLoad:
    """Plans the rounds in which leaves send at once, and names those that sent less."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        """Begin with nothing exchanged."""
        self._fabric = fabric
        self._chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._met: Counter[tuple[str, str]] = Counter()
        self._turns: list[tuple[Pair, ...]] = []  # of the round that is measured
        # By round, with how many nodes the leaves of the pair's two nodes send.
        self._active: dict[tuple[int, Pair], tuple[int, int]] = {}
        self.exchanges: list[Exchange] = []
        nodes_of: dict[tuple[str, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for node in range(len(fabric.nodes)):
            if (home := fabric.home(node)) is not None:
                nodes_of[fabric.above(node)][home].append(node)
        groups = [leaves for leaves in nodes_of.values() if _third_largest(leaves) > 1]
        everything = {home: nodes for leaves in nodes_of.values() for home, nodes in leaves.items()}
        # Leaves of one pod, whose data does not pass what pods share; where no pod has enough of them, all
        # leaves.
        self._groups = groups or ([everything] if _third_largest(everything) > 1 else [])
        self._at_once = [_third_largest(leaves) for leaves in self._groups]

    def next_round(self) -> tuple[Pair, ...]:
        """Pairs of different leaves, in each turn equally many of each leaf or all that it has.

        It is None if nothing can be compared.
        """
        self._turns, used = [], dict[Pair, None]()
        for turn in range(TURNS):
            began = len(used)
            for leaves, at_once in zip(self._groups, self._at_once, strict=True):
                # Of an odd number of nodes one is left over: one more of each leaf fills the uplinks anyway.
                self._match(leaves, min(at_once + turn % 2, _third_largest(leaves)), used)
            self._turns.append(tuple(used)[began:])
        return tuple(pair for turn in self._turns for pair in turn)

    def waits(self) -> tuple[tuple[int, ...], ...]:
        """Of each pair the place of one pair of the turn before: all of a turn begin together."""
        found: list[tuple[int, ...]] = []
        before: tuple[int, ...] = ()
        for turn in self._turns:
            began = len(found)
            found += [before] * len(turn)
            before = (began,) if turn else before
        return tuple(found)

    def add(self, exchanges: Iterable[Exchange], alone_bytes_per_second: float | None) -> None:
        """Add a round. Uplinks that it filled, beside a lone pair's speed, show how many nodes fill them."""
        added = list(exchanges)
        self.exchanges += added
        for turn in self._turns:
            nodes = Counter(self._fabric.home(node) for pair in turn for node in pair)
            for pair in turn:
                both = nodes[self._fabric.home(pair[0])], nodes[self._fabric.home(pair[1])]
                self._active[added[0].round_number, pair] = both
        if alone_bytes_per_second and len({one.round_number for one in self.exchanges}) == 1:
            for place, leaves in enumerate(self._groups):
                self._at_once[place] = self._filling(
                    added, leaves, self._at_once[place], alone_bytes_per_second
                )

    def _filling(self, added: Sequence[Exchange], leaves: Container[str], at_once: int, alone: float) -> int:
        """How many nodes fill the uplinks; as many as now where these do not.

        The slowest leaf, which may be bad, does not count.
        """
        speeds_of: dict[str, list[float]] = defaultdict(list)
        for one in added:
            if self._most_active(one) >= at_once - 1 and not isinstance(one.bytes_per_second, Missing):
                for leaf in self._leaves(one):
                    speeds_of[leaf].append(one.bytes_per_second)
        means = {leaf: statistics.fmean(speeds) for leaf, speeds in speeds_of.items() if leaf in leaves}
        slowest = min(means, key=lambda leaf: means[leaf], default="")
        speeds = [
            one.bytes_per_second
            for one in added
            if not isinstance(one.bytes_per_second, Missing)
            and slowest not in (ends := self._leaves(one))
            and ends[0] in means
            and self._most_active(one) >= at_once - 1
        ]
        share = statistics.median(speeds) / alone if speeds else 1.0
        return max(2, math.ceil(_ROUNDED * at_once * share)) if share < _SATURATED else at_once

    def _match(self, leaves: dict[str, list[int]], at_once: int, used: dict[Pair, None]) -> None:
        """Add pairs to those of the round, each node once, the two leaves that have met least."""
        ready = {home: self._chance.sample(nodes, min(at_once, len(nodes))) for home, nodes in leaves.items()}
        while len(ready) > 1:
            one = max(ready, key=lambda home: len(ready[home]))
            first = ready[one].pop()
            others = sorted(
                (home for home in ready if home != one),
                key=lambda home: (self._met[sorted_names(one, home)], -len(ready[home])),
            )
            new = (
                (home, second, pair)
                for home in others
                for second in ready[home]
                if (pair := (min(first, second), max(first, second))) not in used
            )
            if (chosen := next(new, None)) is not None:  # else it has met all that are left
                other, second, pair = chosen
                self._met[sorted_names(one, other)] += 1
                ready[other].remove(second)
                used[pair] = None
            ready = {home: nodes for home, nodes in ready.items() if nodes}

    # --- what they show

    def looks_weak(self, is_explained: Callable[[Pair], bool]) -> bool:
        """Whether a leaf is low enough to be measured again."""
        return any(self._weakest(seen, _LOW, _LEAST_LACK / 2) for seen in self._seen_by_group(is_explained))

    def find(self, is_explained: Callable[[Pair], bool], screened: int) -> list[WeakLeaf]:
        """The leaves that are low for certain, and low again in the rounds after that one.

        `is_explained`: pairs that pass what is known to be bad.
        """
        found: list[WeakLeaf] = []
        for group in self._seen_by_group(is_explained):
            seen = group
            while (leaf := self._weakest(seen, _CERTAIN)) is not None:
                again = [one for one in seen if one.round_number > screened]
                if self._lowness(again, leaf)[0] >= _LOW_AGAIN:
                    found.append(self._weak(seen, leaf))
                # A pair of this leaf shows nothing of its other leaf.
                seen = [one for one in seen if leaf not in self._leaves(one)]
        return found

    def _leaves(self, exchange: Exchange) -> tuple[str, str]:
        one, other = exchange.nodes
        return self._fabric.home(one) or "", self._fabric.home(other) or ""

    def _most_active(self, exchange: Exchange) -> int:
        return max(self._active[exchange.round_number, exchange.nodes])

    def _seen_by_group(self, is_explained: Callable[[Pair], bool]) -> list[list[Exchange]]:
        return [
            [
                one
                for one in self.exchanges
                if not isinstance(one.bytes_per_second, Missing)
                and self._leaves(one)[0] in leaves
                and not is_explained(one.nodes)
            ]
            for leaves in self._groups
        ]

    def _weakest(self, seen: Sequence[Exchange], least: float, least_lack: float = _LEAST_LACK) -> str | None:
        """The leaf that is lowest, if that is by so many standard errors, and by such a share."""
        leaves = sorted({leaf for one in seen for leaf in self._leaves(one)})
        if len(leaves) < _LEAVES_AT_LEAST:
            return None
        shown = {leaf: self._lowness(seen, leaf) for leaf in leaves}
        leaf = max(leaves, key=lambda one: shown[one])
        lowness, lack = shown[leaf]
        if lowness < least or lack < least_lack:
            return None
        scale = 1.0
        if len(leaves) > _ALIKE_FROM:  # leaves that differ anyway, by what else is in them
            beside = [one for one in seen if leaf not in self._leaves(one)]
            errors = [self._lowness(beside, one)[0] for one in leaves if one != leaf]
            middle = statistics.median(errors)
            scale = max(scale, 1.4826 * statistics.median(abs(one - middle) for one in errors))
        return leaf if lowness >= least * scale else None

    def _lowness(self, seen: Sequence[Exchange], leaf: str) -> tuple[float, float]:
        """By how many standard errors, and by what share, its pairs are slower than those of other leaves.

        Student's test of two samples, in which pairs are held against those that should be as fast
        (`_cells`).
        """
        shares: tuple[list[float], list[float]] = ([], [])
        for beside, own in self._cells(seen, leaf):
            mean = statistics.fmean(beside)
            shares[0].extend(one / mean for one in own)
            shares[1].extend(one / mean for one in beside)
        own, others = shares
        if min(len(own), len(others)) < _FEWEST_PAIRS:
            return 0.0, 0.0
        lack = 1.0 - statistics.fmean(own)
        squares = statistics.pvariance(own) * len(own) + statistics.pvariance(others) * len(others)
        spread = math.sqrt(squares / (len(own) + len(others) - 2))
        if spread > _MOST_SPREAD:
            return 0.0, lack
        return lack / (max(spread, 1e-6) * math.sqrt(1 / len(own) + 1 / len(others))), lack

    def _cells(self, seen: Sequence[Exchange], leaf: str) -> list[tuple[list[float], list[float]]]:
        """The speeds of others and of this leaf, by cells of what should be equally fast.

        A cell is one round, rail, kind of way, and number of nodes of the fuller leaf, which is the narrow
        end.
        """
        cells: dict[tuple[int, int, str, int], tuple[list[float], list[float]]] = defaultdict(
            lambda: ([], [])
        )
        for one in seen:
            if not isinstance(one.bytes_per_second, Missing):
                most = self._most_active(one)
                ends = self._leaves(one)
                if leaf in ends and most > self._filled_by(leaf):
                    own = self._active[one.round_number, one.nodes][ends.index(leaf)]
                    if own < most:  # its partner's leaf held it up
                        continue
                cell = cells[one.round_number, one.rail, self._fabric.way(one.nodes).kind, most]
                cell[leaf in ends].append(one.bytes_per_second)
        return [cell for cell in cells.values() if all(cell)]

    def _filled_by(self, leaf: str) -> int:
        """How many nodes fill the uplinks of a leaf, as far as known."""
        return next(
            at_once for leaves, at_once in zip(self._groups, self._at_once, strict=True) if leaf in leaves
        )

    def _weak(self, seen: Sequence[Exchange], leaf: str) -> WeakLeaf:
        cells = self._cells(seen, leaf)
        turns = TURNS * len({one.round_number for one in seen if leaf in self._leaves(one)})
        pairs = sum(len(own) for _, own in cells)
        return WeakLeaf(
            leaf,
            sum(sum(own) for _, own in cells) / turns,
            sum(len(own) * statistics.fmean(beside) for beside, own in cells) / turns,
            max(1, round(pairs / turns)),
            pairs,
        )


def _third_largest(leaves: dict[str, list[int]]) -> int:
    sizes = sorted(map(len, leaves.values()), reverse=True)
    return sizes[_LEAVES_AT_LEAST - 1] if len(sizes) >= _LEAVES_AT_LEAST else 0
