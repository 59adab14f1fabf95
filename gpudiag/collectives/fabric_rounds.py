"""Pairs of nodes that use every part of a labelled fabric in a few rounds.

A pair inside a leaf uses no uplink, a pair of two leaves uses uplinks of both, a pair of one NVLink domain
uses no network. So in some rounds half of a leaf's nodes exchange data inside it; all others reach as many
different leaves as there are. Pairs that leave a leaf take turns: two that share an uplink by chance are
slow, and nothing is bad. Most nodes have nothing to do in most turns, so what has not met yet meets then: a
round has as many turns as are needed for that, or as its time allows.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from gpudiag.collectives.fabric import Fabric, Pair, sorted_names

Group = Callable[[int], str | None]

SCREEN_ROUNDS = 8
MOST_CROSSING = 16  # nodes of a leaf in a round, each with one other: so many turns a round has at least
MOST_TURNS = 128  # 2 s (ROUND_SECONDS) leave 15 ms for an exchange of each
_MIXED_EVERY = 4  # rounds: so each node stays in its leaf once in eight of them
_MORE_INSIDE = 2  # pairs inside its leaf in a round: sixteen nodes all meet in eight


class Schedule:
    """The turns of one round: in each of them a node is in one pair, and one pair leaves a leaf."""

    def __init__(self, fabric: Fabric) -> None:
        """Begin with no pair."""
        self._fabric = fabric
        self._busy: dict[int | str, set[int]] = defaultdict(set)
        self._crossing: set[int] = set()  # turns in which any pair leaves a leaf
        self._alone: set[int] = set()  # turns of a pair without a label: it may share uplinks with any
        self._placed: list[tuple[int, Pair]] = []

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All that have a turn, in the order of these."""
        return tuple(pair for _, pair in sorted(self._placed, key=lambda one: one[0]))

    @property
    def turns(self) -> int:
        """How many turns there are."""
        return 1 + max((turn for turn, _ in self._placed), default=-1)

    def is_free(self, who: int | str, turn: int) -> bool:
        """Whether that node, or what leaves that leaf, has nothing to do in that turn."""
        return turn not in self._busy[who] and not (isinstance(who, str) and turn in self._alone)

    def add(self, pair: Pair, turns: int | None = None) -> bool:
        """Give the pair the first turn in which it fits; whether there is one among so many."""
        homes = {self._fabric.home(node) for node in pair}
        leaves = [home for home in homes if home is not None] if len(homes) > 1 else []
        busy: tuple[int | str, ...] = (*pair, *leaves)
        for turn in range(self.turns + 1 if turns is None else turns):
            if None in homes and turn in self._crossing:
                continue
            if all(self.is_free(who, turn) for who in busy):
                self._place(pair, leaves, turn, alone=None in homes)
                return True
        return False

    def add_crossing(self, pair: Pair, turn: int) -> None:
        """Give the pair of two leaves that turn, in which all of it is free."""
        self._place(pair, [home for node in pair if (home := self._fabric.home(node))], turn)

    def _place(self, pair: Pair, leaves: Sequence[str], turn: int, *, alone: bool = False) -> None:
        self._placed.append((turn, pair))
        busy: tuple[int | str, ...] = (*pair, *leaves)
        for who in busy:
            self._busy[who].add(turn)
        if leaves or alone:
            self._crossing.add(turn)
        if alone:
            self._alone.add(turn)


