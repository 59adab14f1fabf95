"""Documents about running jobs: a look at two machines, and one job with all that it can say of itself."""

from dataclasses import replace
from pathlib import Path

from gpudiag.model.job import HangReport, Job
from gpudiag.model.job_state import JobState, RasLooks
from gpudiag.probe.job.flight_recorder import read_dump
from gpudiag.probe.job.ras_answers import parse_ras_answer
from gpudiag.runs.hang_merge import join_hang_sources, read_hang_sources
from tests.unit.probe.ras_server import FakeCommunicator, FakeRank, as_json

_UNIT = Path(__file__).parents[1]
_LOOKS = [str(_UNIT / "runs" / "hang_documents" / f"machine{number}.json") for number in (1, 2)]


def make_hang_report() -> HangReport:
    """Looks at two machines, joined."""
    return join_hang_sources(read_hang_sources(_LOOKS) or [])


def make_job() -> Job:
    """The job of it, with RAS, a dump with stacks and a note."""
    ranks = [FakeRank({"AllReduce": 7}), FakeRank({"AllReduce": 6}, async_error=2), FakeRank(absent="dead")]
    look = parse_ras_answer(as_json([FakeCommunicator(ranks)], "2.28.9", timeouts=1))
    record = read_dump(
        _UNIT / "probe" / "flight_records" / "other" / "comm_lib_trace_rank_2", host="machine2"
    )
    state = JobState(
        (RasLooks("localhost:28028", (look, look)),), (replace(record, dumped_at=1.5),), ("a note",)
    )
    return replace(make_hang_report().jobs[0].job, state=state)


HANG_EXAMPLES = (make_hang_report(), make_job())
