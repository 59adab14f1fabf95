from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import finding_kinds, name_reporters
from gpudiag.checks.needs import NEEDS
from gpudiag.checks.registry import (
    Basis,
    Check,
    FindingKind,
    Judgement,
    check,
    could_not_look,
    does_not_apply,
    judged,
)
from gpudiag.checks.runner import findings_worst_first, run_checks, verdict
from gpudiag.model.context import Context
from gpudiag.model.device import SourceState
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Category, CheckResult, Outcome, Owner, Severity
from tests.unit.checks.machines import look_at, make_bare_machine, make_broken_snapshot
from tests.unit.model.nouns import make_device, make_snapshot

HEALTHY = look_at(make_snapshot(make_device(0)))


def make_kind(outcome: Outcome) -> FindingKind:
    return FindingKind(
        f"test.{outcome.value}",
        outcome,
        Severity.MONITOR,
        Category.HW_OTHER,
        Owner.HOST,
        "meaning",
        "remedy",
        Basis("reads", "limit", ()),
    )


def make_check(judgement: object, *needs: str) -> Check:
    @check("test.check", title="a check of the tests", reports=(), needs=needs)
    def built(context: Context) -> Judgement:
        return judgement  # type: ignore[return-value]

    return built


@check("test.raises", title="a check that breaks", reports=())
def raises(context: Context) -> Judgement:
    raise KeyError("no such reading")


def run_one(context: Context, one: Check) -> CheckResult:
    (result,) = run_checks(context, (one,))
    return result


def test_a_check_that_raises_is_an_error_in_its_own_words() -> None:
    result = run_one(HEALTHY, raises)
    assert result.outcome is Outcome.ERROR
    assert "KeyError" in (result.reason or "")
    assert "no such reading" in (result.reason or "")


def test_a_check_that_returns_nothing_is_an_error() -> None:
    assert run_one(HEALTHY, make_check(None)).outcome is Outcome.ERROR


def test_a_broken_check_costs_only_itself() -> None:
    results = run_checks(HEALTHY, (make_check(judged()), raises, make_check(judged())))
    assert [result.outcome for result in results] == [Outcome.PASS, Outcome.ERROR, Outcome.PASS]


def test_a_judgement_is_as_bad_as_its_worst_finding() -> None:
    warn, fail = (
        make_kind(outcome).finding(HostSubject("a1"), "message") for outcome in (Outcome.WARN, Outcome.FAIL)
    )
    assert judged(warn, fail, warn).outcome is Outcome.FAIL
    assert judged(warn).outcome is Outcome.WARN
    assert judged().outcome is Outcome.PASS


def test_all_skipped_is_an_error() -> None:
    results = run_checks(HEALTHY, (make_check(does_not_apply("not here")),) * 2)
    assert verdict(results) is Outcome.ERROR
    assert verdict(()) is Outcome.ERROR


def test_a_skip_does_not_hide_a_pass_nor_an_error_a_failure() -> None:
    skip, passed, error = (
        make_check(does_not_apply("-")),
        make_check(judged()),
        make_check(could_not_look("-")),
    )
    fail = make_check(judged(make_kind(Outcome.FAIL).finding(HostSubject("a1"), "message")))
    assert verdict(run_checks(HEALTHY, (skip, passed))) is Outcome.PASS
    assert verdict(run_checks(HEALTHY, (passed, error))) is Outcome.ERROR
    assert verdict(run_checks(HEALTHY, (error, fail, passed))) is Outcome.FAIL


def test_findings_come_worst_first_and_else_in_check_order() -> None:
    warn = make_kind(Outcome.WARN).finding(HostSubject("a1"), "a warning")
    fails = [make_kind(Outcome.FAIL).finding(HostSubject("a1"), message) for message in ("first", "second")]
    results = run_checks(HEALTHY, (make_check(judged(warn)), make_check(judged(*fails))))
    assert [finding.message for finding in findings_worst_first(results)] == ["first", "second", "a warning"]


def test_a_need_that_does_not_apply_skips_the_check() -> None:
    nothing = make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine())
    assert run_one(look_at(nothing), make_check(judged(), "gpus")).outcome is Outcome.SKIP


def test_a_need_that_should_be_there_is_an_error() -> None:
    broken = make_broken_snapshot(SourceState.DRIVER_NOT_LOADED, make_bare_machine(gpus=8))
    result = run_one(look_at(broken), make_check(judged(), "gpus"))
    assert result.outcome is Outcome.ERROR
    assert result.reason == "NVML does not work: no driver (see source.nvml)"


def test_a_check_of_gpus_on_a_machine_that_lists_none_of_its_gpus_is_an_error() -> None:
    empty = make_snapshot(machine=make_bare_machine(gpus=2))
    assert run_one(look_at(empty), make_check(judged(), "gpus")).outcome is Outcome.ERROR
    assert run_one(look_at(empty), make_check(judged(), "nvml")).outcome is Outcome.PASS


def test_a_measure_that_nobody_took_skips_the_check() -> None:
    assert run_one(HEALTHY, make_check(judged(), "collective")).outcome is Outcome.SKIP


def test_every_need_of_a_builtin_check_is_known() -> None:
    assert {need for one in BUILTIN for need in one.needs} <= set(NEEDS)


def test_names_of_checks_and_codes_of_findings_are_unique() -> None:
    names = [one.name for one in BUILTIN]
    assert len(set(names)) == len(names)
    declared = {kind for one in BUILTIN for kind in one.reports}
    assert declared <= set(finding_kinds())
    assert len({kind.code for kind in declared}) == len(declared)  # no code stands for two kinds


def test_every_code_is_reported_by_a_check_or_by_a_command() -> None:
    reporters = {kind.code: name_reporters(kind) for kind in finding_kinds()}
    assert all(reporters.values())
    assert reporters["gpu.lost"] == "the check gpu.lost"
    assert reporters["collective.slow"] == "the check collective.operations; gpudiag nccl-test"
    assert reporters["rank.died"].endswith("; gpudiag nccl-test, gpudiag train")
