"""Many ranks' times make one result: the slowest rank counts."""

import pytest

from gpudiag.collectives.cases import Case
from gpudiag.collectives.results import RankCase, merge_ranks, nearest_rank
from gpudiag.model.reading import NOT_ASKED, Missing

CASE = Case("all_reduce", "sum", "float32", 256, 1024)


def told(rank: int, times: tuple[int, ...], *, verified: int | None = None, wrong: int = 0) -> RankCase:
    return RankCase(rank, 0, times, len(times) if verified is None else verified, wrong, 0.1, 0.1)


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
