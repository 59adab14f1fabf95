"""The whole catalogue: every check fires, spares its near miss, and never passes without having looked."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.needs import NO_GPU
from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.on_machine import MACHINE_CHECKS
from gpudiag.checks.registry import Check, Level
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.finding import CheckResult, Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import Measures
from gpudiag.simulate.loader import base_machines
from tests.scenarios.acceptance_cases import ACCEPTANCE_CASES
from tests.scenarios.active_cases import ACTIVE_CASES
from tests.scenarios.collective_cases import COLLECTIVE_CASES
from tests.scenarios.gpu_cases import GPU_CASES
from tests.scenarios.host_cases import HOST_CASES
from tests.scenarios.kernel_log_cases import KERNEL_LOG_CASES
from tests.scenarios.kernel_words_cases import BOARD_CASES, KERNEL_WORDS_CASES
from tests.scenarios.link_cases import LINK_CASES
from tests.scenarios.situations import Case, Situation, blank, look_at_machine
from tests.scenarios.training_cases import TRAINING_CASES
from tests.walking import walk

CASES = (
    *GPU_CASES, *LINK_CASES, *HOST_CASES, *KERNEL_LOG_CASES, *KERNEL_WORDS_CASES, *BOARD_CASES,
    *COLLECTIVE_CASES, *ACTIVE_CASES, *TRAINING_CASES, *ACCEPTANCE_CASES,
)  # fmt: skip
CHECKS = {check.name: check for check in BUILTIN}
# Some codes tell what happened to ranks, whichever of these measured.
ON_RANKS = {"collective", "active", "training", "operations", "card_pairs", "disks"}
OF_A_LOOK = [check for check in BUILTIN if not ON_RANKS & set(check.needs)]
REASONS = [reason for reason in MissingReason]


def result(check: Check, context: Context) -> CheckResult:
    return run_checks(context, (check,))[0]


def codes(found: CheckResult) -> set[str]:
    return {finding.code for finding in found.findings}


def name(case: Case) -> str:
    return f"{case.check}:{case.code}"


@walk(CASES, name)
def test_a_fault_is_reported(case: Case):
    found = result(CHECKS[case.check], case.fires.context(look_at_machine(case.base)))
    assert codes(found) == {case.code}, found
    kind = next(kind for kind in CHECKS[case.check].reports if kind.code == case.code)
    finding = next(finding for finding in found.findings if finding.code == case.code)
    assert (finding.outcome, finding.severity) == (kind.outcome, kind.severity)
    assert finding.evidence
    assert finding.message
    assert finding.remedy


@walk(CASES, name)
def test_a_near_miss_is_not(case: Case):
    found = result(CHECKS[case.check], case.near.context(look_at_machine(case.base)))
    assert case.code not in codes(found), found
    assert found.outcome is not Outcome.ERROR, found


@walk(CASES, name)
def test_a_fault_is_named_once(case: Case):
    context = case.fires.context(look_at_machine(case.base))
    results = run_checks(context, BUILTIN)
    counts = Counter((one.code, one.subject) for found in results for one in found.findings)
    assert counts
    assert max(counts.values()) == 1, counts
    for found in results:
        assert codes(found) <= {kind.code for kind in CHECKS[found.check].reports}, found


def test_every_code_of_the_catalogue_has_a_case():
    promised = Counter((check.name, kind.code) for check in BUILTIN for kind in check.reports)
    assert set(promised.values()) == {1}
    assert promised.keys() == {(case.check, case.code) for case in CASES}  # some have several


@pytest.mark.parametrize("reason", REASONS, ids=str)
@pytest.mark.parametrize("base", ["h100x8", "t4x1", "none"])
def test_no_check_passes_without_its_readings(base: str, reason: MissingReason):
    look = look_at_machine(base)
    empty = blank(look, lambda: reason)
    gone = Missing(reason)
    context = Context(
        empty, Measures(gone, gone, gone), earlier=empty, baseline=gone, expected_driver="580", history=gone
    )
    passed = {found.check for found in run_checks(context, BUILTIN) if found.outcome is Outcome.PASS}
    assert passed <= LOOKED_AT_ROWS


@pytest.mark.parametrize("base", ["h100x8", "b200x8", "t4x1", "h100-mig", "wsl2-rtx"])
def test_no_check_stumbles_over_readings_that_are_missing_here_and_there(base: str):
    look = look_at_machine(base)
    for seed in range(20):
        chance = Random(seed)
        now, before = (blank(look, lambda: chance.choice((*[None] * 20, *REASONS))) for _ in range(2))  # noqa: B023
        before = replace(before, taken_at=look.taken_at - timedelta(hours=1))
        for found in run_checks(Context(now, earlier=before, baseline=before), BUILTIN):
            assert "the check itself failed" not in (found.reason or ""), (seed, found)


# What these judge is how the sources answered, and whether each GPU has a row and answers: that is still
# there.
LOOKED_AT_ROWS = set(
    """
    source.nvml source.nvml_calls source.agreement gpu.lost gpu.hung gpu.count
    environment.cuda_visible_devices
    """.split()
)


@walk(BUILTIN, lambda check: check.name)
def test_no_check_passes_when_its_part_of_the_snapshot_is_gone(check: Check):
    """Without NVML, the host's state, torch and any other snapshot nothing can be judged but the bus."""
    from gpudiag.model.device import SourceState
    from tests.scenarios.gpu_cases import source
    from tests.scenarios.situations import changed, machine, top

    nothing = Missing(MissingReason.ERROR, "broken")
    gone = (
        source(SourceState.FAILED),
        machine(state=nothing),
        top(torch=nothing, devices=(), kernel_log=nothing),
    )
    look = changed(look_at_machine("h100x8"), gone)
    assert result(check, Context(look)).outcome is not Outcome.PASS or check.name in {"driver.nouveau"}


