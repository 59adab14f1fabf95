"""One fault, one finding: what is joined, what stays, and what is never lost by it."""

from dataclasses import replace

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.gpu.devices import ASKED_FOR_BY, GPU_LOST
from gpudiag.checks.gpu.xid import xid_kernel_log
from gpudiag.checks.on_gpus import GPU_CHECKS
from gpudiag.checks.registry import Restated
from gpudiag.checks.runner import join_restated, run_checks, same_gpu, verdict
from gpudiag.model.context import Context
from gpudiag.model.evidence import DeviceSubject, HostSubject
from gpudiag.model.finding import Outcome, Owner, Severity
from gpudiag.model.history import History
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.xid import xids
from tests.unit.checks.kernel_events import event_from, recovery, xid
from tests.unit.model.nouns import make_device, make_snapshot
from tests.unit.render.reports import make_finding, make_result

LOST = Missing(MissingReason.DEVICE_LOST, "GPU is lost (NVML 15)")
LATE = Missing(MissingReason.TIMED_OUT, "no answer within 5.0 s")
ABSENT = Missing(MissingReason.SOURCE_ABSENT)
HEALTHY = {"row_remap_failed": False, "row_remap_pending": False, "row_remap_uncorrectable": 0}
OFF_BUS = "NVRM: GPU 0000:19:00.0: GPU has fallen off the bus."


def judge(*log, checks=GPU_CHECKS, history=None, **readings):
    """The results on a machine of two GPUs, the first of them with those readings, and that kernel log."""
    sick = replace(make_device(0), **{**HEALTHY, **readings})
    snapshot = make_snapshot(sick, make_device(1), kernel_log=log)
    context = Context(snapshot) if history is None else Context(snapshot, history=history)
    return run_checks(context, checks)


def told(results):
    """Code and GPU of every finding that is more than a note."""
    return [
        (finding.code, finding.subject.nvml_index)
        for result in results
        for finding in result.findings
        if finding.outcome is not Outcome.PASS
    ]


def only_finding(results):
    (finding,) = [finding for result in results for finding in result.findings]
    return finding


def values(finding):
    return {fact.name: fact.value for fact in finding.evidence}


RESET = {"recovery_action": "gpu_reset"}


@pytest.mark.parametrize(
    ("log", "readings", "code"),
    [
        ((xid(79),), {"responding": LOST, "recovery_action": LOST}, "gpu.lost"),
        ((event_from(OFF_BUS),), {"responding": LOST, "recovery_action": LOST}, "gpu.lost"),
        ((xid(119),), {"responding": LATE, "recovery_action": LATE}, "gpu.hung"),
        ((xid(64),), {"row_remap_failed": True}, "memory.row_remap_failed"),
        ((xid(63),), {"row_remap_pending": True}, "memory.row_remap_pending"),
        ((xid(48), xid(63)), {"ecc_uncorrected_volatile": 1}, "ecc.uncorrected_volatile"),
        ((xid(48), xid(63)), {"row_remap_pending": True}, "memory.row_remap_pending"),
        ((xid(94),), {"ecc_uncorrected_volatile": 1}, "ecc.uncorrected_volatile"),
        ((xid(95),), {"ecc_uncorrected_volatile": 1}, "ecc.uncorrected_volatile"),
        ((xid(95), recovery(1)), {"ecc_uncorrected_volatile": 1, **RESET}, "ecc.uncorrected_volatile"),
        ((xid(63),), {"ecc_uncorrected_volatile": 1, "row_remap_pending": True}, "ecc.uncorrected_volatile"),
        ((), {"ecc_uncorrected_volatile": 1, "row_remap_pending": True, **RESET}, "ecc.uncorrected_volatile"),
        ((), {"row_remap_failed": True, **RESET}, "memory.row_remap_failed"),
        ((recovery(1),), RESET, "gpu.recovery_needed"),
        # No count and no flag of NVML says what happened: the log does, and the driver's request is its
        # remedy.
        ((xid(95), recovery(1)), RESET, "xid.hardware"),
        ((xid(13), recovery(1)), RESET, "xid.hardware"),
    ],
)
def test_a_fault_is_told_once(log, readings, code):
    results = judge(*log, **readings)
    assert told(results) == [(code, 0)]
    assert only_finding(results).evidence


