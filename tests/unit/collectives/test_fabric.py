"""A labelled fabric: who meets whom, and which part of it is named.

On simulated networks that the judge does not know.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.localise_fabric import SHAPES, localise, make_faults, names
from benchmarks.simulated_fabric import Fault, SimulatedFabric
from gpudiag.collectives.fabric import INSIDE, NVLINK, UNKNOWN, Fabric, Way
from gpudiag.collectives.fabric_blame import Passed, Sort, explain
from gpudiag.collectives.fabric_load import TURNS, LeafLoad
from gpudiag.collectives.fabric_localiser import FabricLocaliser
from gpudiag.collectives.fabric_rounds import MOST_CROSSING, MOST_TURNS, SCREEN_ROUNDS, MixedRounds
from gpudiag.collectives.localise import Round
from gpudiag.model.measure import Exchange, ExchangePhase, FabricPart, Node
from gpudiag.model.reading import NOT_ASKED
from tests.walking import walk


def node(number: int, *switches: str, domain: str = "") -> Node:
    return Node(f"n{number}", (number,), switches or NOT_ASKED, domain or NOT_ASKED)


def leaves(*sizes: int) -> Fabric:
    places = [leaf for leaf, size in enumerate(sizes) for _ in range(size)]
    return Fabric([node(number, f"leaf s{leaf}") for number, leaf in enumerate(places)])


# --- what a pair passes


def test_a_pair_is_held_against_those_that_climb_as_many_levels():
    fabric = Fabric(
        [
            node(0, "spine a", "leaf 1"),
            node(1, "spine a", "leaf 1"),
            node(2, "spine a", "leaf 2"),
            node(3, "spine b", "leaf 3"),
            node(4),
        ]
    )
    assert fabric.way((0, 1)) == Way(INSIDE, inside="leaf 1")
    assert fabric.way((0, 2)) == Way("1", ("leaf 1", "leaf 2"), (("leaf 1", "leaf 2"),))
    far = fabric.way((0, 3))
    assert (far.kind, far.ends) == ("2", (("spine a", "spine b"), ("leaf 1", "leaf 3")))
    assert set(far.left) == {"spine a", "leaf 1", "spine b", "leaf 3"}
    assert fabric.way((0, 4)).kind == UNKNOWN
    assert (fabric.labelled, fabric.is_divided) == (4, True)


def test_nvlink_between_nodes_is_a_way_of_its_own():
    fabric = Fabric([node(place, "leaf 1", domain=f"d{place // 2}") for place in range(4)])
    assert fabric.way((0, 1)) == Way(NVLINK, inside="d0")
    assert fabric.way((0, 2)) == Way(INSIDE, inside="leaf 1")
    domains = Fabric([node(place, domain=f"d{place // 2}") for place in range(4)])
    assert domains.way((0, 2)).left == ("d0", "d1")  # without a leaf the domain is what is left


def test_labels_that_divide_nothing_are_no_fabric():
    assert not leaves(8).is_divided
    assert not Fabric([node(number, f"leaf {number}") for number in range(4)]).is_divided
    assert not Fabric([node(number) for number in range(4)]).is_divided


# --- who meets whom


@walk([(16, 16, 16, 16), (11, 3, 15, 2, 9), (32, 32), (5, 1, 1, 1), (18,) * 14])
def test_in_each_round_a_pair_is_once_and_all_leaves_meet(sizes):
    fabric = leaves(*sizes)
    rounds = MixedRounds(fabric, seed=3)
    met, stayed = Counter(), Counter()
    for _ in range(SCREEN_ROUNDS):
        pairs = rounds.next_round()
        assert len(set(pairs)) == len(pairs)
        for pair in pairs:
            way = fabric.way(pair)
            met.update(way.ends)
            stayed.update(pair if way.kind == INSIDE else ())
    assert len(met) == len(sizes) * (len(sizes) - 1) // 2
    assert len(stayed) == sum(size for size in sizes if size > 1)


@walk([(16, 16, 16, 16), (11, 3, 15, 2, 9)])
def test_without_filling_a_node_is_in_one_pair_of_a_round(sizes):
    pairs = MixedRounds(leaves(*sizes), seed=3, fill=False).next_round([(0, 17), (0, 18)])
    busy = [one for pair in pairs for one in pair]
    assert len(busy) == len(set(busy))


@walk([(16, 16, 16, 16), (11, 3, 15, 2, 9)])
def test_no_node_and_no_leaf_has_two_pairs_in_one_turn(sizes):
    fabric = leaves(*sizes)
    rounds = MixedRounds(fabric, seed=3)
    pairs = rounds.next_round(turns=40)
    current = Round(1, ExchangePhase.SCREEN, pairs, rounds.waits(pairs))
    assert all(place > before for place, earlier in enumerate(current.waits) for before in earlier)
    assert max(current.turns) < 40
    seen = set()
    for pair, turn in zip(pairs, current.turns, strict=True):
        for who in (*pair, *fabric.way(pair).left):
            assert (who, turn) not in seen
            seen.add((who, turn))


def test_a_pair_without_a_label_leaves_alone_in_its_turn():
    fabric = Fabric([*leaves(4, 4, 4).nodes, *(node(number) for number in range(12, 16))])
    rounds = MixedRounds(fabric, seed=3)
    pairs = rounds.next_round()
    turns = Round(1, ExchangePhase.SCREEN, pairs, rounds.waits(pairs)).turns
    unlabelled = [turn for pair, turn in zip(pairs, turns, strict=True) if max(pair) >= 12]
    leaving = Counter(
        turn for pair, turn in zip(pairs, turns, strict=True) if fabric.way(pair).kind != INSIDE
    )
    assert unlabelled
    assert all(leaving[turn] == 1 for turn in unlabelled)


@walk([(16, 16, 16, 16), (11, 3, 15, 2, 9), (12, 12, 14, 10, 16)])
def test_where_the_time_allows_it_all_pairs_meet_in_eight_rounds(sizes):
    rounds, met = MixedRounds(leaves(*sizes), seed=3), set()
    for number in range(SCREEN_ROUNDS):
        met.update(rounds.next_round(turns=rounds.turns_wanted(SCREEN_ROUNDS - number)))
    assert len(met) >= 0.97 * sum(sizes) * (sum(sizes) - 1) / 2


def test_of_more_nodes_than_can_all_meet_a_round_has_few_turns():
    assert MixedRounds(leaves(*(16,) * 16), 1).turns_wanted(SCREEN_ROUNDS) == MOST_CROSSING
    assert MOST_CROSSING < MixedRounds(leaves(*(16,) * 4), 1).turns_wanted(SCREEN_ROUNDS) <= MOST_TURNS


def test_a_node_that_may_not_finish_is_in_one_pair():
    pairs = MixedRounds(leaves(8, 8, 8), 1).next_round([(0, 9), (0, 10)], turns=60, once={0, 3})
    met = Counter(one for pair in pairs for one in pair)
    assert (met[0], met[3]) == (1, 1)
    assert met[1] > 1


def test_a_forced_pair_is_in_the_round_and_others_of_its_nodes_take_turns():
    pairs = MixedRounds(leaves(4, 4), 1).next_round([(0, 5), (0, 6), (1, 6)])
    assert {(0, 5), (0, 6), (1, 6)} <= set(pairs)


def test_turns_that_took_too_long_are_fewer_in_the_next_round():
    def turns_of(seconds: float) -> list[int]:
        localiser = FabricLocaliser(leaves(16, 16, 16, 16), seed=1, slow_share=0.9)
        turns: list[int] = []
        while (current := localiser.next_round()) is not None:
            if current.phase is ExchangePhase.SCREEN:
                turns.append(1 + max(current.turns))
            found = (
                Exchange(current.number, current.phase, pair, 0, 1e10, 1e-4, 2e-4) for pair in current.pairs
            )
            localiser.add(found, (1 + max(current.turns)) * seconds)
        return turns

    assert max(turns_of(0.001)) > 60
    assert max(turns_of(0.05)[3:]) <= 60
    assert max(turns_of(0.3)) <= 2 * MOST_CROSSING


# --- leaves that send at once


@walk([(16, 16, 16, 16), (11, 9, 15, 2, 9), (4, 4, 4)])
def test_in_a_turn_equally_many_of_each_leaf_meet_another_leaf(sizes):
    fabric = leaves(*sizes)
    load = LeafLoad(fabric, seed=3)
    pairs = load.next_round()
    assert len(set(pairs)) == len(pairs)
    turns = Round(1, ExchangePhase.FULL, pairs, load.waits()).turns
    assert set(turns) == set(range(TURNS))
    for turn in range(TURNS):
        busy = [one for pair, at in zip(pairs, turns, strict=True) if at == turn for one in pair]
        assert len(set(busy)) == len(busy)
        third = sorted(sizes)[-3]
        count = Counter(fabric.leaf(one) for one in busy)
        assert all(third - 1 <= n <= third for leaf, n in count.items() if sizes[int(leaf[-1])] >= third)
    assert all(fabric.way(pair).left for pair in pairs)


def test_of_two_leaves_neither_can_be_the_odd_one():
    assert LeafLoad(leaves(8, 8), seed=1).next_round() == ()
    assert LeafLoad(leaves(8, 8, 1), seed=1).next_round() == ()


def sent_at_once(shape: str, seed: int, sigma: float, *, rounds: int = 4) -> tuple[SimulatedFabric, LeafLoad]:
    network = SimulatedFabric(64, replace(SHAPES[shape], sigma=sigma), random.Random(f"{shape} {seed}"))
    load = LeafLoad(Fabric(network.labelled()), seed)
    for number in range(1, rounds + 1):
        pairs = load.next_round()
        load.add(network.exchange(Round(number, ExchangePhase.FULL, pairs, load.waits())), 40e9)
    return network, load


@pytest.mark.sliced
@walk(["adaptive, 2 nodes an uplink", "adaptive, full leaves", "adaptive, uneven", "static", "hash"])
def test_no_leaf_of_a_healthy_network_is_weak_however_its_speeds_vary(shape: str):
    for seed in range(6):
        for sigma in (0.02, 0.05):
            _, load = sent_at_once(shape, seed, sigma)
            assert load.find(lambda pair: False, 2) == []


def test_what_is_known_to_be_bad_is_left_out_and_does_not_make_a_leaf_weak():
    network, load = sent_at_once("adaptive, full leaves", 1, 0.02, rounds=0)
    slow = [node for node in range(64) if network.leaf_of[node] == "leaf 1"][:5]
    network.faults = [Fault("node", 0.4, (node,)) for node in slow]
    for number in range(1, 5):
        pairs = load.next_round()
        load.add(network.exchange(Round(number, ExchangePhase.FULL, pairs, load.waits())), 40e9)
    assert load.find(lambda pair: bool(set(slow) & set(pair)), 2) == []


# --- what explains bad exchanges


def test_the_fewest_parts_are_blamed():
    """A node that is bad everywhere is no fault of its leaf, and a leaf that is is none of its nodes."""
    fabric = leaves(*(8,) * 8)
    pairs = [pair for seed in range(6) for pair in MixedRounds(fabric, seed).next_round()]

    def blamed(bad):
        passed = [Passed(number, pair, 0, bad(pair), False) for number, pair in enumerate(pairs)]
        return [(one.part.sort, one.part.nodes, one.part.switches) for one in explain(fabric, passed)]

    def left(pair, leaf):
        return leaf in fabric.way(pair).left

    assert blamed(lambda pair: False) == []
    assert blamed(lambda pair: 9 in pair) == [(Sort.NODE, (9,), ())]
    assert blamed(lambda pair: left(pair, "leaf s2")) == [(Sort.OUT, (), ("leaf s2",))]
    assert blamed(lambda pair: 9 in pair or left(pair, "leaf s5")) == [
        (Sort.OUT, (), ("leaf s5",)),
        (Sort.NODE, (9,), ()),
    ]
    half = random.Random(1)
    by_chance = {pair for pair in pairs if half.random() < 0.5}
    (one,) = blamed(lambda pair: left(pair, "leaf s2") and pair in by_chance)
    assert one == (Sort.OUT, (), ("leaf s2",))


def test_what_is_bad_by_chance_everywhere_blames_nothing():
    fabric = leaves(*(8,) * 8)
    chance = random.Random(5)
    for _ in range(20):
        rounds = MixedRounds(fabric, chance.randrange(1000))
        pairs = [pair for _ in range(8) for pair in rounds.next_round()]
        passed = [Passed(n, pair, 0, chance.random() < 0.3, False) for n, pair in enumerate(pairs)]
        assert explain(fabric, passed) == []


def test_what_is_far_slower_than_chance_is_told_from_many_that_are_a_little_slower():
    """One pair in ten is 15 % slow by chance, half of what leaves a leaf by 50 %."""
    fabric = leaves(*(8,) * 8)
    chance = random.Random(5)
    pairs = [pair for seed in range(6) for pair in MixedRounds(fabric, seed).next_round()]

    def seen(number, pair):
        if "leaf s2" in fabric.way(pair).left and chance.random() < 0.2:
            return Passed(number, pair, 0, True, False, depth=0.5)
        return Passed(number, pair, 0, chance.random() < 0.1, False, depth=0.15)

    (one,) = explain(fabric, [seen(number, pair) for number, pair in enumerate(pairs)])
    assert (one.part.sort, one.part.switches) == (Sort.OUT, ("leaf s2",))


def test_a_node_that_is_alone_in_its_leaf_may_be_its_uplink():
    fabric = leaves(8, 8, 8, 1)
    localiser = FabricLocaliser(fabric, seed=1, slow_share=0.9)
    while (current := localiser.next_round()) is not None:
        found = [
            Exchange(current.number, current.phase, pair, 0, 5e9 if 24 in pair else 1e10, 1e-4, 2e-4)
            for pair in current.pairs
        ]
        localiser.add(found)
    (one,) = localiser.conclude()
    assert (one.nodes, one.part, one.switches) == ((24,), FabricPart.ALONE, ("leaf s3",))


def test_nodes_without_labels_and_with_another_ones_take_part():
    for seed in range(4):
        network = SimulatedFabric(
            64, replace(SHAPES["static"], unlabelled=0.1, swapped=1), random.Random(seed)
        )
        network.faults = make_faults(network, "node")
        suspects = localise(network, network.labelled(), seed, labels=True).suspects
        assert any(names(one, network.faults[0], network) for one in suspects)


# --- all of it


# Four networks each, up to two seconds of a processor: the shapes differ, and how they are judged does not.
@pytest.mark.sliced
@pytest.mark.parametrize(
    "shape",
    [
        "static",
        "static, 2 nodes an uplink",
        "hash",
        "adaptive",
        "adaptive, full leaves",
        "NVLink, static",
        "static, uneven",
        "hash, uneven",
    ],
)
def test_a_healthy_network_accuses_nothing(shape: str):
    for seed in range(4):
        network = SimulatedFabric(64, SHAPES[shape], random.Random(seed))
        assert localise(network, network.labelled(), seed, labels=True).suspects == ()


@pytest.mark.sliced
@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        *(("static", "uplink"), ("static", "uplinks"), ("static", "path"), ("static", "node")),
        *(("static", "four nodes"), ("static, 2 nodes an uplink", "path"), ("static, pods", "uplinks")),
        *(("hash", "uplinks"), ("hash", "uplink"), ("static", "link"), ("static, uneven", "path")),
        *(("static, uneven", "link"), ("NVLink, static", "uplink"), ("NVLink, static", "network")),
        *(("NVLink, static", "nvlink"), ("NVLink, static", "uplinks"), ("adaptive, full leaves", "uplink")),
        *(("adaptive, full leaves", "uplinks"), ("NVLink, static, uneven", "network")),
    ],
)
def test_what_is_bad_is_named(shape: str, kind: str):
    named = wanted = wrong = 0
    for seed in range(4):
        network = SimulatedFabric(64, SHAPES[shape], random.Random(f"{(shape, kind)} {seed}"))
        network.faults = make_faults(network, kind)
        suspects = localise(network, network.labelled(), seed, labels=True).suspects
        named += sum(any(names(one, fault, network) for one in suspects) for fault in network.faults)
        wanted += len(network.faults)
        wrong += sum(not any(names(one, fault, network) for fault in network.faults) for one in suspects)
    assert named >= wanted - 1
    assert wrong <= 1


def test_few_nodes_all_meet_all_and_their_uplinks_are_named_too():
    fabric = leaves(4, 4, 4)
    localiser = FabricLocaliser(fabric, seed=1, slow_share=0.9)
    met = set()
    while (current := localiser.next_round()) is not None:
        met |= set(current.pairs) if current.phase is ExchangePhase.SCREEN else set()
        localiser.add(())
    assert len(met) == 66
