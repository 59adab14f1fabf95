"""Checks of heat: of the GPU, of its memory, and beside GPUs that draw as much."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

from gpudiag.checks import limits
from gpudiag.checks.per_device import (
    alike,
    answering,
    is_loaded,
    judge_devices,
    nobody_works,
    too_few_alike,
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
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, value_or
from gpudiag.reference.gpu_models import find_memory

COOLING = (
    "[hardware] Look at fans, airflow, dust and paste (or the liquid loop) of this slot;"
    " compare with its neighbours."
)
_heat_kind = partial(FindingKind, category=Category.HW_THERMAL, owner=Owner.HARDWARE, remedy=COOLING)
_TEMPERATURE_GPU_BASIS = Basis(
    reads="The GPU's margin to its thermal limit (T.Limit) and the margin at which it slows down; on"
    " older GPUs degrees and the slowdown temperature.",
    limit=f"the device's own slowdown margin or temperature; WARN within {limits.MARGIN_CELSIUS} C of it",
    look_also=("nvidia-smi -q -d TEMPERATURE", "clocks.hardware_thermal_slowdown", "xid 54"),
)
GPU_TOO_HOT = _heat_kind(
    code="temperature.gpu_too_hot",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="The GPU is at or past the temperature at which it slows down.",
    basis=_TEMPERATURE_GPU_BASIS,
)
GPU_NEARLY_TOO_HOT = _heat_kind(
    code="temperature.gpu_nearly_too_hot",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="The GPU is within a few degrees of the temperature at which it slows down.",
    basis=_TEMPERATURE_GPU_BASIS,
)
MEMORY_TOO_HOT = _heat_kind(
    code="temperature.memory_too_hot",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="The GPU's memory is past the highest temperature it may have.",
    basis=Basis(
        reads="NVML field 82, against the memory's highest temperature that the device reports.",
        limit="the device's own highest memory temperature, else its model's (drivers"
        " name none for Hopper and later)",
        look_also=("nvidia-smi -q -d TEMPERATURE",),
    ),
)
HOTTER_THAN_PEERS = _heat_kind(
    code="temperature.hotter_than_peers",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="The GPU is much hotter than identical GPUs of this machine that draw as much power.",
    basis=Basis(
        reads="Temperature and power draw of identical GPUs that are at work.",
        limit=(
            f"{limits.PEER_CELSIUS} C above the median of peers that draw as"
            " much power, under load (our choice)"
        ),
        look_also=("gpudiag list --wide", "temperature.gpu_nearly_too_hot"),
    ),
)


@check(
    "temperature.gpu",
    title="every GPU is cool enough",
    needs=("gpus",),
    reports=(GPU_TOO_HOT, GPU_NEARLY_TOO_HOT),
    readings=(
        "temperature_margin_celsius",
        "temperature_margin_slowdown_celsius",
        "temperature_celsius",
        "temperature_slowdown_celsius",
    ),
    confirmed=f"nvidia-smi -q of A100, H100, B200 and T4; {BOTH_GPUS}",
)
def temperature_gpu(context: Context) -> Judgement:
    """FAIL at the device's slowdown limit, WARN near it: by margin where the GPU has one, else by degrees."""
    by_degrees = ("temperature_celsius", "temperature_slowdown_celsius")
    return judge_devices(context.snapshot, ("temperature_margin_celsius",), _judge_gpu, either=(by_degrees,))


@check(
    "temperature.memory",
    title="every GPU's memory is cool enough",
    needs=("gpus",),
    reports=(MEMORY_TOO_HOT,),
    readings=("memory_temperature_celsius", "temperature_memory_max_celsius"),
    confirmed=f"nvidia-smi -q of A100; {BOTH_GPUS}",
)
def temperature_memory(context: Context) -> Judgement:
    """FAIL past the highest memory temperature that the device reports, or that its model may have."""
    heat: tuple[str, ...] = ("memory_temperature_celsius",)
    if all(_highest_of_memory(device) is None for device in answering(context.snapshot)):
        heat = ("memory_temperature_celsius", "temperature_memory_max_celsius")
    judgement = judge_devices(context.snapshot, heat, _judge_memory)
    # Without cooling both are too hot: one fault.
    restated = tuple(
        Restated(finding, (GPU_TOO_HOT.code,), "its memory is too hot too") for finding in judgement.findings
    )
    return replace(judgement, restated=restated)


