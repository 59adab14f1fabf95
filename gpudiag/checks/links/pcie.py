"""Checks of the PCIe link of each GPU: its width, its generation, its slot, and the errors on it (AER)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.majority import majority_of
from gpudiag.checks.per_device import (
    Gap,
    alike,
    answering,
    conclude,
    counted,
    is_loaded,
    judge_devices,
    minutes_between,
    nobody_works,
    same_in,
    too_few_alike,
)
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    check,
    judged,
)
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.checks.traces import pci_gpus
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import NOT_ASKED, Missing, Reading, value_or

# --- width and generation

_CAPTURES = "nvidia-smi -q of A100, H100, B200 and T4"
_RESEAT = (
    "[hardware] Reseat the card or its riser and cable, and look at the slot's bifurcation in the firmware"
    " set-up."
)
_kind = partial(FindingKind, category=Category.HW_PCIE, owner=Owner.HARDWARE, remedy=_RESEAT)
_PCIE_WIDTH_BASIS = Basis(
    reads=(
        "Width and generation of the link now, what the GPU supports, and what the bridge"
        " above it in /sys/bus/pci supports."
    ),
    limit="the smaller of GPU and slot; where the slot is not visible, peers and the recorded good state",
    look_also=(
        "nvidia-smi -q | grep -A12 'GPU Link Info'",
        "lspci -vv -s BUS_ID | grep Lnk",
        "pcie.replay_rate",
    ),
)
_PCIE_REPLAY_RATE_BASIS = Basis(
    reads="nvmlDeviceGetPcieReplayCounter, now and in the earlier snapshot; healthy H100s show counts"
    " above 100.",
    limit="DCGM's replays per minute and lane of each generation; FAIL at ten times that",
    look_also=("nvidia-smi -q | grep Replay", "pcie.corrected_rate", "pcie.width_reduced"),
)
WIDTH_REDUCED = _kind(
    code="pcie.width_reduced",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="The GPU's PCIe link uses fewer lanes than both the GPU and its slot have.",
    basis=_PCIE_WIDTH_BASIS,
)
GENERATION_REDUCED = _kind(
    code="pcie.generation_reduced",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning=(
        "Under load the GPU's PCIe link runs at a lower generation than both the GPU and its slot support."
    ),
    basis=replace(
        _PCIE_WIDTH_BASIS,
        limit="the smaller of GPU and slot, on GPUs at work; an idle link is slow on purpose",
    ),
)
REPLAYS = _kind(
    code="pcie.replay_rate",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="The PCIe link repeats packets more often than a good link of its generation and width does.",
    basis=_PCIE_REPLAY_RATE_BASIS,
)
REPLAYS_MANY = _kind(
    code="pcie.replay_storm",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="The PCIe link repeats packets ten times as often as a link that is already suspect.",
    basis=_PCIE_REPLAY_RATE_BASIS,
)


@check(
    "pcie.width",
    title="every PCIe link has all of its lanes",
    needs=("gpus",),
    reports=(WIDTH_REDUCED,),
    readings=("pcie_width", "pcie_width_gpu_max", "pcie_width_slot_max"),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def pcie_width(context: Context) -> Judgement:
    """FAIL for a link with fewer lanes than GPU and slot have; a narrow slot is no fault."""
    judgement = judge_devices(
        context.snapshot,
        ("pcie_width", "pcie_width_gpu_max"),
        lambda snapshot, device: _judge_width(context, device),
    )
    notes = [note for device in answering(context.snapshot) if (note := _narrow_slot(device))]
    return replace(judgement, reason="; ".join(notes)) if notes and not judgement.reason else judgement


@check(
    "pcie.generation",
    title="under load every PCIe link runs at full speed",
    needs=("gpus",),
    reports=(GENERATION_REDUCED,),
    readings=(
        "pcie_generation",
        "pcie_generation_gpu_max",
        "pcie_generation_slot_max",
        "utilization_percent",
    ),
    confirmed=_CAPTURES,
)
def pcie_generation(context: Context) -> Judgement:
    """FAIL for a GPU at work whose link is slower than GPU and slot allow; idle links are not judged."""
    fields = ("pcie_generation", "pcie_generation_gpu_max", "utilization_percent")
    idle = nobody_works(context.snapshot, limits.LOADED_PERCENT)
    return idle or judge_devices(
        context.snapshot, fields, lambda snapshot, device: _judge_generation(context, device)
    )


@check(
    "pcie.replay_rate",
    title="PCIe links repeat few packets",
    needs=("gpus", "earlier"),
    reports=(REPLAYS_MANY, REPLAYS),
    readings=("pcie_replay_count", "pcie_generation", "pcie_width"),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def pcie_replay_rate(context: Context) -> Judgement:
    """WARN or FAIL for a link that repeats too many packets between two readings."""
    counts = counted(context, "pcie_replay_count")
    if isinstance(counts, Judgement):
        return counts
    minutes = minutes_between(context)
    findings = (_judge_replays(context.snapshot, count.device, count.rise, minutes) for count in counts)
    return judged(*(finding for finding in findings if finding is not None))


def _judge_width(context: Context, device: Device) -> Iterator[Finding]:
    width = device.pcie_width
    expected, source = _expected(context, device, "pcie_width")
    if not isinstance(width, Missing) and expected is not None and width < expected:
        message = f"{name_device(device)}: PCIe x{width}, and x{expected} is possible"
        evidence = Evidence("pcie_width", width, "lanes", expected, f"NVML; limit: {source}")
        yield WIDTH_REDUCED.finding(device_subject(context.snapshot, device), message, evidence)


def _judge_generation(context: Context, device: Device) -> Iterator[Finding]:
    generation = device.pcie_generation
    expected, source = _expected(context, device, "pcie_generation")
    if isinstance(generation, Missing) or expected is None or not is_loaded(device, limits.LOADED_PERCENT):
        return
    if generation < expected:
        message = (
            f"{name_device(device)}: PCIe generation {generation} under load, and {expected} is possible"
        )
        load = Evidence("utilization_percent", _load(device), "%", limits.LOADED_PERCENT, "NVML")
        evidence = Evidence("pcie_generation", generation, None, expected, f"NVML; limit: {source}")
        yield GENERATION_REDUCED.finding(device_subject(context.snapshot, device), message, evidence, load)


def _expected(context: Context, device: Device, field: str) -> tuple[int | None, str]:
    """What the link should have, and its source: GPU and slot, else peers, else the recorded good state."""
    by_gpu, by_slot = getattr(device, f"{field}_gpu_max"), getattr(device, f"{field}_slot_max")
    if isinstance(by_gpu, Missing):
        return None, ""
    if not isinstance(by_slot, Missing):
        return min(by_gpu, by_slot), "what both GPU and slot support"
    peers = [getattr(peer, field) for peer in alike(context.snapshot, device) if _comparable(peer, field)]
    known = [value for value in peers if not isinstance(value, Missing)]
    if known:
        return min(by_gpu, max(known)), "the other GPUs (the slot is not visible)"
    before = None if isinstance(context.baseline, Missing) else same_in(context.baseline, device)
    value = None if before is None or not _comparable(before, field) else getattr(before, field)
    return (None, "") if value is None or isinstance(value, Missing) else (value, "the recorded good state")


def _comparable(device: Device, field: str) -> bool:
    """Whether another reading of `field` shows what the link can do: an idle link's generation does not."""
    return field == "pcie_width" or is_loaded(device, limits.LOADED_PERCENT)


