from collections.abc import Iterator

import pytest

from gpudiag.ranks.rank.board import PositionBoard
from gpudiag.ranks.stages import Operation

PLACE = ("/home/ann/train.py", 42)
ANNOUNCED = ("all_reduce", "bfloat16", 1 << 33, 0.25)


@pytest.fixture
def board() -> Iterator[PositionBoard]:
    board = PositionBoard.create(3)
    yield board
    board.close()


def test_a_rank_that_said_nothing_has_no_position(board: PositionBoard) -> None:
    assert board.read_position(0) is None


def test_an_announced_operation_is_read_back_whole(board: PositionBoard) -> None:
    writer = board.writer(1)
    writer.enter_stage("measure", PLACE)
    writer.enter_iteration(0)
    writer.enter_operation(7, ANNOUNCED, PLACE)
    position = board.read_position(1)
    assert position is not None
    assert position.operation == Operation(7, "all_reduce", "bfloat16", 1 << 33, 0.25)
    assert (position.stage, position.stage_count, position.iteration) == ("measure", 1, 0)
    assert position.inside
    assert position.entered == 8
    assert position.place == "/home/ann/train.py:42"


def test_leaving_an_operation_keeps_it_as_the_last_one(board: PositionBoard) -> None:
    writer = board.writer(0)
    writer.enter_stage("measure", PLACE)
    writer.enter_operation(0, ANNOUNCED, PLACE)
    writer.leave_operation(0)
    position = board.read_position(0)
    assert position is not None
    assert not position.inside
    assert position.operation is not None
    assert position.operation.sequence == 0


def test_ranks_do_not_write_over_each_other(board: PositionBoard) -> None:
    for rank, stage in enumerate(("init", "warmup", "verify")):
        board.writer(rank).enter_stage(stage, PLACE)
    stages = [position.stage for rank in range(3) if (position := board.read_position(rank))]
    assert stages == ["init", "warmup", "verify"]


def test_moving_is_seen_in_the_time(board: PositionBoard) -> None:
    writer = board.writer(0)
    writer.enter_stage("measure", PLACE)
    before = board.read_position(0)
    writer.enter_operation(0, ANNOUNCED, PLACE)
    after = board.read_position(0)
    assert before is not None
    assert after is not None
    assert after.moved_at > before.moved_at


def test_no_prediction_is_not_a_prediction_of_nothing(board: PositionBoard) -> None:
    writer = board.writer(0)
    writer.enter_stage("warmup", PLACE)
    writer.enter_operation(0, ("broadcast", "uint8", 0, None), PLACE)
    position = board.read_position(0)
    assert position is not None
    assert position.operation == Operation(0, "broadcast", "uint8", 0, None)


def test_a_long_path_keeps_its_end(board: PositionBoard) -> None:
    board.writer(0).enter_stage("measure", ("/" + "deep/" * 300 + "train.py", 3))
    position = board.read_position(0)
    assert position is not None
    assert position.place is not None
    assert position.place.endswith("deep/train.py:3")


def test_stages_are_counted_when_they_come_again(board: PositionBoard) -> None:
    writer = board.writer(0)
    for stage in ("warmup", "measure", "warmup"):
        writer.enter_stage(stage, PLACE)
    position = board.read_position(0)
    assert position is not None
    assert (position.stage, position.stage_count) == ("warmup", 3)


def test_the_stage_after_so_many_is_remembered_for_a_while(board: PositionBoard) -> None:
    writer = board.writer(0)
    for stage in ("import", "rendezvous", "init", *["measure"] * 20):
        writer.enter_stage(stage, PLACE)
    position = board.read_position(0, history=True)
    assert position is not None
    assert position.stage_after(22) == "measure"
    assert position.stage_after(23) is None
    assert position.stage_after(1) is None


def test_a_rank_that_is_behind_is_told_what_it_missed(board: PositionBoard) -> None:
    writer = board.writer(0)
    for stage in ("import", "rendezvous", "init"):
        writer.enter_stage(stage, PLACE)
    position = board.read_position(0, history=True)
    assert position is not None
    assert [position.stage_after(count) for count in range(4)] == ["import", "rendezvous", "init", None]


def test_of_collectives_that_are_alike_the_first_is_remembered(board: PositionBoard) -> None:
    writer = board.writer(0)
    writer.enter_stage("warmup", PLACE)
    for sequence in range(5):
        writer.enter_operation(sequence, ANNOUNCED, PLACE)
    writer.enter_stage("measure", PLACE)
    for sequence in range(5, 9):
        writer.enter_operation(sequence, ANNOUNCED, PLACE)
    writer.enter_operation(9, ("broadcast", "int64", 2, None), PLACE)
    position = board.read_position(0, history=True)
    assert position is not None
    assert [(operation.sequence, operation.op, operation.stage) for operation in position.history] == [
        (0, "all_reduce", "warmup"),
        (5, "all_reduce", "measure"),
        (9, "broadcast", "measure"),
    ]


def test_what_was_entered_at_a_sequence_is_known_for_a_while(board: PositionBoard) -> None:
    writer = board.writer(0)
    writer.enter_stage("measure", PLACE)
    for sequence in range(40):
        writer.enter_operation(sequence, ("all_reduce", "float32", sequence // 2, None), PLACE)
    position = board.read_position(0, history=True)
    assert position is not None
    elements = [
        operation and operation.elements for operation in map(position.operation_at, (7, 8, 9, 38, 39, 40))
    ]
    assert elements == [None, 4, 4, 19, 19, None]


def test_a_rank_that_moved_is_in_another_place(board: PositionBoard) -> None:
    writer = board.writer(0)
    writer.enter_stage("measure", PLACE)
    before, again = board.read_position(0), board.read_position(0, history=True)
    assert before is not None
    assert again is not None
    assert again.is_same_place(before)
    writer.enter_operation(0, ANNOUNCED, PLACE)
    after = board.read_position(0)
    assert after is not None
    assert not after.is_same_place(before)
    assert not after.is_same_place(None)
