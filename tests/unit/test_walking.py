import pytest

from tests.walking import walk


def test_a_walk_tries_every_case_and_names_those_that_fail():
    tried = []

    @walk((1, 2, 3, 4), lambda number: f"case {number}")
    def test_even(number):
        tried.append(number)
        assert number % 2 == 0

    assert test_even.__name__ == "test_even"
    with pytest.raises(AssertionError, match=r"(?s)2 of 4 cases fail.*case 1: .*case 3: ") as failed:
        test_even()
    assert tried == [1, 2, 3, 4]
    assert "case 2" not in str(failed.value)


def test_a_walk_without_a_case_fails():
    with pytest.raises(AssertionError, match="no case"):
        walk(())(print)()
