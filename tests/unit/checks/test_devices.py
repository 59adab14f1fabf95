import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.gpu.devices import gpu_count, gpu_hung, gpu_lost
from gpudiag.checks.runner import run_checks, verdict
from gpudiag.model.device import DeviceId, SourceState, SourceStatus
from gpudiag.model.evidence import DeviceSubject, HostSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.host import Machine
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.checks.machines import (
    CONTAINER,
    LATE,
    LOST,
    look_at,
    make_bare_machine,
    make_eight,
    make_pci_gpu,
)
from tests.unit.model.nouns import TAKEN_AT, WITHOUT_LIBRARY, make_device, make_snapshot


def index_of(finding: Finding) -> object:
    assert isinstance(finding.subject, DeviceSubject)
    return finding.subject.nvml_index


def test_eight_healthy_gpus_pass_every_check() -> None:
    context = look_at(make_snapshot(*make_eight(), machine=make_bare_machine(gpus=8)))
    for check in (gpu_lost, gpu_hung, gpu_count):
        judgement = check.judge(context)
        assert (judgement.outcome, judgement.findings) == (Outcome.PASS, ())


def test_a_lost_gpu_is_named_and_the_others_are_not() -> None:
    devices = make_eight()
    devices[3] = make_device(3, responding=LOST, recovery_action=LOST)
    (finding,) = gpu_lost.judge(look_at(make_snapshot(*devices))).findings
    assert (finding.code, finding.outcome, index_of(finding)) == ("gpu.lost", Outcome.FAIL, 3)
    assert "NVML 15" in str(finding.evidence[0].value)


def test_a_hung_gpu_is_not_called_lost_nor_a_lost_one_hung() -> None:
    context = look_at(make_snapshot(make_device(0, responding=LATE), make_device(1, responding=LOST)))
    (lost,) = gpu_lost.judge(context).findings
    (hung,) = gpu_hung.judge(context).findings
    assert (lost.code, index_of(lost)) == ("gpu.lost", 1)
    assert (hung.code, index_of(hung)) == ("gpu.hung", 0)


def test_a_gpu_that_may_not_be_read_is_an_error_and_not_a_fault() -> None:
    refused = make_device(0, responding=Missing(MissingReason.NO_PERMISSION, "Insufficient Permissions"))
    judgement = gpu_hung.judge(look_at(make_snapshot(refused)))
    assert judgement.outcome is Outcome.ERROR
    assert [finding.code for finding in judgement.findings] == ["gpu.not_read"]


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("gpu_reset", "gpu.recovery_needed"),
        ("node_reboot", "gpu.recovery_needed"),
        ("drain_and_reset", "gpu.recovery_needed"),
        ("drain_p2p", "gpu.recovery_advised"),
    ],
)
def test_the_driver_asks_for_recovery(action: str, code: str) -> None:
    judgement = gpu_lost.judge(look_at(make_snapshot(make_device(0, recovery_action=action))))
    assert [finding.code for finding in judgement.findings] == [code]
    assert judgement.findings[0].evidence[0].value == action


def test_a_gpu_on_the_bus_that_nvml_does_not_list_is_missing() -> None:
    snapshot = make_snapshot(*make_eight()[:7], machine=make_bare_machine(gpus=8))
    (finding,) = gpu_count.judge(look_at(snapshot)).findings
    assert finding.code == "gpu.missing"
    assert isinstance(finding.subject, DeviceSubject)
    assert finding.subject.bus_id == make_pci_gpu(7).bus_id


def test_a_row_that_only_the_bus_gave_is_missing_too() -> None:
    unlisted = make_device(7, id=DeviceId(LOST, make_pci_gpu(7).bus_id, LOST), responding=LOST)
    snapshot = make_snapshot(*make_eight()[:7], unlisted, machine=make_bare_machine(gpus=8))
    assert [finding.code for finding in gpu_count.judge(look_at(snapshot)).findings] == ["gpu.missing"]


def test_no_gpu_of_eight_is_one_finding_about_the_host() -> None:
    snapshot = make_snapshot(machine=make_bare_machine(gpus=8))
    (finding,) = gpu_count.judge(look_at(snapshot)).findings
    assert (finding.code, finding.subject) == ("gpu.count", HostSubject("a1"))
    assert (finding.evidence[0].value, finding.evidence[0].limit) == (0, 8)


