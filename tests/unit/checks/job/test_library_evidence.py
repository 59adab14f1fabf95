"""What a job says of itself beside what the looks show: evidence where both agree, a finding where the looks
had none.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.checks.job import kinds
from gpudiag.checks.job.library_evidence import add_library_evidence
from gpudiag.model.evidence import HostSubject, RanksSubject, RankSubject, Subject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job import Job, JobVerdict, Place
from gpudiag.model.job_state import JobState, RasLooks
from gpudiag.model.reading import NOT_ASKED
from gpudiag.probe.job.flight_recorder import read_dump
from gpudiag.probe.job.ras_answers import parse_ras_answer
from tests.unit.probe.ras_server import FakeCommunicator, FakeRank, as_json

RECORDS = Path(__file__).parents[2] / "probe" / "flight_records"
SLEEPS = kinds.SLEEP.finding(RankSubject(2, "a"), "rank 2 is not in the all_reduce: it sleeps")
ALL_WAIT = kinds.ALL_WAIT.finding(HostSubject("a"), "all 4 ranks are in the all_reduce, and nothing moves")
ALONE = kinds.WORKS_ALONE.finding(RankSubject(2, "a"), "rank 2 works")


def records(kind: str) -> JobState:
    return JobState(records=tuple(read_dump(path) for path in sorted((RECORDS / kind).iterdir())))


def ras(*ranks: FakeRank) -> JobState:
    look = parse_ras_answer(as_json([FakeCommunicator(list(ranks))]))
    return JobState(ras=(RasLooks("localhost:28028", (look, look)),))


def told(
    state: JobState | None, outcome: Outcome, *findings: Finding, unseen: tuple[str, ...] = ()
) -> JobVerdict:
    job = Job("j", "a", "torchrun", 1, 4, (0, 1, 2, 3), (), state=state)
    places = (
        Place((0, 1, 3), "ranks", "wait", "x", since_seconds=NOT_ASKED),
        Place((2,), "sleep", "sleeps", "y"),
    )
    headline = findings[0].message if findings else "not hanging"
    return add_library_evidence(JobVerdict("j", outcome, headline, findings, places, (), unseen, job))


def test_a_rank_that_both_blame_is_one_finding_with_both_proofs() -> None:
    verdict = told(records("skip"), Outcome.FAIL, SLEEPS)
    (finding,) = verdict.findings
    assert (finding.code, verdict.headline) == ("hang.sleep", SLEEPS.message)
    assert any(
        one.source == "flight recorder" and "not launched all_reduce" in str(one.value)
        for one in finding.evidence
    )


@pytest.mark.parametrize(
    ("subject", "codes"),
    [
        (RanksSubject((2, 3), "a"), ["hang.sleep"]),
        (RanksSubject((0, 3), "a"), ["hang.sleep", "hang.not_launched"]),
        (HostSubject("a"), ["hang.sleep", "hang.not_launched"]),
    ],
)
def test_ranks_that_both_blame_are_known_by_the_subject_and_not_by_the_words(
    subject: Subject, codes: list[str]
) -> None:
    finding = kinds.SLEEP.finding(subject, "they sleep, whatever a message calls them")
    verdict = told(records("skip"), Outcome.FAIL, finding)
    assert [one.code for one in verdict.findings] == codes


@pytest.mark.parametrize(("kind", "code"), [("size", "hang.other_size"), ("other", "hang.other_collective")])
def test_a_finding_that_names_no_rank_is_replaced(kind: str, code: str) -> None:
    verdict = told(records(kind), Outcome.FAIL, ALL_WAIT)
    (finding,) = verdict.findings
    assert (finding.code, finding.subject, verdict.outcome) == (code, RankSubject(2, "a"), Outcome.FAIL)
    assert verdict.headline == finding.message


def test_where_stacks_could_not_be_read_the_records_name_the_rank() -> None:
    verdict = told(records("skip"), Outcome.ERROR, unseen=("ranks 0-3: no permission",))
    assert (verdict.outcome, verdict.findings[0].code) == (Outcome.FAIL, "hang.not_launched")
    assert verdict.findings[0].subject == RankSubject(2, "a")
    assert "ranks 0-3: no permission" in verdict.unseen


@pytest.mark.parametrize(
    "state", [records("skip"), ras(*[FakeRank({"AllReduce": 5 - (n == 2)}) for n in range(4)])]
)
def test_a_job_that_moves_is_not_accused_by_counts(state: JobState) -> None:
    verdict = told(state, Outcome.PASS)
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())


def test_a_rank_that_works_alone_stays_a_warning() -> None:
    verdict = told(records("skip"), Outcome.WARN, ALONE)
    assert (verdict.outcome, [one.code for one in verdict.findings]) == (Outcome.WARN, [ALONE.code])
    assert verdict.findings[0].evidence


def test_ras_proves_names_and_finds() -> None:
    behind = ras(*[FakeRank({"AllReduce": 5 - (n == 2)}) for n in range(4)])
    assert any(one.source == "NCCL RAS" for one in told(behind, Outcome.FAIL, SLEEPS).findings[0].evidence)
    replaced = told(behind, Outcome.FAIL, ALL_WAIT).findings
    assert [(one.code, one.subject) for one in replaced] == [("hang.not_launched", RankSubject(2, "a"))]
    dead = ras(FakeRank(absent="dead"), *[FakeRank({"AllReduce": 5})] * 3)
    verdict = told(dead, Outcome.PASS)
    assert (verdict.outcome, verdict.findings[0].code) == (Outcome.FAIL, "hang.rank_gone")
    silent = ras(FakeRank(absent="unresponsive"), *[FakeRank({"AllReduce": 5})] * 3)
    verdict = told(silent, Outcome.PASS)
    assert (verdict.outcome, verdict.findings[0].code) == (Outcome.WARN, "hang.unresponsive")
    failed = ras(FakeRank({"AllReduce": 5}, async_error=2), *[FakeRank({"AllReduce": 5})] * 3)
    assert told(failed, Outcome.PASS).findings[0].code == "hang.nccl_error"


def test_all_equal_and_still_is_proof_only() -> None:
    equal = ras(*[FakeRank({"AllReduce": 5})] * 4)
    assert told(equal, Outcome.PASS).findings == ()
    (finding,) = told(equal, Outcome.FAIL, ALL_WAIT).findings
    assert finding.code == "hang.all_wait"
    assert any(one.source == "NCCL RAS" for one in finding.evidence)


def test_two_sources_that_say_the_same_make_one_finding() -> None:
    both = replace(records("skip"), ras=ras(*[FakeRank({"AllReduce": 5 - (n == 2)}) for n in range(4)]).ras)
    (finding,) = told(both, Outcome.ERROR).findings
    assert {one.source for one in finding.evidence} == {"NCCL RAS", "flight recorder"}


def test_a_job_that_says_nothing_is_left_as_it_is() -> None:
    assert told(None, Outcome.FAIL, SLEEPS).findings == (SLEEPS,)
    assert told(JobState(notes=("x",)), Outcome.FAIL, SLEEPS).unseen == ("x",)
