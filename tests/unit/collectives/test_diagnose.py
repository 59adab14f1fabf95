"""Wrong data tells what happened, and to which rank's data."""

import pytest
import torch

from gpudiag.collectives.inspection import diagnose, find_wrong
from gpudiag.collectives.pattern import as_bits, torch_dtype
from gpudiag.collectives.results import Diagnosis
from gpudiag.model.plan import DTYPES
from tests.unit.collectives.faulty_network import (
    Fault,
    Network,
    SummingNetwork,
    dropped,
    duplicated,
    misplaced,
    replaced,
    shifted,
    stale,
)

WORLD_SIZE, GUILTY, ROUND = 4, 2, 9
ADDING_DTYPES = tuple(dtype for dtype in DTYPES if not dtype.startswith("float8"))


def diagnose_part(network: Network, rank: int, part: int) -> Diagnosis | None:
    block, found = network.receive(rank, ROUND)[part]
    pattern = network.patterns[rank]
    offsets = find_wrong(found, pattern.expected(block, ROUND, network.elements))
    return (
        None if offsets is None else diagnose(pattern, network.reduce, block, ROUND, found, offsets.offsets)
    )


@pytest.mark.parametrize(
    ("fault", "diagnosis"),
    [
        (dropped, Diagnosis("dropped", GUILTY)),
        (duplicated, Diagnosis("duplicated", GUILTY)),
        (replaced, Diagnosis("replaced", GUILTY + 1, instead_of=GUILTY)),
        (stale, Diagnosis("stale", GUILTY, distance=-1)),
        (shifted(3), Diagnosis("shifted", GUILTY, distance=-3)),
        (shifted(-5), Diagnosis("shifted", GUILTY, distance=5)),
    ],
    ids=["dropped", "duplicated", "replaced", "stale", "shifted", "shifted-back"],
)
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "reduce"])
def test_a_wrong_sum_names_the_rank_whose_part_is_wrong(op: str, fault: Fault, diagnosis: Diagnosis) -> None:
    def told(dtype: str) -> Diagnosis | None:
        return diagnose_part(Network(op, dtype, "sum", WORLD_SIZE, 1000, {GUILTY: fault}), 0, 0)

    assert {dtype: told(dtype) for dtype in ADDING_DTYPES} == dict.fromkeys(ADDING_DTYPES, diagnosis)


@pytest.mark.parametrize(
    ("fault", "diagnosis"),
    [
        (dropped, Diagnosis("dropped", GUILTY)),
        (replaced, Diagnosis("replaced", GUILTY + 1, instead_of=GUILTY)),
        (stale, Diagnosis("stale", GUILTY, distance=-1)),
        (misplaced, Diagnosis("misplaced", GUILTY, distance=1)),
        (shifted(3), Diagnosis("shifted", GUILTY, distance=-3)),
    ],
    ids=["dropped", "replaced", "stale", "misplaced", "shifted"],
)
@pytest.mark.parametrize("op", ["all_gather", "all_to_all", "gather"])
def test_wrong_moved_data_names_the_rank_that_it_is_from(op: str, fault: Fault, diagnosis: Diagnosis) -> None:
    def told(dtype: str, part: int) -> Diagnosis | None:
        return diagnose_part(Network(op, dtype, None, WORLD_SIZE, 1000, {GUILTY: fault}), 0, part)

    assert {dtype: told(dtype, GUILTY) for dtype in DTYPES} == dict.fromkeys(DTYPES, diagnosis)
    assert {dtype: told(dtype, 1) for dtype in DTYPES} == dict.fromkeys(DTYPES)  # the other parts are right


@pytest.mark.parametrize("reduce", ["min", "max"])
@pytest.mark.parametrize("dtype", ADDING_DTYPES)
def test_a_wrong_extreme_names_the_rank_that_was_not_looked_at(dtype: str, reduce: str) -> None:
    network = Network("all_reduce", dtype, reduce, WORLD_SIZE, 1000, {GUILTY: dropped})
    assert diagnose_part(network, 0, 0) == Diagnosis("dropped", GUILTY)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fault", [dropped, duplicated])
def test_a_wrong_average_names_the_rank_too(dtype: str, fault: Fault) -> None:
    network = Network("all_reduce", dtype, "avg", WORLD_SIZE, 1000, {GUILTY: fault})
    assert diagnose_part(network, 0, 0) == Diagnosis(fault.__name__, GUILTY)


@pytest.mark.parametrize("reduce", ["avg", "min", "max"])
@pytest.mark.parametrize("world_size", [2, 4, 7])
def test_a_sum_in_the_place_of_another_reduction_is_told_so(world_size: int, reduce: str) -> None:
    def told(dtype: str) -> Diagnosis | None:
        network = SummingNetwork("reduce_scatter", dtype, reduce, world_size, 1000)
        return diagnose_part(network, 1, 0)

    dtypes = [name for name in ADDING_DTYPES if reduce != "avg" or torch_dtype(name).is_floating_point]
    assert {dtype: told(dtype) for dtype in dtypes} == dict.fromkeys(dtypes, Diagnosis("summed"))


def test_elements_that_a_stuck_bit_doubles_are_no_sum() -> None:
    """The average of two ranks with the lowest bit of its exponent stuck at one."""
    network = Network("all_reduce", "float32", "avg", 2, 1000)
    ((block, found),) = network.receive(0, ROUND)
    bits = as_bits(found)
    bits |= 1 << 23
    expected = network.patterns[0].expected(block, ROUND, network.elements)
    wrong = find_wrong(found, expected)
    assert wrong is not None
    assert torch.equal(found[wrong.offsets], 2 * expected[wrong.offsets])
    assert diagnose(network.patterns[0], "avg", block, ROUND, found, wrong.offsets) != Diagnosis("summed")


@pytest.mark.parametrize("dtype", ADDING_DTYPES)
def test_a_flipped_bit_is_told_as_one(dtype: str) -> None:
    network = Network("all_reduce", dtype, "sum", WORLD_SIZE, 1000)
    ((block, found),) = network.receive(0, ROUND)
    as_bits(found)[500] ^= 1
    assert diagnose(network.patterns[0], "sum", block, ROUND, found, torch.tensor([500])) == Diagnosis(
        "flipped"
    )


def test_noise_is_not_explained_away() -> None:
    network = Network("all_reduce", "float32", "sum", WORLD_SIZE, 1000)
    ((block, found),) = network.receive(0, ROUND)
    generator = torch.Generator().manual_seed(1)
    found[:] = torch.randn(1000, generator=generator)
    offsets = torch.arange(1000)
    assert diagnose(network.patterns[0], "sum", block, ROUND, found, offsets) == Diagnosis("unknown")


def test_many_ranks_are_searched_near_by() -> None:
    network = Network("all_gather", "float32", None, 100, 50, {3: replaced})
    block, found = network.receive(0, ROUND)[3]
    offsets = torch.arange(50)
    assert diagnose(network.patterns[0], None, block, ROUND, found, offsets) == Diagnosis("replaced", 4, 3)