class MixedRounds:
    """Rounds in which all or half of each leaf's nodes reach other leaves, and each a few of its own leaf."""

    def __init__(self, fabric: Fabric, seed: int, *, fill: bool = True) -> None:
        """Begin with no pair that has met.

        `fill`: a node is in several pairs of a round, in different turns.
        """
        self._fabric = fabric
        self._chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._fill = fill
        self._met: Counter[Pair] = Counter()
        self._homes_met: Counter[tuple[str, str]] = Counter()
        self._crossed: Counter[int] = Counter()
        self._number = 0
        self._nodes_of: dict[str, list[int]] = defaultdict(list)
        for node in range(len(fabric.nodes)):
            if (home := fabric.home(node)) is not None:
                self._nodes_of[home].append(node)
        labelled = sum(map(len, self._nodes_of.values()))
        # How many pairs of each leaf with others have not met.
        self._unmet = Counter({h: len(n) * (labelled - len(n)) for h, n in self._nodes_of.items()})
        self._all_can_meet = max(self._unmet.values(), default=0) <= SCREEN_ROUNDS * MOST_TURNS

    def turns_wanted(self, rounds: int) -> int:
        """How many turns each of so many rounds needs for all pairs to meet.

        Few where they could not meet in a screen.
        """
        wanted = -(-max(self._unmet.values(), default=0) // max(1, rounds))
        return max(MOST_CROSSING, min(MOST_TURNS, wanted)) if self._all_can_meet else MOST_CROSSING

    def next_round(
        self,
        forced: Iterable[Pair] = (),
        *,
        confirms: bool = False,
        turns: int = MOST_CROSSING,
        once: Set[int] = frozenset(),
    ) -> tuple[Pair, ...]:
        """The pairs of the next round, in the order of their turns.

        The forced ones first, as far as there are turns. The nodes of `once` are in one pair at most.
        """
        half = confirms or self._number % _MIXED_EVERY == 0
        self._number += 1
        schedule = Schedule(self._fabric)
        pairs: list[Pair] = []
        free = set(range(len(self._fabric.nodes)))
        late: list[Pair] = []
        for pair in dict.fromkeys(forced):
            if free >= set(pair):
                self._add(pairs, free, pair)
            elif self._fill and not once & set(pair):
                late.append(pair)
        left = Counter(home for pair in pairs for home in map(self._fabric.home, pair) if self._crosses(pair))
        self._cross(pairs, free, left, half=half)
        for group in (self._fabric.domain, self._fabric.leaf)[:: 1 if self._number % 2 else -1]:
            self._stay(pairs, free, group)
        # What is left over is alone in its group, or has no label.
        unlabelled = [node for node in self._shuffled(free) if self._fabric.home(node) is None]
        for one, other in list(zip(unlabelled[::2], unlabelled[1::2], strict=False))[:MOST_CROSSING]:
            self._add(pairs, free, (min(one, other), max(one, other)))
        for pair in pairs:
            schedule.add(pair)
        for pair in late:
            if schedule.add(pair, max(turns, schedule.turns)):
                self._count(pair)
        if self._fill:
            self._fill_turns(schedule, turns, once)
        return schedule.pairs

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
            # Small ones choose: others would miss them.
            one = min(open_homes, key=lambda home: len(ready[home]))
            other = min(
                (home for home in open_homes if home != one),
                key=lambda home: (self._homes_met[sorted_names(one, home)], -len(ready[home])),
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

    def _fill_turns(self, schedule: Schedule, turns: int, once: Set[int]) -> None:
        """Pairs that have not met, in turns in which their nodes have nothing to do."""
        ready = {
            home: [node for node in self._shuffled(nodes) if node not in once]
            for home, nodes in self._nodes_of.items()
        }
        for turn in range(turns):
            for pair in self._cross_more(schedule, ready, turn):
                schedule.add_crossing(pair, turn)
                self._count(pair)
                for node in pair:  # the others first from now on
                    nodes = ready[self._fabric.home(node) or ""]
                    nodes.append(nodes.pop(nodes.index(node)))
        for nodes in ready.values():
            more: Counter[int] = Counter()
            for place, one in enumerate(nodes):
                for other in nodes[place + 1 :]:
                    pair = _pair(one, other)
                    if self._met[pair] or max(more[one], more[other]) >= _MORE_INSIDE:
                        continue
                    if schedule.add(pair, max(turns, schedule.turns)):
                        self._count(pair)
                        more.update(pair)

    def _cross_more(self, schedule: Schedule, ready: dict[str, list[int]], turn: int) -> Iterator[Pair]:
        """Pairs of leaves of which none leaves in that turn, those first that have met least."""
        free = {
            home: [node for node in nodes if schedule.is_free(node, turn)]
            for home, nodes in ready.items()
            if schedule.is_free(home, turn)
        }
        for one in sorted(free, key=lambda home: -self._unmet[home]):  # what has most left misses no turn
            others = (
                [home for home in free if home != one and self._share_met(one, home) < 1]
                if one in free
                else []
            )
            for other in sorted(others, key=lambda home: self._share_met(one, home)):
                pair = next(
                    (
                        pair
                        for first in free[one]
                        for second in free[other]
                        if not self._met[pair := _pair(first, second)]
                    ),
                    None,
                )
                if pair is not None:
                    del free[one], free[other]
                    yield pair
                    break

    def _share_met(self, one: str, other: str) -> float:
        return self._homes_met[sorted_names(one, other)] / (
            len(self._nodes_of[one]) * len(self._nodes_of[other])
        )

    def _add(self, pairs: list[Pair], free: set[int], pair: Pair) -> None:
        pairs.append(pair)
        free -= set(pair)
        self._count(pair)

    def _count(self, pair: Pair) -> None:
        self._met[pair] += 1
        if self._crosses(pair):
            self._crossed.update(pair)
            if self._met[pair] == 1:
                homes = [self._fabric.home(node) for node in pair]
                if None not in homes:
                    self._unmet.subtract(filter(None, homes))
                self._homes_met[sorted_names(homes[0] or "", homes[1] or "")] += 1

    def _crosses(self, pair: Pair) -> bool:
        homes = {self._fabric.home(node) for node in pair}
        return len(homes) > 1 or None in homes

    def _shuffled(self, nodes: Iterable[int]) -> list[int]:
        order = sorted(nodes)
        self._chance.shuffle(order)
        return order

    def waits(self, pairs: Sequence[Pair]) -> tuple[tuple[int, ...], ...]:
        """For each pair, the places of those before it that have one of its nodes, or leave a leaf it leaves.

        What has no label may share uplinks with any: it waits for all that leave a leaf.
        """
        last: dict[int | str | None, int] = {}
        found: list[tuple[int, ...]] = []
        for place, pair in enumerate(pairs):
            homes = {self._fabric.home(node) for node in pair} if self._crosses(pair) else set()
            who: set[int | str | None] = {*pair, *homes}
            before = {*who, None} if homes else who
            if None in homes:
                before = {*pair, *(one for one in last if not isinstance(one, int))}
            found.append(tuple(sorted({last[one] for one in before if one in last})))
            last.update(dict.fromkeys(who, place))
        return tuple(found)


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)