@check(
    "temperature.peers",
    title="GPUs doing the same work are about equally warm",
    needs=("gpus",),
    reports=(HOTTER_THAN_PEERS,),
    readings=("temperature_celsius", "power_draw_watts", "utilization_percent"),
    confirmed="nvidia-smi -q of H100 and B200",
)
def temperature_peers(context: Context) -> Judgement:
    """WARN for a GPU at work that is much hotter than the others of its kind at no more power."""
    few = too_few_alike(context.snapshot, wanted=3)  # with only two, the other one may be the odd one
    idle = few or nobody_works(context.snapshot, limits.LOADED_PERCENT)
    fields = ("temperature_celsius", "power_draw_watts", "utilization_percent")
    return idle or judge_devices(context.snapshot, fields, _judge_peers)


def _judge_gpu(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    subject, margin = device_subject(snapshot, device), _margin(device)
    if margin is None:
        return
    degrees, evidence = margin
    if degrees <= 0:
        slowed = device.clocks_event_reasons
        words = "not known" if isinstance(slowed, Missing) else ", ".join(slowed) or "none"
        reasons = Evidence("clocks_event_reasons", words, source="NVML")
        yield GPU_TOO_HOT.finding(
            subject, f"{name_device(device)} is at its thermal limit", *evidence, reasons
        )
    elif degrees < limits.MARGIN_CELSIUS:
        message = f"{name_device(device)} is {degrees} C below the temperature at which it slows down"
        yield GPU_NEARLY_TOO_HOT.finding(subject, message, *evidence)


def is_too_hot(device: Device) -> bool:
    """Whether the GPU is known to be at or past its own thermal limit."""
    margin = _margin(device)
    return margin is not None and margin[0] <= 0


def _margin(device: Device) -> tuple[int, tuple[Evidence, ...]] | None:
    """Degrees to the slowdown limit, and how that is known; None where the device names no limit."""
    margin, slowdown_margin = device.temperature_margin_celsius, device.temperature_margin_slowdown_celsius
    temperature, slowdown = device.temperature_celsius, device.temperature_slowdown_celsius
    heat = () if isinstance(temperature, Missing) else (Evidence("temperature_celsius", temperature, "C"),)
    if not isinstance(margin, Missing):
        limit = value_or(slowdown_margin, 0)
        return margin - limit, (
            Evidence("temperature_margin_celsius", margin, "C", limit, "NVML T.Limit; limit: NVML field 194"),
            *heat,
        )
    if isinstance(temperature, Missing) or isinstance(slowdown, Missing):
        return None
    evidence = Evidence(
        "temperature_celsius", temperature, "C", slowdown, "NVML; limit: the device's slowdown"
    )
    return slowdown - temperature, (evidence,)


def _judge_memory(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    heat, limit = device.memory_temperature_celsius, _highest_of_memory(device)
    if isinstance(heat, Missing) or limit is None or heat <= limit[0]:
        return
    highest, source = limit
    message = f"{name_device(device)}: its memory is at {heat} C, above its limit of {highest} C"
    evidence = Evidence("memory_temperature_celsius", heat, "C", highest, f"NVML; limit: {source}")
    yield MEMORY_TOO_HOT.finding(device_subject(snapshot, device), message, evidence)


def _highest_of_memory(device: Device) -> tuple[int, str] | None:
    """The highest temperature that the GPU's memory may have, and its source; None where there is none."""
    own = device.temperature_memory_max_celsius
    if not isinstance(own, Missing):
        return own, "the device's own"
    model = None if isinstance(device.name, Missing) else find_memory(device.name)
    if model is None or model.max_celsius is None:
        return None
    return model.max_celsius, "the model's"


def _judge_peers(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    heat, draw = device.temperature_celsius, device.power_draw_watts
    if isinstance(heat, Missing) or isinstance(draw, Missing) or not is_loaded(device, limits.LOADED_PERCENT):
        return
    peers = [
        peer.temperature_celsius
        for peer in alike(snapshot, device)
        if not isinstance(peer.temperature_celsius, Missing)
        and not isinstance(peer.power_draw_watts, Missing)
        and peer.power_draw_watts >= 0.8 * draw  # at less power it would be cooler anyway
    ]
    if len(peers) < 2:
        return
    usual = median(peers)
    if heat > usual + limits.PEER_CELSIUS:
        message = f"{name_device(device)} is at {heat} C; the others that draw as much are at {usual:.0f} C"
        limit = usual + limits.PEER_CELSIUS
        evidence = Evidence("temperature_celsius", heat, "C", limit, "NVML; limit: peers that draw as much")
        yield HOTTER_THAN_PEERS.finding(device_subject(snapshot, device), message, evidence)
