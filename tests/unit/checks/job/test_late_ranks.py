"""Who comes late to collectives, by flight records: of real gloo ranks, and of NCCL's by their times."""

from dataclasses import replace
from pathlib import Path

from gpudiag.checks.job.late_ranks import find_late_rank
from gpudiag.model.job_state import CallState, FlightRecord, RecordedCall
from gpudiag.probe.job.flight_recorder import read_dump

RECORDED = Path(__file__).parents[2] / "probe" / "flight_records"


def launch(sequence: int, at: float, group: str = "0") -> RecordedCall:
    return RecordedCall(
        sequence, group, "", "nccl", "all_reduce", sequence, False, CallState.COMPLETED, True, created_at=at
    )


def records(**late: float) -> list[FlightRecord]:
    """Forty steps of 0.5 s, each with a collective, of three ranks that launch it later than at the step's
    end.
    """

    def launched(rank: int, step: int) -> float:
        return 1000.0 + 0.5 * step + late.get(f"r{rank}", 0.0) + 0.001 * ((step * 7 + rank) % 3)

    return [
        FlightRecord(rank, "2.10", "2.28.9", (), (), launches, f"rank_{rank}")
        for rank in range(3)
        for launches in [tuple(launch(step, launched(rank, step)) for step in range(40))]
    ]


def test_the_rank_that_launches_last_is_named_with_how_late_it_is() -> None:
    late = find_late_rank(records(r1=0.25))
    assert late is not None
    assert (late.rank, late.last, late.collectives) == (1, 40, 40)
    assert 0.24 < late.late_seconds < 0.26


def test_nobody_is_late_by_little_or_by_turns() -> None:
    assert find_late_rank(records()) is None
    assert find_late_rank(records(r2=0.008)) is None  # less than a twentieth of a step
    assert find_late_rank(records(r2=0.25), step_seconds=10.0) is None


def test_a_collective_of_which_a_rank_is_not_recorded_is_not_compared() -> None:
    """A ring that has turned further on one rank, and a group in which only two of the ranks are."""
    one, other, third = records(r1=0.25)
    short = replace(other, calls=other.calls[-20:])
    late = find_late_rank([one, short, third])
    assert late is not None
    assert (late.rank, late.collectives) == (1, 20)
    assert find_late_rank([one, replace(other, calls=other.calls[-4:]), third]) is None


def test_real_records_have_the_times() -> None:
    """Seven collectives each: too few to name anybody, whatever the times are."""
    for folder in sorted(RECORDED.iterdir()):
        dumps = [read_dump(path) for path in sorted(folder.iterdir())]
        assert all(isinstance(call.created_at, float) for dump in dumps for call in dump.calls)
        assert find_late_rank(dumps) is None
