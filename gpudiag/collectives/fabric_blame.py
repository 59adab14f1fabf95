"""Which parts of a fabric explain the bad exchanges: the fewest that do, by their likelihood.

An exchange passes two nodes, their rails, the uplinks of the switches that it leaves, the path between two of
them. Of each part it is known how many exchanges passed it, and how many of these were bad. A part is blamed
where that is far more likely than the share of bad exchanges beside it (a likelihood ratio, kind of exchange
by kind). Its price is the number of parts of its sort: one bad pair among thousands may be chance, one bad
leaf of eight is not. The best part is taken, what it explains is set aside, and so on: so a bad node does not
blame its leaf, nor a bad leaf its nodes.
"""

import math
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpudiag.collectives.fabric import INSIDE, NVLINK, Fabric, Pair
from gpudiag.compat import StrEnum

# A part that is bad is bad in nearly all that passes it; but of a switch one of several uplinks may be, and
# of a rail that of some nodes.
_WHOLE_SHARE, _RAIL_SHARE = 0.75, 0.5
# However few were bad so far, one in five hundred is by chance: five robust deviations leave fewer, and real
# networks more.
_LEAST_CHANCE = 0.002
_MOST_CERTAIN = 0.98
# Of what passes a part, bad exchanges that are less than this share as deep as the usual one of them are
# chance.
_AS_DEEP = 0.8
_FEWEST_WHOLE, _WHOLE_WEIGHT = 4, 1.5
# Natural logarithm of how much likelier a part must be, beyond its price: 1 in 400 of healthy fabrics has one
# then.
ENOUGH = 6.0
_ENOUGH_AGAIN = 2.0  # of the exchanges that confirm alone


class Sort(StrEnum):
    """The sorts of parts."""

    NODE = "node"
    NETWORK = "network"  # of a node that has NVLink to others beside it
    NVLINK = "nvlink"
    REACH = "reach"
    PORT = "port"
    RAIL = "rail"
    LINK = "link"
    OUT = "out"
    OUT_RAIL = "out_rail"
    INSIDE = "inside"
    DOMAIN = "domain"
    PATH = "path"


_OF_NODE = (Sort.NODE, Sort.NETWORK, Sort.NVLINK, Sort.REACH, Sort.PORT)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A part of the fabric: nodes, a rail's name, or switches, by its sort."""

    sort: Sort
    nodes: tuple[int, ...] = ()
    rail: str = ""
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Passed:
    """An exchange as it is judged: its pair, its rail's place, whether it was bad, and whether it confirms.

    `depth`: the share of the usual speed that it lacked; 1 where it failed or lost data.
    """

    number: int
    pair: Pair
    rail: int
    bad: bool
    confirms: bool
    depth: float = 1.0


@dataclass(frozen=True, slots=True)
class Blame:
    """A part that explains bad exchanges: the numbers of these, and how many passed it."""

    part: Part
    bad: tuple[int, ...]
    passed: int
    likelihood: float  # natural logarithm of the ratio, less its price

    @property
    def share(self) -> float:
        """The share of bad ones."""
        return len(self.bad) / self.passed


def explain(fabric: Fabric, passed: Sequence[Passed]) -> list[Blame]:
    """The parts that are blamed, and confirmed where exchanges confirm; the most likely first."""
    kinds = {one.pair: fabric.way(one.pair).kind for one in passed}
    parts = _Parts(fabric, passed)
    left = {one.number: one for one in passed}
    found: list[Blame] = []
    while True:
        taken = _take(parts, left, kinds)
        if not taken:
            return _joined(fabric, found)
        for blame in taken:
            for number in blame.bad:
                del left[number]  # the good ones stay: they clear other parts
        found += taken


class _Parts:
    """All parts that exchanges passed, with the numbers of these exchanges."""

    def __init__(self, fabric: Fabric, passed: Sequence[Passed]) -> None:
        self.through: dict[Part, list[int]] = defaultdict(list)
        self.pair_of = {one.number: one.pair for one in passed}
        self._fabric = fabric
        self._rails = len({one.rail for one in passed})
        has_domains = any(fabric.domain(node) is not None for node in range(len(fabric.nodes)))
        for one in passed:
            for part in self._of(one, has_domains=has_domains):
                self.through[part].append(one.number)
        self.prices = {sort: math.log(count) for sort, count in Counter(p.sort for p in self.through).items()}
        # Of a node that has either only, its network is the node.
        nodes = {part.nodes for part in self.through if part.sort is Sort.NVLINK}
        for part in [one for one in self.through if one.sort is Sort.NETWORK and one.nodes not in nodes]:
            del self.through[part]

    def _of(self, one: Passed, *, has_domains: bool) -> Iterable[Part]:
        way = self._fabric.way(one.pair)
        for node in one.pair:
            yield Part(Sort.NODE, (node,))
            if has_domains:
                yield Part(Sort.NVLINK if way.kind == NVLINK else Sort.NETWORK, (node,))
            if way.left:
                yield Part(Sort.REACH, (node,))
            if self._rails > 1:
                yield Part(Sort.PORT, (node,), self._fabric.rail(node, one.rail))
        yield Part(Sort.LINK, one.pair)
        if self._rails > 1:
            name = self._fabric.rail(one.pair[0], one.rail)
            yield Part(Sort.RAIL, rail=name)
            yield Part(Sort.LINK, one.pair, name)
            for switch in way.left:
                yield Part(Sort.OUT_RAIL, rail=name, switches=(switch,))
        for switch in way.left:
            yield Part(Sort.OUT, switches=(switch,))
        for ends in way.ends:
            yield Part(Sort.PATH, switches=ends)
        if way.kind == INSIDE and way.inside is not None:
            yield Part(Sort.INSIDE, switches=(way.inside,))
        if way.kind == NVLINK and way.inside is not None:
            yield Part(Sort.DOMAIN, switches=(way.inside,))


