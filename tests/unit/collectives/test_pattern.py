"""The exact data: right results in any order pass bit for bit, and every fault of the catalogue shows."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.collectives.inspection import find_wrong
from gpudiag.collectives.pattern import (
    ROUNDS,
    TILE_ELEMENTS,
    as_bits,
    is_exact,
    reduction_table,
    tolerance_ulps,
    torch_dtype,
)
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.plan import DTYPES, FLOAT_DTYPES
from tests.unit.collectives.faulty_network import (
    Fault,
    Network,
    dropped,
    duplicated,
    replaced,
    shifted,
    stale,
)
from tests.walking import walk

ELEMENTS = 257  # odd: no power of two hides an offset
NARROW = ("float8_e4m3fn", "float8_e5m2")
ADDING_DTYPES = tuple(dtype for dtype in DTYPES if dtype not in NARROW)  # torch adds no 8-bit floats on CPU

dtypes = st.sampled_from(ADDING_DTYPES)
world_sizes = st.integers(min_value=2, max_value=8)
rounds = st.integers(min_value=1, max_value=200)
thorough = settings(max_examples=60, deadline=None)


def wrong_share(network: Network, round_number: int, rank: int = 0, tolerance_ulps: int = 0) -> float:
    """The share of a rank's elements that are wrong."""
    wrong = total = 0
    for block, found in network.receive(rank, round_number):
        expected = network.patterns[rank].expected(block, round_number, network.elements)
        offsets = find_wrong(found, expected, tolerance_ulps)
        wrong += 0 if offsets is None else offsets.elements.count
        total += len(expected)
    return wrong / total


@given(dtypes, st.integers(min_value=1, max_value=40), rounds, st.randoms(use_true_random=False))
@thorough
def test_any_order_and_tree_of_summation_is_exact(
    dtype: str, world_size: int, round_number: int, source: Any
) -> None:
    network = Network("all_reduce", dtype, "sum", world_size, ELEMENTS)
    parts = [network.sent(rank, 0, round_number).clone() for rank in range(world_size)]
    while len(parts) > 1:
        source.shuffle(parts)
        parts.append(parts.pop() + parts.pop())
    expected = network.patterns[0].block(None, 0, round_number, ELEMENTS)
    assert find_wrong(parts[0], expected) is None


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op != "barrier"])
@pytest.mark.parametrize("dtype", ADDING_DTYPES)
def test_every_operation_without_a_fault_is_exact_on_every_rank(op: str, dtype: str) -> None:
    reduces = OPERATIONS[op].reduces
    for reduce in ("sum", "min", "max") if reduces else (None,):
        for world_size in (1, 2, 3, 8):
            network = Network(op, dtype, reduce, world_size, ELEMENTS)
            for rank in range(world_size):
                if OPERATIONS[op].layout(rank, world_size).receive:
                    assert wrong_share(network, 5, rank) == 0


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOAT_DTYPES if dtype not in NARROW])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 7, 8, 31])
def test_averages_are_exact_for_powers_of_two_and_within_two_units_else(dtype: str, world_size: int) -> None:
    exact = is_exact("avg", world_size)
    assert exact == (world_size in (1, 2, 4, 8))
    network = Network("all_reduce", dtype, "avg", world_size, ELEMENTS)
    assert wrong_share(network, 3, tolerance_ulps=0 if exact else 2) == 0


