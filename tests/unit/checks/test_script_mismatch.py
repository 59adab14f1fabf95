"""Which rank was in another collective, when gloo ended one of them for it."""

import pytest

from gpudiag.checks.ranks.incident_kinds import RANK_DIED, RANK_RAISED
from gpudiag.checks.training.script import judge_mismatch
from gpudiag.model.evidence import HostSubject, RankSubject
from gpudiag.model.finding import Finding
from gpudiag.model.job_state import CallState, RecordedCall
from gpudiag.model.script import ScriptError

GLOO = (
    "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1336 vs 668. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in "
    "your code?",
)


def died(rank: int) -> Finding:
    return RANK_DIED.finding(RankSubject(rank, "node1"), f"rank {rank} was killed by SIGABRT")


def raised(rank: int) -> Finding:
    return RANK_RAISED.finding(RankSubject(rank, "node1"), f"rank {rank} raised RuntimeError")


def inside(*shape: int, name: str = "all_reduce", line: int = 10) -> ScriptError:
    call = RecordedCall(0, "0", "", "gloo", name, 3, False, CallState.SCHEDULED, False, input_sizes=(shape,))
    return ScriptError(f"train.py:{line} in step", call=call)


def test_a_larger_tensor_is_its_ranks_although_a_neighbour_was_ended() -> None:
    found = judge_mismatch([died(2)], {0: inside(2000, line=5), 1: inside(1000)}, GLOO)
    assert found is not None
    assert found.code == "collective.mismatched"
    assert found.subject == RankSubject(0, "node1")
    assert found.message == (
        "rank 0 was in all_reduce of [2000] at train.py:5 in step, "
        "while ranks 1 and 2 were in all_reduce of [1000] at "
        "train.py:10 in step; rank 2 was ended because of it"
    )


def test_a_smaller_tensor_is_its_ranks_which_was_ended_itself() -> None:
    found = judge_mismatch([died(1)], {0: inside(1000), 2: inside(1000)}, GLOO)
    assert found is not None
    assert found.subject == RankSubject(1, "node1")
    assert "rank 1 was in a smaller collective" in found.message


def test_another_collective_is_told_by_its_name() -> None:
    places = {0: inside(1000), 1: inside(4, name="broadcast"), 2: inside(1000), 3: inside(1000)}
    found = judge_mismatch([raised(rank) for rank in places], places, GLOO)
    assert found is not None
    assert found.subject == RankSubject(1, "node1")
    assert "rank 1 was in broadcast of [4]" in found.message


def test_of_two_ranks_nobody_can_say_which_is_wrong() -> None:
    found = judge_mismatch([died(1)], {0: inside(2000)}, GLOO)
    assert found is not None
    assert found.subject == HostSubject("node1")


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({0: inside(2000), 1: inside(1000)}, ("CUDA error: an illegal memory access was encountered",)),
        ({0: ScriptError("train.py:5"), 1: ScriptError("train.py:10")}, GLOO),
        ({0: inside(1000), 1: inside(1000), 2: inside(1000)}, GLOO),
        ({}, GLOO),
    ],
    ids=["another failure", "nothing recorded", "all alike", "nobody told"],
)
def test_nothing_is_said_without_a_record_that_differs(
    places: dict[int, ScriptError], words: tuple[str, ...]
) -> None:
    findings = [raised(rank) for rank in places] or [died(0)]
    assert judge_mismatch(findings, places, words) is None
