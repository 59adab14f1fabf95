"""Every output of tests/corpus/judge: the judgement is what the thread established, however a log wraps the
lines.
"""

import tempfile
from pathlib import Path

from gpudiag.model.benchmark import Judgement, MeasuredTable
from gpudiag.model.codec import dumps
from gpudiag.model.documents import loads
from gpudiag.render.judge_text import render_judgement
from gpudiag.render.style import Style
from tests.corpus.judged import JudgeCase, judge_cases
from tests.walking import walk

_LEAST_CASES, _LEAST_HEALTHY = 40, 12
WRAPPED = {
    "kubernetes": lambda line: f"2026-11-27T10:00:01.123456789Z {line}",
    "mpirun": lambda line: f"[1,0]<stdout>:{line}",
    "srun": lambda line: f"0: {line}",
    "colours": lambda line: f"\x1b[32m{line}\x1b[0m",
    "windows": lambda line: f"{line}\r",
}


def codes(judgement: Judgement) -> set[str]:
    return {finding.code for judged in judgement.tables for finding in judged.findings}


def by_name(case: JudgeCase) -> str:
    return f"{case.program}/{case.name}"


def judged(case: JudgeCase, content: bytes | None = None) -> Judgement:
    with tempfile.TemporaryDirectory() as folder:
        return case.judge(Path(folder), content)


def values(tables: list[MeasuredTable]) -> list[float]:
    return [value.value for table in tables for value in table.values]


@walk(judge_cases(), by_name)
def test_the_judgement_is_what_the_thread_established(case: JudgeCase) -> None:
    judgement = judged(case)
    assert (judgement.outcome.value, codes(judgement)) == (case.outcome, set(case.codes))
    if case.values:
        assert len(values([one.table for one in judgement.tables])) == case.values


@walk(judge_cases(), by_name)
def test_what_a_log_puts_around_the_lines_changes_nothing(case: JudgeCase) -> None:
    plain = judged(case)
    for form, wrap in WRAPPED.items():
        content = "\n".join(map(wrap, case.output.split("\n"))).encode()
        wrapped = judged(case, content)
        assert (wrapped.outcome, codes(wrapped)) == (plain.outcome, codes(plain)), form
        tables = [[one.table for one in of.tables] for of in (plain, wrapped)]
        assert values(tables[0]) == values(tables[1]), form


@walk(judge_cases(), by_name)
def test_utf_16_changes_nothing(case: JudgeCase) -> None:
    assert codes(judged(case, case.output.encode("utf-16"))) == set(case.codes)


@walk(judge_cases(), by_name)
def test_a_cut_output_is_never_a_failure_of_ours_nor_new_blame(case: JudgeCase) -> None:
    """An output may end anywhere: what is left may say less, and accuses no healthy machine."""
    whole = case.output.encode()
    for share in (0.3, 0.6, 0.9):
        cut = judged(case, whole[: int(len(whole) * share)])
        if case.outcome == "pass":
            assert cut.outcome.value in ("pass", "error"), (share, codes(cut))


@walk(judge_cases(), by_name)
def test_it_is_rendered_and_written(case: JudgeCase) -> None:
    judgement = judged(case)
    assert loads(dumps(judgement)) == judgement
    for verbose in (False, True):
        text = render_judgement(judgement, Style(verbose=verbose))
        assert all(code in text for code in case.codes)
        assert "\x1b" not in text


def test_there_are_many_and_of_healthy_machines_too() -> None:
    cases = judge_cases()
    assert len(cases) >= _LEAST_CASES
    assert sum(case.outcome == "pass" for case in cases) >= _LEAST_HEALTHY
    assert all(case.source and case.answer for case in cases)
    assert len({by_name(case) for case in cases}) == len(cases)
