"""Many ranks' times make one result: the slowest rank counts."""

import pytest

from gpudiag.collectives.cases import Case
from gpudiag.collectives.results import (
    EarlyExit,
    RankCase,
    find_early_exit,
    merge_ranks,
    nearest_rank,
    variation,
)
from gpudiag.model.reading import NOT_ASKED, Missing

CASE = Case("all_reduce", "sum", "float32", 256, 1024, in_place=True, unaligned=False)
BARRIER = Case("barrier", None, "float32", 0, 0, in_place=True, unaligned=False)


def told(
    rank: int,
    times: tuple[int, ...],
    *,
    verified: int | None = None,
    wrong: int = 0,
    entered: tuple[int, ...] = (),
    isolated: tuple[int, ...] = (),
) -> RankCase:
    verified = len(times) if verified is None else verified
    return RankCase(rank, 0, len(times), times, entered, isolated, verified, wrong, 0.3, 0.1)


def test_the_time_of_an_iteration_is_that_of_its_slowest_rank() -> None:
    result = merge_ranks(CASE, (told(0, (1000, 5000, 2000)), told(1, (3000, 1000, 2000))), 2)
    assert result.iterations == 3
    assert result.time_p50_seconds == pytest.approx(3000e-9)
    assert result.time_p99_seconds == pytest.approx(5000e-9)
    assert result.time_average_seconds == pytest.approx(14000e-9 / 6)


def test_bandwidths_follow_from_the_p50() -> None:
    result = merge_ranks(CASE, [told(rank, (1000,)) for rank in range(4)], 4)
    assert result.algbw_bytes_per_second == pytest.approx(1024 / 1e-6)
    assert result.busbw_bytes_per_second == pytest.approx(1.5 * 1024 / 1e-6)


def test_wrong_elements_of_all_ranks_are_added() -> None:
    result = merge_ranks(CASE, (told(0, (1,), wrong=2), told(1, (1,), wrong=3)), 2)
    assert (result.verified, result.wrong_elements) == (False, 5)


def test_a_rank_that_verified_nothing_makes_the_result_unverified() -> None:
    result = merge_ranks(CASE, (told(0, (1,)), told(1, (1,), verified=0)), 2)
    assert (result.verified, result.wrong_elements, result.verified_iterations) == (NOT_ASKED, NOT_ASKED, 0)


def test_one_rank_has_no_bus_bandwidth() -> None:
    assert isinstance(merge_ranks(CASE, (told(0, (1,)),), 1).busbw_bytes_per_second, Missing)


def test_ranks_that_timed_different_iterations_are_a_bug() -> None:
    with pytest.raises(ValueError, match="zip"):
        merge_ranks(CASE, (told(0, (1, 2)), told(1, (1,))), 2)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (20, 20), (100, 99), (200, 198)])
def test_the_p99_is_a_time_that_was_measured(count: int, expected: int) -> None:
    assert nearest_rank(list(range(1, count + 1)), 0.99) == expected


def test_the_variation_is_the_deviation_over_the_mean() -> None:
    assert variation([1, 3]) == pytest.approx(2**0.5 / 2)
    assert isinstance(variation([5]), Missing)


def test_the_share_of_verification_is_that_of_all_ranks() -> None:
    assert merge_ranks(CASE, (told(0, (1,)), told(1, (1,))), 2).verify_share == pytest.approx(0.25)


def test_isolated_times_are_those_of_the_slowest_rank_as_well() -> None:
    ranks = (told(0, (1,), isolated=(5, 9, 7)), told(1, (1,), isolated=(6, 2, 8)))
    assert merge_ranks(CASE, ranks, 2).isolated_p50_seconds == pytest.approx(8e-9)


def test_a_barrier_has_a_time_and_no_bandwidth() -> None:
    result = merge_ranks(BARRIER, (told(0, (10,), entered=(100,)), told(1, (10,), entered=(105,))), 2)
    assert result.time_p50_seconds == pytest.approx(10e-9)
    assert isinstance(result.algbw_bytes_per_second, Missing)
    assert isinstance(result.busbw_bytes_per_second, Missing)
    assert result.verified is True


def test_a_barrier_that_lets_a_rank_out_before_another_is_in_is_wrong() -> None:
    ranks = (told(0, (10,), entered=(100,)), told(1, (10,), entered=(111,)))
    assert merge_ranks(BARRIER, ranks, 2).verified is False


def test_an_early_exit_says_who_left_before_whom_and_by_how_much() -> None:
    ranks = (
        told(0, (10, 50), entered=(100, 200)),
        told(1, (10, 10), entered=(105, 205)),
        told(2, (10, 10), entered=(105, 225)),
    )
    assert find_early_exit(ranks) == EarlyExit(1, 2, 1, pytest.approx(10e-9))
    assert find_early_exit(ranks[:2]) is None


def test_the_clocks_of_several_machines_do_not_tell_about_a_barrier() -> None:
    ranks = (told(0, (10,), entered=(100,)), told(1, (10,), entered=(111,)))
    assert isinstance(merge_ranks(BARRIER, ranks, 2, one_clock=False).verified, Missing)