class _Chance:
    """How many exchanges there were of each kind, and how many of these were bad, by how deep they were."""

    def __init__(self, left: Iterable[Passed], kinds: Mapping[Pair, str]) -> None:
        self.kinds = kinds
        self._count: Counter[str] = Counter()
        self._depths: dict[str, list[float]] = defaultdict(list)
        for one in left:
            self._count[kinds[one.pair]] += 1
            if one.bad:
                self._depths[kinds[one.pair]].append(one.depth)
        for depths in self._depths.values():
            depths.sort()

    def beside(self, kind: str, here: int, bad_here: int, depth: float) -> tuple[int, int]:
        """How many of the kind there are beside these, and how many of them were so bad."""
        depths = self._depths.get(kind, [])
        return self._count[kind] - here, len(depths) - bisect_left(depths, depth) - bad_here


def _take(parts: _Parts, left: Mapping[int, Passed], kinds: Mapping[Pair, str]) -> list[Blame]:
    """The best parts that explain what is left, no exchange twice."""
    chance = _Chance(left.values(), kinds)
    confirming = any(one.confirms for one in left.values())
    scored: list[Blame] = []
    for part, numbers in parts.through.items():
        here = [left[number] for number in numbers if number in left]
        bad = [one for one in here if one.bad]
        if len(bad) < 2:
            continue
        depth = _AS_DEEP * statistics.median_low([one.depth for one in bad])
        deep = [one for one in bad if one.depth >= depth]
        if len(deep) < max(2, _least_share(part) * len(here)):
            continue
        gain = _ratio(here, here, chance, depth) - parts.prices[part.sort]
        if _least_share(part) == 0:
            gain -= _unsure(here, chance, depth)
        if gain < ENOUGH or (part.sort is Sort.OUT and not _is_shared(deep)):
            continue
        if part.sort in _OF_NODE and len({one.pair for one in deep}) < 2:
            continue  # one partner: it is the pair, or the partner
        again = [one for one in here if one.confirms]
        if confirming and _ratio(again, here, chance, depth) < _ENOUGH_AGAIN:
            continue
        scored.append(Blame(part, tuple(one.number for one in bad), len(here), gain))
    taken: list[Blame] = []
    used: set[int] = set()
    first = {blame.part for blame in scored if _is_path_beside_uplink(blame, scored, parts)}
    for blame in sorted(scored, key=lambda one: (one.part not in first, -_weight(one), one.part)):
        if not used & set(blame.bad):
            taken.append(blame)
        used.update(blame.bad)  # what another part explains better, it explains first
    return taken


def _is_path_beside_uplink(blame: Blame, scored: Sequence[Blame], parts: _Parts) -> bool:
    """Whether a path is bad as a whole, and a blamed one of several uplinks at its end cannot explain it."""
    if blame.part.sort is not Sort.PATH or not _is_whole(blame):
        return False
    pairs = [parts.pair_of[number] for number in blame.bad]
    if set(pairs[0]).intersection(*pairs[1:]):
        return False  # a single node
    for other in scored:
        if other.part.sort is Sort.OUT and other.part.switches[0] in blame.part.switches:
            bad, passed = len(set(other.bad) - set(blame.bad)), other.passed - blame.passed
            chance = _rate(bad, passed) if passed > 0 else 1.0
            if (
                other.share < _WHOLE_SHARE
                and -len(blame.bad) * math.log(chance) > ENOUGH + parts.prices[Sort.PATH]
            ):
                return True
    return False


def _is_whole(blame: Blame) -> bool:
    return len(blame.bad) >= _FEWEST_WHOLE and blame.share >= _MOST_CERTAIN


def _weight(blame: Blame) -> float:
    """Its likelihood; more where all that passed it was bad: a bad path hides in the uplinks of its leaf."""
    return blame.likelihood * (_WHOLE_WEIGHT if _is_whole(blame) else 1.0)


def _least_share(part: Part) -> float:
    if part.sort in (Sort.OUT, Sort.OUT_RAIL):
        return 0.0
    return _RAIL_SHARE if part.sort is Sort.RAIL else _WHOLE_SHARE