def premultiplied(dtype: str, world_size: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An average as NCCL makes it around a ring: every part times 1/n, every sum rounded; and what is
    expected.
    """
    table, kind = reduction_table("avg", dtype, world_size), torch_dtype(dtype)
    values, expected = (
        torch.tensor(row, dtype=torch.float64).to(torch.float32).to(kind)
        for row in (table.values, table.reduced)
    )
    share = torch.tensor(1 / world_size).to(kind).float()
    total = torch.zeros(())
    for step in range(world_size):
        part = values.float().roll(-((first + step) % world_size))
        total = (total + (part * share).to(kind).float()).to(kind).float()
    return total.to(kind), expected


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOAT_DTYPES if dtype != "float64"])
@pytest.mark.parametrize("world_size", [3, 5, 6, 7, 9, 11, 12, 13, 14, 15, 24, 31, 63])
def test_an_average_of_premultiplied_parts_is_within_the_tolerance(dtype: str, world_size: int) -> None:
    allowed = tolerance_ulps("avg", dtype, world_size)
    for first in range(world_size):
        found, expected = premultiplied(dtype, world_size, first)
        assert find_wrong(found, expected, allowed) is None


@walk([7, 14, 15])
def test_two_units_are_too_few_for_the_average_of_seven_ranks(world_size: int) -> None:
    beyond = [find_wrong(*premultiplied("bfloat16", world_size, first), 2) for first in range(world_size)]
    assert any(offsets is not None for offsets in beyond)


def test_what_is_exact_has_no_tolerance() -> None:
    assert {tolerance_ulps("sum", dtype, 7) for dtype in FLOAT_DTYPES} == {0}
    assert {tolerance_ulps("avg", dtype, 8) for dtype in FLOAT_DTYPES} == {0}
    assert [tolerance_ulps("avg", dtype, 7) for dtype in ("bfloat16", "float16", "float32")] == [4, 5, 4]


@given(dtypes, world_sizes, rounds, st.sampled_from([dropped, replaced]), st.data())
@thorough
def test_a_dropped_or_replaced_contribution_changes_every_element_of_a_sum(
    dtype: str, world_size: int, round_number: int, fault: Fault, data: st.DataObject
) -> None:
    source = data.draw(st.integers(0, world_size - 1))
    network = Network("all_reduce", dtype, "sum", world_size, ELEMENTS, {source: fault})
    assert wrong_share(network, round_number) == 1.0


@given(dtypes, world_sizes, rounds, st.data())
@thorough
def test_a_contribution_counted_twice_changes_every_element_of_a_sum(
    dtype: str, world_size: int, round_number: int, data: st.DataObject
) -> None:
    source = data.draw(st.integers(0, world_size - 1))
    network = Network("all_reduce", dtype, "sum", world_size, ELEMENTS, {source: duplicated})
    assert wrong_share(network, round_number) == 1.0


@given(
    dtypes,
    st.sampled_from([op for op in OPERATIONS if op != "barrier"]),
    world_sizes,
    st.integers(min_value=2, max_value=200),
    st.one_of(st.just(stale), st.integers(min_value=1, max_value=64).map(shifted)),
    st.data(),
)
@thorough
def test_stale_and_shifted_data_is_found_in_every_operation(
    dtype: str, op: str, world_size: int, round_number: int, fault: Fault, data: st.DataObject
) -> None:
    layouts = [OPERATIONS[op].layout(rank, world_size) for rank in range(world_size)]
    pairs = [
        (source, rank)
        for rank, layout in enumerate(layouts)
        for source in range(world_size)
        if any(block.source in (source, None) for block in layout.receive)
    ]
    source, rank = data.draw(st.sampled_from(pairs))
    reduce = "sum" if OPERATIONS[op].reduces else None
    network = Network(op, dtype, reduce, world_size, ELEMENTS, {source: fault})
    if round_number % ROUNDS == 0:  # the sequence starts anew: the round before lies at its end
        return
    assert wrong_share(network, round_number, rank) > 0.7 / len(layouts[rank].receive)


@given(dtypes, world_sizes, rounds, st.data())
@thorough
def test_a_single_flipped_bit_is_found_where_it_is(
    dtype: str, world_size: int, round_number: int, data: st.DataObject
) -> None:
    network = Network("all_reduce", dtype, "sum", world_size, ELEMENTS)
    ((block, result),) = network.receive(0, round_number)
    expected = network.patterns[0].expected(block, round_number, ELEMENTS)
    offset = data.draw(st.integers(0, ELEMENTS - 1))
    bits = 8 * result.element_size()
    bit = data.draw(st.integers(0, bits - 1))
    mask = 1 << bit
    is_signed = bits > 8
    as_bits(result)[offset] ^= mask - (1 << bits) if is_signed and bit == bits - 1 else mask
    offsets = find_wrong(result, expected)
    assert offsets is not None
    wrong = offsets.elements
    assert (wrong.count, wrong.first_offset, wrong.last_offset, wrong.run_length) == (1, offset, offset, 1)
    assert wrong.xor_mask == wrong.flipped_bits == mask


@walk(ADDING_DTYPES)
def test_wrong_data_beyond_the_first_tile_is_found(dtype: str) -> None:
    elements = 3 * TILE_ELEMENTS
    network = Network("all_reduce", dtype, "sum", 2, elements)
    assert wrong_share(network, 0) == 0
    network.faults[1] = lambda net, source, block, number: net.sent(source, block, number).roll(TILE_ELEMENTS)
    assert wrong_share(network, 0) > 0.9


@walk(DTYPES)
def test_looking_up_is_the_same_as_the_sequence(dtype: str) -> None:
    pattern = Network("all_reduce", dtype, "sum", 4, 2 * TILE_ELEMENTS).patterns[1]
    for source in (None, 0, 3):
        start = pattern.position(2, 7)
        positions = torch.arange(start, start + 2 * TILE_ELEMENTS)
        found = pattern.look_up(source, positions)
        assert torch.equal(as_bits(found), as_bits(pattern.block(source, 2, 7, 2 * TILE_ELEMENTS)))


@walk(DTYPES)
def test_moved_data_is_finite_and_tells_ranks_apart(dtype: str) -> None:
    network = Network("all_gather", dtype, None, 8, ELEMENTS)
    blocks = [network.sent(rank, 0, 1) for rank in range(8)]
    assert all(math.isfinite(value) for value in blocks[0].to(torch.float64).tolist())
    for first in range(8):
        for second in range(first):
            assert bool((as_bits(blocks[first]) != as_bits(blocks[second])).all())


def test_distances_are_told_as_rounds_or_blocks_or_neither() -> None:
    pattern = Network("all_to_all", "float32", None, 4, 16).patterns[0]
    one_round = pattern.position(0, 1)
    one_block = pattern.position(1, 0)
    assert pattern.displacement(-2 * one_round) == (-2, 0)
    assert pattern.displacement(3 * one_block) == (0, 3)
    assert pattern.displacement(-one_block) == (0, -1)
    assert pattern.displacement(1) == (0, 0)
    assert pattern.displacement(4 * one_block) == (0, 0)
