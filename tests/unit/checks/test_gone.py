"""GPUs that a machine had: each that is gone is named, and all together are one fault."""

from dataclasses import replace

from gpudiag.checks.gpu.gone import known_gpus_of, machine_gpus
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.evidence import DeviceSubject, HostSubject
from gpudiag.model.finding import Outcome
from tests.unit.model.nouns import make_device, make_machine, make_snapshot

EMPTY_BUS = make_machine(pci_devices=())
BEFORE = make_snapshot(make_device(0), make_device(1), machine=EMPTY_BUS)
KNOWN = known_gpus_of(BEFORE)


def judge(snapshot, known=KNOWN):
    (result,) = run_checks(Context(snapshot, known_gpus=known), (machine_gpus,))
    return result


def test_a_gpu_that_is_gone_is_named():
    (finding,) = judge(make_snapshot(make_device(0), machine=EMPTY_BUS)).findings
    assert isinstance(finding.subject, DeviceSubject)
    assert finding.subject.uuid == BEFORE.devices[1].id.uuid


def test_all_gpus_gone_are_one_fault_of_the_machine():
    (finding,) = judge(replace(BEFORE, devices=())).findings
    assert isinstance(finding.subject, HostSubject)
    assert [fact.value for fact in finding.evidence] == [gpu.uuid for gpu in KNOWN.gpus]


def test_a_smaller_share_of_the_machine_misses_nothing():
    given = replace(EMPTY_BUS, allocation={"SLURM_GPUS_ON_NODE": "1"})
    assert judge(make_snapshot(make_device(0), machine=given)).outcome is Outcome.SKIP


def elsewhere(*numbers):
    return make_snapshot(
        *(
            replace(
                make_device(number),
                id=replace(
                    make_device(number).id,
                    uuid=f"GPU-other-{number}",
                    bus_id=f"0000000{number}:8{number}:00.0",
                ),
            )
            for number in numbers
        ),
        machine=EMPTY_BUS,
    )


def test_another_machine_of_the_same_name_misses_no_gpu():
    """A guest that was moved to another host: github.com/NVIDIA/k8s-device-plugin/issues/373."""
    for others in (elsewhere(0, 1), elsewhere(0, 1, 2)):
        assert judge(others).outcome is Outcome.PASS
    fewer = judge(elsewhere(0))
    assert [finding.code for finding in fewer.findings] == ["gpu.gone"]
    assert judge(replace(BEFORE, devices=())).findings


def test_a_gpu_beside_one_that_is_known_is_missed():
    mixed = replace(BEFORE, devices=(BEFORE.devices[0], elsewhere(3).devices[0]))
    (finding,) = judge(mixed).findings
    assert finding.subject.uuid == BEFORE.devices[1].id.uuid