def _is_shared(bad: Sequence[Passed]) -> bool:
    """Whether no single node is in all of them: that would be the node, not the uplink of its leaf."""
    common = set(bad[0].pair)
    for one in bad[1:]:
        common &= set(one.pair)
    return not common


def _ratio(seen: Sequence[Passed], here: Sequence[Passed], chance: _Chance, depth: float) -> float:
    """The logarithm of how much likelier these are so bad by one part than by the chance beside it.

    `here` are all that passed the part: what is beside it is none of these.
    """
    if not seen:
        return 0.0
    kind_of = chance.kinds
    counts, bad = _count(seen, kind_of, depth)
    of_part, bad_of_part = _count(here, kind_of, depth)
    share = min(_MOST_CERTAIN, bad.total() / len(seen))
    gain = 0.0
    for kind, count in counts.items():
        others, bad_others = chance.beside(kind, of_part[kind], bad_of_part[kind], depth)
        # Where all of the kind pass the part, there is nothing to hold it against.
        usual = _rate(bad_others, others) if others else min(_MOST_CERTAIN, share)
        if share > usual:
            gain += bad[kind] * math.log(share / usual)
            gain += (count - bad[kind]) * math.log((1 - share) / (1 - usual))
    return gain


def _unsure(here: Sequence[Passed], chance: _Chance, depth: float) -> float:
    """How much of that ratio is the chance of the few exchanges beside it, which may have been lucky.

    The ratio of two rates to one of all (a G-test) is less than that of one rate to another by this. It
    matters where a part is bad in few of its exchanges, and few leaves leave few beside it.
    """
    of_part, bad_of_part = _count(here, chance.kinds, depth)
    lost = 0.0
    for kind, count in of_part.items():
        bad = bad_of_part[kind]
        others, bad_others = chance.beside(kind, count, bad, depth)
        if not others:
            continue
        pooled, beside = _rate(bad + bad_others, count + others), _rate(bad_others, others)
        for rate, sign in ((pooled, 1), (beside, -1)):
            all_bad, all_good = bad + bad_others, count + others - bad - bad_others
            lost += sign * (all_bad * math.log(rate) + all_good * math.log(1 - rate))
    return max(0.0, lost)


def _rate(bad: int, count: int) -> float:
    """Krichevsky and Trofimov's: of few exchanges without a bad one it is not known how rare bad ones are."""
    return min(_MOST_CERTAIN, max(_LEAST_CHANCE, (bad + 0.5) / (count + 1)))


def _count(
    seen: Iterable[Passed], kind_of: Mapping[Pair, str], depth: float
) -> tuple[Counter[str], Counter[str]]:
    """How many there are of each kind, and how many of these were so bad."""
    counts: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    for one in seen:
        counts[kind_of[one.pair]] += 1
        bad[kind_of[one.pair]] += one.bad and one.depth >= depth
    return counts, bad


def _joined(fabric: Fabric, found: Sequence[Blame]) -> list[Blame]:
    """Several pairs, or several nodes, that are bad across the same switches are what these have in common.

    A pair that was measured again and again has the weight of many: by that alone it would hide an uplink
    which few pairs take.
    """
    joined = list(found)
    for sort, wanted in ((Sort.PATH, (Sort.LINK,)), (Sort.OUT, (Sort.LINK, Sort.REACH, Sort.NETWORK))):
        groups: dict[Part, list[Blame]] = defaultdict(list)
        for blame in joined:
            if blame.part.sort in wanted:
                for part in _across(fabric, blame.part, sort):
                    groups[part].append(blame)
        known = {blame.part for blame in joined}
        for part, blames in sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])):
            here = [blame for blame in blames if blame in joined]
            if part not in known and (len(here) < 2 or set.intersection(*(set(b.part.nodes) for b in here))):
                continue
            if all(blame.part.sort is Sort.NETWORK for blame in here):
                continue  # each has a card of its own
            joined = [blame for blame in joined if blame not in here]
            if part not in known:
                bad = tuple(number for blame in here for number in blame.bad)
                passed = sum(blame.passed for blame in here)
                joined.append(Blame(part, bad, passed, sum(blame.likelihood for blame in here)))
    return sorted(joined, key=lambda blame: (-blame.likelihood, blame.part))


def _across(fabric: Fabric, part: Part, sort: Sort) -> list[Part]:
    """The paths, or the uplinks, that all exchanges of a link or of a node's reach pass."""
    if part.sort in (Sort.REACH, Sort.NETWORK):
        leaf = fabric.leaf(part.nodes[0])
        return [] if leaf is None else [Part(Sort.OUT, switches=(leaf,))]
    way = fabric.way((part.nodes[0], part.nodes[1]))
    if sort is Sort.PATH:
        return [Part(Sort.PATH, switches=ends) for ends in way.ends]
    return [Part(Sort.OUT, switches=(switch,)) for switch in way.left]


def unexplained(passed: Iterable[Passed], blames: Sequence[Blame]) -> list[Passed]:
    """The bad exchanges that no blamed part explains."""
    explained = {number for blame in blames for number in blame.bad}
    return [one for one in passed if one.bad and one.number not in explained]
