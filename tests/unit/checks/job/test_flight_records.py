"""Flight records of jobs that hang: real ones of four gloo ranks, and those of NCCL by their states."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.checks.job.differences import Apart, name_many
from gpudiag.checks.job.flight_records import judge_records
from gpudiag.model.job_state import CallState, FlightRecord, RecordedCall, RecordedFrame, RecordedGroup
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job.flight_recorder import read_dump

RECORDS = Path(__file__).parents[2] / "probe" / "flight_records"
STARTED, SCHEDULED, COMPLETED = CallState.STARTED, CallState.SCHEDULED, CallState.COMPLETED


def call(
    sequence: int,
    state: CallState = COMPLETED,
    operation: str = "all_reduce",
    size: tuple[int, ...] = (8,),
    group: str = "0",
    dtype: str = "Float",
    description: str = "",
) -> RecordedCall:
    return RecordedCall(
        record_id=sequence,
        group=group,
        group_description=description or ("default_pg" if group == "0" else ""),
        backend="nccl",
        operation=operation,
        sequence=sequence,
        is_point_to_point=operation in ("send", "recv"),
        state=state,
        retired=state is COMPLETED,
        input_sizes=(size,),
        input_dtypes=(dtype,),
        frames=(
            RecordedFrame(
                "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", operation, 1
            ),
            RecordedFrame("/jobs/me/train.py", "step", 10),
        ),
    )


def record(rank: int, *calls: RecordedCall, groups: tuple[RecordedGroup, ...] = ()) -> FlightRecord:
    return FlightRecord(rank, "2.10", "2.27.5", groups, (), calls, f"rank_{rank}")


WORLD = RecordedGroup("0", "default_pg", (0, 1, 2, 3))


def job(**of_ranks: tuple[RecordedCall, ...]) -> list[FlightRecord]:
    return [record(int(name[1:]), *calls, groups=(WORLD,)) for name, calls in of_ranks.items()]


@pytest.mark.parametrize(
    ("kind", "apart", "guilty"),
    [
        ("skip", Apart.BEHIND, (2,)),
        ("other", Apart.ELSEWHERE, (2,)),
        ("size", Apart.OTHER_SIZE, (2,)),
        ("barrier", Apart.BEHIND, (3,)),
        ("sub", Apart.BEHIND, (3,)),
        ("p2p", Apart.BEHIND, (0, 1)),  # gloo records no sends: stacks tell which of the two
    ],
)
def test_real_dumps_of_a_hanging_gloo_job_name_the_guilty_rank(
    kind: str, apart: Apart, guilty: tuple[int, ...]
) -> None:
    records = [read_dump(path) for path in sorted((RECORDS / kind).iterdir())]
    judged = judge_records(records, 4)
    assert [(one.apart, one.ranks) for one in judged.differences] == [(apart, guilty)]
    assert judged.notes == ()


def test_lines_and_numbers_are_in_the_sentence() -> None:
    waits = call(4, STARTED)
    (one,) = judge_records(
        job(r0=(call(3), waits), r1=(call(3), waits), r2=(call(3),), r3=(call(3), waits))
    ).differences
    assert one.message == (
        "rank 2 has not launched all_reduce number 4 of the default group, in which ranks 0, "
        "1 and 3 wait (train.py:10); "
        "its last there is all_reduce number 3 (train.py:10)"
    )


def test_a_rank_that_has_launched_nothing_is_behind() -> None:
    waits = call(1, STARTED)
    (one,) = judge_records(job(r0=(waits,), r1=(waits,), r2=(), r3=(waits,))).differences
    assert (one.apart, one.ranks) == (Apart.BEHIND, (2,))


def test_a_type_and_a_size_that_differ_are_told_and_a_shape_of_as_many_elements_is_not() -> None:
    waits, other = call(4, STARTED), call(4, STARTED, dtype="Double")
    (one,) = judge_records(job(r0=(waits,), r1=(other,), r2=(waits,), r3=(waits,))).differences
    assert (one.apart, one.ranks) == (Apart.OTHER_SIZE, (1,))
    assert "Double" in one.message
    flat, square = call(4, STARTED, size=(16,)), call(4, STARTED, size=(4, 4))
    (one,) = judge_records(job(r0=(flat,), r1=(square,), r2=(flat,), r3=(flat,))).differences
    assert one.apart is Apart.NONE


@pytest.mark.parametrize("operation", ["all_gather", "gather", "scatter", "all_to_all", "reduce_scatter"])
def test_sizes_that_may_differ_are_not_compared(operation: str) -> None:
    calls = [call(4, STARTED, operation, size=(rank + 1,)) for rank in range(4)]
    (one,) = judge_records(job(**{f"r{rank}": (calls[rank],) for rank in range(4)})).differences
    assert one.apart is Apart.NONE


def test_an_even_split_blames_nobody_of_the_two() -> None:
    one, other = call(4, STARTED), call(4, STARTED, "broadcast")
    (found,) = judge_records(job(r0=(one,), r1=(one,), r2=(other,), r3=(other,))).differences
    assert (found.apart, found.ranks, found.waiting) == (Apart.ELSEWHERE, (0, 1, 2, 3), ())


def test_a_gpu_that_has_not_begun_is_told_from_those_that_have() -> None:
    begun, queued = call(4, STARTED), call(4, SCHEDULED)
    (one,) = judge_records(job(r0=(begun,), r1=(begun,), r2=(queued,), r3=(begun,))).differences
    assert (one.apart, one.ranks) == (Apart.GPU, (2,))


def test_all_in_the_same_call_accuse_nobody_and_none_pending_is_no_difference() -> None:
    waits = call(4, STARTED)
    (one,) = judge_records(job(r0=(waits,), r1=(waits,), r2=(waits,), r3=(waits,))).differences
    assert (one.apart, one.ranks) == (Apart.NONE, ())
    assert judge_records(job(r0=(call(4),), r1=(call(4),), r2=(call(3),), r3=(call(4),))).differences == ()


def test_a_member_without_a_record_is_said_and_not_accused() -> None:
    waits = call(4, STARTED)
    judged = judge_records(job(r0=(waits,), r1=(waits,), r3=(waits,)), 4)
    assert judged.differences == ()
    assert judged.notes == ("rank 2 left no flight record: what it did is not known",)


def test_who_is_late_because_it_waits_in_another_group_is_innocent() -> None:
    groups = (WORLD, RecordedGroup("7", "tp", (2, 3)))
    world, part = call(4, STARTED), call(9, STARTED, group="7", description="tp")
    records = [
        record(0, world, groups=(WORLD,)),
        record(1, world, groups=(WORLD,)),
        record(2, call(3), part, groups=groups),
        record(3, call(3), call(8, group="7", description="tp"), groups=groups),
    ]
    (one,) = judge_records(records).differences
    assert (one.apart, one.ranks, one.waiting) == (Apart.BEHIND, (3,), (2,))
    assert "the group tp" in one.message


def test_two_groups_that_wait_for_each_other_are_told_as_that() -> None:
    first, second = RecordedGroup("1", "", (0, 1)), RecordedGroup("2", "", (0, 1))
    one, other = call(1, STARTED, group="1"), call(1, STARTED, group="2")
    records = [record(0, one, groups=(first, second)), record(1, other, groups=(first, second))]
    judged = judge_records(records)
    assert {found.apart for found in judged.differences} == {Apart.CROSSED}


def test_groups_of_one_name_and_other_members_are_not_mixed() -> None:
    """Process groups split off at once have one name on all ranks."""
    left, right = RecordedGroup("5", "tp", (0, 1)), RecordedGroup("5", "tp", (2, 3))
    done, waits = call(7, group="5"), call(8, STARTED, group="5")
    records = [record(rank, done, groups=(left,)) for rank in (0, 1)]
    records += [record(2, done, waits, groups=(right,)), record(3, done, groups=(right,))]
    (one,) = judge_records(records).differences
    assert (one.ranks, one.waiting) == ((3,), (2,))


def test_a_receive_without_its_send_names_the_sender() -> None:
    waits = replace(call(1, STARTED, "recv"), source=1, destination=0)
    (one,) = judge_records(job(r0=(waits,), r1=(call(3),))).differences
    assert (one.apart, one.ranks, one.waiting) == (Apart.BEHIND, (1,), (0,))
    sends = replace(call(1, STARTED, "send"), source=1, destination=0)
    assert judge_records(job(r0=(waits,), r1=(sends,))).differences == ()


def test_in_a_running_job_only_calls_that_wait_for_long_count() -> None:
    young = replace(call(4, STARTED), created_at=99.0)
    records = [
        replace(one, dumped_at=100.0) for one in job(r0=(young,), r1=(young,), r2=(call(3),), r3=(young,))
    ]
    assert judge_records(records, 4, still_seconds=3.0).differences == ()
    assert judge_records(records, 4).differences[0].ranks == (2,)


def test_records_of_unknown_ranks_are_said() -> None:
    unknown = replace(record(0), rank=Missing(MissingReason.NOT_SUPPORTED))
    assert judge_records([unknown]).notes == ("1 flight records do not name the rank that wrote them",)


def test_many_ranks_are_named_shortly() -> None:
    assert name_many([2]) == "rank 2"
    assert name_many([0, 1, 3]) == "ranks 0, 1 and 3"
    assert name_many([*range(7), 9, 10]) == "ranks 0-6, 9 and 10"
    assert name_many(range(0, 1000, 2)) == "500 ranks (0, 2, 4, 6, 8, 10, 12, 14 ...)"


CALLS = st.lists(
    st.builds(
        call,
        st.integers(-1, 5),
        st.sampled_from(CallState),
        st.sampled_from(["all_reduce", "broadcast", "send", "recv", "coalesced"]),
        group=st.sampled_from(["0", "1"]),
    ).map(lambda one: replace(one, source=0, destination=1) if one.is_point_to_point else one),
    max_size=8,
)


@given(st.lists(CALLS, min_size=1, max_size=5), st.none() | st.integers(1, 6))
def test_any_records_are_judged_and_only_ranks_with_a_record_are_blamed(
    of_ranks: list[list[RecordedCall]], world_size: int | None
) -> None:
    records = [record(rank, *calls) for rank, calls in enumerate(of_ranks)]
    for one in judge_records(records, world_size).differences:
        assert set(one.ranks) <= set(range(len(of_ranks)))
        assert one.message
        assert not set(one.ranks) & set(one.waiting) or one.apart is Apart.CROSSED
