"""Checks of a GPU's memory: its size, and its errors (ECC)."""

from collections.abc import Iterator
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.gpu.products import is_data_center
from gpudiag.checks.per_device import (
    Counter,
    alike,
    counted,
    hours_between,
    judge_devices,
    memory_waits,
    moved,
)
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    check,
    does_not_apply,
    judged,
)
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing
from gpudiag.reference.gpu_models import find_memory
from gpudiag.reference.memory_limiters import find_limiter
from gpudiag.units import GIB, format_size

# --- how much there is

MEMORY_TOO_SMALL = FindingKind(
    code="memory.too_small",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_MEMORY,
    owner=Owner.HARDWARE,
    meaning="The GPU has less memory than GPUs of the same board in this machine, or than its model has.",
    remedy=(
        "[hardware] [power cycle: Drain the GPU and power-cycle the machine];"
        " if the memory does not come back, have the GPU replaced."
    ),
    basis=Basis(
        reads="NVML's total memory of the GPU, against GPUs of the same product, board"
        " and ECC mode here, and against the product's data sheet.",
        limit=(
            "98 % of the most that equal boards have; 90 % of the data sheet, since ECC of GDDR takes a"
            " sixteenth and the driver a little. Not judged where a library or a variable limits what a"
            " program is shown (HAMi, cGPU, MPS ...)."
        ),
        look_also=("nvidia-smi -q -d MEMORY", "xid 63", "dmesg -T | grep -i nvrm"),
    ),
)


@check(
    "memory.size",
    title="every GPU has the memory of its model",
    needs=("gpus",),
    reports=(MEMORY_TOO_SMALL,),
    readings=("memory_total_bytes", "name", "ecc_mode"),
    confirmed=f"nvidia-smi -q of A100, H100, B200 and T4; {BOTH_GPUS}",
)
def memory_size(context: Context) -> Judgement:
    """FAIL for a GPU with less memory than equal boards have here, or than its data sheet lists."""
    judgement = judge_devices(context.snapshot, ("memory_total_bytes", "name"), _judge_size)
    limiter = _limiter(context.snapshot) if judgement.findings else None
    if limiter is None:
        return judgement
    return does_not_apply(f"{limiter} limits the memory that NVML shows here: it is not the board's")


def _limiter(snapshot: Snapshot) -> str | None:
    """Who shows this process less memory than the board has, and the sign of it; None where nobody does."""
    machine = snapshot.machine
    preloaded = [] if isinstance(machine.preloaded_libraries, Missing) else list(machine.preloaded_libraries)
    preloaded += machine.allocation.get("LD_PRELOAD", "").replace(":", " ").split()
    return find_limiter(preloaded, machine.allocation)


