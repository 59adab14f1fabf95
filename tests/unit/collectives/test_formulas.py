"""The definitions of nccl-tests: sizes, bus factors, bandwidths."""

from pathlib import Path

import pytest

from gpudiag.collectives.formulas import (
    DTYPE_SIZES_BYTES,
    NO_DATA,
    ONE_RANK,
    algbw_bytes_per_second,
    busbw_bytes_per_second,
    elements_for,
    parts,
)
from gpudiag.collectives.operations import CALLS
from gpudiag.model.operation import OPERATIONS
from gpudiag.model.plan import DTYPES

PAGE = (Path(__file__).parents[3] / "docs/nccl-test.md").read_text()
# busbw / algbw on four ranks; a barrier moves no data.
FACTORS = {
    "all_reduce": 1.5,
    "all_gather": 0.75,
    "reduce_scatter": 0.75,
    "all_to_all": 0.75,
    "alltoallv": 0.75,
    "hypercube": 1.0,
    "gather": 0.75,
    "scatter": 0.75,
    "broadcast": 1.0,
    "reduce": 1.0,
    "send_recv": 1.0,
}


def test_every_operation_and_dtype_of_the_plan_has_its_definition() -> None:
    """A new operation has its entry here, in CALLS of collectives/operations.py, and above in FACTORS."""
    assert set(CALLS) == set(OPERATIONS)
    assert set(FACTORS) == set(OPERATIONS) - {"barrier"}
    assert set(DTYPE_SIZES_BYTES) == set(DTYPES)


def test_every_operation_has_its_row_in_the_page() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert [op for op in OPERATIONS if not any(f"`{op}`" in row for row in rows)] == []


@pytest.mark.parametrize(("world_size", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_all_reduce_moves_twice_n_minus_one_over_n(world_size: int, factor: float) -> None:
    assert busbw_bytes_per_second("all_reduce", 1e9, world_size) == pytest.approx(factor * 1e9)


@pytest.mark.parametrize(("op", "factor"), FACTORS.items())
def test_bus_factors_on_four_ranks_are_those_of_nccl_tests(op: str, factor: float) -> None:
    assert busbw_bytes_per_second(op, 1e9, 4) == pytest.approx(factor * 1e9)


def test_a_hypercube_counts_what_a_rank_gets_of_the_others() -> None:
    """HyperCubeGetBw of nccl-tests: count x typesize x (nranks - 1) / time, and a bus factor of 1."""
    assert algbw_bytes_per_second("hypercube", 1024, 1e-3, 4) == pytest.approx(1024 * 3 / 4 / 1e-3)
    assert [world for world in range(1, 17) if OPERATIONS["hypercube"].runs_on(world)] == [2, 4, 8, 16]


def test_of_alltoallv_each_rank_sends_as_much_as_it_gets_and_more_to_those_farther_away() -> None:
    """AlltoAllvGetPeerBytesDistanceWeighted of nccl-tests, with its default spread."""
    layouts = [OPERATIONS["alltoallv"].layout(rank, 4) for rank in range(4)]
    assert layouts[0].send_units == (1, 2, 3)
    assert {(one.sent_units, one.received_units) for one in layouts} == {(6, 6)}
    assert parts("alltoallv", 4) == 6
    for rank, layout in enumerate(layouts):
        for block in layout.receive:
            sender = layouts[block.source]
            assert sender.lengths[sender.send.index(rank)] == block.units


def test_algorithm_bandwidth_is_size_over_time() -> None:
    assert algbw_bytes_per_second("all_reduce", 16 * 1024**2, 0.0397) == pytest.approx(0.4226e9, rel=1e-3)


def test_a_barrier_moves_no_data() -> None:
    algbw = algbw_bytes_per_second("barrier", 0, 1e-3)
    assert algbw is NO_DATA
    assert busbw_bytes_per_second("barrier", algbw, 4) is NO_DATA


def test_parts_are_all_of_the_same_length() -> None:
    for op in OPERATIONS:
        for size in (0, 1, 8, 1000, 1003):
            elements = elements_for(op, "float32", size, 3)
            assert elements % parts(op, 3) == 0
            assert (elements == 0) == (size == 0 or op == "barrier")


def test_one_rank_uses_no_bus() -> None:
    assert busbw_bytes_per_second("all_reduce", 1e9, 1) is ONE_RANK


@pytest.mark.parametrize(
    ("dtype", "size_bytes", "elements"),
    [("float32", 8, 2), ("float64", 8, 1), ("int8", 7, 7), ("float32", 7, 1), ("float64", 1, 1)],
)
def test_a_size_holds_whole_elements_and_at_least_one(dtype: str, size_bytes: int, elements: int) -> None:
    assert elements_for("all_reduce", dtype, size_bytes, world_size=4) == elements
