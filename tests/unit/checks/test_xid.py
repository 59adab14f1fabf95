from dataclasses import replace
from datetime import timedelta

import pytest

from gpudiag.checks.gpu.xid import (
    APPLICATION_WINDOW,
    REPLACE,
    SETTLED_WINDOW,
    UNASKED_WINDOW,
    xid_kernel_log,
)
from gpudiag.checks.links.sxid import judge_sxids, sxid_kernel_log
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.finding import Outcome, Owner, Severity
from gpudiag.model.host import Container
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.model.remedy import fit_remedy
from gpudiag.reference.vocabulary import RECOVERY_ACTIONS, UNFIT_ACTIONS, name_action
from gpudiag.reference.xid import action_text, xids
from tests.unit.checks.kernel_events import (
    FAILING,
    LOST,
    MINUTES_A_DAY,
    codes,
    event_from,
    evidence_of,
    judge,
    recovery,
    snapshot_with,
    sxid,
    xid,
)
from tests.unit.model.nouns import WITHOUT_LIBRARY, make_device, make_machine, make_snapshot
from tests.walking import walk

BIT_ERRORS = "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00000226 0x00000001)"


@walk(FAILING)
def test_a_fault_of_the_gpu_fails(code):
    (finding,) = judge(xid(code, gpu=2))
    assert (finding.code, finding.outcome, finding.subject.nvml_index) == ("xid.hardware", Outcome.FAIL, 2)
    assert evidence_of(finding)["xid"] == code


@walk([13, 31, 69])
def test_a_fault_of_the_job_is_the_jobs(code):
    (finding,) = judge(xid(code, rest="pid=4711, name=train, Ch 1"))
    assert (finding.code, finding.owner) == ("xid.application", Owner.JOB)
    assert evidence_of(finding)["process"] == "train (pid 4711)"


@walk([43, 45, 106])
def test_what_is_no_fault_passes(code):
    (finding,) = judge(xid(code))
    assert (finding.code, finding.outcome) == ("xid.note", Outcome.PASS)


def test_contained_errors_warn():
    assert codes(xid(94), xid(63, gpu=1)) == [("xid.wear", 0), ("xid.wear", 1)]


def test_a_burst_is_one_finding_with_its_followers():
    (finding,) = judge(xid(48), xid(63), xid(45), xid(45), recovery(1))
    assert evidence_of(finding)["followers"] == "Xid 63, Xid 45 x2, Xid 154"


def test_the_worst_comes_first():
    assert codes(xid(13), xid(999, gpu=1), xid(95, gpu=2, minutes_ago=20)) == [
        ("xid.hardware", 2),
        ("xid.application", 0),
        ("xid.unknown", 1),
    ]


def test_the_drivers_own_action_goes_before_the_catalogue():
    (finding,) = judge(xid(95), recovery(2))
    assert "a reboot of the node" in finding.remedy
    assert evidence_of(finding)["recovery_action"] == "node_reboot"
    (current,) = judge(xid(95), recovery(2), snapshot=snapshot_with("drain_and_reset"))
    assert "a drain and a GPU reset" in current.remedy


def test_a_gpu_that_asks_for_a_reset_after_a_jobs_error_is_not_the_jobs():
    assert codes(xid(13), recovery(1)) == [("xid.hardware", 0)]


def test_an_old_error_of_a_job_is_not_what_the_driver_asks_a_reset_for():
    found = codes(xid(13, minutes_ago=60), xid(79, minutes_ago=10), snapshot=snapshot_with("gpu_reset"))
    assert found == [("xid.hardware", 0), ("xid.application", 0)]


def test_a_fault_for_which_the_driver_never_asked_for_anything_is_believed_for_a_day():
    silent = snapshot_with("none")
    inside = UNASKED_WINDOW / timedelta(minutes=1) - 1
    assert codes(xid(48, minutes_ago=inside), snapshot=silent) == [("xid.hardware", 0)]
    assert codes(xid(48, minutes_ago=inside + 2), snapshot=silent) == [("xid.settled", 0)]


def test_a_logged_none_settles_nothing_without_the_current_answer():
    assert codes(xid(48), recovery(0)) == [("xid.hardware", 0)]


def test_a_fault_that_came_back_escalates():
    events = (xid(48, minutes_ago=300), xid(48, minutes_ago=10))
    (finding,) = judge(*events, snapshot=snapshot_with("none"))
    assert (finding.code, finding.outcome) == ("xid.repeated", Outcome.FAIL)
    assert action_text("restart_machine") in finding.remedy
    assert evidence_of(finding)["bursts"] == 2