def _judge_size(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    memory = device.memory_total_bytes
    if isinstance(memory, Missing) or device.memory_kind == "unified":
        return
    for share, whole, comparison in _opinions(snapshot, device):
        if memory < share * whole:
            message = (
                f"{name_device(device)} has {format_size(memory)} of memory,"
                f" {comparison} {format_size(whole)}"
            )
            evidence = Evidence("memory_total_bytes", memory, "bytes", whole, f"NVML; limit: {comparison}")
            yield MEMORY_TOO_SMALL.finding(device_subject(snapshot, device), message, evidence)
            return


def _opinions(snapshot: Snapshot, device: Device) -> Iterator[tuple[float, int, str]]:
    """Each opinion on the memory: the least share, the expected size, and its source."""
    peers = [
        peer.memory_total_bytes
        for peer in alike(snapshot, device)
        if peer.ecc_mode == device.ecc_mode and not isinstance(peer.memory_total_bytes, Missing)
    ]
    if peers:
        yield limits.MEMORY_OF_PEERS_SHARE, max(peers), "others of its kind here have"
    model = None if isinstance(device.name, Missing) else find_memory(device.name)
    if model is not None:
        yield limits.MEMORY_OF_MODEL_SHARE, model.gib * GIB, "its model has"


# --- errors

_CAPTURES = "nvidia-smi -q of A100, H100, B200 and T4"
_kind = partial(FindingKind, category=Category.HW_MEMORY, owner=Owner.HARDWARE)

_ECC_MODE_BASIS = Basis(
    reads="The current and the pending ECC mode of each GPU.",
    limit="on for data-center products, whose memory has ECC",
    look_also=("nvidia-smi -q -d ECC", "mode.mig_pending"),
)
_ECC_UNCORRECTED_BASIS = Basis(
    reads=(
        "Uncorrectable ECC errors since the driver was loaded and in the GPU's life, in"
        " total and by memory (DRAM, SRAM)."
    ),
    limit=(
        "0; in the GPU's life, the count of the earlier reading, unless none came since the driver was"
        " loaded and no row waits to be remapped"
    ),
    look_also=("nvidia-smi -q -d ECC,ROW_REMAPPER", "xid 48", "xid 94", "xid 95", "memory.row_remap_pending"),
)
_ECC_SRAM_BASIS = Basis(
    reads="nvmlDeviceGetSramEccErrorStatus: the driver's own flag; the uncorrectable SRAM errors in the"
    " GPU's life.",
    limit=f"the driver's own flag; {limits.SRAM_UNCORRECTED_REPLACE} in the GPU's life (NVIDIA's RMA policy)",
    look_also=("nvidia-smi -q -d ECC", "ecc.uncorrected_volatile"),
)
ECC_DISABLED = _kind(
    code="ecc.disabled",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    owner=Owner.HOST,
    meaning="ECC is off on a data-center GPU: flipped bits in its memory corrupt results silently.",
    remedy="Turn it on as root with `nvidia-smi -i INDEX -e 1`, then [reset: reset the GPU or reboot].",
    basis=_ECC_MODE_BASIS,
)
ECC_MODE_PENDING = _kind(
    code="ecc.mode_pending",
    outcome=Outcome.WARN,
    severity=Severity.RESET,
    owner=Owner.HOST,
    meaning="Someone changed the ECC mode, and the change waits for a reset of the GPU.",
    remedy="[reset: Reset the GPU (`nvidia-smi -i INDEX -r` while no process uses it) or reboot].",
    basis=_ECC_MODE_BASIS,
)
ECC_UNCORRECTED_VOLATILE = _kind(
    code="ecc.uncorrected_volatile",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    meaning="Since the driver was loaded, memory of this GPU lost data that ECC could not restore.",
    remedy=(
        "[hardware] Drain the GPU and [reset: reset it (`nvidia-smi -i INDEX -r`)], so that bad rows are"
        " remapped;"
        " if it happens again, have it replaced."
    ),
    basis=_ECC_UNCORRECTED_BASIS,
)
ECC_UNCORRECTED_AGGREGATE = _kind(
    code="ecc.uncorrected_aggregate",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="In its life this GPU has had memory errors that ECC could not correct.",
    remedy=(
        "[hardware] Watch whether the count grows (`gpudiag history`);"
        " a growing count is a case for replacement."
    ),
    basis=_ECC_UNCORRECTED_BASIS,
)
ECC_UNCORRECTED_RISING = _kind(
    code="ecc.uncorrected_rising",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning=(
        "The count of uncorrectable errors in this GPU's life has grown since an earlier reading, and"
        " nothing shows that the GPU was reset since."
    ),
    remedy=(
        "[hardware] Drain the GPU and [reset: reset it (`nvidia-smi -i INDEX -r`)]; if the count"
        " grows again, have the GPU replaced."
    ),
    basis=_ECC_UNCORRECTED_BASIS,
)
ECC_SRAM_THRESHOLD = _kind(
    code="ecc.sram_threshold_exceeded",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="The driver itself reports that the GPU's SRAM has had more errors than it may: replace it.",
    remedy="[hardware] Take the GPU out of service and have it replaced; keep this report for the case.",
    stated=True,
    basis=_ECC_SRAM_BASIS,
)
ECC_SRAM_UNCORRECTED = _kind(
    code="ecc.sram_uncorrected",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning=(
        "More uncorrectable errors in the GPU's SRAM than it may have in its life. SRAM cannot be remapped."
    ),
    remedy="[hardware] Take the GPU out of service and have it replaced; keep this report for the case.",
    basis=_ECC_SRAM_BASIS,
)
ECC_CORRECTED_RATE = _kind(
    code="ecc.corrected_rate",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="ECC corrects far more errors on this GPU than on the GPUs beside it.",
    remedy="Watch it; on Xid 92, or when uncorrected errors follow, call the vendor's support.",
    basis=Basis(
        reads="Corrected ECC errors, now and in the earlier snapshot; a count that"
        " fell has restarted and is left out.",
        limit=f"{limits.CORRECTED_RATE_FACTOR:.0f} times the next GPU's rate, and at least"
        f" {limits.CORRECTED_MIN_PER_HOUR:.0f} an hour (our choice; published limits differ 5,000-fold)",
        look_also=("xid 92", "nvidia-smi -q -d ECC"),
    ),
)


@check(
    "ecc.mode",
    title="ECC is on where it belongs, and no change is pending",
    needs=("gpus",),
    reports=(ECC_DISABLED, ECC_MODE_PENDING),
    readings=("ecc_mode", "ecc_mode_pending", "brand", "name"),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def ecc_mode(context: Context) -> Judgement:
    """WARN where ECC is off on a data-center GPU, or where a change waits for a reset."""
    return judge_devices(context.snapshot, ("ecc_mode", "ecc_mode_pending", "name"), _judge_mode)


@check(
    "ecc.uncorrected",
    title="no uncorrectable memory errors",
    needs=("gpus",),
    reports=(ECC_UNCORRECTED_VOLATILE, ECC_UNCORRECTED_RISING, ECC_UNCORRECTED_AGGREGATE),
    readings=("ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "ecc_locations"),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def ecc_uncorrected(context: Context) -> Judgement:
    """FAIL for errors since driver load or a risen life count; WARN for a life count above 0."""
    return judge_devices(
        context.snapshot,
        ("ecc_uncorrected_volatile",),
        lambda snapshot, device: _judge_uncorrected(context, device),
        either=(("ecc_uncorrected_aggregate",),),
    )


@check(
    "ecc.sram",
    title="the GPU's SRAM is within its limits",
    needs=("gpus",),
    reports=(ECC_SRAM_THRESHOLD, ECC_SRAM_UNCORRECTED),
    readings=("ecc_sram_threshold_exceeded", "ecc_locations[sram].uncorrected_aggregate"),
    confirmed=f"nvidia-smi -q of A100, H100 and B200; {BOTH_GPUS}",
)
def ecc_sram(context: Context) -> Judgement:
    """FAIL if SRAM errors are past the driver's threshold, or their life count past NVIDIA's policy."""
    return judge_devices(
        context.snapshot, ("ecc_sram_threshold_exceeded",), _judge_sram, either=(("ecc_locations",),)
    )


@check(
    "ecc.corrected_rate",
    title="no GPU corrects far more memory errors than its peers",
    needs=("gpus", "earlier"),
    reports=(ECC_CORRECTED_RATE,),
    readings=("ecc_corrected_volatile",),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def ecc_corrected_rate(context: Context) -> Judgement:
    """WARN for a GPU whose corrected errors grow far faster than those of the others."""
    counts = counted(context, "ecc_corrected_volatile")
    if isinstance(counts, Judgement):
        return counts
    hours = hours_between(context)
    return judged(
        *(finding for count in counts for finding in _judge_rate(context.snapshot, count, counts, hours))
    )


def _judge_mode(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    subject, source = device_subject(snapshot, device), "nvmlDeviceGetEccMode"
    if device.ecc_mode != device.ecc_mode_pending:
        message = f"{name_device(device)}: ECC will be {device.ecc_mode_pending} after the next reset"
        evidence = Evidence("ecc_mode_pending", str(device.ecc_mode_pending), source=source)
        yield ECC_MODE_PENDING.finding(subject, message, evidence)
    if device.ecc_mode == device.ecc_mode_pending == "disabled" and is_data_center(device):
        message = f"{name_device(device)}: ECC is off"
        yield ECC_DISABLED.finding(subject, message, Evidence("ecc_mode", "disabled", source=source))


def _judge_uncorrected(context: Context, device: Device) -> Iterator[Finding]:
    subject = device_subject(context.snapshot, device)
    volatile, aggregate = device.ecc_uncorrected_volatile, device.ecc_uncorrected_aggregate
    places = _places(device, "uncorrected_volatile")
    if not isinstance(volatile, Missing) and volatile > 0:
        message = f"{name_device(device)}: {_errors(volatile)} since the driver was loaded"
        evidence = Evidence("ecc_uncorrected_volatile", volatile, "errors", 0, "NVML")
        yield ECC_UNCORRECTED_VOLATILE.finding(subject, message, evidence, *places)
        return  # the life counts below hold the same errors
    if isinstance(aggregate, Missing) or aggregate == 0:
        return
    before = moved(context, device, "ecc_uncorrected_aggregate")
    rose = before is not None and before.rise > 0
    if before is not None and rose and not _was_reset(device):
        message = (
            f"{name_device(device)}: uncorrectable errors in its life rose from"
            f" {before.before} to {aggregate}"
        )
        evidence = Evidence("ecc_uncorrected_aggregate", aggregate, "errors", before.before, before.source)
        yield ECC_UNCORRECTED_RISING.finding(subject, message, evidence)
        return
    newest = f", {before.rise} since {before.source}" if before is not None and rose else ""
    message = f"{name_device(device)}: {_errors(aggregate)} in its life{newest}, none since driver load"
    evidence = Evidence("ecc_uncorrected_aggregate", aggregate, "errors", 0, "NVML")
    yield ECC_UNCORRECTED_AGGREGATE.finding(
        subject, message, evidence, *_places(device, "uncorrected_aggregate")
    )


def _was_reset(device: Device) -> bool:
    """Whether the GPU was restarted after its last error, and no bad memory waits: it has its spare row."""
    waits = memory_waits(device)
    return device.ecc_uncorrected_volatile == 0 and waits is not None and not waits[1]


def _errors(count: int) -> str:
    return f"{count} uncorrectable memory error{'' if count == 1 else 's'}"


def _places(device: Device, field: str) -> tuple[Evidence, ...]:
    """Where in the GPU the errors were counted, for the places that have any."""
    if isinstance(device.ecc_locations, Missing):
        return ()
    counts = ((place.location, getattr(place, field)) for place in device.ecc_locations)
    return tuple(
        Evidence(f"{location}_{field}", count, "errors", source="NVML")
        for location, count in counts
        if not isinstance(count, Missing) and count > 0
    )


def _judge_sram(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    subject = device_subject(snapshot, device)
    if device.ecc_sram_threshold_exceeded is True:
        message = f"{name_device(device)}: the driver reports that its SRAM has passed the error threshold"
        evidence = Evidence("ecc_sram_threshold_exceeded", True, source="nvmlDeviceGetSramEccErrorStatus")
        yield ECC_SRAM_THRESHOLD.finding(subject, message, evidence)
        return
    count = _sram_uncorrected(device)
    if count > limits.SRAM_UNCORRECTED_REPLACE:
        message = f"{name_device(device)}: {count} uncorrectable SRAM errors in its life"
        evidence = Evidence(
            "sram_uncorrected_aggregate",
            count,
            "errors",
            limits.SRAM_UNCORRECTED_REPLACE,
            "NVML; NVIDIA's RMA policy",
        )
        yield ECC_SRAM_UNCORRECTED.finding(subject, message, evidence)


def _sram_uncorrected(device: Device) -> int:
    places = () if isinstance(device.ecc_locations, Missing) else device.ecc_locations
    counts = (place.uncorrected_aggregate for place in places if place.location == "sram")
    return sum(count for count in counts if not isinstance(count, Missing))


def _judge_rate(
    snapshot: Snapshot, count: Counter, counts: tuple[Counter, ...], hours: float
) -> Iterator[Finding]:
    others = [other.rise / hours for other in counts if other is not count]
    rate, next_rate = count.rise / hours, max(others, default=0.0)
    if rate < limits.CORRECTED_MIN_PER_HOUR or rate < limits.CORRECTED_RATE_FACTOR * next_rate:
        return
    message = (
        f"{name_device(count.device)}: {rate:.0f} corrected memory errors an hour;"
        f" the next GPU has {next_rate:.0f}"
    )
    evidence = (
        Evidence("corrected_per_hour", rate, "errors/h", limits.CORRECTED_MIN_PER_HOUR, "our choice"),
        Evidence("corrected_per_hour_of_peers", next_rate, "errors/h", source="the other GPUs"),
    )
    yield ECC_CORRECTED_RATE.finding(device_subject(snapshot, count.device), message, *evidence)
