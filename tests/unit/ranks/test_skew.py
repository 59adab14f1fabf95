"""What ranks do not have alike: told once for each thing, of those that differ from most."""

from gpudiag.ranks.diagnosis.skew import NOT_SET, find_skew

HOSTS = {rank: f"a{rank}" for rank in range(4)}
ALIKE = {"torch": "2.13.0", "NCCL": "2.30.7", "NCCL_ALGO": "Ring"}


def skews(*settings: dict[str, str]) -> list[tuple[object, ...]]:
    found = find_skew(dict(enumerate(settings)), HOSTS, 1.0)
    return [(one.rank, one.host, *(fact.value for fact in one.evidence)) for one in found]


def test_ranks_that_have_all_alike_are_told_of_nothing() -> None:
    assert skews(ALIKE, ALIKE, ALIKE) == []
    assert skews(ALIKE) == []
    assert skews() == []


def test_the_ranks_that_differ_from_most_are_named_with_both_values() -> None:
    old = {**ALIKE, "torch": "2.12.1"}
    assert skews(ALIKE, old, ALIKE, old | {"NCCL": "2.29.2"})[1:] == [
        (3, "a3", "NCCL", "2.29.2", "2.30.7", "3")
    ]
    assert skews(old, ALIKE, ALIKE) == [(0, "a0", "torch", "2.12.1", "2.13.0", "0")]


def test_of_two_that_differ_the_second_is_the_odd_one() -> None:
    assert skews(ALIKE, {**ALIKE, "torch": "2.12.1"}) == [(1, "a1", "torch", "2.12.1", "2.13.0", "1")]


def test_a_variable_that_one_rank_lacks_is_told_and_a_version_that_it_did_not_tell_is_not() -> None:
    without = {"NCCL": "2.30.7"}
    assert skews(ALIKE, ALIKE, without) == [(2, "a2", "NCCL_ALGO", NOT_SET, "Ring", "2")]