def _narrow_slot(device: Device) -> str:
    """A sentence where the slot limits the GPU, by the machine's design; else empty."""
    by_gpu, by_slot = device.pcie_width_gpu_max, device.pcie_width_slot_max
    if isinstance(by_gpu, Missing) or isinstance(by_slot, Missing) or by_slot >= by_gpu:
        return ""
    return f"{name_device(device)}: its slot gives x{by_slot}, the GPU could use x{by_gpu}"


# --- slots

SLOT_SLOWER = _kind(
    code="pcie.slot_slower",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    owner=Owner.HOST,
    meaning=(
        "A GPU's slot has fewer lanes or a lower PCIe generation than the slots of identical GPUs:"
        " copies to it are slower, and collectives wait for them."
    ),
    remedy=(
        "Move the card to a slot as good as the others, or change the slot's"
        " bifurcation in the firmware set-up."
    ),
    basis=Basis(
        reads="What the bridge above each GPU in /sys/bus/pci supports, and what the GPU supports.",
        limit="what most identical GPUs of this machine have; of two, the better slot",
        look_also=("gpudiag topo", "lspci -vv -s BUS_ID | grep Lnk", "pcie.width_reduced"),
    ),
)
_Link = tuple[int, int]  # PCIe generation and lanes


@check(
    "pcie.slot",
    title="identical GPUs have equally fast slots",
    needs=("gpus",),
    reports=(SLOT_SLOWER,),
    readings=("pcie_generation_slot_max", "pcie_width_slot_max"),
)
def pcie_slot(context: Context) -> Judgement:
    """WARN for a GPU whose slot is slower than those of identical GPUs."""
    return too_few_alike(context.snapshot) or judge_devices(
        context.snapshot, ("pcie_generation_slot_max", "pcie_width_slot_max"), _judge_slot
    )


