"""Numbers in words."""

import pytest

from gpudiag.model.number_ranges import count_of, join_words, name_ranks, number_ranges


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((), ""),
        ((7,), "7"),
        ((1, 0), "0 and 1"),
        ((0, 1, 3), "0, 1 and 3"),
        ((0, 1, 2, 3), "0-3"),
        ((3, 1, 9, 8, 10, 9), "1, 3 and 8-10"),
        ((0, 1, 2, 3, 7, 9, 10), "0-3, 7, 9 and 10"),
        (range(512), "0-511"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
        ((0, 2, 4, 6, 8, 10, 12, 14, *range(20, 30)), "0, 2, 4, 6, 8, 10, 12, 14 and 10 more"),
    ],
)
def test_numbers_are_named_in_runs_and_of_many_parts_the_rest_is_counted(numbers, words):
    assert number_ranges(numbers) == words


def test_one_rank_and_several():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks((0, 1, 2, 5)) == "ranks 0-2 and 5"
    assert name_ranks([4, 4]) == "rank 4"


def test_one_and_several_of_a_thing():
    assert [count_of(number, "rank") for number in (0, 1, 8)] == ["0 ranks", "1 rank", "8 ranks"]


def test_words_of_a_list():
    lists = ([], ["a"], ["a", "b"], ["a", "b", "c"])
    assert [join_words(words) for words in lists] == ["", "a", "a and b", "a, b and c"]
