"""Mutation of the gate: whatever is dropped, broken or missing, it never says PASS."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.checks.registry import Basis, FindingKind, Level, check, judged
from gpudiag.checks.runner import run_checks
from gpudiag.errors import ExitStatus
from gpudiag.model.context import Context
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Category, CheckResult, Outcome, Owner, Severity
from gpudiag.model.plan import FAIL_ON, PreflightPlan
from gpudiag.model.reading import MissingReason
from gpudiag.model.report import Measures, Report
from gpudiag.runs.gate import complete_results, describe_strict, exit_status, judge_results
from tests.unit.checks.active_measures import gpu_snapshot, judged_by, measure_gpus
from tests.unit.model.nouns import make_snapshot

SNAPSHOT = make_snapshot()
OPEN = (Outcome.PASS, Outcome.WARN)
outcomes = st.sampled_from(list(Outcome))
owners = st.sampled_from(list(Owner))


def finding_kind(outcome, owner=Owner.HARDWARE, severity=Severity.NONE):
    return FindingKind(
        "test.code",
        outcome,
        severity,
        Category.NONE,
        owner,
        "It is so.",
        "Mend it.",
        Basis("It.", "None.", ()),
    )


def finding(*arguments):
    return finding_kind(*arguments).finding(HostSubject("a1"), "it is so")


def named_check(name, judge):
    return check(name, title=name, reports=())(judge)


def passing(name):
    return named_check(name, lambda context: judged())


def raising(name):
    def judge(context):
        raise ValueError("broken")

    return named_check(name, judge)


def silent(name):
    return named_check(name, lambda context: None)


MAKERS = {"passing": passing, "raising": raising, "silent": silent}


@st.composite
def results(draw):
    outcome = draw(outcomes)
    found = draw(
        st.lists(st.tuples(outcomes.filter(lambda one: one is not Outcome.SKIP), owners), max_size=3)
    )
    reason = draw(st.sampled_from([None, *MissingReason]))
    findings = tuple(finding(what, who) for what, who in found)
    return CheckResult(
        draw(st.sampled_from(["a.a", "b.b", "c.c"])), outcome, findings, "why", missing_reason=reason
    )


def report_of(found, verdict=None):
    return Report(verdict or judge_results(found), tuple(found), SNAPSHOT)


@given(st.lists(results(), max_size=6))
def test_the_verdict_is_never_better_than_any_outcome_or_finding(found):
    verdict = judge_results(found)
    said = [one.outcome for one in found] + [one.outcome for result in found for one in result.findings]
    assert Outcome.FAIL not in said or verdict is Outcome.FAIL
    assert Outcome.ERROR not in said or verdict in (Outcome.FAIL, Outcome.ERROR)
    if all(one.outcome is Outcome.SKIP for one in found):
        assert verdict not in OPEN


@given(st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=6), st.data())
def test_broken_checks_and_dropped_results_never_pass(kinds, data):
    checks = [MAKERS[kind](f"check.number_{place}") for place, kind in enumerate(kinds)]
    given_results = run_checks(Context(SNAPSHOT), checks)
    kept = [result for result in given_results if data.draw(st.booleans())]
    verdict = judge_results(complete_results(checks, kept))
    whole = len(kept) == len(checks) and set(kinds) == {"passing"}
    assert (verdict is Outcome.PASS) == whole


@given(st.lists(results(), max_size=6), st.booleans(), st.sampled_from(FAIL_ON))
def test_the_gate_opens_only_where_nothing_failed_and_nothing_was_unclear(found, strict, fail_on):
    plan = PreflightPlan(strict=strict and fail_on == "any", fail_on=fail_on)
    status = exit_status(report_of(found), plan)
    assert status in (ExitStatus.PASS, ExitStatus.FAIL, ExitStatus.ERROR)
    if status is ExitStatus.PASS:
        assert not any(result.outcome is Outcome.ERROR for result in found)
        assert not all(result.outcome is Outcome.SKIP for result in found)
        if fail_on == "any":
            assert judge_results(found) in OPEN
        if fail_on == "machine":
            told = [one for result in found for one in result.findings]
            assert not any(one.outcome is Outcome.FAIL and one.blocks_jobs for one in told)
        if plan.strict:
            assert judge_results(found) is Outcome.PASS
            assert not any(result.is_gap for result in found)


@given(st.lists(results(), max_size=6))
def test_strict_says_why_it_alone_does_not_open(found):
    strict, plain = PreflightPlan(strict=True), PreflightPlan()
    report = report_of(found)
    status = exit_status(report, strict)
    words = describe_strict(report, strict, status)
    assert bool(words) == (status is not exit_status(report, plain))
    if words and status is ExitStatus.ERROR:
        assert all(result.check in words for result in found if result.is_gap)
    assert describe_strict(report, plain, exit_status(report, plain)) == ""


@given(st.lists(results(), max_size=6), st.sampled_from(OPEN))
def test_a_report_that_says_better_than_its_results_is_not_believed(found, claimed):
    if judge_results(found) in OPEN:
        return
    assert exit_status(report_of(found, claimed), PreflightPlan()) is not ExitStatus.PASS


def test_where_all_was_skipped_the_gate_stays_shut_whoever_it_is_about():
    told = CheckResult("a.a", Outcome.SKIP, (finding(Outcome.FAIL, Owner.JOB),), "why")
    assert exit_status(report_of([told]), PreflightPlan(fail_on="host")) is ExitStatus.ERROR


def test_an_empty_report_never_passes():
    assert judge_results(()) is Outcome.ERROR
    assert exit_status(Report(Outcome.PASS, (), SNAPSHOT), PreflightPlan()) is ExitStatus.ERROR


@pytest.mark.parametrize(
    ("fail_on", "owner", "status"),
    [
        ("any", Owner.JOB, ExitStatus.FAIL),
        ("host", Owner.JOB, ExitStatus.PASS),
        ("host", Owner.HOST, ExitStatus.FAIL),
        ("hardware", Owner.HOST, ExitStatus.PASS),
        ("hardware", Owner.HARDWARE, ExitStatus.FAIL),
    ],
)
def test_fail_on_asks_whose_fault_it_is(fail_on, owner, status):
    failed = CheckResult("a.a", Outcome.FAIL, (finding(Outcome.FAIL, owner),))
    assert exit_status(report_of([failed]), PreflightPlan(fail_on=fail_on)) is status


@pytest.mark.parametrize("owner", Owner)
@pytest.mark.parametrize("severity", Severity)
def test_what_fails_keeps_jobs_off_whoever_must_act(owner, severity):
    failed = CheckResult("a.a", Outcome.FAIL, (finding(Outcome.FAIL, owner, severity),))
    own_setting = owner is Owner.JOB and severity is Severity.CONFIG
    expected = ExitStatus.PASS if own_setting else ExitStatus.FAIL
    assert exit_status(report_of([failed]), PreflightPlan(fail_on="machine")) is expected


def test_a_setting_of_the_machine_itself_keeps_jobs_off_under_a_jobs_code_too():
    kind = finding_kind(Outcome.FAIL, Owner.JOB, Severity.CONFIG)
    assert not kind.finding(HostSubject("a1"), "it is so").blocks_jobs
    assert kind.finding(HostSubject("a1"), "it is so", owner=Owner.HOST).blocks_jobs


def test_a_fail_that_no_finding_explains_keeps_jobs_off():
    plan = PreflightPlan(fail_on="machine")
    assert exit_status(report_of([CheckResult("a.a", Outcome.FAIL)]), plan) is ExitStatus.FAIL
    own = finding(Outcome.FAIL, Owner.JOB, Severity.CONFIG)
    told = CheckResult(
        "a.a", Outcome.FAIL, reason="reported by environment.test", reported_by=("environment.test",)
    )
    assert exit_status(report_of([told, CheckResult("b.b", Outcome.FAIL, (own,))]), plan) is ExitStatus.PASS


@pytest.mark.parametrize("fail_on", FAIL_ON)
def test_a_report_that_says_worse_than_its_results_keeps_the_gate_shut(fail_on):
    report = report_of([CheckResult("a.a", Outcome.PASS)], Outcome.FAIL)
    assert exit_status(report, PreflightPlan(fail_on=fail_on)) is not ExitStatus.PASS


def test_fail_on_hardware_still_says_when_it_could_not_tell():
    unclear = [CheckResult("a.a", Outcome.ERROR, reason="why"), CheckResult("b.b", Outcome.PASS)]
    assert exit_status(report_of(unclear), PreflightPlan(fail_on="hardware")) is ExitStatus.ERROR


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (None, ExitStatus.PASS),
        (MissingReason.NOT_SUPPORTED, ExitStatus.PASS),
        (MissingReason.NO_PERMISSION, ExitStatus.ERROR),
        (MissingReason.NOT_ASKED, ExitStatus.ERROR),
        (MissingReason.IN_USE, ExitStatus.ERROR),
    ],
)
def test_strict_counts_the_gaps(reason, status):
    found = [
        CheckResult("a.a", Outcome.PASS),
        CheckResult("b.b", Outcome.SKIP, reason="why", missing_reason=reason),
    ]
    assert exit_status(report_of(found), PreflightPlan(strict=True)) is status
    assert exit_status(report_of(found), PreflightPlan()) is ExitStatus.PASS


def _numbers(noun):
    return [name for name in noun.__dataclass_fields__ if isinstance(getattr(noun, name), float)]


GPUS = gpu_snapshot(4)
MEASURED = measure_gpus(GPUS)


@given(
    st.sampled_from(["bandwidth", "compute"]), st.integers(0, 3), st.sampled_from([float("nan"), -1.0, 0.0])
)
def test_a_speed_that_cannot_be_never_passes(field, place, value):
    from gpudiag.checks import BUILTIN

    found = list(getattr(MEASURED, field))
    found[place] = replace(found[place], **{_numbers(found[place])[-1]: value})
    context = judged_by(replace(MEASURED, **{field: tuple(found)}), GPUS)
    checks = [one for one in BUILTIN if "active" in one.needs and one.level <= Level.STANDARD]
    assert judge_results(run_checks(context, checks)) is not Outcome.PASS


@given(st.integers(0, 3), st.sampled_from(["bandwidth", "compute", "determinism", "patterns", "sustained"]))
def test_one_ranks_report_missing_never_passes(rank, field):
    from gpudiag.checks import BUILTIN

    kept = tuple(one for one in getattr(MEASURED, field) if one.rank != rank)
    context = judged_by(replace(MEASURED, **{field: kept}), GPUS)
    checks = [one for one in BUILTIN if "active" in one.needs]
    assert judge_results(run_checks(context, checks)) is not Outcome.PASS


def test_no_measures_at_all_never_pass():
    from gpudiag.checks import BUILTIN

    checks = [one for one in BUILTIN if "active" in one.needs or "collective" in one.needs]
    assert judge_results(run_checks(Context(GPUS, Measures()), checks)) is Outcome.ERROR
