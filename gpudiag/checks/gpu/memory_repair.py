"""Checks of how a GPU repairs its memory: replaced rows, retired pages, repairs that wait or fail."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.per_device import (
    judge_devices,
    moved,
)
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    Restated,
    check,
)
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, RowRemapHistogram, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, value_or

_kind = partial(FindingKind, category=Category.HW_MEMORY, owner=Owner.HARDWARE)
_REPLACE = "[hardware] Take the GPU out of service and have it replaced; keep this report for the case."
_RESET = (
    "Before the next job, [reset: reset the GPU (`nvidia-smi -i INDEX -r` while no process uses it), or"
    " reboot]."
)

_fail = partial(_kind, outcome=Outcome.FAIL, severity=Severity.ISOLATE, remedy=_REPLACE)
_warn = partial(_kind, outcome=Outcome.WARN)

_MEMORY_ROW_REMAP_BASIS = Basis(
    reads="nvmlDeviceGetRemappedRows and nvmlDeviceGetRowRemapperHistogram: rows replaced, waiting,"
    " failed; banks by how many spare rows they have left.",
    limit=f"the driver's own flags; no bank without a spare row; {limits.REMAPPED_ROWS_WARN} rows (DCGM)",
    look_also=("nvidia-smi -q -d ROW_REMAPPER", "xid 63", "xid 64"),
)
_MEMORY_PAGE_RETIREMENT_BASIS = Basis(
    reads="NVML fields 29 to 31: pages retired for single-bit and double-bit errors, and whether one"
    " waits (GPUs before Ampere).",
    limit=(
        f"{limits.RETIRED_PAGES_REPLACE} pages, {limits.RETIRED_PAGES_DOUBLE_BIT} for double-bit errors and"
        " rising (NVIDIA Dynamic Page Retirement, RMA policy)"
    ),
    look_also=("nvidia-smi -q -d PAGE_RETIREMENT", "xid 63"),
)
_MEMORY_REPAIR_BASIS = Basis(
    reads="nvmlDeviceGetUnrepairableMemoryFlag and nvmlDeviceGetRepairStatus (memory channels, TPCs).",
    limit="the driver's own flags",
    look_also=("nvidia-smi -q -d ECC", "gpu.recovery_needed"),
)
ROW_REMAP_FAILED = _fail(
    code="memory.row_remap_failed",
    meaning="A row of the GPU's memory went bad and could not be replaced by a spare one (Xid 64).",
    stated=True,
    basis=_MEMORY_ROW_REMAP_BASIS,
)
ROW_REMAP_PENDING = _warn(
    code="memory.row_remap_pending",
    severity=Severity.RESET,
    meaning="A bad memory row waits for its spare row; it stays in use until the next reset.",
    remedy=_RESET,
    basis=_MEMORY_ROW_REMAP_BASIS,
)
ROW_REMAP_SPARES_GONE = _fail(
    code="memory.row_remap_spares_gone",
    meaning="A bank of the GPU's memory has no spare row left: the next bad row cannot be replaced.",
    basis=_MEMORY_ROW_REMAP_BASIS,
)
ROW_REMAP_SPARES_LOW = _warn(
    code="memory.row_remap_spares_low",
    severity=Severity.MONITOR,
    meaning="A bank of the GPU's memory has few spare rows left.",
    remedy="[hardware] Plan the replacement of this GPU; until then watch `gpudiag history`.",
    basis=_MEMORY_ROW_REMAP_BASIS,
)
ROW_REMAP_COUNT = _warn(
    code="memory.row_remap_count",
    severity=Severity.MONITOR,
    meaning="The GPU has replaced nearly as many rows for uncorrectable errors as it has spare ones.",
    remedy="[hardware] Plan the replacement of this GPU.",
    basis=_MEMORY_ROW_REMAP_BASIS,
)
PAGE_RETIREMENT_FULL = _fail(
    code="memory.page_retirement_full",
    meaning="The GPU has retired as many pages of its memory as NVIDIA's replacement policy allows.",
    basis=_MEMORY_PAGE_RETIREMENT_BASIS,
)
PAGE_RETIREMENT_RISING = _fail(
    code="memory.page_retirement_rising",
    meaning=(
        "Many pages are retired for double-bit errors, and more since an"
        " earlier reading: the memory is failing."
    ),
    basis=_MEMORY_PAGE_RETIREMENT_BASIS,
)
PAGE_RETIREMENT_PENDING = _warn(
    code="memory.page_retirement_pending",
    severity=Severity.RESET,
    meaning="A bad memory page will be retired; it stays in use until the driver is reloaded.",
    remedy="[host] Reboot, or reload the driver with nobody on its GPUs, before the next job.",
    basis=_MEMORY_PAGE_RETIREMENT_BASIS,
)
MEMORY_UNREPAIRABLE = _fail(
    code="memory.unrepairable",
    meaning="The driver reports that the GPU has memory that it cannot repair.",
    stated=True,
    basis=_MEMORY_REPAIR_BASIS,
)
MEMORY_REPAIR_PENDING = _warn(
    code="memory.repair_pending",
    severity=Severity.RESET,
    meaning="A memory channel or an SM cluster (TPC) of the GPU waits for a repair that a reset performs.",
    remedy=_RESET,
    basis=_MEMORY_REPAIR_BASIS,
)


# The errors that cause a row or page to be replaced, and the words added after them.
_SPOILED_BY = ("ecc.uncorrected_volatile", "ecc.uncorrected_rising")
_WAITS = {
    ROW_REMAP_PENDING.code: "a bad row waits to be remapped",
    PAGE_RETIREMENT_PENDING.code: "a bad page waits to be retired",
}


@check(
    "memory.row_remap",
    title="bad rows are replaced, and spare rows are left",
    needs=("gpus",),
    reports=(
        ROW_REMAP_FAILED,
        ROW_REMAP_SPARES_GONE,
        ROW_REMAP_PENDING,
        ROW_REMAP_SPARES_LOW,
        ROW_REMAP_COUNT,
    ),
    readings=("row_remap_failed", "row_remap_pending", "row_remap_uncorrectable", "row_remap_histogram"),
    confirmed=f"nvidia-smi -q of A100, H100 and B200; {BOTH_GPUS}",
)
def memory_row_remap(context: Context) -> Judgement:
    """FAIL where remapping failed or has no spare left; WARN where it is pending or the spares run low."""
    fields = ("row_remap_failed", "row_remap_pending", "row_remap_uncorrectable")
    return _with_their_errors(judge_devices(context.snapshot, fields, _judge_rows))


@check(
    "memory.page_retirement",
    title="few pages of memory are retired, and none is pending",
    needs=("gpus",),
    reports=(PAGE_RETIREMENT_FULL, PAGE_RETIREMENT_RISING, PAGE_RETIREMENT_PENDING),
    readings=("retired_pages_corrected", "retired_pages_uncorrected", "page_retirement_pending"),
    confirmed="nvidia-smi -q of T4",
)
def memory_page_retirement(context: Context) -> Judgement:
    """FAIL at the limits of NVIDIA's policy; WARN where a retirement is pending (GPUs before Ampere)."""
    judgement = judge_devices(
        context.snapshot,
        ("retired_pages_corrected", "retired_pages_uncorrected", "page_retirement_pending"),
        lambda snapshot, device: _judge_pages(context, device),
    )
    return _with_their_errors(judgement)