@pytest.mark.parametrize(
    ("log", "readings", "codes"),
    [
        # It recovered, or only the log tells.
        ((xid(79),), {}, ["xid.hardware"]),
        ((xid(48), recovery(1)), {"recovery_action": "none"}, ["xid.settled"]),
        # Another GPU's.
        ((xid(79, gpu=1),), {"responding": LOST, "recovery_action": LOST}, ["gpu.lost", "xid.hardware"]),
        # Another fault of the same GPU.
        ((xid(79),), {"ecc_uncorrected_volatile": 1}, ["xid.hardware", "ecc.uncorrected_volatile"]),
        ((xid(31),), {"ecc_uncorrected_volatile": 1}, ["xid.application", "ecc.uncorrected_volatile"]),
        # A count over the GPU's life says nothing of now.
        ((xid(48),), {"ecc_uncorrected_aggregate": 1}, ["xid.hardware", "ecc.uncorrected_aggregate"]),
    ],
)
def test_what_nvml_does_not_state_stays_a_finding(log, readings, codes):
    assert [code for code, _ in told(judge(*log, **readings))] == codes


def test_the_finding_says_since_when_by_which_xid_and_keeps_both_sources():
    finding = only_finding(judge(xid(79), responding=LOST, recovery_action=LOST))
    assert "; Xid 79 at " in finding.message
    assert values(finding)["responding"] == "GPU is lost (NVML 15)"
    assert values(finding)["xid"] == 79
    assert {fact.source for fact in finding.evidence} == {"NVML", "kernel log"}


def test_the_more_severe_outcome_severity_and_owner_win():
    hung = only_finding(judge(xid(119), responding=LATE, recovery_action=LATE))
    assert (hung.outcome, hung.severity, hung.owner) == (Outcome.FAIL, Severity.ISOLATE, Owner.HARDWARE)
    results = judge(row_remap_pending=True, **RESET)
    pending = only_finding(results)
    assert (pending.code, pending.outcome) == ("memory.row_remap_pending", Outcome.FAIL)
    assert {result.check: result.outcome for result in results}["memory.row_remap"] is Outcome.FAIL


@pytest.mark.parametrize("log", [(), (xid(64), recovery(1))], ids=["no log", "log"])
def test_what_the_driver_asks_for_comes_first_in_the_remedy_and_once(log):
    finding = only_finding(judge(*log, row_remap_failed=True, **RESET))
    assert finding.remedy.startswith("The driver asks for a GPU reset. ")
    assert finding.remedy.count("a GPU reset") == 1
    assert "replaced" in finding.remedy


def test_a_lost_gpu_has_one_instruction_and_not_the_drivers_weaker_one_beside_it():
    finding = only_finding(judge(xid(79), recovery(2), responding=LOST, recovery_action=LOST))
    assert finding.code == "gpu.lost"
    assert finding.remedy.startswith(GPU_LOST.remedy)  # and then why the driver's request is not enough
    assert finding.remedy.count("power-cycle") == 1
    assert values(finding)["recovery_action"] == "node_reboot"


def test_a_fault_that_came_back_says_so_where_it_is_told():
    history = History("a1", "store", kernel_events=(xid(64, minutes_ago=3 * 24 * 60),))
    finding = only_finding(judge(xid(64), history=history, row_remap_failed=True))
    assert finding.code == "memory.row_remap_failed"
    assert finding.remedy.startswith("It came back once since ")


def test_a_check_whose_finding_is_told_elsewhere_never_passes_and_says_where():
    results = judge(xid(79), responding=LOST, recovery_action=LOST)
    log = next(result for result in results if result.check == "xid.kernel_log")
    assert (log.outcome, log.findings, log.reported_by) == (Outcome.FAIL, (), ("gpu.lost",))
    assert log.reason == "reported by gpu.lost"
    assert verdict(results) is Outcome.FAIL


