"""What two answers of NCCL's RAS show: who is behind, gone, silent or elsewhere, and what is no fault."""

from collections.abc import Sequence

import pytest

from gpudiag.checks.job.differences import Apart
from gpudiag.checks.job.ras_counts import JudgedRas, judge_ras
from gpudiag.model.job_state import RasLooks
from gpudiag.probe.job.ras_answers import parse_ras_answer
from tests.unit.probe.ras_server import FakeCommunicator, FakeRank, as_json, as_text

VERSIONS = ("2.24.3", "2.26.2", "2.28.9", "2.29.2")


def four(counts: Sequence[int], operation: str = "AllReduce") -> FakeCommunicator:
    return FakeCommunicator([FakeRank({operation: count}) for count in counts])


def judge(
    *answers: Sequence[FakeCommunicator],
    version: str = "2.29.2",
    timeouts: int = 0,
    world_size: int | None = None,
) -> JudgedRas:
    """The judgement on looks a second apart."""
    looks = tuple(
        parse_ras_answer(
            as_json(one, version, timeouts) if version >= "2.28.7" else as_text(one, version),
            at_seconds=float(second),
        )
        for second, one in enumerate(answers)
    )
    return judge_ras(RasLooks("localhost:28028", looks), world_size)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lowest_count_that_stands_still_is_suspect(version: str) -> None:
    stuck = [four([40, 40, 39, 40])]
    judged = judge(stuck, stuck, version=version, world_size=4)
    (one,) = judged.differences
    assert (one.apart, one.ranks, one.waiting) == (Apart.BEHIND, (2,), (0, 1, 3))
    assert "1 behind" in one.message
    assert judged.moves is False


@pytest.mark.parametrize("version", VERSIONS)
def test_counts_that_move_accuse_nobody(version: str) -> None:
    judged = judge([four([40, 40, 39, 40])], [four([90, 90, 90, 88])], version=version, world_size=4)
    assert judged.differences == ()
    assert judged.moves is True


def test_a_text_that_calls_it_ok_the_second_time_has_moved() -> None:
    judged = judge([four([40, 40, 39, 40])], [four([41, 41, 41, 41])], version="2.24.3", world_size=4)
    assert (judged.differences, judged.moves) == ((), True)


def test_one_look_alone_accuses_nobody_by_counts() -> None:
    judged = judge([four([40, 40, 39, 40])], world_size=4)
    assert judged.differences == ()
    assert any("once and not twice" in note for note in judged.notes)


def test_all_equal_and_still_blames_nobody() -> None:
    (one,) = judge([four([40] * 4)], [four([40] * 4)], world_size=4).differences
    assert (one.apart, one.ranks) == (Apart.NONE, ())


@pytest.mark.parametrize("version", ["2.26.2", "2.29.2"])
def test_as_many_calls_of_other_kinds_are_another_collective(version: str) -> None:
    ranks = [FakeRank({"AllReduce": 40, "Broadcast": 3}) for _ in range(4)]
    ranks[1] = FakeRank({"AllReduce": 39, "Broadcast": 4})
    stuck = [FakeCommunicator(ranks)]
    (one,) = judge(stuck, stuck, version=version, world_size=4).differences
    assert (one.apart, one.ranks) == (Apart.ELSEWHERE, (1,))
    assert "Broadcast" in one.message
    assert "AllReduce" in one.message


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("absence", "apart"), [("dead", Apart.DEAD), ("unresponsive", Apart.UNRESPONSIVE)])
def test_a_rank_that_is_dead_or_silent_is_named(version: str, absence: str, apart: Apart) -> None:
    ranks = [FakeRank({"AllReduce": 7}) for _ in range(8)]
    ranks[5] = FakeRank(absent=absence)
    stuck = [FakeCommunicator(ranks)]
    judged = judge(stuck, stuck, version=version, world_size=8)
    assert judged.differences[0].apart is apart
    assert judged.differences[0].ranks == (5,)


def test_an_error_is_told_and_the_remote_ones_are_its_echoes() -> None:
    ranks = [FakeRank({"AllReduce": 7}, async_error=6) for _ in range(4)]
    ranks[3] = FakeRank({"AllReduce": 7}, async_error=2)
    stuck = [FakeCommunicator(ranks)]
    failed = [one for one in judge(stuck, stuck, world_size=4).differences if one.apart is Apart.FAILED]
    assert [one.ranks for one in failed] == [(3,)]


def test_a_rank_that_left_is_told_from_those_that_run() -> None:
    ranks = [FakeRank({"AllReduce": 7}) for _ in range(4)]
    ranks[0] = FakeRank({"AllReduce": 7}, finalized=True)
    stuck = [FakeCommunicator(ranks)]
    left = [one for one in judge(stuck, stuck, world_size=4).differences if one.apart is Apart.LEFT]
    assert [(one.ranks, one.waiting) for one in left] == [((0,), (1, 2, 3))]


def test_ranks_of_a_small_communicator_are_named_as_ranks_of_the_job() -> None:
    world = FakeCommunicator([FakeRank({"AllReduce": 9}) for _ in range(4)], identity=1)
    pair = FakeCommunicator(
        [FakeRank({"AllGather": 5}, pid=4002), FakeRank({"AllGather": 4}, pid=4003)], identity=2
    )
    answer = as_json([world, pair])
    looks = [parse_ras_answer(answer), parse_ras_answer(answer)]
    judged = judge_ras(RasLooks("x", tuple(looks)), 4, {4003: 3, 4002: 2})
    behind = [one for one in judged.differences if one.apart is Apart.BEHIND]
    assert [(one.ranks, one.is_within_group) for one in behind] == [((3,), False)]
    unknown = judge_ras(RasLooks("x", tuple(looks)), 4)
    behind = [one for one in unknown.differences if one.apart is Apart.BEHIND]
    assert [(one.ranks, one.is_within_group) for one in behind] == [((1,), True)]
    assert "as they count in it" in behind[0].message


def test_what_ras_calls_ok_while_it_timed_out_is_not_believed() -> None:
    """NVIDIA/nccl#1730."""
    judged = judge([four([7] * 4)], [four([7] * 4)], timeouts=256, world_size=4)
    assert any("timed out 256 times" in note for note in judged.notes)


def test_text_says_what_it_does_not_tell() -> None:
    judged = judge([four([7] * 4)], [four([7] * 4)], version="2.24.3", world_size=4)
    assert (judged.differences, judged.moves) == ((), None)
    assert any("no JSON" in note for note in judged.notes)