@walk(FAILING)
def test_the_next_step_is_never_less_than_the_one_before(code):
    (finding,) = judge(xid(code, minutes_ago=300), xid(code, minutes_ago=10), snapshot=snapshot_with("none"))
    by_hand = xids()[code].immediate in ("restart_machine", "restart_virtual_machine", "check_mechanics")
    lasts = by_hand or xids()[code].lasting
    assert finding.remedy.endswith(fit_remedy(REPLACE) if lasts else action_text("restart_machine"))


def test_a_fault_that_came_back_after_a_reboot_escalates():
    earlier = (xid(48, minutes_ago=3 * MINUTES_A_DAY),)
    assert codes(xid(48), earlier=earlier) == [("xid.repeated", 0)]
    assert codes(xid(48, gpu=1), earlier=earlier) == [("xid.hardware", 1)]
    assert codes(xid(95), earlier=earlier) == [("xid.hardware", 0)]
    assert codes(earlier=earlier) == []


def test_one_burst_of_many_lines_is_no_repeat():
    assert codes(xid(48), xid(48), xid(48)) == [("xid.hardware", 0)]


def test_errors_of_jobs_are_told_once_per_gpu():
    (finding,) = judge(*(xid(31, minutes_ago=minutes) for minutes in (500, 300, 100)))
    assert finding.code == "xid.application"
    assert evidence_of(finding)["bursts"] == 3


@pytest.mark.parametrize(
    ("code", "window", "expected"),
    [
        (31, APPLICATION_WINDOW, "xid.application"),
        (94, SETTLED_WINDOW, "xid.wear"),
        (999, SETTLED_WINDOW, "xid.unknown"),
    ],
)
def test_what_is_over_long_ago_is_not_told(code, window, expected):
    inside = window / timedelta(minutes=1) - 1
    assert codes(xid(code, minutes_ago=inside)) == [(expected, 0)]
    assert codes(xid(code, minutes_ago=inside + 2)) == []


OLD_DRIVER = snapshot_with(Missing(MissingReason.NOT_SUPPORTED))
LOST_GPU = make_snapshot(make_device(0, recovery_action=LOST, responding=LOST))


@pytest.mark.parametrize(
    ("events", "snapshot", "expected"),
    [
        # The driver cannot be asked; the GPU works.
        ((xid(48, minutes_ago=0.9 * MINUTES_A_DAY),), OLD_DRIVER, "xid.hardware"),
        ((xid(48, minutes_ago=2 * MINUTES_A_DAY),), OLD_DRIVER, "xid.settled"),
        ((xid(79, minutes_ago=2 * MINUTES_A_DAY),), OLD_DRIVER, "xid.settled"),
        ((xid(48, minutes_ago=18 * MINUTES_A_DAY),), OLD_DRIVER, None),
        ((xid(79, minutes_ago=18 * MINUTES_A_DAY),), OLD_DRIVER, None),
        ((xid(48, minutes_ago=18 * MINUTES_A_DAY),), snapshot_with("none"), None),
        # Twice, and well since.
        (
            (xid(48, minutes_ago=19 * MINUTES_A_DAY), xid(48, minutes_ago=18 * MINUTES_A_DAY)),
            OLD_DRIVER,
            None,
        ),
        (
            (xid(48, minutes_ago=19 * MINUTES_A_DAY), xid(48, minutes_ago=2 * MINUTES_A_DAY)),
            OLD_DRIVER,
            "xid.repeated",
        ),
        # Nothing mends these.
        ((xid(64, minutes_ago=18 * MINUTES_A_DAY),), OLD_DRIVER, "xid.hardware"),
        ((xid(168, minutes_ago=18 * MINUTES_A_DAY),), OLD_DRIVER, "xid.hardware"),
        ((xid(157, minutes_ago=18 * MINUTES_A_DAY),), OLD_DRIVER, "xid.wear"),
        # The driver's own last word was that it must be reset.
        (
            (xid(48, minutes_ago=18 * MINUTES_A_DAY), recovery(1, minutes_ago=18 * MINUTES_A_DAY)),
            OLD_DRIVER,
            "xid.hardware",
        ),
        # The GPU does not work.
        ((xid(48, minutes_ago=18 * MINUTES_A_DAY),), LOST_GPU, "xid.hardware"),
    ],
)
def test_a_fault_of_long_ago_counts_where_it_lasts_or_the_gpu_does_not_work(events, snapshot, expected):
    assert codes(*events, snapshot=snapshot) == ([(expected, 0)] if expected else [])


