"""Every fault that a simulated machine can have, through library, probes and checks: what is found, and no
more.
"""

from dataclasses import replace

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding, Outcome
from tests.scenarios.situations import Situation, look_at_machine

FOUND = {
    "h100x8+lost:3": {"gpu.lost"},
    "h100x8+hang:6": {"gpu.hung"},
    "h100x8+hang-call:6:nvmlDeviceGetTemperatureV": {"gpu.hung"},
    "h100x8+hot:1": {"temperature.gpu_too_hot"},
    "h100x8+throttle:1": {"clocks.power_brake"},
    "h100x8+power-cap:2": {"power.limit_lowered"},
    "h100x8+ecc:3": {"ecc.uncorrected_volatile"},
    "h100x8+row-remap-pending:5": {"memory.row_remap_pending"},
    "h100x8+row-remap-failed:5": {"memory.row_remap_failed"},
    "t4x1+retired-pages:0": {"memory.page_retirement_pending"},
    "h100x8+ecc-off:3": {"ecc.disabled"},
    "h100x8+mig-pending:2": {"mode.mig_pending"},
    "h100x8+compute-prohibited:1": {"mode.compute_prohibited"},
    "h100x8+recovery:1:gpu_reset": {"gpu.recovery_needed"},
    "h100x8+pcie-width:2": {"pcie.width_reduced"},
    "h100x8+busy:2+pcie-gen:2": {"pcie.generation_reduced"},
    "h100x8+nvlink-down:4": {"nvlink.link_down"},
    "h100x8+nvlink-down:4:7": {"nvlink.link_down"},
    "h100x8+zombie:4": {"process.dead"},
    "h100x8+no-driver": {"nvml.driver_not_loaded"},
    "h100x8+nouveau": {"nvml.driver_not_loaded"},
    "h100x8+no-library": {"nvml.library_absent"},
    "h100x8+version-mismatch": {"nvml.version_mismatch"},
    "h100x8+no-permission": {"nvml.no_permission"},
    "h100x8+cuda-broken": {"fabric.not_ready"},
    "h100x8+cpu-torch": {"torch.without_cuda"},
    "h100x8+old-driver": {"torch.driver_too_old"},
    "h100x8+visible:0,9": {"environment.visible_devices_invalid"},
}
# Not a fault at this moment, or not one that a single look can tell: nothing may be said.
SPARED = tuple(
    """
    h100x8+busy:2 h100x8+pcie-gen:2 h100x8+idle-holder:5 h100x8+ecc-corrected:4 h100x8+nvlink-errors:2
    h100x8+slow:1:0.01 h100x8+init-slow:0.3 h100x8+cold:0.1 h100x8+visible:0,1 h100x8+order
    """.split()
)
# What two looks tell, the first of them at the healthy machine.
MOVED = {
    "h100x8+ecc-corrected:4": {"ecc.corrected_rate"},
    "h100x8+nvlink-errors:2": {"nvlink.errors"},
}


def findings(look: Snapshot, before: Snapshot | None = None) -> list[Finding]:
    context = Context(look)
    if before is not None:
        context = Context(look, earlier=Situation(before=()).context(before).earlier)
    return [finding for found in run_checks(context, BUILTIN) for finding in found.findings]


@pytest.mark.sliced
@pytest.mark.parametrize("spec", FOUND)
def test_a_fault_is_found_and_nothing_else(spec: str):
    assert {finding.code for finding in findings(look_at_machine(spec))} == FOUND[spec]


@pytest.mark.parametrize("spec", [spec for spec in FOUND if ":" in spec and "visible" not in spec])
def test_the_right_gpu_is_named(spec: str):
    index = int(spec.split("+")[-1].split(":")[1])
    subjects = [finding.subject for finding in findings(look_at_machine(spec))]
    assert subjects
    assert {one.nvml_index for one in subjects if isinstance(one, DeviceSubject)} == {index}


@pytest.mark.parametrize("spec", SPARED)
def test_what_is_no_fault_is_not_reported(spec: str):
    look = look_at_machine(spec)
    # How long the driver took is a reading too, and a busy machine makes it long.
    quick = tuple(replace(source, seconds=0.2) for source in look.sources)
    assert findings(replace(look, sources=quick)) == []


@pytest.mark.parametrize("spec", MOVED)
def test_what_moved_between_two_looks_is_found(spec: str):
    look = look_at_machine(spec)
    assert {finding.code for finding in findings(look, look_at_machine("h100x8"))} == MOVED[spec]


def test_faults_on_one_machine_are_each_named_once_and_on_the_right_gpu():
    spec = "h100x8+lost:3+row-remap-failed:5+throttle:1+busy:2+pcie-width:2+nvlink-down:4:7"
    found = findings(look_at_machine(spec))
    named = {(one.code, one.subject.nvml_index) for one in found if isinstance(one.subject, DeviceSubject)}
    assert len(found) == len(named)
    assert named == {
        ("gpu.lost", 3),
        ("memory.row_remap_failed", 5),
        ("clocks.power_brake", 1),
        ("pcie.width_reduced", 2),
        ("nvlink.link_down", 4),
    }


# Faults that the kernel log tells as well: what is found then, and on which GPU.
LOGGED = {
    "h100x8+lost:3": {("gpu.lost", 3)},
    "h100x8+ecc:2": {("ecc.uncorrected_volatile", 2)},
    "h100x8+row-remap-pending:5": {("memory.row_remap_pending", 5)},
    "h100x8+row-remap-failed:5": {("memory.row_remap_failed", 5)},
    "t4x1+retired-pages:0": {("memory.page_retirement_pending", 0)},
    "h100x8+nvlink-down:4+xid:4:74": {("nvlink.link_down", 4)},
    "h100x8+recovery:1:gpu_reset": {("gpu.recovery_needed", 1)},
    "h100x8+xid:1:95": {("xid.hardware", 1)},
    "h100x8+xid:1:31": {("xid.application", 1)},
    "h100x8+hang:6+xid:6:119": {("gpu.hung", 6)},
    "h100x8+lost:3+row-remap-failed:1+nvlink-down:5+xid:5:74+ecc:2+xid:4:95": {
        ("gpu.lost", 3),
        ("memory.row_remap_failed", 1),
        ("nvlink.link_down", 5),
        ("ecc.uncorrected_volatile", 2),
        ("xid.hardware", 4),
    },
}


@pytest.mark.sliced
@pytest.mark.parametrize("spec", LOGGED)
def test_a_fault_that_the_kernel_log_tells_too_is_named_once(spec: str):
    found = findings(look_at_machine(spec, kernel_log=True))
    named = [(one.code, one.subject.nvml_index) for one in found]
    assert set(named) == LOGGED[spec]
    assert len(named) == len(set(named))
    assert all("Xid" in one.message for one in found)


@pytest.mark.parametrize("spec", ["h100x8+no-driver", "h100x8+version-mismatch", "h100x8+hang:6"])
def test_a_machine_that_cannot_be_read_never_passes(spec: str):
    results = run_checks(Context(look_at_machine(spec)), BUILTIN)
    assert Outcome.FAIL in {one.outcome for one in results}
