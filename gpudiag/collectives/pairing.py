"""Who exchanges data with whom: rounds of disjoint pairs, and rings. Pure, and the same on every rank."""

import random
from collections.abc import Iterable, Sequence

Pair = tuple[int, int]

# With so few nodes all pairs are measured: at most seven rounds.
ALL_PAIRS_UP_TO = 8
# With a few more all pairs are, in rings of two for each node: at most eight further rounds.
ALL_LINKS_UP_TO = 16
# Three different partners for each node: a healthy one meets at least one healthy partner, but for one node in a
# thousand where one in ten is bad (simulated: benchmarks/localise_scale.py).
SCREEN_ROUNDS = 3


def screen_rounds(nodes: int, seed: int, rounds: int | None = None) -> tuple[tuple[Pair, ...], ...]:
    """Rounds of disjoint pairs, no pair twice, in random order: `rounds` of them, or as many as that many nodes need.

    They are rounds of a tournament (the circle method), so that with all of its rounds each node meets each other one.
    Of an odd number of nodes one sits out in each round, each time another one.
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
    """The pairs of nodes that are so far apart on a ring of all: each node is in two, or in one with its opposite."""
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