@pytest.mark.parametrize(
    "machine",
    [
        make_bare_machine(
            gpus=8, container=CONTAINER, device_nodes=("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
        ),
        make_bare_machine(gpus=8, allocation={"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}),
        make_bare_machine(gpus=8, container=CONTAINER, allocation={"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"}),
    ],
)
def test_a_job_that_was_given_two_of_eight_is_healthy_with_two(machine: Machine) -> None:
    snapshot = make_snapshot(*make_eight()[:2], machine=machine)
    assert gpu_count.judge(look_at(snapshot)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "machine",
    [
        make_bare_machine(gpus=8, container=CONTAINER, device_nodes=("/dev/nvidia0", "/dev/nvidia1")),
        make_bare_machine(gpus=8, allocation={"SLURM_GPUS_ON_NODE": "2"}),
    ],
)
def test_a_job_that_was_given_two_and_sees_one_is_not(machine: Machine) -> None:
    snapshot = make_snapshot(make_device(0), machine=machine)
    (finding,) = gpu_count.judge(look_at(snapshot)).findings
    assert (finding.code, finding.evidence[0].limit) == ("gpu.count", 2)


def test_a_gpu_that_the_host_lost_is_seen_although_the_job_uses_others() -> None:
    machine = make_bare_machine(gpus=8, allocation={"CUDA_VISIBLE_DEVICES": "0"})
    snapshot = make_snapshot(*make_eight()[:7], machine=machine)
    assert [finding.code for finding in gpu_count.judge(look_at(snapshot)).findings] == ["gpu.missing"]


@pytest.mark.parametrize(("expected", "outcome"), [(8, Outcome.PASS), (9, Outcome.FAIL), (4, Outcome.FAIL)])
def test_what_the_user_expects_is_exact(expected: int, outcome: Outcome) -> None:
    snapshot = make_snapshot(*make_eight(), machine=make_bare_machine(gpus=8))
    assert gpu_count.judge(look_at(snapshot, expected_gpus=expected)).outcome is outcome


@pytest.mark.parametrize(("least", "outcome"), [(8, Outcome.PASS), (9, Outcome.FAIL), (4, Outcome.PASS)])
def test_what_the_node_was_given_out_as_is_a_lower_limit(least: int, outcome: Outcome) -> None:
    snapshot = make_snapshot(*make_eight(), machine=make_bare_machine(gpus=8))
    assert gpu_count.judge(look_at(snapshot, at_least_gpus=least)).outcome is outcome


def test_where_the_driver_lists_none_the_kernel_log_says_why() -> None:
    line = "NVRM: GPU 0000:ca:00.0: RmInitAdapter failed! (0x24:0x72:1568)"
    failed = KernelEvent(KernelEventKind.GPU_NOT_STARTED, TAKEN_AT, line, bus_id="00000000:ca:00.0")
    for log, says in ((), False), ((failed,), True):
        snapshot = make_snapshot(machine=make_bare_machine(gpus=8), kernel_log=log)
        (finding,) = gpu_count.judge(look_at(snapshot)).findings
        assert ("RmInitAdapter failed" in finding.message, "Power-cycle" in finding.remedy) == (says, says)
        assert gpu_lost.judge(look_at(snapshot)).outcome is Outcome.SKIP  # no GPU was looked at


@pytest.mark.parametrize(("on_bus", "codes"), [(8, ["gpu.missing"]), (7, ["gpu.count"])])
def test_a_gpu_that_is_short_is_named_where_the_bus_still_shows_it(on_bus: int, codes: list[str]) -> None:
    machine = make_bare_machine(gpus=on_bus, allocation={"SLURM_JOB_GPUS": "0,1,2,3,4,5,6"})
    found = gpu_count.judge(look_at(make_snapshot(*make_eight()[:7], machine=machine), at_least_gpus=8))
    assert [finding.code for finding in found.findings] == codes


def test_no_gpu_and_no_trace_of_one_is_in_order_only_where_none_is_expected() -> None:
    snapshot = make_snapshot(machine=make_bare_machine(), sources=WITHOUT_LIBRARY)
    assert gpu_count.judge(look_at(snapshot)).outcome is Outcome.ERROR
    assert gpu_count.judge(look_at(snapshot, expected_gpus=0)).outcome is Outcome.PASS
    assert gpu_count.judge(look_at(snapshot, at_least_gpus=0)).outcome is Outcome.PASS
    assert gpu_count.judge(look_at(snapshot, expected_gpus=1)).outcome is Outcome.ERROR
    assert verdict(run_checks(look_at(snapshot, expected_gpus=1), BUILTIN)) is Outcome.FAIL


def test_a_machine_whose_nvml_nobody_asks_is_not_judged_by_its_gpus() -> None:
    asked = (SourceStatus("nvml", SourceState.NOT_ASKED),)
    snapshot = make_snapshot(machine=make_bare_machine(), sources=asked)
    assert gpu_count.judge(look_at(snapshot)).outcome is Outcome.SKIP
