from gpudiag.checks.training_script import judge_hang
from gpudiag.model.evidence import HostSubject, RankSubject

COLLECTIVE = ["/site-packages/torch/distributed/distributed_c10d.py:3252 in all_reduce", "train.py:5 in step"]
EVALUATES = ["train.py:40 in evaluate"]
HOSTS = {0: "a1", 1: "a1", 2: "a1", 3: "a1"}


def test_of_two_ranks_the_one_that_waits_for_no_other_is_to_blame() -> None:
    finding = judge_hang({0: COLLECTIVE, 1: EVALUATES}, (), HOSTS)
    assert finding.subject == RankSubject(1, "a1")
    assert judge_hang({0: EVALUATES, 1: COLLECTIVE}, (), HOSTS).subject == RankSubject(0, "a1")


def test_many_that_left_are_odd_where_one_waits_for_them() -> None:
    stacks = {0: COLLECTIVE, 1: EVALUATES, 2: EVALUATES, 3: EVALUATES}
    finding = judge_hang(stacks, (), HOSTS)
    assert finding.subject == HostSubject("a1")
    assert finding.message.startswith("ranks 1, 2 and 3 are at train.py:40")


def test_two_that_are_both_outside_of_collectives_cannot_be_told_apart() -> None:
    finding = judge_hang({0: ["train.py:9 in load"], 1: EVALUATES}, (), HOSTS)
    assert finding.subject == HostSubject("a1")
