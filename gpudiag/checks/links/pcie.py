"""Checks of the PCIe link of each GPU: its width and generation, and the errors on it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.deltas import counted, minutes_between
from gpudiag.checks.per_device import alike, answering, is_loaded, judge_devices, nobody_works, same_in
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, judged
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

_CAPTURES = "nvidia-smi -q of A100, H100, B200 and T4"
_RESEAT = "Reseat the card or its riser and cable, and look at the slot's bifurcation in the firmware set-up."
_kind = partial(FindingKind, category=Category.HW_PCIE, owner=Owner.HARDWARE, remedy=_RESEAT)
_PCIE_WIDTH_BASIS = Basis(
    reads="Width and generation of the link now, what the GPU can, and what the bridge above it in"
    " /sys/bus/pci can.",
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
    meaning="The GPU's PCIe link uses fewer lanes than the GPU and its slot both have.",
    basis=_PCIE_WIDTH_BASIS,
)
GENERATION_REDUCED = _kind(
    code="pcie.generation_reduced",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="Under load the GPU's PCIe link runs at a lower generation than the GPU and its slot both have.",
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
    confirmed=_CAPTURES,
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
    confirmed=_CAPTURES,
)
def pcie_replay_rate(context: Context) -> Judgement:
    """WARN or FAIL for a link that repeats too many packets between two readings; the count alone is no fault."""
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
        return min(by_gpu, by_slot), "what GPU and slot both have"
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
