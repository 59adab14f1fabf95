"""A labelled fabric: who meets whom, and which part of it is named; on simulated networks that the judge does not know."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.localise_fabric import SHAPES, localise, make_faults, names
from benchmarks.simulated_fabric import SimulatedFabric
from gpudiag.collectives.fabric import INSIDE, NVLINK, UNKNOWN, Fabric, MixedRounds, Way
from gpudiag.collectives.fabric_blame import Passed, Sort, explain
from gpudiag.collectives.fabric_localiser import SCREEN_ROUNDS, FabricLocaliser
from gpudiag.collectives.localise import Round
from gpudiag.model.measure import ExchangePhase, Node
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
def test_in_each_round_a_node_has_one_partner_and_all_leaves_meet(sizes):
    fabric = leaves(*sizes)
    rounds = MixedRounds(fabric, seed=3)
    met, stayed = Counter(), Counter()
    for _ in range(SCREEN_ROUNDS):
        pairs = rounds.next_round()
        busy = [one for pair in pairs for one in pair]
        assert len(busy) == len(set(busy))
        for pair in pairs:
            way = fabric.way(pair)
            met.update(way.ends)
            stayed.update(pair if way.kind == INSIDE else ())
    assert len(met) == len(sizes) * (len(sizes) - 1) // 2
    alone = sum(size == 1 for size in sizes)
    assert len(stayed) >= (len(fabric.nodes) - alone) * 3 / 4  # an odd one may be left over


@walk([(16, 16, 16, 16), (11, 3, 15, 2, 9)])
def test_no_two_pairs_that_leave_one_leaf_exchange_at_the_same_time(sizes):
    fabric = leaves(*sizes)
    rounds = MixedRounds(fabric, seed=3)
    pairs = rounds.next_round()
    current = Round(1, ExchangePhase.SCREEN, pairs, rounds.waits(pairs))
    assert all(place > before for place, earlier in enumerate(current.waits) for before in earlier)
    seen = set()
    for pair, turn in zip(pairs, current.turns, strict=True):
        for leaf in fabric.way(pair).left:
            assert (leaf, turn) not in seen
            seen.add((leaf, turn))


def test_a_forced_pair_is_in_the_round():
    fabric = leaves(4, 4)
    assert MixedRounds(fabric, 1).next_round([(0, 5), (0, 6), (1, 6)])[:2] == ((0, 5), (1, 6))


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


def test_nodes_without_labels_and_with_another_ones_take_part():
    for seed in range(4):
        network = SimulatedFabric(
            64, replace(SHAPES["static"], unlabelled=0.1, swapped=1), random.Random(seed)
        )
        network.faults = make_faults(network, "node")
        suspects = localise(network, network.labelled(), seed, labels=True).suspects
        assert any(names(one, network.faults[0], network) for one in suspects)


# --- all of it


@pytest.mark.parametrize(
    "shape", ["static", "static, 2 nodes an uplink", "hash", "adaptive", "NVLink, static"]
)
def test_a_healthy_network_accuses_nothing(shape: str):
    for seed in range(4):
        network = SimulatedFabric(64, SHAPES[shape], random.Random(seed))
        assert localise(network, network.labelled(), seed, labels=True).suspects == ()


@walk(
    [
        ("static", "uplink"), ("static", "uplinks"), ("static", "path"), ("static", "node"), ("static", "four nodes"),
        ("static, 2 nodes an uplink", "path"), ("static, pods", "uplinks"), ("hash", "uplinks"),
        ("NVLink, static", "network"), ("NVLink, static", "nvlink"), ("NVLink, static", "uplinks"),
    ]
)  # fmt: skip
def test_what_is_bad_is_named(case):
    shape, kind = case
    named = wanted = wrong = 0
    for seed in range(4):
        network = SimulatedFabric(64, SHAPES[shape], random.Random(f"{case} {seed}"))
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
