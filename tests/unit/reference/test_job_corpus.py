from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.explain_jobs import KINDS, is_right, write_job
from gpudiag.explain.recipe import explain, explain_text
from gpudiag.model.explanation import VerdictKind
from tests.corpus.explained import NOTHING, texts
from tests.corpus.jobs_explained import explain_case, job_cases, recorded_cases, what_is_wrong
from tests.walking import walk


@walk((*job_cases(), *recorded_cases()), lambda case: f"{case.kind}/{case.name}")
def test_what_failed_first_in_a_job_is_named(case):
    assert what_is_wrong(case, explain_case(case)) == []


@walk([text for text in texts() if text.expected == NOTHING], lambda text: f"{text.kind}/{text.name}")
def test_a_healthy_text_accuses_nobody(text):
    verdict = explain_text(text.text).verdict
    assert verdict.kind is VerdictKind.NOTHING, verdict


@walk(KINDS, lambda kind: kind)
def test_a_fault_among_many_ranks_is_named(kind):
    with TemporaryDirectory() as folder:
        job = write_job(Path(folder), kind, ranks=32, size_bytes=60_000, seed=1)
        told = explain((folder,))
    assert is_right(job, told.verdict), told.verdict