@check(
    "memory.repair",
    title="all memory is repaired, and no repair is pending",
    needs=("gpus",),
    reports=(MEMORY_UNREPAIRABLE, MEMORY_REPAIR_PENDING),
    readings=("memory_unrepairable", "memory_channel_repair_pending", "tpc_repair_pending"),
    confirmed=f"nvidia-smi -q of H100 and B200 (the two repairs that may be pending); {BOTH_GPUS}",
)
def memory_repair(context: Context) -> Judgement:
    """FAIL where the driver calls memory unrepairable; WARN where a repair waits for a reset."""
    repairs = (("memory_channel_repair_pending",), ("tpc_repair_pending",))
    return judge_devices(context.snapshot, ("memory_unrepairable",), _judge_repair, either=repairs)


def _with_their_errors(judgement: Judgement) -> Judgement:
    """The judgement, with each pending repair to be joined to the error that caused it."""
    restated = tuple(
        Restated(finding, _SPOILED_BY, _WAITS[finding.code])
        for finding in judgement.findings
        if finding.code in _WAITS
    )
    return replace(judgement, restated=restated)


def _judge_rows(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    subject, name = device_subject(snapshot, device), name_device(device)
    if device.row_remap_failed is True:
        evidence = Evidence("row_remap_failed", True, source="nvmlDeviceGetRemappedRows")
        yield ROW_REMAP_FAILED.finding(subject, f"{name}: a bad memory row could not be remapped", evidence)
        return
    yield from _judge_spares(snapshot, device)
    if device.row_remap_pending is True:
        evidence = Evidence("row_remap_pending", True, source="nvmlDeviceGetRemappedRows")
        yield ROW_REMAP_PENDING.finding(subject, f"{name}: a bad memory row waits to be remapped", evidence)
    rows = device.row_remap_uncorrectable
    if not isinstance(rows, Missing) and rows >= limits.REMAPPED_ROWS_WARN:
        evidence = Evidence(
            "row_remap_uncorrectable", rows, "rows", limits.REMAPPED_ROWS_WARN, "NVML; DCGM's limit"
        )
        yield ROW_REMAP_COUNT.finding(subject, f"{name}: {rows} memory rows are remapped", evidence)


def _judge_spares(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    histogram = device.row_remap_histogram
    if not isinstance(histogram, RowRemapHistogram):
        return
    kinds = (
        (ROW_REMAP_SPARES_GONE, histogram.none_banks, "no spare row", "none_banks"),
        (ROW_REMAP_SPARES_LOW, histogram.low_banks, "few spare rows", "low_banks"),
    )
    for kind, banks, words, field in kinds:
        if banks > 0:
            message = (
                f"{name_device(device)}: {banks} memory bank{'s have' if banks > 1 else ' has'} {words} left"
            )
            evidence = Evidence(field, banks, "banks", 0, "nvmlDeviceGetRowRemapperHistogram")
            yield kind.finding(device_subject(snapshot, device), message, evidence)


def _judge_pages(context: Context, device: Device) -> Iterator[Finding]:
    subject, name = device_subject(context.snapshot, device), name_device(device)
    corrected, double_bit = device.retired_pages_corrected, device.retired_pages_uncorrected
    pages, double = value_or(corrected, 0) + value_or(double_bit, 0), value_or(double_bit, 0)
    before = moved(context, device, "retired_pages_uncorrected")
    if pages >= limits.RETIRED_PAGES_REPLACE:
        evidence = Evidence(
            "retired_pages", pages, "pages", limits.RETIRED_PAGES_REPLACE, "NVML; NVIDIA's RMA policy"
        )
        yield PAGE_RETIREMENT_FULL.finding(subject, f"{name}: {pages} memory pages are retired", evidence)
    elif double > limits.RETIRED_PAGES_DOUBLE_BIT and before is not None and before.rise > 0:
        evidence = Evidence("retired_pages_uncorrected", double, "pages", before.before, before.source)
        message = f"{name}: pages retired for double-bit errors rose from {before.before} to {double}"
        yield PAGE_RETIREMENT_RISING.finding(subject, message, evidence)
    if device.page_retirement_pending is True:
        evidence = Evidence("page_retirement_pending", True, source="NVML field 31")
        yield PAGE_RETIREMENT_PENDING.finding(
            subject, f"{name}: a bad memory page waits to be retired", evidence
        )


def _judge_repair(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    subject, name = device_subject(snapshot, device), name_device(device)
    if device.memory_unrepairable is True:
        evidence = Evidence("memory_unrepairable", True, source="nvmlDeviceGetUnrepairableMemoryFlag")
        yield MEMORY_UNREPAIRABLE.finding(subject, f"{name}: it has memory beyond repair", evidence)
    pending = {"memory channel": device.memory_channel_repair_pending, "TPC": device.tpc_repair_pending}
    due = [what for what, reading in pending.items() if reading is True]
    if due:
        evidence = Evidence("repair_pending", " and ".join(due), source="nvmlDeviceGetRepairStatus")
        message = f"{name}: a {' and a '.join(due)} repair waits for a reset"
        yield MEMORY_REPAIR_PENDING.finding(subject, message, evidence)
