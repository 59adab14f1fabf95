"""Every code says whether it keeps jobs off the machine, and why not where it does not."""

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.registry import FindingKind
from gpudiag.checks.runner import run_checks
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.host_state import Settings
from gpudiag.model.plan import PreflightPlan
from tests.scenarios.host_cases import cuda_error
from tests.scenarios.situations import environment, look_at_machine, machine, now, state
from tests.walking import walk
from tools.write_findings_page import PAGE

PLAN = PreflightPlan(fail_on="machine")
# A fault of these parts is the machine's, whoever told of it first.
PARTS = {category for category in Category if category.value.startswith("hw_")} | {Category.SW_XID}


@walk(finding_kinds(), lambda kind: kind.code)
def test_a_fail_keeps_jobs_off_or_says_why_not(kind: FindingKind):
    finding = kind.finding(HostSubject("a1"), "it is so")
    if kind.outcome is not Outcome.FAIL:
        assert not finding.blocks_jobs
        assert not kind.jobs_may_start, "only a FAIL needs a reason"
        return
    assert finding.blocks_jobs == PLAN.fails_on(finding) == (not kind.spares_jobs)
    if kind.spares_jobs:
        assert kind.owner in (Owner.JOB, Owner.SOFTWARE), "the machine itself is at fault"
        assert kind.category not in PARTS
        assert kind.severity not in (Severity.ISOLATE, Severity.RESET)


@walk(finding_kinds(), lambda kind: kind.code)
def test_the_page_says_it_of_every_code(kind: FindingKind):
    entry = PAGE.read_text().partition(f"\n### `{kind.code}`\n")[2].partition("\n### ")[0]
    fails = kind.outcome is Outcome.FAIL
    assert ("; keeps jobs off\n" in entry) == (fails and not kind.spares_jobs)
    assert (f"; jobs may start: {kind.spares_jobs}\n" in entry) == (fails and bool(kind.spares_jobs))


def test_the_faults_that_nobody_owns_for_certain_keep_jobs_off():
    codes = {kind.code for kind in finding_kinds() if kind.outcome is Outcome.FAIL and not kind.spares_jobs}
    assert (
        set(
            """
        gpu.hung gpu.count nvml.timed_out nvml.version_mismatch nvml.failed nvml.driver_not_loaded
        fabric.not_ready cuda.unknown_error cuda.system_not_ready process.dead rank.died
        """.split()
        )
        <= codes
    )


def failing(*changes):
    """The FAILs of that machine, and whether they keep jobs off."""
    results = run_checks(now(*changes).context(look_at_machine("h100x8")), BUILTIN)
    found = (finding for result in results for finding in result.findings)
    return {finding.code: finding.blocks_jobs for finding in found if finding.outcome is Outcome.FAIL}


@pytest.mark.parametrize(
    ("value", "code"), [("-1", "none"), ("", "none"), ("9", "invalid"), ("9,0", "invalid"), ("0,0", "twice")]
)
def test_cuda_that_is_shown_no_gpu_is_the_jobs_own_mistake_and_told_once(value, code):
    shown = {"CUDA_VISIBLE_DEVICES": value}
    no_device = cuda_error("No CUDA GPUs are available")
    found = failing(environment(**shown), machine(allocation=shown), no_device)
    assert found == {f"environment.visible_devices_{code}": False}


@pytest.mark.parametrize("allocation", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "0,9"}])
def test_cuda_that_starts_on_no_gpu_that_it_is_shown_keeps_jobs_off(allocation):
    found = failing(machine(allocation=allocation), cuda_error("No CUDA GPUs are available"))
    assert found["cuda.no_device"]


@pytest.mark.parametrize(
    ("variables", "file", "blocks"),
    [
        ({"NCCL_IB_HCA": "mlx4"}, {}, False),
        ({}, {"/etc/nccl.conf": {"NCCL_IB_HCA": "mlx4"}}, True),
        (
            {},
            {"/home/ann/.nccl.conf": {"NCCL_IB_HCA": "mlx4"}, "/etc/nccl.conf": {"NCCL_IB_HCA": "mlx4"}},
            False,
        ),
        ({"NCCL_IB_HCA": "mlx4"}, {"/etc/nccl.conf": {"NCCL_IB_HCA": "mlx4"}}, False),
    ],
)
def test_a_wrong_setting_keeps_jobs_off_where_the_machine_gives_it_to_every_job(variables, file, blocks):
    assert failing(state(settings=Settings(variables, file))) == {"environment.nccl_device_absent": blocks}


@pytest.mark.parametrize(("file", "blocks"), [("/home/ann/.nccl.conf", False), ("/etc/nccl.conf", True)])
def test_so_does_a_wrong_interface(file, blocks):
    settings = Settings({}, {file: {"NCCL_SOCKET_IFNAME": "=eth77"}})
    assert failing(state(settings=settings)) == {"network.wrong_interface": blocks}
