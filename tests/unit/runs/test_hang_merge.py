"""Looks at one job on two machines (recorded: 2 x 2 gloo ranks, of which rank 2 sleeps), joined."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpudiag.cli.main import main
from gpudiag.model.codec import decode, dumps, to_document
from gpudiag.model.evidence import RankSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.job import HangReport
from gpudiag.model.job_state import JobState
from gpudiag.probe.job.flight_recorder import read_dump
from gpudiag.render.hang_text import render_hang
from gpudiag.runs.hang_merge import join_hang_sources, join_jobs, read_hang_sources
from gpudiag.runs.merge import ReportSource

DOCUMENTS = Path(__file__).parent / "hang_documents"
PATHS = [str(DOCUMENTS / "machine1.json"), str(DOCUMENTS / "machine2.json")]
RECORDS = Path(__file__).parents[1] / "probe" / "flight_records"


def documents() -> list[dict[str, Any]]:
    return [json.loads(Path(path).read_text()) for path in PATHS]


def join(*given: Any, is_whole: bool = False) -> HangReport:
    sources = [
        one if isinstance(one, ReportSource) else ReportSource(f"file{number}", one)
        for number, one in enumerate(given)
    ]
    return join_hang_sources(sources, is_whole=is_whole)


def without_ranks(document: dict[str, Any], *gone: int) -> dict[str, Any]:
    """The document as the machine would have written it had these ranks no process any more."""
    report = decode(HangReport, document)
    verdict = report.jobs[0]
    ranks = tuple(one for one in verdict.job.ranks if one.rank not in gone)
    jobs = (replace(verdict, job=replace(verdict.job, ranks=ranks)),)
    changed: dict[str, Any] = to_document(replace(report, jobs=jobs))
    return changed


def test_one_machine_cannot_tell_and_both_name_the_rank_and_its_machine() -> None:
    first, second = documents()
    for alone in (first, second):
        assert join(alone).outcome is not Outcome.PASS
    report = join(first, second)
    (verdict,) = report.jobs
    assert report.outcome is Outcome.FAIL
    assert verdict.findings[0].code == "hang.sleep"
    assert verdict.findings[0].subject == RankSubject(2, "machine2")
    assert [rank.host for rank in verdict.job.ranks] == ["machine1", "machine1", "machine2", "machine2"]
    assert verdict.job.machines == (("machine1", (0, 1)), ("machine2", (2, 3)))
    assert not any("no machine that was looked at" in one for one in verdict.unseen)


def test_the_order_of_the_machines_does_not_matter() -> None:
    first, second = documents()
    assert join(first, second).jobs[0].findings == join(second, first).jobs[0].findings


def test_a_joined_report_is_a_document_that_can_be_joined_again() -> None:
    first, second = documents()
    again = join(json.loads(dumps(join(first, second))))
    assert again.jobs[0].findings == join(first, second).jobs[0].findings
    assert [one.name for one in again.machines] == ["machine1", "machine2"]


def test_the_missing_rank_is_on_its_machine() -> None:
    first, second = documents()
    (verdict,) = join(first, without_ranks(second, 3)).jobs
    gone = next(one for one in verdict.findings if one.code == "hang.rank_gone")
    assert gone.subject == RankSubject(3, "machine2")


def test_ranks_on_no_machine_are_unseen_and_gone_only_where_every_machine_was_looked_at() -> None:
    first, _ = documents()
    some = join(first)
    assert some.outcome is Outcome.ERROR
    assert any("ranks 2 and 3 are on no machine" in one for one in some.jobs[0].unseen)
    nothing = HangReport(Outcome.ERROR, "machine2", "", 0.1, (), notes=("no job was found on this machine",))
    whole = join(first, to_document(nothing), is_whole=True)
    assert whole.outcome is Outcome.FAIL
    assert whole.jobs[0].findings[0].code == "hang.rank_gone"
    assert whole.machines[1].reason == "no job was found on this machine"


def test_a_document_that_is_missing_or_of_another_kind_is_an_error_and_the_rest_is_judged() -> None:
    first, second = documents()
    for bad in (
        ReportSource("rank 8", None, "no report came from their machines"),
        ReportSource("x", {"schema": "gpudiag.report/1"}),
        ReportSource("x", {"schema": HangReport.SCHEMA, "jobs": 5}),
        ReportSource("x", [1]),
    ):
        report = join(first, second, bad)
        assert report.outcome is Outcome.FAIL  # what was seen hangs
        assert report.machines[-1].reason
        alone = join_hang_sources([bad])
        assert alone.outcome is Outcome.ERROR


def test_two_jobs_that_share_nothing_are_two_verdicts() -> None:
    report = decode(HangReport, documents()[0])
    job = report.jobs[0].job
    other = replace(job, master="machine9:29500")
    assert len(join_jobs([job, other])) == 2
    assert len(join_jobs([job, job])) == 2  # the same ranks twice cannot be one job
    local = [replace(job, master="127.0.0.1:29500", host=host) for host in ("a", "b")]
    assert len(join_jobs(local)) == 2


def test_flight_records_of_two_machines_are_judged_over_all_ranks() -> None:
    reports = [decode(HangReport, document) for document in documents()]
    paths = sorted((RECORDS / "skip").iterdir())
    changed = []
    for number, report in enumerate(reports):
        records = tuple(read_dump(path) for path in paths[2 * number : 2 * number + 2])
        verdict = report.jobs[0]
        with_state = replace(verdict, job=replace(verdict.job, state=JobState(records=records)))
        changed.append(to_document(replace(report, jobs=(with_state,))))
    (finding, *_) = join(*changed).jobs[0].findings
    assert finding.code == "hang.sleep"
    assert any(
        one.source == "flight recorder" and "rank 2 has not launched" in str(one.value)
        for one in finding.evidence
    )


def test_the_text_says_where_the_rank_is_in_80_columns() -> None:
    text = render_hang(join(*documents()))
    assert "rank 2 is on machine2, pid" in text
    assert "machine1 has ranks 0 and 1" in text
    assert "2 of 2 machines" in text
    assert max(map(len, text.splitlines())) <= 80


def test_gpudiag_merge_joins_them_and_refuses_a_mixture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["merge", *PATHS, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["schema"] == HangReport.SCHEMA
    assert main(["merge", *PATHS]) == 1
    assert "FAIL rank 2 is not in the all_reduce" in capsys.readouterr().out
    other = tmp_path / "other.json"
    other.write_text('{"schema": "gpudiag.report/1"}')
    assert main(["merge", str(other), PATHS[0]]) == 3
    assert "merge these separately" in " ".join(capsys.readouterr().out.split())
    assert main(["merge", str(tmp_path / "none.json"), PATHS[0]]) == 3
    assert "No such file" in capsys.readouterr().out


def test_files_without_a_document_of_hang_are_left_to_the_other_merge(tmp_path: Path) -> None:
    assert read_hang_sources([str(tmp_path / "none")]) is None
    assert len(read_hang_sources(PATHS) or ()) == 2
