"""Which node, link or rail is bad, in a number of rounds that does not grow with the number of nodes.

1. Screen: random disjoint pairs of nodes exchange data, three rounds of them. A node counts by the best of
   its pairs: next to one good partner a good node looks good, however bad the others are. A bad exchange
   between two nodes that are both good with others is the fault of the link between them.
2. Load: all nodes exchange with two others at once, in rings.
3. Confirm: a suspect meets two nodes that are known to be good; a suspected pair meets again, one that was
   slower in a ring too. A ring in which a pair was much slower is measured once more.

What decides is here, so that a simulation of ten thousand nodes (benchmarks/localise_scale.py) runs the same
code.
"""

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpudiag.model.measure import Exchange, ExchangePhase, Node, Suspect, Symptom
from gpudiag.model.reading import NOT_ASKED, Missing, Reading
from gpudiag.ranks.diagnosis.loss import LOST_SHARE

# --- who exchanges data with whom

Pair = tuple[int, int]

# With so few nodes all pairs are measured: at most seven rounds.
ALL_PAIRS_UP_TO = 8
# With a few more all pairs are, in rings of two for each node: at most eight further rounds.
ALL_LINKS_UP_TO = 16
# Three different partners for each node: a healthy one meets at least one healthy partner, but for one node
# in a thousand where one in ten is bad (simulated: benchmarks/localise_scale.py).
SCREEN_ROUNDS = 3


def screen_rounds(nodes: int, seed: int, rounds: int | None = None) -> tuple[tuple[Pair, ...], ...]:
    """Rounds of disjoint pairs, none twice, in random order: `rounds` of them, or as many as the nodes need.

    They are rounds of a tournament (the circle method), so that with all of its rounds each node meets each
    other one. Of an odd number of nodes one sits out in each round, each time another one.
    """
    order: list[int | None] = list(range(nodes))
    chance = random.Random(seed)  # noqa: S311 - reproducible, not secret
    chance.shuffle(order)
    if nodes % 2:
        order.append(None)
    last = len(order) - 1
    wanted = rounds or (last if nodes <= ALL_PAIRS_UP_TO else SCREEN_ROUNDS)
    chosen = sorted(chance.sample(range(last), min(last, wanted)))
    return tuple(_circle_round(order, number) for number in chosen)


