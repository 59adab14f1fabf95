"""Why the driver is not loaded, a GPU did not start or cards do not reach GPU memory, by the kernel log."""

from dataclasses import replace

import pytest

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.gpu.devices import gpu_count, gpu_started
from gpudiag.checks.links.infiniband import infiniband_peer_memory
from gpudiag.checks.logged_reasons import with_logged_reason
from gpudiag.checks.software.sources import nvml_answers
from gpudiag.model.device import SourceState
from gpudiag.reference.kernel_words import kernel_words
from tests.kernel_lines import parse_kernel_lines
from tests.scenarios.kernel_words_cases import REASONS
from tests.scenarios.situations import look_at_machine
from tests.unit.checks.machines import look_at, make_bare_machine, make_broken_snapshot, make_pci_gpu
from tests.unit.model.nouns import TAKEN_AT, make_snapshot
from tests.walking import walk

ROWS = {words.id: words for words in kernel_words() if words.reason_of}
OF_THE_DRIVER = [name for name, words in ROWS.items() if "nvml.driver_not_loaded" in words.reason_of]


def logged(*lines):
    return tuple(parse_kernel_lines((TAKEN_AT, line) for line in lines))


def without_driver(*lines, **facts):
    machine = make_bare_machine(2, **facts)
    snapshot = make_broken_snapshot(SourceState.DRIVER_NOT_LOADED, machine, "the driver is not loaded")
    return replace(snapshot, kernel_log=logged(*lines))


@walk(ROWS.values(), lambda words: words.id)
def test_a_reason_is_of_findings_that_there_are(words):
    assert set(words.reason_of) <= {kind.code for kind in finding_kinds()}


@walk(OF_THE_DRIVER, str)
def test_a_driver_that_is_not_loaded_has_the_reason_and_its_remedy(name):
    (finding,) = nvml_answers.judge(look_at(without_driver(REASONS[name]))).findings
    assert finding.code == "nvml.driver_not_loaded"
    assert finding.message.endswith(f": {ROWS[name].title}")
    assert finding.written_remedy == ROWS[name].written_remedy
    assert [fact.value for fact in finding.evidence if fact.source == "kernel log"] == [REASONS[name]]


def test_without_a_reason_in_the_log_the_finding_stays():
    bare, other = without_driver(), without_driver(REASONS["driver.peer_memory_mismatch"])
    assert nvml_answers.judge(look_at(bare)).findings == nvml_answers.judge(look_at(other)).findings


LEGACY = (
    "NVRM: The NVIDIA Tesla V100-SXM2-32GB GPU installed in this system is",
    "NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please",
    "NVRM: ignoring the legacy GPU 0000:19:00.0",
)


def test_cards_that_the_driver_ignores_are_the_reason_where_it_does_not_load():
    (finding,) = nvml_answers.judge(look_at(without_driver(*LEGACY))).findings
    assert "does not support this GPU" in finding.message


def test_a_virtual_function_that_the_driver_ignores_is_no_reason():
    lines = ("NVRM: Ignoring probe for VF 0000:19:00.4",)
    (finding,) = nvml_answers.judge(look_at(without_driver(*lines))).findings
    assert "support" not in finding.message


FIRMWARE = (
    "nvidia 0000:{bus}:00.0: Direct firmware load for nvidia/570.144/gsp_ga10x.bin failed with error -2"
)
FAILED = "NVRM: GPU 0000:c1:00.0: RmInitAdapter failed! (0x61:0x56:1770)"


@pytest.mark.parametrize(("bus", "known"), [("c1", True), ("c2", False)])
def test_a_gpu_that_did_not_start_has_the_reason_of_its_own_lines(bus, known):
    lines = logged(FIRMWARE.format(bus=bus), FAILED)
    snapshot = replace(look_at_machine("l40sx8"), kernel_log=lines)
    (finding,) = gpu_started.judge(look_at(snapshot)).findings
    assert finding.code == "gpu.not_started"
    assert ("firmware file is missing" in finding.message) is known


def test_a_machine_whose_gpus_all_failed_has_the_reason_once():
    lines = ("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:19:00.0)",)
    functions = (make_pci_gpu(0),)
    machine = make_bare_machine(1, pci_devices=functions)
    snapshot = make_snapshot(machine=machine, kernel_log=logged(*lines))
    (finding,) = gpu_count.judge(look_at(snapshot)).findings
    assert finding.message.endswith("the BIOS gave the GPU no address space")
    assert sum(fact.value == lines[0] for fact in finding.evidence) == 1
    assert with_logged_reason(snapshot, finding).evidence == finding.evidence


def test_cards_that_do_not_reach_gpu_memory_have_the_reason():
    here = look_at_machine("h100x8")
    modules = tuple(name for name in here.machine.kernel_modules if name != "nvidia_peermem")
    machine = replace(here.machine, kernel_driver_flavor="proprietary", kernel_modules=modules)
    log = logged(REASONS["driver.peer_memory_mismatch"])
    (finding,) = infiniband_peer_memory.judge(
        look_at(replace(here, machine=machine, kernel_log=log))
    ).findings
    assert "another RDMA stack" in finding.message


def test_gpus_of_virtual_machines_need_no_driver_here():
    given = tuple(replace(make_pci_gpu(place), driver="vfio-pci") for place in range(2))
    (finding,) = nvml_answers.judge(look_at(without_driver(pci_devices=given))).findings
    assert "--expect-gpus 0" in finding.remedy
    assert "vfio-pci" in finding.remedy
    mixed = (given[0], make_pci_gpu(1))
    (finding,) = nvml_answers.judge(look_at(without_driver(pci_devices=mixed))).findings
    assert "vfio-pci" not in finding.remedy