@walk([79, 167, 173, 54])
def test_what_only_a_power_cycle_brings_back_is_as_grave_as_a_lost_gpu(code):
    (finding,) = judge(xid(code))
    assert (finding.code, finding.severity) == ("xid.hardware", Severity.ISOLATE)


def exception(pid, minutes_ago, place="GPC 2, TPC 3", gpu=0):
    rest = f"pid={pid}, name=python3, Graphics SM Warp Exception on ({place}, SM 1): Out Of Range Address"
    return xid(13, gpu=gpu, minutes_ago=minutes_ago, rest=rest)


def test_the_same_place_of_a_gpu_under_several_jobs_is_the_gpu():
    (finding,) = judge(*(exception(pid, 600 - pid) for pid in (100, 200, 300)))
    assert (finding.code, finding.owner) == ("xid.repeated", Owner.HARDWARE)
    assert "3 jobs met it at GPC 2, TPC 3" in finding.remedy
    assert evidence_of(finding)["place"] == "GPC 2, TPC 3"


@pytest.mark.parametrize(
    "events",
    [
        [exception(100, 600), exception(200, 500)],
        [exception(100, 600 - number) for number in range(30)],
        [exception(pid, 600 - pid, f"GPC {pid // 100}, TPC 3") for pid in (100, 200, 300)],
        [exception(pid, 600 - pid, gpu=gpu) for pid in (100, 200, 300) for gpu in range(4)],
        [exception(pid, 9 * MINUTES_A_DAY - pid) for pid in (100, 200, 300)],
    ],
    ids=["two jobs", "one job", "several places", "every GPU", "long ago"],
)
def test_other_exceptions_are_the_jobs_own(events):
    assert {code for code, _ in codes(*events)} <= {"xid.application"}


@pytest.mark.parametrize(
    ("code", "rest", "expected"),
    [
        (144, "SAW_MVB Nonfatal XC0 i0 Link 02 (0x00000021 0x00000004 0x0)", "xid.note"),
        (144, "SAW_MVB Fatal XC0 i0 Link 02 (0x00000021 0x00000002 0x0)", "xid.hardware"),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", "xid.note"),
        (145, "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000040 0x0)", "xid.hardware"),
        (146, "TLW_CTRL Nonfatal XC0 i0 Link -1 (0x00000123 0x00000001)", "xid.note"),
        (147, "TREX Nonfatal XC0 i0 Link 00 (0x00000184 0x80000000)", "xid.note"),
        (148, "NVLPW_CTRL Nonfatal XC0 i0 Link 00 (0x00000005 0x80000000)", "xid.note"),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00000226 0x00000001)", "xid.wear"),
        (149, "NETIR_BER_EVENT Fatal XC0 i0 Link 03 (0x00000226 0x00000001)", "xid.hardware"),
        (149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x004505c6 0x00000000)", "xid.wear"),
        (149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x00f505c6 0x00000000)", "xid.note"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)", "xid.hardware"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x028005c6 0x00000000)", "xid.wear"),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000)", "xid.hardware"),
    ],
)
def test_an_nvlink5_error_is_what_its_line_and_the_decode_table_say(code, rest, expected):
    assert codes(xid(code, rest=rest)) == [(expected, 0)]


@pytest.mark.parametrize("ago", [60, 36 * 60])
@pytest.mark.parametrize("before", [(), (13,), (149,)])
@pytest.mark.parametrize("action", range(1, len(RECOVERY_ACTIONS)))
def test_what_the_driver_asked_for_is_no_pass_where_the_log_alone_has_it(action, before, ago):
    first = (xid(code, minutes_ago=ago + 1, rest=BIT_ERRORS if code == 149 else "") for code in before)
    events = (*first, recovery(action, minutes_ago=ago))
    word = RECOVERY_ACTIONS[action]
    (alone,) = judge(*events)
    assert alone.outcome is (Outcome.FAIL if word in UNFIT_ACTIONS else Outcome.WARN)
    assert name_action(word) in alone.remedy
    (now,) = judge(*events, snapshot=snapshot_with(word))
    assert (now.outcome, now.code) == (alone.outcome, alone.code)
    (settled,) = judge(*events, snapshot=snapshot_with("none"))
    assert settled.code == "xid.settled"