def _circle_round(order: Sequence[int | None], number: int) -> tuple[Pair, ...]:
    """Round `number` of the tournament: one place stays, the others have moved on by so many."""
    last = len(order) - 1
    places = [order[last], *(order[(number + step) % last] for step in range(last))]
    met = ((places[step], places[last - step]) for step in range(len(order) // 2))
    return tuple(
        (min(one, other), max(one, other)) for one, other in met if one is not None and other is not None
    )


def load_strides(nodes: int) -> tuple[int, ...]:
    """The distances of the rings in which all nodes exchange at once: near, middle and far.

    Of a few more nodes than those that all meet in the screen every distance, so that every link is measured.
    """
    if ALL_PAIRS_UP_TO < nodes <= ALL_LINKS_UP_TO:
        return tuple(range(1, nodes // 2 + 1))
    powers = [1 << bit for bit in range(nodes.bit_length()) if 2 << bit < nodes]
    return tuple(dict.fromkeys((powers[0], powers[len(powers) // 2], powers[-1]))) if powers else ()


def ring(nodes: int, stride: int) -> tuple[Pair, ...]:
    """The pairs of nodes so far apart on a ring of all: each node is in two, or in one with its opposite."""
    apart = ((node, (node + stride) % nodes) for node in range(nodes))
    return tuple(dict.fromkeys((min(one, other), max(one, other)) for one, other in apart))


def pack_rounds(wanted: Iterable[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """The pairs, in as few rounds as the first fit gives: a node is in one pair of a round."""
    rounds: list[list[Pair]] = []
    busy: list[set[int]] = []
    for pair in wanted:
        for place, nodes in enumerate(busy):
            if not nodes & set(pair):
                rounds[place].append(pair)
                nodes.update(pair)
                break
        else:
            rounds.append([pair])
            busy.append(set(pair))
    return tuple(map(tuple, rounds))


# --- what stands out

NODES_AT_LEAST = 4  # of three, two that are slow with each other leave no usual speed

# Shares of the usual speed below which an exchange is slow. GPUs exchange within 2 % of each other
# (collectives.md 5: flagged below 0.9); gloo's exchanges vary with the load of the processors that it runs
# on.
SLOW_SHARE = {"nccl": 0.9, "gloo": 0.6}
# Robust standard deviations below the usual speed: 1.4826 times the median deviation is one of them where
# values are normally distributed, and five of them leave one healthy exchange in three millions. Of few nodes
# the deviation is uncertain: below the last share an exchange is slow however much the others differ.
_DEVIATIONS = 5 * 1.4826
_ANYHOW_SHARE = 0.75
# A lost segment is sent again after 0.2 s by TCP (RFC 6298, Linux's minimum), after tens of ms by RDMA: some
# exchanges take that long while the typical ones do not. Where even the fastest is that slow, what is too
# much is dropped, and the path is slow.
_TAIL_FACTOR = 10.0
_TAIL_SECONDS = 0.04
_LOSSY_SPEED_SHARE = 0.1
# All at once, nodes share the switches, and those far apart share more of them than neighbours do: what
# counts is far below that, as where two flows were put on one way.
LOAD_FACTOR = 0.6
_WITNESSES = 2  # good nodes that a suspect meets
# Exchanges between nodes that look good and are bad by chance are few; of many the worst are measured again.
_LINKS_AGAIN, _LINKS_OF_A_NODE = 64, 2

Port = tuple[int, int]  # node and rail


@dataclass(frozen=True, slots=True)
class LocaliseRequest:
    """What every rank of a localisation is given. With one host each rank acts as a node.

    `labels`: where the labels of the nodes came from, or why they have none.
    """

    backend: str
    seed: int
    nodes: tuple[Node, ...]
    labels: Reading[str] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class Round:
    """Pairs of nodes that exchange data at the same time; in a ring each node is in two of them.

    `waits`, where there are any, has for each pair the places of the pairs that end before it begins.
    """

    number: int
    phase: ExchangePhase
    pairs: tuple[Pair, ...]
    waits: tuple[tuple[int, ...], ...] = ()

    @property
    def turns(self) -> tuple[int, ...]:
        """The turn of each pair, from 0: how many others it waits for, one after the other."""
        turns: list[int] = []
        for before in self.waits or ((),) * len(self.pairs):
            turns.append(1 + max((turns[place] for place in before), default=-1))
        return tuple(turns)


@dataclass(frozen=True, slots=True)
class Usual:
    """What exchanges of one run are held against: the median of the nodes' best, and limits from it."""

    bytes_per_second: float
    slow_below: float
    tail_seconds: float
    lossy_above: float

    def symptom(self, exchange: Exchange) -> Symptom | None:
        """What is wrong with the exchange; None if nothing is."""
        speed = exchange.bytes_per_second
        if isinstance(speed, Missing):
            return Symptom.FAILED
        if speed >= _LOSSY_SPEED_SHARE * self.bytes_per_second and self._is_lossy(exchange):
            return Symptom.LOSSY
        return Symptom.SLOW if speed < self.slow_below else None

    def _is_lossy(self, exchange: Exchange) -> bool:
        """By what TCP counts; where it does not, by exchanges that take as long as a retransmission."""
        typical, tail = exchange.typical_seconds, exchange.tail_seconds
        if not isinstance(exchange.sent_again, Missing):
            return exchange.sent_again >= LOST_SHARE
        if isinstance(typical, Missing) or isinstance(tail, Missing):
            return False
        return tail > max(self.lossy_above, _TAIL_FACTOR * typical)


class Localiser:
    """Plans the exchange rounds and names the suspects."""

    def __init__(
        self,
        nodes: int,
        *,
        seed: int,
        slow_share: float,
        under_load: bool = True,
        rounds: int | None = None,
        fill: bool = True,
    ) -> None:
        """Localise among `nodes`; `fill`: nodes that a round does not need exchange too, for equal load."""
        self._nodes = nodes
        self._slow_share = slow_share
        self._fill = fill
        self._quiet: list[Exchange] = []
        self._loaded: list[Exchange] = []
        self._number = 0
        screen = ((ExchangePhase.SCREEN, pairs) for pairs in screen_rounds(nodes, seed, rounds))
        self._plan = self._follow(list(screen), under_load=under_load)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All that were added."""
        return (*self._quiet, *self._loaded)

    @property
    def usual(self) -> Usual | None:
        """What is usual among the nodes; None while nothing was exchanged."""
        return find_usual(self._quiet, self._slow_share)

    def next_round(self) -> Round | None:
        """The next round, given what was added so far; None once there is no more to measure."""
        found = next(self._plan, None)
        if found is None:
            return None
        self._number += 1
        return Round(self._number, *found)

    def add(self, exchanges: Iterable[Exchange], seconds: float = 0.0) -> None:
        """Add what was exchanged in the last round, once for each rail, and how long that round took."""
        del seconds  # without turns it is that of the slowest pair
        for exchange in exchanges:
            (self._loaded if exchange.phase is ExchangePhase.LOAD else self._quiet).append(exchange)

    def conclude(self) -> tuple[Suspect, ...]:
        """What stands out and was confirmed: nodes first, then rails, then links."""
        quiet = _Findings(self._quiet, self._slow_share)
        confirmed = {one.nodes for one in self._quiet if one.phase is ExchangePhase.CONFIRM}
        met_again = {node for pair in confirmed for node in pair}
        ports = {port for port in quiet.bad_ports_alone if port[0] in met_again}
        links = [link for link in quiet.bad_links if link[0] in confirmed and len(quiet.by_link[link]) > 1]
        if quiet.usual is not None and len(quiet.bad_ports) == len(quiet.by_port):
            return (quiet.suspect_all(),)  # no node is left that could clear another
        found = [*_of_ports(quiet, ports), *(quiet.suspect_link(*link) for link in links)]
        return (*found, *self._conclude_load({node for node, _ in ports}, {pair for pair, _ in links}))

    def _follow(
        self, screen: Sequence[tuple[ExchangePhase, tuple[Pair, ...]]], *, under_load: bool
    ) -> Iterator[tuple[ExchangePhase, tuple[Pair, ...]]]:
        yield from screen
        rings = [ring(self._nodes, stride) for stride in load_strides(self._nodes)] if under_load else []
        for pairs in rings:
            yield ExchangePhase.LOAD, pairs
        for pairs in pack_rounds(self._to_confirm()):
            yield ExchangePhase.CONFIRM, self._filled(pairs)
        found = _Findings(self._quiet, self._slow_share)
        bad, links = {node for node, _ in found.bad_ports}, {pair for pair, _ in found.bad_links}
        again = {pair for pair, _ in self._slow_under_load() if not bad & set(pair)} - links
        for pairs in rings:
            if again & set(pairs):
                yield ExchangePhase.LOAD, pairs

    def _to_confirm(self) -> list[Pair]:
        """Each suspected node with nodes that are good, each suspected pair again."""
        found = _Findings(self._quiet, self._slow_share)
        suspects = sorted({node for node, _ in found.bad_ports_alone})
        good = [node for node in found.best_first if node not in suspects]
        links = dict.fromkeys([pair for pair, _ in found.bad_links] + self._slower_in_rings(set(suspects)))
        again = few_of_each(links)
        wanted: list[Pair] = []
        for turn in range(_WITNESSES):
            for place, node in enumerate(suspects):
                witness = choose_witness(node, good, place * _WITNESSES + turn, wanted)
                if witness is not None:
                    wanted.append((min(node, witness), max(node, witness)))
            wanted += again
        return wanted

    def _slower_in_rings(self, suspects: set[int]) -> list[Pair]:
        """Pairs slower than usual where all nodes exchanged at once, slowest first; they may be so alone."""
        usual = find_usual(self._loaded, self._slow_share)
        if usual is None:
            return []
        slower = [one for one in self._loaded if usual.symptom(one) and not suspects & set(one.nodes)]
        return [one.nodes for one in sorted(slower, key=lambda one: best_speed((one,)) or 0.0)]

    def _filled(self, pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
        """The round with its idle nodes in pairs too: the network is as busy as when it was screened."""
        if not self._fill:
            return pairs
        busy = {node for pair in pairs for node in pair}
        idle = [node for node in range(self._nodes) if node not in busy]
        if self._number % 2:  # other pairs than in the round before
            idle = idle[1:]
        return (*pairs, *zip(idle[::2], idle[1::2], strict=False))

    def _slow_under_load(self) -> dict[tuple[Pair, int], list[Exchange]]:
        """The pairs and rails that were slow each time that all nodes exchanged at once."""
        usual = self._usual_under_load()
        by_link = _by_link(self._loaded)
        return {
            link: seen
            for link, seen in by_link.items()
            if all(
                (limit := usual(one)) is not None and limit.symptom(one) in (Symptom.SLOW, Symptom.FAILED)
                for one in seen
            )
        }

    def _usual_under_load(self) -> Callable[[Exchange], Usual | None]:
        """What each exchange under load is held against."""
        usual = find_usual(self._loaded, LOAD_FACTOR * self._slow_share)
        return lambda _: usual

    def _conclude_load(self, blamed: set[int], links: set[Pair]) -> list[Suspect]:
        """What is slow under load only, twice: a node with all that it met, or else the link."""
        usual_of = self._usual_under_load()
        slow = {
            link: seen
            for link, seen in self._slow_under_load().items()
            if len(seen) > 1 and not blamed & set(link[0]) and link[0] not in links
        }
        met: dict[int, set[Pair]] = defaultdict(set)
        for one in self._loaded:
            for node in one.nodes:
                met[node].add(one.nodes)
        pairs = {pair for pair, _ in slow}
        nodes = [node for node in sorted(met) if met[node] <= pairs and len(met[node]) > 1]
        suspects = [
            _suspect_load(
                (node,), [one for link, seen in slow.items() if node in link[0] for one in seen], usual_of
            )
            for node in nodes
        ]
        rest = {pair for pair in pairs if not set(pair) & set(nodes)}
        return suspects + [
            _suspect_load(
                pair, [one for link, seen in slow.items() if link[0] == pair for one in seen], usual_of
            )
            for pair in sorted(rest)
        ]


class _Findings:
    """What exchanges show of nodes, rails and links, each by itself."""

    def __init__(self, exchanges: Sequence[Exchange], slow_share: float) -> None:
        self.usual = find_usual(exchanges, slow_share)
        self.by_port = _by_port(exchanges)
        self.by_link = _by_link(exchanges)
        self.bad_ports = {
            port for port, seen in self.by_port.items() if all(self.symptom(one) for one in seen)
        }

    def symptom(self, exchange: Exchange) -> Symptom | None:
        """What is wrong with the exchange."""
        return Symptom.FAILED if self.usual is None else self.usual.symptom(exchange)

    @property
    def bad_rails(self) -> dict[int, set[Port]]:
        """The rails that are bad on most nodes, with the bad ports; none where there is one rail."""
        nodes_of: dict[int, set[int]] = defaultdict(set)
        for node, rail in self.by_port:
            nodes_of[rail].add(node)
        if len(nodes_of) == 1:
            return {}
        bad = {rail: {port for port in self.bad_ports if port[1] == rail} for rail in nodes_of}
        return {rail: ports for rail, ports in bad.items() if 2 * len(ports) > len(nodes_of[rail])}

    @property
    def bad_ports_alone(self) -> set[Port]:
        """The bad ports but those of a rail that is bad on most nodes, which needs no confirmation."""
        rails = self.bad_rails
        return {port for port in self.bad_ports if port[1] not in rails}

    @property
    def bad_links(self) -> list[tuple[Pair, int]]:
        """Pairs and rails that had a symptom each time, between ports that are good with others.

        The worst come first.
        """
        bad = [
            (link, seen)
            for link, seen in self.by_link.items()
            if all(self.symptom(one) for one in seen)
            and not any((node, link[1]) in self.bad_ports for node in link[0])
        ]
        return [link for link, _ in sorted(bad, key=lambda one: (best_speed(one[1]) or 0.0, one[0]))]

    @property
    def best_first(self) -> list[int]:
        """The nodes, the fastest first, by the slowest of their rails."""
        speeds: dict[int, float] = {}
        for (node, _), seen in self.by_port.items():
            speeds[node] = min(speeds.get(node, float("inf")), best_speed(seen) or 0.0)
        return sorted(speeds, key=lambda node: (-speeds[node], node))

    def suspect_link(self, pair: Pair, rail: int) -> Suspect:
        """The link as a suspect."""
        return self._suspect(pair, rail, self.by_link[(pair, rail)])

    def suspect_node(self, node: int, rails: Sequence[int]) -> Suspect:
        """The node as a suspect, with what all of those rails show."""
        seen = [one for rail in rails for one in self.by_port[(node, rail)]]
        return self._suspect((node,), None, seen)

    def suspect_all(self) -> Suspect:
        """All nodes as the suspect."""
        return self._suspect((), None, [one for seen in self.by_link.values() for one in seen])

    def suspect_rail(self, nodes: tuple[int, ...], rail: int, seen: Sequence[Exchange]) -> Suspect:
        """The rail of that node as a suspect; of all nodes if there are none."""
        return self._suspect(nodes, rail, seen)

    def _suspect(self, nodes: tuple[int, ...], rail: int | None, seen: Sequence[Exchange]) -> Suspect:
        return suspect_of(nodes, rail, seen, lambda _: self.usual)


def suspect_of(
    nodes: tuple[int, ...],
    rail: int | None,
    seen: Sequence[Exchange],
    usual_of: Callable[[Exchange], Usual | None],
) -> Suspect:
    """The suspect that these exchanges make, all of which have a symptom."""
    usuals = [usual_of(one) for one in seen]
    symptom = _most(
        Symptom.FAILED if usual is None else usual.symptom(one)
        for one, usual in zip(seen, usuals, strict=True)
    )
    usual = usuals[0]
    if usual is None or symptom is Symptom.FAILED:
        words = next(
            (one.bytes_per_second.detail for one in seen if isinstance(one.bytes_per_second, Missing)), ""
        )
        return Suspect(Symptom.FAILED, nodes, rail, None, None, len(seen), words=words)
    if symptom is Symptom.LOSSY:
        tails = [tail for one in seen for tail in _known(one.tail_seconds)]
        shares = [share for one in seen for share in _known(one.sent_again)]
        sent_again = statistics.median(shares) if shares else None
        return Suspect(symptom, nodes, rail, max(tails), usual.tail_seconds, len(seen), sent_again)
    return Suspect(symptom, nodes, rail, best_speed(seen), usual.bytes_per_second, len(seen))


def _of_ports(found: _Findings, ports: set[Port]) -> list[Suspect]:
    """The bad ports as suspects: nodes with most rails bad, rails bad on most nodes, single rails."""
    suspects: list[Suspect] = []
    singles: list[Suspect] = []
    rails_of = Counter(node for node, _ in found.by_port)
    for node in sorted({node for node, _ in ports}):
        bad = sorted(rail for one, rail in ports if one == node)
        if 2 * len(bad) > rails_of[node]:
            suspects.append(found.suspect_node(node, bad))
        else:
            singles += [found.suspect_rail((node,), rail, found.by_port[(node, rail)]) for rail in bad]
    of_all = [
        found.suspect_rail((), rail, [one for port in sorted(bad) for one in found.by_port[port]])
        for rail, bad in sorted(found.bad_rails.items())
    ]
    return suspects + of_all + singles


def _suspect_load(
    nodes: tuple[int, ...], seen: Sequence[Exchange], usual_of: Callable[[Exchange], Usual | None]
) -> Suspect:
    speed, usual = best_speed(seen), usual_of(seen[0])
    words = next(
        (one.bytes_per_second.detail for one in seen if isinstance(one.bytes_per_second, Missing)), ""
    )
    symptom = Symptom.FAILED if speed is None else Symptom.SLOW
    usual_speed = None if speed is None or usual is None else usual.bytes_per_second
    return Suspect(symptom, nodes, None, speed, usual_speed, len(seen), under_load=True, words=words)


def few_of_each(links: Iterable[Pair]) -> list[Pair]:
    """The first of the links, two of each node at most: more would be the fault of the node."""
    met: dict[int, int] = defaultdict(int)
    chosen: list[Pair] = []
    for pair in links:
        if len(chosen) < _LINKS_AGAIN and all(met[node] < _LINKS_OF_A_NODE for node in pair):
            chosen.append(pair)
            for node in pair:
                met[node] += 1
    return chosen


def choose_witness(node: int, good: Sequence[int], first: int, wanted: Sequence[Pair]) -> int | None:
    """A good node that this one does not meet yet; None if there is none."""
    for step in range(len(good)):
        witness = good[(first + step) % len(good)]
        if (min(node, witness), max(node, witness)) not in wanted:
            return witness
    return None


def find_usual(exchanges: Sequence[Exchange], slow_share: float) -> Usual | None:
    """What is usual among these exchanges; None where none succeeded.

    First the median of the ports' best, the better of two in the middle, for half of the ports may be bad;
    then that of the exchanges between ports that reach it nearly.
    """
    by_port = _by_port(exchanges)
    bests = {port: best for port, seen in by_port.items() if (best := best_speed(seen)) is not None}
    if not bests:
        return None
    enough = slow_share * statistics.median_high(bests.values())
    speeds: list[float] = []
    for one in exchanges:
        if all(bests.get((node, one.rail), 0.0) >= enough for node in one.nodes):
            speeds += _known(one.bytes_per_second)
    speed = statistics.median_high(speeds) if speeds else enough / slow_share
    # Of those that are not slow anyway: what is wrong with a link is no measure of chance.
    near = [abs(one - speed) for one in speeds if one >= slow_share * speed]
    chance = speed - _DEVIATIONS * (statistics.median(near) if near else 0.0)
    tails = [
        min(known)
        for seen in by_port.values()
        if (known := [t for one in seen for t in _known(one.tail_seconds)])
    ]
    tail = statistics.median_low(tails) if tails else 0.0
    return Usual(
        bytes_per_second=speed,
        slow_below=max(_ANYHOW_SHARE * slow_share * speed, min(slow_share * speed, chance)),
        tail_seconds=tail,
        lossy_above=max(_TAIL_FACTOR * tail, _TAIL_SECONDS),
    )


def _by_port(exchanges: Iterable[Exchange]) -> Mapping[Port, list[Exchange]]:
    found: dict[Port, list[Exchange]] = defaultdict(list)
    for one in exchanges:
        for node in one.nodes:
            found[(node, one.rail)].append(one)
    return found


def _by_link(exchanges: Iterable[Exchange]) -> Mapping[tuple[Pair, int], list[Exchange]]:
    found: dict[tuple[Pair, int], list[Exchange]] = defaultdict(list)
    for one in exchanges:
        found[(one.nodes, one.rail)].append(one)
    return found


def best_speed(seen: Iterable[Exchange]) -> float | None:
    """The fastest of these, in bytes per second; None where none succeeded."""
    speeds = [one.bytes_per_second for one in seen if not isinstance(one.bytes_per_second, Missing)]
    return max(speeds, default=None)


def _known(reading: Reading[float]) -> list[float]:
    return [] if isinstance(reading, Missing) else [reading]


def _most(symptoms: Iterable[Symptom | None]) -> Symptom:
    """The symptom that most of the exchanges have."""
    return statistics.mode(one for one in symptoms if one is not None)