@pytest.mark.sliced
@pytest.mark.parametrize("base", sorted(base_machines()))
def test_a_healthy_machine_raises_no_alarm(base: str):
    look = look_at_machine(base)
    results = run_checks(Context(look, earlier=Situation(before=()).context(look).earlier), BUILTIN)
    found = {finding.code for one in results for finding in one.findings}
    assert found == set()
    blind = {one.check: one.reason for one in results if one.outcome is Outcome.ERROR}
    assert blind == ({} if base != "none" else {"gpu.count": NO_GPU})
    skipped = [one for one in results if one.outcome is Outcome.SKIP]
    assert all(one.reason for one in skipped)
    if base != "none":
        looked = {one.check for one in results if one.outcome is Outcome.PASS}
        assert len(looked & {check.name for check in OF_A_LOOK}) > 25  # a virtual GPU has the fewest, 29


def test_a_machine_without_a_gpu_says_so_for_every_check_of_gpus():
    results = {one.check: one for one in run_checks(Context(look_at_machine("none")), BUILTIN)}
    needing = [check.name for check in BUILTIN if "gpus" in check.needs]
    assert {results[check].outcome for check in needing} == {Outcome.SKIP}
    assert {results[check].reason for check in needing} == {"no GPU and no trace of one"}
    assert results["host.disk"].outcome is Outcome.PASS


@pytest.mark.parametrize("spec", [*sorted(base_machines()), "h100x8+lost:3+row-remap-failed:5"])
def test_a_listing_judges_as_the_whole_catalogue_does(spec: str):
    """What a listing does not ask for, no check may judge: the two can then not disagree."""
    from tests.scenarios.situations import changed, machine, top

    not_asked = Missing(MissingReason.NOT_ASKED)
    look = changed(look_at_machine(spec), (machine(state=not_asked), top(torch=not_asked)))
    rest = [check for check in BUILTIN if check not in MACHINE_CHECKS]
    judged = [one.check for one in run_checks(Context(look), rest) if one.outcome is not Outcome.SKIP]
    # A listing judges these too: list them in MACHINE_CHECKS of gpudiag/checks/on_machine.py.
    assert judged == []
    assert set(GPU_CHECKS) <= set(MACHINE_CHECKS) <= set(BUILTIN)


ONE_LOOK = {"nvml", "gpus", "kernel_log", "xids", "host_state", "known_gpus"}


def test_what_one_look_can_answer_is_judged_in_a_listing_as_at_the_gate():
    """The bare command, `list` and an instant preflight cannot disagree about what one look shows."""
    instant = [check for check in BUILTIN if check.level is Level.INSTANT and set(check.needs) <= ONE_LOOK]
    left_out = {check.name for check in instant if check not in MACHINE_CHECKS}
    # Of a job that starts; --expect-driver is the gate's.
    assert left_out == {
        "memory.free",
        "driver.version",
    }


@walk(CASES, name)
def test_the_listing_reports_what_the_gate_does(case: Case):
    context = case.fires.context(look_at_machine(case.base))
    once = Context(context.snapshot, known_gpus=context.known_gpus)
    gate = [check for check in BUILTIN if check.level is Level.INSTANT and check.name != "memory.free"]
    told = [
        sorted(
            (finding.code, finding.outcome.value)
            for one in run_checks(once, checks)
            for finding in one.findings
        )
        for checks in (gate, MACHINE_CHECKS)
    ]
    assert told[0] == told[1]


def test_what_needs_only_gpus_is_judged_in_a_listing():
    forgotten = [check.name for check in BUILTIN if set(check.needs) == {"gpus"} and check not in GPU_CHECKS]
    assert forgotten == []  # list them in GPU_CHECKS of gpudiag/checks/on_gpus.py


def test_checks_and_codes_are_listed_once():
    assert max(Counter(check.name for check in BUILTIN).values()) == 1
    reporters = Counter(kind.code for check in BUILTIN for kind in check.reports)
    on_ranks = {kind.code for check in BUILTIN if ON_RANKS & set(check.needs) for kind in check.reports}
    assert {code for code, count in reporters.items() if count > 1} <= on_ranks


@walk(BUILTIN, lambda check: check.name)
def test_a_check_says_what_it_reads_and_where_its_limit_comes_from(check: Check):
    assert check.title
    assert check.readings


@walk(BUILTIN, lambda check: check.name)
def test_a_reading_that_nothing_has_confirmed_may_warn_and_not_fail(check: Check):
    unstated = {kind.code for kind in check.reports if kind.outcome is Outcome.FAIL and not kind.stated}
    assert check.confirmed or not unstated