def test_a_request_that_gpudiag_does_not_know_is_one_that_must_be_followed():
    (finding,) = judge(recovery(0x2A))
    assert finding.code == "xid.hardware"
    assert "recovery action 42" in finding.remedy


def test_a_change_to_no_request_alone_is_no_fault():
    assert codes(recovery(0)) == [("xid.note", 0)]


def test_a_nonfatal_link_error_for_which_the_driver_asks_for_a_reset_is_a_fault():
    rest = "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000001 0x0)"
    assert codes(xid(145, rest=rest), recovery(1)) == [("xid.hardware", 0)]


def test_a_fatal_link_error_says_where_to_look():
    (finding,) = judge(xid(149, rest="NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)"))
    assert finding.code == "xid.hardware"
    assert "link 8, subcode 4" in finding.message
    assert finding.remedy.endswith("look at its connectors and its counters of bit errors.")


def test_bit_errors_that_are_not_fatal_ask_for_no_reset():
    (finding,) = judge(xid(149, rest=BIT_ERRORS))
    assert finding.outcome is Outcome.WARN
    assert finding.remedy == (
        "No reset is needed: watch the link. The link meets many bit errors: "
        "look at its cables and connectors."
    )


def test_a_link_that_the_other_end_took_down_sends_to_the_other_end():
    (finding,) = judge(xid(149, rest="NETIR_LINK_DOWN Fatal XC0 i0 Link 08 (0x02000391)"))
    assert "other end of the link" in finding.remedy


def test_a_gpu_off_the_bus_without_an_xid_fails():
    (finding,) = judge(event_from("NVRM: GPU 0000:1a:00.0: GPU has fallen off the bus."))
    assert (finding.code, finding.subject.nvml_index) == ("xid.hardware", 1)


def test_a_gpu_that_is_gone_is_named_by_its_bus_id():
    snapshot = make_snapshot(make_device(0))
    (finding,) = judge(xid(79, gpu=3), snapshot=snapshot)
    assert (finding.code, finding.subject.bus_id) == ("xid.hardware", "00000000:1c:00.0")


@pytest.mark.parametrize(
    "machine",
    [
        make_machine(allocation={"CUDA_VISIBLE_DEVICES": "0"}),
        make_machine(
            container=Container("docker", NOT_ASKED), device_nodes=("/dev/nvidia0", "/dev/nvidiactl")
        ),
    ],
)
def test_a_fault_of_a_gpu_that_the_job_was_not_given_warns(machine):
    snapshot = make_snapshot(make_device(0), machine=machine)
    (finding,) = judge(xid(79, gpu=3), snapshot=snapshot)
    assert (finding.code, finding.owner) == ("xid.other_gpu", Owner.HOST)
    assert judge(xid(13, gpu=3), snapshot=snapshot) == ()


def test_a_job_that_misses_one_of_its_gpus_is_told_that_it_failed():
    machine = make_machine(allocation={"SLURM_GPUS_ON_NODE": "2"})
    snapshot = make_snapshot(make_device(0), machine=machine)
    assert [finding.code for finding in judge(xid(79, gpu=3), snapshot=snapshot)] == ["xid.hardware"]


def test_switch_errors_fail_by_class_and_by_what_the_gpus_say():
    snapshot = snapshot_with()

    def told(*events):
        return [finding.code for finding in judge_sxids(snapshot, events)]

    assert told(sxid(23001)) == ["sxid.fatal"]
    assert told(sxid(20034)) == ["sxid.error"]
    assert told(sxid(20034), xid(74)) == ["sxid.fatal"]
    assert told(sxid(20034, minutes_ago=60), xid(74, minutes_ago=30)) == ["sxid.error"]
    assert told(sxid(12028, severity="Non-fatal")) == ["sxid.error"]
    assert told(sxid(11012, severity="Non-fatal")) == ["sxid.note"]
    assert told(sxid(29999)) == ["sxid.unknown"]
    assert told(sxid(29999), xid(149)) == ["sxid.fatal"]
    assert told(sxid(11012, severity="Non-fatal"), sxid(23001, link=3), sxid(23001, link=4)) == [
        "sxid.fatal",
        "sxid.fatal",
        "sxid.note",
    ]


def test_a_switch_error_is_told_once_per_link_and_code():
    findings = judge_sxids(snapshot_with(), [sxid(20034, minutes_ago=minutes) for minutes in (60, 50, 40)])
    assert [finding.subject.ends for finding in findings] == [("nvswitch0", "link 12")]


