"""How well bad nodes and links are found among 4 to 10,000 nodes, and in how many rounds.

    python -m benchmarks.localise_scale [--runs N] [NODES ...]

Nothing is sent: an exchange has the usual speed with a spread of 2 %, and 0.7 of it where a bad node or link
takes part (collectives.md 5). Beside it what people do instead, with the same exchanges: every pair once
(round robin), and halving by hand, which measures a group by its slowest pair.
`benchmarks/localise_fabric.py` has networks with switches, and labels.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from gpudiag.collectives.localise import ALL_PAIRS_UP_TO, SCREEN_ROUNDS, SLOW_SHARE, Localiser, Pair, Round
from gpudiag.model.measure import Exchange, ExchangePhase

NODES = (4, 8, 16, 64, 256, 1000, 10_000)
SPEED, SPREAD, BAD_SHARE = 40e9, 0.02, 0.7
MANY = 20  # one bad node in so many


@dataclass
class Network:
    """Nodes that exchange data: which of them, and of their links, are bad."""

    nodes: int
    bad_nodes: set[int]
    bad_links: set[Pair]
    chance: random.Random
    exchanges: int = field(default=0)

    def speed(self, pair: Pair) -> float:
        """Bytes per second between these two."""
        self.exchanges += 1
        bad = pair in self.bad_links or self.bad_nodes & set(pair)
        return SPEED * self.chance.gauss(BAD_SHARE if bad else 1.0, SPREAD)

    def exchange(self, current: Round) -> Iterable[Exchange]:
        """One round's exchanges."""
        for pair in current.pairs:
            yield Exchange(current.number, current.phase, pair, 0, self.speed(pair), 1e-4, 2e-4)


@dataclass(frozen=True)
class Found:
    """What a method blamed, and its rounds: of the screen alone, and in all."""

    nodes: set[int]
    links: set[Pair]
    screened: int
    rounds: int


def ours(network: Network, seed: int, rounds: int | None = None) -> Found:
    """What gpudiag finds."""
    localiser = Localiser(network.nodes, seed=seed, slow_share=SLOW_SHARE["nccl"], rounds=rounds)
    screened = total = 0
    while (current := localiser.next_round()) is not None:
        total += 1
        screened += current.phase is ExchangePhase.SCREEN
        localiser.add(network.exchange(current))
    suspects = localiser.conclude()
    nodes = {one.nodes[0] for one in suspects if len(one.nodes) == 1}
    links = {(one.nodes[0], one.nodes[1]) for one in suspects if len(one.nodes) > 1}
    return Found(nodes, links, screened, total)


def round_robin(network: Network, seed: int) -> Found:
    """Every pair once: a node is bad if most of its pairs are slow, a link if it alone is."""
    del seed
    limit = SLOW_SHARE["nccl"] * SPEED
    slow: dict[int, set[Pair]] = {node: set() for node in range(network.nodes)}
    for one in range(network.nodes):
        for other in range(one + 1, network.nodes):
            if network.speed((one, other)) < limit:
                slow[one].add((one, other))
                slow[other].add((one, other))
    nodes = {node for node, pairs in slow.items() if len(pairs) > network.nodes // 2}
    links = {pair for pairs in slow.values() for pair in pairs if not set(pair) & nodes}
    rounds = network.nodes - 1 + network.nodes % 2
    return Found(nodes, links, rounds, rounds)


def halving(network: Network, seed: int) -> Found:
    """Halve each slow group until one node is left, by two rounds each."""
    del seed
    limit = SLOW_SHARE["nccl"] * SPEED
    groups, rounds = [list(range(network.nodes))], 0
    while any(len(group) > 2 for group in groups):
        halves = [half for group in groups for half in _halves(group)]
        groups = [
            half for half in halves if _slowest(network, half) < limit and _slowest(network, half) < limit
        ]
        rounds += 2
    # Of a pair that is slow each is tried with a node that was not in any slow group.
    suspects = {node for group in groups for node in group}
    good = [node for node in range(network.nodes) if node not in suspects]
    bad = {node for node in suspects if good and network.speed(_pair(node, good[0])) < limit}
    return Found(bad, set(), rounds + 1, rounds + 1)


def _halves(group: list[int]) -> list[list[int]]:
    if len(group) <= 2:
        return [group]
    middle = (len(group) + 1) // 2
    return [group[:middle], group[middle:]]


def _slowest(network: Network, group: list[int]) -> float:
    """A collective over the group, as a ring: as fast as its slowest pair of neighbours."""
    if len(group) == 1:
        return SPEED
    ring = [*group, group[0]] if len(group) > 2 else group
    return min(network.speed(_pair(one, other)) for one, other in pairwise(ring))


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)


def _row(method: Callable[[Network, int], Found], nodes: int, bad: int, links: int, runs: int) -> str:
    """Recall and false positives of the method over so many networks."""
    right = wrong = right_links = wrong_links = 0
    screened, rounds = 0, 0
    for seed in range(runs):
        chance = random.Random(f"{nodes} {bad} {links} {seed}")  # noqa: S311 - reproducible, not secret
        bad_links: set[Pair] = set()
        while len(bad_links) < links:
            bad_links.add(_pair(*chance.sample(range(nodes), 2)))
        network = Network(nodes, set(chance.sample(range(nodes), bad)), bad_links, chance)
        found = method(network, seed)
        right += len(found.nodes & network.bad_nodes)
        wrong += len(found.nodes - network.bad_nodes)
        right_links += len(found.links & bad_links)
        wrong_links += len(found.links - bad_links)
        screened, rounds = max(screened, found.screened), max(rounds, found.rounds)
    recall = f"{right / (bad * runs):6.3f}" if bad else "     -"
    link_recall = f"{right_links / (links * runs):6.3f}" if links else "     -"
    false = f"{(wrong + wrong_links) / runs:6.3f}"
    return f"{nodes:6} {bad:4} {links:5}  {recall} {link_recall}  {false}  {screened:6} {rounds:6}"


def main() -> None:
    """Print a table for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nodes", type=int, nargs="*", default=NODES)
    parser.add_argument(
        "--runs", type=int, default=50, help="networks for each row, a tenth of them above 1,000 nodes"
    )
    options = parser.parse_args()
    heading = (
        f"{'nodes':>6} {'bad':>4} {'links':>5}  {'recall':>6} {'links':>6}"
        f"  {'false':>6}  {'screen':>6} {'rounds':>6}"
    )
    three = f"gpudiag, the screen held to {SCREEN_ROUNDS} rounds at every number of nodes"
    methods: tuple[tuple[str, Callable[[Network, int], Found], int], ...] = (
        (f"gpudiag ({SCREEN_ROUNDS} rounds, all pairs up to {ALL_PAIRS_UP_TO} nodes)", ours, 10_000),
        (three, lambda network, seed: ours(network, seed, SCREEN_ROUNDS), 10_000),
        ("round robin: every pair once", round_robin, 256),
        ("halving", halving, 10_000),
    )
    for name, method, most in methods:
        print(f"\n{name}\n{heading}")
        for nodes in (one for one in options.nodes if one <= most):
            runs = options.runs if nodes <= 1000 else max(1, options.runs // 10)
            for bad in dict.fromkeys((0, 1, 2, math.ceil(nodes / MANY))):
                print(_row(method, nodes, bad, 0, runs), flush=True)
            print(_row(method, nodes, 0, 1, runs), flush=True)


if __name__ == "__main__":
    main()