def test_a_check_that_runs_alone_tells_its_own_finding():
    results = judge(xid(79), checks=(xid_kernel_log,), responding=LOST, recovery_action=LOST)
    assert told(results) == [("xid.hardware", 0)]


def test_the_order_of_the_checks_makes_no_fault_twice():
    log, readings = (
        (xid(48), xid(63), recovery(1)),
        {"ecc_uncorrected_volatile": 1, "row_remap_pending": True},
    )
    for checks in (GPU_CHECKS, GPU_CHECKS[::-1], BUILTIN):
        codes = told(judge(*log, checks=checks, **readings, **RESET))
        assert [code for code, index in codes if index == 0] == ["ecc.uncorrected_volatile"]


def test_every_code_that_may_state_an_xid_or_ask_for_a_recovery_is_in_the_catalogue():
    known = {kind.code for kind in finding_kinds()}
    assert {code for entry in xids().values() for code in entry.stated_by} <= known
    assert set(ASKED_FOR_BY) <= known


def test_a_gpu_is_known_by_its_bus_id_or_its_uuid():
    whole = DeviceSubject("GPU-1", "00000000:19:00.0", 0, "a1")
    on_bus = DeviceSubject(ABSENT, "00000000:19:00.0", ABSENT, "a1")
    assert same_gpu(whole, on_bus)
    assert same_gpu(whole, DeviceSubject("GPU-1", ABSENT, ABSENT, "a1"))
    assert not same_gpu(
        DeviceSubject(ABSENT, ABSENT, ABSENT, "a1"), DeviceSubject(ABSENT, ABSENT, ABSENT, "a1")
    )
    assert not same_gpu(whole, DeviceSubject("GPU-2", "00000000:1a:00.0", 1, "a1"))
    assert not same_gpu(HostSubject("a1"), HostSubject("a1"))


def test_a_check_names_the_gpu_whose_fault_another_check_reports():
    lost = make_finding("gpu.lost", subject=DeviceSubject("GPU-3", "00000000:86:00.0", 3, "a1"))
    asked = make_finding("gpu.recovery_needed", subject=DeviceSubject("GPU-5", "00000000:a8:00.0", 5, "a1"))
    ecc = make_finding("ecc.uncorrected_volatile", subject=asked.subject)
    both = make_result("gpu.lost", Outcome.FAIL, lost, asked)
    of_ecc = make_result("ecc.uncorrected", Outcome.FAIL, ecc)
    joined = join_restated((both, of_ecc), (Restated(asked, ("ecc.uncorrected_volatile",)),))
    assert (joined[0].findings, joined[0].reason) == ((lost,), "GPU 5: reported by ecc.uncorrected_volatile")
    alone = make_result("gpu.lost", Outcome.FAIL, asked)
    joined = join_restated((alone, of_ecc), (Restated(asked, ("ecc.uncorrected_volatile",)),))
    assert (joined[0].findings, joined[0].reason) == ((), "reported by ecc.uncorrected_volatile")


def test_a_power_cycle_says_that_the_driver_asks_for_less():
    kind = next(kind for kind in finding_kinds() if kind.code == "gpu.lost")
    lost = kind.finding(DeviceSubject("GPU-3", "00000000:86:00.0", 3, "a1"), "GPU 3 is lost")
    xid = make_finding("xid.hardware", subject=lost.subject)
    results = (make_result("gpu.lost", Outcome.FAIL, lost), make_result("xid.kernel_log", Outcome.FAIL, xid))
    how = Restated(xid, ("gpu.lost",), request="a reboot of the node")
    remedy = join_restated(results, (how,))[0].findings[0].remedy
    assert remedy.startswith(lost.remedy)
    assert "asks for a reboot of the node: that alone leaves the GPU's power on" in remedy
    assert join_restated(results, (replace(how, request=""),))[0].findings[0].remedy == lost.remedy
