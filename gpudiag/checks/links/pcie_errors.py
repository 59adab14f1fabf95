"""Checks of PCIe error reports (AER), by the kernel's counts, else by the GPU's own."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.deltas import minutes_between
from gpudiag.checks.per_device import Gap, answering, conclude, same_in
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.checks.traces import pci_gpus
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import NOT_ASKED, Missing, Reading, value_or

_kind = partial(
    FindingKind,
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    remedy="Reseat the card or its riser and cable; if it happens again, have the slot or the GPU replaced.",
)
_PCIE_FATAL_ERROR_SINCE_BOOT_BASIS = Basis(
    reads="/sys/bus/pci/devices/*/aer_dev_correctable, aer_dev_nonfatal and aer_dev_fatal; without AER,"
    " NVML fields 173, 179 and 180.",
    limit=f"0 fatal, 0 nonfatal, {limits.CORRECTED_PCIE_ERRORS_PER_MINUTE:.0f} corrected a minute (DCGM)",
    look_also=("dmesg -T | grep -i aer", "pcie.fatal_error", "xid 79"),
)
FATAL = _kind(
    code="pcie.fatal_error",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="The PCIe link of the GPU has had a fatal error since the earlier reading.",
    stated=True,
    basis=Basis(
        reads="/sys/bus/pci/devices/*/aer_dev_fatal, now and in the earlier snapshot; without"
        " AER, NVML field 180.",
        limit=f"0 fatal, 0 nonfatal, {limits.CORRECTED_PCIE_ERRORS_PER_MINUTE:.0f} corrected a minute (DCGM)",
        look_also=("dmesg -T | grep -i aer", "xid 79"),
    ),
)
FATAL_SINCE_BOOT = _kind(
    code="pcie.fatal_error_since_boot",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="The PCIe link of the GPU has had a fatal error at some time since the machine was started.",
    basis=_PCIE_FATAL_ERROR_SINCE_BOOT_BASIS,
)
NONFATAL = _kind(
    code="pcie.nonfatal_errors",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="The PCIe link of the GPU has lost packets that could not be corrected since the earlier reading.",
    basis=_PCIE_FATAL_ERROR_SINCE_BOOT_BASIS,
)
NONFATAL_SINCE_BOOT = _kind(
    code="pcie.nonfatal_errors_since_boot",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="The PCIe link of the GPU has lost packets that could not be corrected since the machine was started.",
    remedy="Watch whether the count grows (`gpudiag history`); if it does, reseat the card.",
    basis=_PCIE_FATAL_ERROR_SINCE_BOOT_BASIS,
)
CORRECTED_RATE = _kind(
    code="pcie.corrected_rate",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="The PCIe link of the GPU corrects many errors.",
    basis=_PCIE_FATAL_ERROR_SINCE_BOOT_BASIS,
)


@dataclass(frozen=True, slots=True)
class _Counts:
    corrected: Reading[int]
    nonfatal: Reading[int]
    fatal: Reading[int]
    source: str


@check(
    "pcie.errors",
    title="PCIe links report no uncorrected errors",
    needs=("gpus",),
    reports=(FATAL, NONFATAL, FATAL_SINCE_BOOT, NONFATAL_SINCE_BOOT, CORRECTED_RATE),
    readings=("/sys/bus/pci/devices/*/aer_dev_*", "NVML fields 173, 179, 180"),
)
def pcie_errors(context: Context) -> Judgement:
    """FAIL for a new fatal error; WARN for older ones, for nonfatal ones, and for many corrected ones."""
    findings: list[Finding] = []
    gaps: list[Gap] = []
    looked = 0
    for device in answering(context.snapshot):
        now = _counts(context.snapshot, device)
        if isinstance(now.fatal, Missing):
            gaps.append(Gap(device, "PCIe error counts", now.fatal))
            continue
        looked += 1
        findings += _judge(context, device, now)
    return conclude(findings, looked, gaps)


def uncorrected_since_boot(snapshot: Snapshot, device: Device) -> bool:
    """Whether the GPU's link counted uncorrected errors, which this check then reports."""
    if isinstance(device.responding, Missing):
        return False
    counts = _counts(snapshot, device)
    return _above_zero(counts.fatal) or _above_zero(counts.nonfatal)


def _above_zero(count: Reading[int]) -> bool:
    return not isinstance(count, Missing) and count > 0


def _counts(snapshot: Snapshot, device: Device) -> _Counts:
    """The kernel's counts of the device, else those that the GPU gives through NVML."""
    for pci in pci_gpus(snapshot):
        if pci.bus_id == device.id.bus_id and not isinstance(pci.errors_fatal, Missing):
            return _Counts(
                pci.errors_corrected, pci.errors_nonfatal, pci.errors_fatal, "the kernel's AER counts"
            )
    counts = device.pcie_errors
    if isinstance(counts, Missing):
        return _Counts(counts, counts, counts, "")
    return _Counts(counts.correctable, counts.nonfatal, counts.fatal, "NVML's PCIe counters")


def _judge(context: Context, device: Device, now: _Counts) -> Iterator[Finding]:
    subject, name = device_subject(context.snapshot, device), name_device(device)
    before = _before(context, device)
    fatal_rise, nonfatal_rise = _rise(now.fatal, before.fatal), _rise(now.nonfatal, before.nonfatal)
    if fatal_rise:
        evidence = Evidence("fatal_errors", fatal_rise, "errors", 0, now.source)
        yield FATAL.finding(subject, f"{name}: {fatal_rise} fatal PCIe errors", evidence)
    elif not isinstance(now.fatal, Missing) and now.fatal > 0:
        evidence = Evidence("fatal_errors", now.fatal, "errors", 0, now.source)
        yield FATAL_SINCE_BOOT.finding(subject, f"{name}: {now.fatal} fatal PCIe errors since boot", evidence)
    if nonfatal_rise:
        evidence = Evidence("nonfatal_errors", nonfatal_rise, "errors", 0, now.source)
        yield NONFATAL.finding(subject, f"{name}: {nonfatal_rise} nonfatal PCIe errors", evidence)
    elif _above_zero(now.nonfatal) and not _above_zero(now.fatal) and isinstance(before.nonfatal, Missing):
        evidence = Evidence("nonfatal_errors", value_or(now.nonfatal, 0), "errors", 0, now.source)
        message = f"{name}: {now.nonfatal} nonfatal PCIe errors since boot"
        yield NONFATAL_SINCE_BOOT.finding(subject, message, evidence)
    corrected_rise = _rise(now.corrected, before.corrected)
    if not corrected_rise:
        return
    rate = corrected_rise / max(minutes_between(context), 1.0)
    if rate > limits.CORRECTED_PCIE_ERRORS_PER_MINUTE:
        limit = limits.CORRECTED_PCIE_ERRORS_PER_MINUTE
        evidence = Evidence("corrected_errors_per_minute", rate, "1/min", limit, f"{now.source}; limit: DCGM")
        yield CORRECTED_RATE.finding(subject, f"{name}: {rate:.0f} corrected PCIe errors a minute", evidence)


def _before(context: Context, device: Device) -> _Counts:
    earlier = context.earlier
    same = None if isinstance(earlier, Missing) else same_in(earlier, device)
    if same is None or isinstance(earlier, Missing):
        return _Counts(NOT_ASKED, NOT_ASKED, NOT_ASKED, "")
    return _counts(earlier, same)


def _rise(now: Reading[int], before: Reading[int]) -> int:
    """By how much the count rose; 0 where that is not known or it began anew."""
    if isinstance(now, Missing) or isinstance(before, Missing):
        return 0
    return max(0, now - before)
