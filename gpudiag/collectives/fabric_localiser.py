"""Which part of a labelled fabric is bad: a node, a rail, a link, uplinks, a path between switches, NVLink.

1. Screen: eight rounds in which nodes of each leaf exchange data with other leaves, in turns, and with others
   of their own (`MixedRounds`); of up to 16 nodes all pairs.
2. Load: all nodes exchange with two others at once, in two rings; then equally many nodes of each leaf with
   other leaves (`LeafLoad`), twice, and up to four times more if one stands out.
3. Confirm: three more such rounds, if anything was bad. A pair that no other part explains meets again, and
   so does another pair of the same two leaves; a node that is blamed as a whole meets one of its own leaf.

Exchanges are held against those of their kind: inside a leaf, across so many levels of switches, over NVLink.
An oversubscribed network is slower across leaves, and that is no fault of any node.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gpudiag.collectives.fabric import NVLINK, UNKNOWN, Fabric, Pair
from gpudiag.collectives.fabric_blame import Blame, Passed, Sort, explain, unexplained
from gpudiag.collectives.fabric_load import LeafLoad, WeakLeaf
from gpudiag.collectives.fabric_rounds import MOST_CROSSING, MOST_TURNS, SCREEN_ROUNDS, MixedRounds
from gpudiag.collectives.localise import (
    ALL_LINKS_UP_TO,
    LOAD_FACTOR,
    Localiser,
    Round,
    Usual,
    few_of_each,
    find_usual,
    load_strides,
    ring,
    screen_rounds,
    suspect_of,
)
from gpudiag.model.measure import Exchange, ExchangePhase, FabricPart, Suspect, Symptom
from gpudiag.model.reading import Missing

CONFIRM_ROUNDS = 3
LEAF_ROUNDS = 2  # and what is left of the rounds where a leaf stands out
MOST_AFTER_SCREEN = 8
ROUND_SECONDS = (
    2.0  # for the pairs that take turns; a round that took half as long again had too many of them
)
_MORE_TURNS = 4  # as many as in the round before, where that had time left
_PAIRS_OF_UPLINKS = 6  # of each round that confirms
_FEWEST_FOR_USUAL = 4  # of fewer exchanges of a kind, none is usual
_WHOLE_SHARE = 0.75  # of what leaves a switch: all of its uplinks are bad, or one

_PARTS = {
    Sort.NETWORK: FabricPart.NETWORK,
    Sort.NVLINK: FabricPart.NVLINK,
    Sort.REACH: FabricPart.REACH,
    Sort.INSIDE: FabricPart.SWITCH,
    Sort.DOMAIN: FabricPart.DOMAIN,
    Sort.PATH: FabricPart.PATH,
}


class FabricLocaliser(Localiser):
    """Plans the rounds among labelled nodes, and names the parts that are bad."""

    def __init__(
        self, fabric: Fabric, *, seed: int, slow_share: float, under_load: bool = True, fill: bool = True
    ) -> None:
        """Localise in that fabric, which labels divide; the rest is as for any other nodes."""
        nodes = len(fabric.nodes)
        self._fabric = fabric
        self._mixed = MixedRounds(fabric, seed, fill=fill)
        self._leaf_load = LeafLoad(fabric, seed)
        self._screened = 0  # rounds
        self._leaves_screened = 0  # the last round in which leaves were loaded before one was measured again
        self._turns_fit = MOST_TURNS  # until a round took too long
        self._most_turns = MOST_CROSSING  # until one has shown that more fit
        self._turns = 0  # of the round that is measured
        # Neighbours in the rings of nearest nodes share a leaf.
        self._order = sorted(
            range(nodes), key=lambda node: (fabric.home(node) or "", fabric.domain(node) or "", node)
        )
        super().__init__(nodes, seed=seed, slow_share=slow_share, under_load=under_load, fill=fill)
        few = screen_rounds(nodes, seed, nodes) if nodes <= ALL_LINKS_UP_TO else None
        self._plan = self._follow_fabric(few, under_load=under_load)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All that were added."""
        return (*super().exchanges, *self._leaf_load.exchanges)

    @property
    def usual(self) -> Usual | None:
        """What is usual between the nodes over the network; over NVLink where there is nothing else."""
        network = [one for one in self._quiet if self._fabric.way(one.nodes).kind != NVLINK]
        return find_usual(network or self._quiet, self._slow_share)

    def next_round(self) -> Round | None:
        """The next round; pairs that leave a leaf take turns, except in rings."""
        found = super().next_round()
        if found is None or found.phase is ExchangePhase.LOAD:
            return found
        if found.phase is ExchangePhase.FULL:
            return replace(found, waits=self._leaf_load.waits())
        found = replace(found, waits=self._mixed.waits(found.pairs))
        self._turns = 1 + max(found.turns, default=0)
        return found

    def add(self, exchanges: Iterable[Exchange], seconds: float = 0.0) -> None:
        """Add what was exchanged in the last round, once for each rail.

        How long it took limits the turns of the next.
        """
        added = list(exchanges)
        if full := [one for one in added if one.phase is ExchangePhase.FULL]:
            self._leaf_load.add(full, self._alone_across_leaves())
            return
        super().add(added)
        if self._turns and seconds > 1.5 * ROUND_SECONDS:
            fitting = int(self._turns * 1.5 * ROUND_SECONDS / seconds)
            self._turns_fit = max(MOST_CROSSING, min(self._turns_fit, fitting))
        elif self._turns:
            self._most_turns = max(MOST_CROSSING, _MORE_TURNS * self._turns)
        self._turns = 0

    def conclude(self) -> tuple[Suspect, ...]:
        """What stands out and was confirmed, the surest first."""
        passed = self._passed()
        if passed and sum(one.bad for one in passed) > len(passed) / 2:
            return super().conclude()  # nothing is left that could clear a part
        usual_of = self._usual_of_kinds()
        suspects = [self._suspect(blame, usual_of) for blame in explain(self._fabric, passed)]
        nodes = {one.nodes[0] for one in suspects if len(one.nodes) == 1}
        links = {(one.nodes[0], one.nodes[1]) for one in suspects if len(one.nodes) > 1}
        switches = {switch for one in suspects for switch in one.switches}
        under_load = [
            one
            for one in self._conclude_load(nodes, links)
            if len(one.nodes) == 1 or self._inside(one.nodes) not in {None, *switches}
        ]
        # A node that is slow with several of its leaf, and under load alone, is in another leaf than its
        # label names.
        often = Counter(node for one in under_load if len(one.nodes) > 1 for node in one.nodes)
        single = [one for one in under_load if len(one.nodes) == 1 or max(often[n] for n in one.nodes) == 1]
        if self._leaves_screened:
            blamed = self._blamed(nodes, links, {one.switches for one in suspects})
            for weak in self._leaf_load.find(blamed, self._leaves_screened):
                suspects.append(_suspect_leaf(weak))
        return (*suspects, *single)

    # --- the rounds

    def _follow_fabric(
        self, few: Sequence[tuple[Pair, ...]] | None, *, under_load: bool
    ) -> Iterator[tuple[ExchangePhase, tuple[Pair, ...]]]:
        if few is not None:
            for pairs in few:
                yield ExchangePhase.SCREEN, pairs
        else:
            for number in range(SCREEN_ROUNDS):
                yield ExchangePhase.SCREEN, self._mix(SCREEN_ROUNDS - number)
        self._screened = self._number
        rings = self._rings() if under_load else []
        for pairs in rings:
            yield ExchangePhase.LOAD, pairs
        yield from self._load_leaves(LEAF_ROUNDS if under_load else 0)
        yield from self._confirm()
        self._leaves_screened = self._number
        blamed = {node for one in self.conclude() if not one.under_load for node in one.nodes}
        again = {
            pair
            for pair, _ in self._slow_under_load()
            if not blamed & set(pair) and self._inside(pair) is not None
        }
        for pairs in rings:
            if again & set(pairs) and self._rounds_left():
                yield ExchangePhase.LOAD, pairs
        if self._leaf_load.looks_weak(self._blamed_so_far()):
            yield from self._load_leaves(self._rounds_left())

    def _rounds_left(self) -> int:
        return max(0, MOST_AFTER_SCREEN - (self._number - self._screened))

    def _load_leaves(self, rounds: int) -> Iterator[tuple[ExchangePhase, tuple[Pair, ...]]]:
        for _ in range(rounds):
            if pairs := self._leaf_load.next_round():
                yield ExchangePhase.FULL, pairs

    def _alone_across_leaves(self) -> float | None:
        """What a pair of two leaves reaches in a turn of its own."""
        across = [one for one in self._quiet if self._fabric.way(one.nodes).left]
        usual = find_usual(across, self._slow_share)
        return None if usual is None else usual.bytes_per_second

    def _blamed_so_far(self) -> Callable[[Pair], bool]:
        parts = [blame.part for blame in explain(self._fabric, self._passed())]
        return self._blamed(
            {part.nodes[0] for part in parts if len(part.nodes) == 1},
            {(part.nodes[0], part.nodes[1]) for part in parts if len(part.nodes) > 1},
            {part.switches for part in parts},
        )

    def _blamed(
        self, nodes: set[int], links: set[Pair], switches: set[tuple[str, ...]]
    ) -> Callable[[Pair], bool]:
        """Whether a pair passes what is known to be bad; `switches`: of each part, two of a path."""

        def passes(pair: Pair) -> bool:
            way = self._fabric.way(pair)
            ways = {*way.ends, *((switch,) for switch in way.left)}
            return bool(nodes & set(pair) or pair in links or switches & ways)

        return passes

    def _rings(self) -> list[tuple[Pair, ...]]:
        strides = load_strides(self._nodes)
        strides = tuple(dict.fromkeys((strides[0], strides[-1]))) if strides else ()  # near, and far
        return [
            tuple(
                (min(one, other), max(one, other))
                for one, other in ((self._order[a], self._order[b]) for a, b in ring(self._nodes, stride))
            )
            for stride in strides
        ]

    def _mix(self, rounds: int, forced: Iterable[Pair] = (), *, confirms: bool = False) -> tuple[Pair, ...]:
        """The pairs of the next of so many rounds.

        A node that may not finish is in one, for that takes long.
        """
        failed = {
            node for one in self._quiet if isinstance(one.bytes_per_second, Missing) for node in one.nodes
        }
        if not self._quiet:
            failed = set(range(self._nodes))
        turns = min(self._turns_fit, self._most_turns, self._mixed.turns_wanted(rounds))
        return self._mixed.next_round(forced, confirms=confirms, turns=turns, once=failed)

    def _confirm(self) -> Iterator[tuple[ExchangePhase, tuple[Pair, ...]]]:
        passed = self._passed()
        if not any(one.bad for one in passed) and not self._slow_in_rings():
            return
        blames = explain(self._fabric, passed)
        chance = random.Random(self._nodes)  # noqa: S311 - reproducible, not secret
        # What is explained comes last: of few nodes what it was blamed on may be wrong.
        odd = unexplained(passed, blames), [one for one in passed if one.bad]
        deepest = [one.pair for part in odd for one in sorted(part, key=lambda one: -one.depth)]
        worst = few_of_each(dict.fromkeys([*deepest, *self._slow_in_rings()]))
        for number in range(CONFIRM_ROUNDS):
            again = list(worst)
            likes = [like for pair in worst for like in self._likes(pair, chance)]
            forced = [*likes, *again] if number % 2 else [*again, *likes]
            forced = [*self._of_paths(blames, chance), *self._of_uplinks(blames, chance), *forced]
            forced = [*self._of_nodes(blames, chance), *forced]
            yield ExchangePhase.CONFIRM, self._mix(CONFIRM_ROUNDS - number, forced, confirms=True)

    def _of_nodes(self, blames: Sequence[Blame], chance: random.Random) -> list[Pair]:
        """For each blamed node a pair with another leaf and one in its own: its way out may be to blame."""
        pairs: list[Pair] = []
        for blame in blames:
            if blame.part.sort not in (Sort.NODE, Sort.NETWORK, Sort.REACH):
                continue
            (node,) = blame.part.nodes
            near = [one for one in self._near(node) if one != node]
            far = [one for one in range(self._nodes) if one != node and one not in near]
            for others in (near, far):
                if others:
                    other = chance.choice(others)
                    pairs.append((min(node, other), max(node, other)))
        return pairs

    def _likes(self, pair: Pair, chance: random.Random) -> list[Pair]:
        """Another pair of the same two leaves; inside one, each of the two with another node."""
        if self._inside(pair) is None:
            return [self._like(pair, chance)]
        others = [near for near in self._near(pair[0]) if near not in pair]
        witnesses = chance.sample(others, min(2, len(others)))
        return [(min(one, other), max(one, other)) for one, other in zip(pair, witnesses, strict=False)]

    def _like(self, pair: Pair, chance: random.Random) -> Pair:
        """Another pair of the same two leaves."""
        one, other = (
            chance.choice([near for near in self._near(node) if near != node] or [node]) for node in pair
        )
        return (min(one, other), max(one, other)) if one != other else pair  # both without a label

    def _of_uplinks(self, blames: Sequence[Blame], chance: random.Random) -> list[Pair]:
        """New pairs for each switch with blamed uplinks; none over a blamed path: it would show only that."""
        paths = {blame.part.switches for blame in blames if blame.part.sort is Sort.PATH}
        pairs: list[Pair] = []
        for blame in blames:
            if blame.part.sort is Sort.OUT:
                pairs_out = [self._exchange(number).nodes for number in blame.bad]
                pairs_out = [pair for pair in pairs_out if not paths & set(self._fabric.way(pair).ends)]
                pairs += [
                    self._like(chance.choice(pairs_out), chance)
                    for _ in range(_PAIRS_OF_UPLINKS)
                    if pairs_out
                ]
        return pairs

    def _near(self, node: int) -> list[int]:
        home = self._fabric.home(node)
        return [one for one in range(self._nodes) if self._fabric.home(one) == home]

    def _of_paths(self, blames: Sequence[Blame], chance: random.Random) -> list[Pair]:
        """A new pair for each path that is blamed."""
        pairs: list[Pair] = []
        for blame in blames:
            if blame.part.sort is Sort.PATH:
                pairs.append(self._like(self._exchange(blame.bad[0]).nodes, chance))
        return pairs

    def _slow_in_rings(self) -> list[Pair]:
        usual = self._usual_in_rings(self._slow_share)
        slow = [one for one in self._loaded if (limit := usual(one)) is not None and limit.symptom(one)]
        return [one.nodes for one in slow if self._inside(one.nodes) is not None]

    def _inside(self, nodes: Sequence[int]) -> str | None:
        """The leaf or the domain that a pair stays in.

        Pairs that share uplinks are slow in a ring by chance.
        """
        return self._fabric.way((nodes[0], nodes[1])).inside

    # --- what they show

    def _exchange(self, number: int) -> Exchange:
        return self._quiet[number]

    def _passed(self) -> list[Passed]:
        usual_of = self._usual_of_kinds()
        passed: list[Passed] = []
        for number, one in enumerate(self._quiet):
            usual, confirms = usual_of(one), one.phase is ExchangePhase.CONFIRM
            symptom = Symptom.FAILED if usual is None else usual.symptom(one)
            depth = 1.0
            if symptom is Symptom.SLOW and usual and not isinstance(one.bytes_per_second, Missing):
                depth -= one.bytes_per_second / usual.bytes_per_second
            passed.append(Passed(number, one.nodes, one.rail, symptom is not None, confirms, depth))
        return passed

    def _usual_of_kinds(self) -> Callable[[Exchange], Usual | None]:
        """The usual of each kind of way; where there is no label, that of the slowest kind."""
        of_kind: dict[str, list[Exchange]] = defaultdict(list)
        for one in self._quiet:
            of_kind[self._fabric.way(one.nodes).kind].append(one)
        usuals = {
            kind: usual
            for kind, seen in of_kind.items()
            if kind != UNKNOWN
            and len(seen) >= _FEWEST_FOR_USUAL
            and (usual := find_usual(seen, self._slow_share)) is not None
        }
        slowest = min(usuals.values(), key=lambda usual: usual.bytes_per_second, default=self.usual)
        return lambda one: usuals.get(self._fabric.way(one.nodes).kind, slowest)

    def _usual_under_load(self) -> Callable[[Exchange], Usual | None]:
        """The usual of the leaf's own pairs in rings, for a leaf with more nodes has less for each."""
        return self._usual_in_rings(LOAD_FACTOR * self._slow_share)

    def _usual_in_rings(self, share: float) -> Callable[[Exchange], Usual | None]:
        groups: dict[tuple[str, str], list[Exchange]] = defaultdict(list)
        for one in self._loaded:
            for group in self._groups(one):
                groups[group].append(one)
        usuals = {
            group: find_usual(seen, share) for group, seen in groups.items() if len(seen) >= _FEWEST_FOR_USUAL
        }

        def lowest(one: Exchange) -> Usual | None:
            known = [usual for group in self._groups(one) if (usual := usuals.get(group)) is not None]
            return min(known, key=lambda usual: usual.slow_below, default=None)

        return lowest

    def _groups(self, one: Exchange) -> list[tuple[str, str]]:
        kind = self._fabric.way(one.nodes).kind
        return [(kind, self._fabric.home(node) or "") for node in one.nodes]

    def _suspect(self, blame: Blame, usual_of: Callable[[Exchange], Usual | None]) -> Suspect:
        seen = [self._exchange(number) for number in blame.bad]
        part = blame.part
        rail = seen[0].rail if part.rail else None
        found = suspect_of(part.nodes, rail, seen, usual_of)
        if part.sort in (Sort.OUT, Sort.OUT_RAIL):
            kind = FabricPart.UPLINKS if blame.share >= _WHOLE_SHARE else FabricPart.UPLINK
            return replace(
                found, part=kind, switches=part.switches, measured=blame.passed, rail_name=part.rail
            )
        switches = part.switches
        if part.sort is Sort.REACH:
            switches = (self._fabric.home(part.nodes[0]) or "",)
        if part.sort is Sort.NVLINK:
            switches = (self._fabric.domain(part.nodes[0]) or "",)
        found_part = _PARTS.get(part.sort)
        home = self._fabric.home(part.nodes[0]) if part.sort is Sort.NODE else None
        if home is not None and len(self._near(part.nodes[0])) == 1:
            found_part, switches = FabricPart.ALONE, (home,)
        return replace(
            found,
            part=found_part,
            switches=switches,
            measured=blame.passed,
            rail_name=part.rail,
        )


def _suspect_leaf(weak: WeakLeaf) -> Suspect:
    return Suspect(
        Symptom.SLOW,
        (),
        None,
        weak.bytes_per_second,
        weak.usual_bytes_per_second,
        weak.at_once,
        under_load=True,
        part=FabricPart.UPLINKS,
        switches=(weak.leaf,),
        measured=weak.exchanges,
    )