def _judge_slot(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    own, others = _slot(device), [_slot(one) for one in alike(snapshot, device)]
    usual = others[0] if len(others) == 1 else majority_of((own, *others))
    if isinstance(own, tuple) and isinstance(usual, tuple) and link_speed(own) < link_speed(usual):
        message = (
            f"{name_device(device)}: its slot gives PCIe {link_words(own)}, those of"
            f" identical GPUs {link_words(usual)}"
        )
        evidence = Evidence("pcie_slot", link_words(own), None, link_words(usual), "sysfs; limit: peers")
        yield SLOT_SLOWER.finding(device_subject(snapshot, device), message, evidence)


def _slot(device: Device) -> Reading[_Link]:
    """What the GPU could use of its slot: generation and lanes."""
    generation, width = device.pcie_generation_slot_max, device.pcie_width_slot_max
    if isinstance(generation, Missing):
        return generation
    if isinstance(width, Missing):
        return width
    return (
        min(generation, value_or(device.pcie_generation_gpu_max, generation)),
        min(width, value_or(device.pcie_width_gpu_max, width)),
    )


def link_speed(link: _Link) -> int:
    """How fast a link is beside others: each generation doubles a lane's rate."""
    return link[1] << link[0]


def link_words(link: _Link) -> str:
    """A link in words: `5.0 x16`."""
    return f"{link[0]}.0 x{link[1]}"


# --- replays


def _judge_replays(snapshot: Snapshot, device: Device, rise: float, minutes: float) -> Finding | None:
    generation, width = device.pcie_generation, device.pcie_width
    if isinstance(generation, Missing) or isinstance(width, Missing):
        return None
    limit = limits.replays_per_minute(generation, width)
    rate = rise / max(minutes, 1.0)  # a burst within a short time must fill a minute's allowance too
    if rate <= limit:
        return None
    kind = REPLAYS_MANY if rate > limits.REPLAYS_FAIL_FACTOR * limit else REPLAYS
    message = f"{name_device(device)}: {rise:.0f} PCIe replays in {minutes:.1f} min"
    link = f"limit: DCGM, generation {generation} x{width}"
    evidence = Evidence(
        "pcie_replays_per_minute", rate, "1/min", limit, f"nvmlDeviceGetPcieReplayCounter; {link}"
    )
    return kind.finding(device_subject(snapshot, device), message, evidence)


def _load(device: Device) -> int:
    load = device.utilization_percent
    assert not isinstance(load, Missing)  # noqa: S101 - is_loaded has seen it
    return load


# --- error reports

_error_kind = partial(
    FindingKind,
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    remedy=(
        "[hardware] Reseat the card or its riser and cable; if it happens again, have the slot or the GPU"
        " replaced."
    ),
)
_PCIE_FATAL_ERROR_SINCE_BOOT_BASIS = Basis(
    reads="/sys/bus/pci/devices/*/aer_dev_correctable, aer_dev_nonfatal and aer_dev_fatal; without AER,"
    " NVML fields 173, 179 and 180.",
    limit=f"0 fatal, 0 nonfatal, {limits.CORRECTED_PCIE_ERRORS_PER_MINUTE:.0f} corrected a minute (DCGM)",
    look_also=("dmesg -T | grep -i aer", "pcie.fatal_error", "xid 79"),
)
_counted_kind = partial(
    _error_kind, outcome=Outcome.WARN, severity=Severity.MONITOR, basis=_PCIE_FATAL_ERROR_SINCE_BOOT_BASIS
)
FATAL = _error_kind(
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
FATAL_SINCE_BOOT = _counted_kind(
    code="pcie.fatal_error_since_boot",
    meaning="The PCIe link of the GPU has had a fatal error at some time since the machine was started.",
)
NONFATAL = _counted_kind(
    code="pcie.nonfatal_errors",
    meaning=(
        "The PCIe link of the GPU has lost packets that could not be corrected since the earlier reading."
    ),
)
NONFATAL_SINCE_BOOT = _counted_kind(
    code="pcie.nonfatal_errors_since_boot",
    meaning=(
        "The PCIe link of the GPU has lost packets that could not be corrected since the machine was started."
    ),
    remedy="[hardware] Watch whether the count grows (`gpudiag history`); if it does, reseat the card.",
)
CORRECTED_RATE = _counted_kind(
    code="pcie.corrected_rate",
    meaning="The PCIe link of the GPU corrects many errors.",
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
    confirmed=BOTH_GPUS,
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
    """By how much the count rose; 0 where that is not known or it was reset."""
    if isinstance(now, Missing) or isinstance(before, Missing):
        return 0
    return max(0, now - before)