CHECKS = (xid_kernel_log, sxid_kernel_log)


def outcomes(snapshot):
    return [result.outcome for result in run_checks(Context(snapshot), CHECKS)]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (NOT_ASKED, Outcome.SKIP),
        (Missing(MissingReason.NO_PERMISSION, "/dev/kmsg: Operation not permitted"), Outcome.SKIP),
        (Missing(MissingReason.SOURCE_ABSENT), Outcome.SKIP),
        (Missing(MissingReason.TIMED_OUT), Outcome.ERROR),
        (Missing(MissingReason.ERROR), Outcome.ERROR),
        ((), Outcome.PASS),
    ],
)
def test_a_log_that_was_not_read_never_passes(log, expected):
    assert outcomes(snapshot_with(kernel_log=log)) == [expected, expected]


def test_without_a_gpu_there_is_nothing_to_look_for():
    empty = make_snapshot(kernel_log=(), machine=make_machine(), sources=WITHOUT_LIBRARY)
    assert outcomes(empty) == [Outcome.SKIP, Outcome.SKIP]


def test_the_checks_report_what_the_log_says():
    lost = replace(make_device(0), responding=LOST, recovery_action=LOST)
    assert outcomes(make_snapshot(lost, kernel_log=(xid(79), sxid(23001)))) == [Outcome.FAIL, Outcome.FAIL]


THREE_LINES = (
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, "
    "Link 32 egress non-posted PRIV error (First)",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00000032, 0x10000032, 0x00000000, 0x00000000}",
)


@walk([THREE_LINES, THREE_LINES[1:], THREE_LINES[2:], THREE_LINES * 3])
def test_the_lines_of_one_sxid_are_one_finding(lines):
    snapshot = snapshot_with()
    assert [finding.code for finding in judge_sxids(snapshot, [event_from(line) for line in lines])] == [
        "sxid.error"
    ]


def test_a_harmless_sxid_that_the_driver_calls_fatal_is_told():
    snapshot = snapshot_with()
    assert [finding.code for finding in judge_sxids(snapshot, [sxid(22009, severity="Fatal")])] == [
        "sxid.error"
    ]
    assert [finding.code for finding in judge_sxids(snapshot, [sxid(22009, severity="Non-fatal")])] == [
        "sxid.note"
    ]


NO_LOG = Missing(MissingReason.SOURCE_ABSENT, "/dev/kmsg is not here")


def told(code, gpu=0):
    """That Xid as NVML's events tell it: without a line."""
    line = xid(code, gpu=gpu)
    return replace(line, text="", bus_id=None, gpu_uuid=make_device(gpu).id.uuid)


def judge_told(*events, log=NO_LOG):
    return run_checks(Context(snapshot_with(kernel_log=log), xid_events=events), (xid_kernel_log,))[0]


@pytest.mark.parametrize(("code", "entry"), xids().items())
def test_what_nvml_told_is_judged_as_the_log_would_be(code, entry):
    by_line, by_event = judge(xid(code, gpu=2)), judge_told(told(code, gpu=2))
    if entry.outcome is Outcome.PASS:
        assert by_event.outcome is Outcome.SKIP  # of what came before the service nothing is known
        assert by_event.missing_reason is MissingReason.SOURCE_ABSENT
    else:
        assert [(one.code, one.subject) for one in by_event.findings] == [
            (one.code, one.subject) for one in by_line
        ]
        [finding] = by_event.findings
        assert {item.source for item in finding.evidence if item.name in ("xid", "at")} == {"NVML event"}
        assert "line" not in evidence_of(finding)


def test_what_the_log_has_too_is_one_event():
    line, other = xid(94, gpu=1), told(94, gpu=1)
    assert [one.code for one in judge_told(other, log=(line,)).findings] == ["xid.wear"]
    assert "bursts" not in evidence_of(judge_told(other, log=(line,)).findings[0])


def test_what_the_log_has_lost_is_added_to_it():
    found = judge_told(told(94, gpu=1), log=(xid(94, gpu=2),)).findings
    assert {(one.code, one.subject.nvml_index) for one in found} == {("xid.wear", 1), ("xid.wear", 2)}


def test_without_log_and_events_nothing_was_seen():
    assert judge_told().outcome is Outcome.SKIP
    assert judge_told(log=()).outcome is Outcome.PASS
