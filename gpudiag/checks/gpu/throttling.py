"""Checks of what holds the clocks back: heat, power, the board, or no known reason."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

from gpudiag.checks import limits
from gpudiag.checks.gpu.temperature import COOLING, is_too_hot
from gpudiag.checks.per_device import (
    Gap,
    Pair,
    alike,
    conclude,
    is_loaded,
    judge_devices,
    nobody_works,
    paired,
    seconds_between,
)
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    check,
    does_not_apply,
)
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, MissingReason, value_or
from gpudiag.reference.vocabulary import FAULT_LIMITS, HARMLESS_REASONS

_CAPTURES = "nvidia-smi -q of A100, H100, B200 and T4"
_POWER = "[hardware] Look at the power supplies, their cables and the rack's power cap."
# A GB10 that negotiated too little power with its adapter stays at a few hundred MHz until both are without
# power (hoesing/spark-gpu-throttle-check, and public reports on DGX Spark and GX10, read in November 2026).
_SUPPLY_OF_A_DESKTOP = (
    "[hardware] Shut the machine down, unplug its power adapter from the wall for a minute, and plug it in"
    " again:"
    " it then asks the adapter for full power again. Use the adapter that came with the machine, without a"
    " hub or another cable; if it stays slow, have it replaced."
)
_NOT_ITS_OWN_LIMIT = (
    "[hardware] Look at the GPU's power cable, at the power supplies and the BMC's power cap, and at"
    " `nvidia-smi -q -d POWER`. Where that draw cannot be true, [power cycle: power-cycle the machine] and"
    " update driver and VBIOS."
)
_kind = partial(FindingKind, owner=Owner.HARDWARE)
_warn = partial(_kind, outcome=Outcome.WARN, severity=Severity.TRIAGE)

_CLOCKS_HARDWARE_SLOWDOWN_BASIS = Basis(
    reads="nvmlDeviceGetCurrentClocksEventReasons: bits 0x40, 0x80, 0x08 and 0x20.",
    limit="none of hw_slowdown, hw_thermal_slowdown, hw_power_brake_slowdown",
    look_also=(
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
        "temperature.gpu_too_hot",
        "the server's own event log (ipmitool sel list)",
    ),
)
_CLOCKS_POWER_CAPPED_BASIS = Basis(
    reads="SM clock, highest SM clock, load, power draw and clocks event reasons of GPUs at work.",
    limit=(
        f"{limits.PEER_CLOCK_RATIO:.0%} of the median clock of GPUs at the same work;"
        f" {limits.CAPPED_CLOCK_RATIO:.0%} of the highest clock at a draw that is not"
        f" {limits.CAPPED_DRAW_RATIOS[0]:.0%} to {limits.CAPPED_DRAW_RATIOS[1]:.0%} of the power limit"
        " (our choice)"
    ),
    look_also=("nvidia-smi -q -d CLOCK,PERFORMANCE,POWER", "power.limit_lowered", "clocks.power_brake"),
)
HARDWARE_THERMAL = _warn(
    code="clocks.hardware_thermal_slowdown",
    category=Category.HW_THERMAL,
    meaning="The GPU's own protection has cut its clocks because it is too hot.",
    remedy=COOLING,
    basis=_CLOCKS_HARDWARE_SLOWDOWN_BASIS,
)
POWER_BRAKE = _warn(
    code="clocks.power_brake",
    category=Category.HW_POWER,
    meaning="The machine's power supply has signalled the GPU to slow down (external power brake).",
    remedy=_POWER,
    basis=_CLOCKS_HARDWARE_SLOWDOWN_BASIS,
)
HARDWARE_SLOWDOWN = _warn(
    code="clocks.hardware_slowdown",
    category=Category.HW_POWER,
    meaning="The GPU's own protection has cut its clocks, and heat is not the reason it gives.",
    remedy="[hardware] Check the GPU's power cable and connector, then the power supplies.",
    basis=_CLOCKS_HARDWARE_SLOWDOWN_BASIS,
)
SOFTWARE_THERMAL = _warn(
    code="clocks.software_thermal_slowdown",
    category=Category.HW_THERMAL,
    meaning="The driver holds the clocks down to keep the GPU, or its memory, from getting too hot.",
    remedy=COOLING,
    basis=replace(_CLOCKS_HARDWARE_SLOWDOWN_BASIS, limit="no sw_thermal_slowdown"),
)
THROTTLED = _kind(
    code="clocks.throttled",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.HW_THERMAL,
    meaning=(
        "Between two readings the clocks were held back because of heat, or by the"
        " board, for a good part of the time."
    ),
    remedy=COOLING,
    basis=Basis(
        reads="nvmlDeviceGetViolationStatus (thermal, reliability, board limit), now and in"
        " the earlier snapshot.",
        limit=f"{limits.THROTTLED_SHARE:.0%} of the time since the earlier reading (our choice)",
        look_also=("nvidia-smi -q -d PERFORMANCE", "clocks.hardware_thermal_slowdown"),
    ),
)
POWER_CAPPED = _warn(
    code="clocks.power_capped",
    category=Category.HW_POWER,
    meaning=(
        "The power limit holds this GPU's clocks far below those of the GPUs that do the same work; or a"
        " power cap holds them low although the draw is not at the GPU's own limit."
    ),
    remedy=(
        "Compare power limits and draw (`gpudiag list --wide`); the GPU may"
        " need more power for the same work."
    ),
    basis=_CLOCKS_POWER_CAPPED_BASIS,
)
STUCK_LOW = _kind(
    code="clocks.stuck_low",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    category=Category.PERF_VIOLATION,
    meaning="The GPU works at a fraction of its clock, for minutes, and names no reason for it.",
    remedy=(
        "[hardware] Check its power first: supply or adapter, cables, power brake"
        " (`nvidia-smi -q -d PERFORMANCE,POWER`). Then [power cycle: drain the machine and power-cycle it];"
        " if the GPU stays slow, have it replaced."
    ),
    basis=replace(
        _CLOCKS_POWER_CAPPED_BASIS,
        limit=(
            f"{limits.STUCK_CLOCK_RATIO:.0%} of the highest clock for"
            f" {limits.STUCK_CLOCK_SECONDS:.0f} s (sichek)"
        ),
    ),
)

# NVML's reasons, most specific first: heat and power brake set hw_slowdown too.
_HARDWARE = (
    ("hw_thermal_slowdown", HARDWARE_THERMAL, "has slowed down because it is too hot"),
    ("hw_power_brake_slowdown", POWER_BRAKE, "is slowed down by the machine's power supply"),
    ("hw_slowdown", HARDWARE_SLOWDOWN, "has slowed itself down"),
)
_NOT_COUNTED = Missing(MissingReason.NOT_SUPPORTED, "the driver counts none of the causes")


@check(
    "clocks.hardware_slowdown",
    title="no GPU's protection cuts its clocks",
    needs=("gpus",),
    reports=(HARDWARE_THERMAL, POWER_BRAKE, HARDWARE_SLOWDOWN),
    readings=("clocks_event_reasons",),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def clocks_hardware_slowdown(context: Context) -> Judgement:
    """WARN for a GPU whose hardware holds its clocks back at this moment."""
    return judge_devices(context.snapshot, ("clocks_event_reasons",), _judge_hardware)


@check(
    "clocks.software_thermal_slowdown",
    title="the driver slows no GPU down because of heat",
    needs=("gpus",),
    reports=(SOFTWARE_THERMAL,),
    readings=("clocks_event_reasons",),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def clocks_software_thermal(context: Context) -> Judgement:
    """WARN for a GPU that the driver slows down because of heat."""
    return judge_devices(context.snapshot, ("clocks_event_reasons",), _judge_software)


@check(
    "clocks.throttle_time",
    title="the clocks were not held back for long",
    needs=("gpus", "earlier"),
    reports=(THROTTLED,),
    readings=("throttle_seconds",),
    confirmed=f"nvidia-smi -q of H100, B200 and T4 (the counters that it shows); {BOTH_GPUS}",
)
def clocks_throttle_time(context: Context) -> Judgement:
    """FAIL for a GPU that heat or the board held back for a good part of the time between two readings."""
    found = paired(context, "throttle_seconds")
    if isinstance(found, Judgement):
        return found
    pairs, gaps = found
    seconds = seconds_between(context)
    findings = [finding for pair in pairs for finding in _judge_time(context.snapshot, pair, seconds)]
    counted = [pair for pair in pairs if any(_rise(pair, cause) is not None for cause in FAULT_LIMITS)]
    gaps += [Gap(pair.device, "throttle_seconds", _NOT_COUNTED) for pair in pairs if pair not in counted]
    return conclude(findings, len(counted), gaps)


@check(
    "clocks.power_capped",
    title="no power cap holds a GPU back alone",
    needs=("gpus",),
    reports=(POWER_CAPPED,),
    readings=(
        "clocks_event_reasons",
        "sm_clock_mhz",
        "sm_clock_max_mhz",
        "utilization_percent",
        "power_draw_watts",
        "power_limit_enforced_watts",
    ),
    confirmed=_CAPTURES,
)
def clocks_power_capped(context: Context) -> Judgement:
    """WARN for a power-capped GPU that is slow, and whose peers are not or whose draw is not at its limit."""
    fields = ("clocks_event_reasons", "sm_clock_mhz", "utilization_percent")
    idle = nobody_works(context.snapshot, limits.LOADED_PERCENT)
    return idle or judge_devices(context.snapshot, fields, _judge_capped)


@check(
    "clocks.stuck_low",
    title="no GPU is stuck at a low clock under load",
    needs=("gpus", "earlier"),
    reports=(STUCK_LOW,),
    readings=("sm_clock_mhz", "sm_clock_max_mhz", "utilization_percent", "clocks_event_reasons"),
    confirmed=_CAPTURES,
)
def clocks_stuck_low(context: Context) -> Judgement:
    """FAIL for a GPU that two readings, a minute apart or more, show busy at a low clock without a reason."""
    if seconds_between(context) < limits.STUCK_CLOCK_SECONDS:
        return does_not_apply("the earlier reading is less than a minute old")
    idle = nobody_works(context.snapshot, limits.LOADED_PERCENT)
    found = idle or paired(context, "sm_clock_mhz")
    if isinstance(found, Judgement):
        return found
    pairs, gaps = found
    findings = [finding for pair in pairs for finding in _judge_stuck(context.snapshot, pair)]
    return conclude(findings, len(pairs), gaps)


def _judge_hardware(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    reasons = () if is_too_hot(device) else _reasons(device)  # temperature.gpu has the cause
    for reason, kind, words in _HARDWARE:
        if reason in reasons:
            evidence = Evidence(
                "clocks_event_reasons", reason, source="nvmlDeviceGetCurrentClocksEventReasons"
            )
            message = f"{name_device(device)} {words}"
            yield kind.finding(device_subject(snapshot, device), message, evidence, *_context_of(device))
            return


def _judge_software(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    reasons = _reasons(device)
    if "sw_thermal_slowdown" in reasons and "hw_thermal_slowdown" not in reasons and not is_too_hot(device):
        evidence = Evidence(
            "clocks_event_reasons", "sw_thermal_slowdown", source="nvmlDeviceGetCurrentClocksEventReasons"
        )
        message = f"{name_device(device)} is slowed down by the driver to keep it cool"
        yield SOFTWARE_THERMAL.finding(
            device_subject(snapshot, device), message, evidence, *_context_of(device)
        )


def _judge_time(snapshot: Snapshot, pair: Pair, seconds: float) -> Iterator[Finding]:
    for cause in FAULT_LIMITS:
        held = _rise(pair, cause)
        share = 0.0 if held is None else held / seconds
        if held is not None and share >= limits.THROTTLED_SHARE:
            message = (
                f"{name_device(pair.device)}: clocks held back"
                f" ({cause.replace('_', ' ')}) {share:.0%} of the time"
            )
            evidence = Evidence(
                f"throttle_seconds.{cause}",
                held,
                "s",
                limits.THROTTLED_SHARE * seconds,
                "NVML violation time",
            )
            yield THROTTLED.finding(device_subject(snapshot, pair.device), message, evidence)


def _rise(pair: Pair, cause: str) -> float | None:
    """Seconds for which that cause held the clocks back between the two snapshots; None where not known."""
    value = getattr(pair.device.throttle_seconds, cause, _NOT_COUNTED)
    was = getattr(pair.before.throttle_seconds, cause, _NOT_COUNTED)
    if isinstance(value, Missing) or isinstance(was, Missing):
        return None
    return float(value - was)


def _judge_capped(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    peers = [peer for peer in alike(snapshot, device) if is_loaded(peer, limits.LOADED_PERCENT)]
    clocks = [peer.sm_clock_mhz for peer in peers if not isinstance(peer.sm_clock_mhz, Missing)]
    clock = device.sm_clock_mhz
    if "sw_power_cap" not in _reasons(device):
        return
    if isinstance(clock, Missing) or not is_loaded(device, limits.LOADED_PERCENT):
        return
    usual = median(clocks) if clocks else 0.0
    if clock < limits.PEER_CLOCK_RATIO * usual:
        message = (
            f"{name_device(device)}: its power limit keeps it at {clock} MHz;"
            f" the others run at {usual:.0f} MHz"
        )
        evidence = Evidence(
            "sm_clock_mhz", clock, "MHz", limits.PEER_CLOCK_RATIO * usual, "NVML; limit: peers"
        )
        yield POWER_CAPPED.finding(device_subject(snapshot, device), message, evidence, *_context_of(device))
    elif _is_capped_by_another(device):
        highest, draw = device.sm_clock_max_mhz, device.power_draw_watts
        message = (
            f"{name_device(device)}: a power cap keeps it at {clock} of {highest} MHz, and not its own limit:"
            f" it reports {draw:.0f} of {device.power_limit_enforced_watts:.0f} W"
        )
        evidence = Evidence("sm_clock_mhz", clock, "MHz", value_or(highest, None), "NVML")
        yield POWER_CAPPED.finding(
            device_subject(snapshot, device),
            message,
            evidence,
            *_context_of(device),
            remedy=_NOT_ITS_OWN_LIMIT,
        )


def _is_capped_by_another(device: Device) -> bool:
    """Whether a GPU that a power cap makes slow draws far less than its limit, or reports far more."""
    clock, highest = device.sm_clock_mhz, device.sm_clock_max_mhz
    draw, limit = device.power_draw_watts, device.power_limit_enforced_watts
    if isinstance(clock, Missing) or isinstance(highest, Missing) or isinstance(draw, Missing):
        return False
    if isinstance(limit, Missing) or not is_loaded(device, limits.CAPPED_LOAD_PERCENT):
        return False
    low, high = limits.CAPPED_DRAW_RATIOS
    return clock < limits.CAPPED_CLOCK_RATIO * highest and not low * limit <= draw <= high * limit


def _judge_stuck(snapshot: Snapshot, pair: Pair) -> Iterator[Finding]:
    device = pair.device
    if not (_is_slow(device) and _is_slow(pair.before)):
        return
    clock, highest = device.sm_clock_mhz, device.sm_clock_max_mhz
    assert not isinstance(clock, Missing)  # noqa: S101 - a slow GPU has both
    assert not isinstance(highest, Missing)  # noqa: S101
    message = f"{name_device(device)} works at {clock} of {highest} MHz and gives no reason for it"
    limit = limits.STUCK_CLOCK_RATIO * highest
    evidence = Evidence("sm_clock_mhz", clock, "MHz", limit, "NVML; limit: the GPU's highest clock")
    remedy = _SUPPLY_OF_A_DESKTOP if _has_an_adapter(device) else ""
    yield STUCK_LOW.finding(
        device_subject(snapshot, device), message, evidence, *_context_of(device), remedy=remedy
    )


def _has_an_adapter(device: Device) -> bool:
    """Whether an external USB-C adapter feeds the machine (DGX Spark and its kin)."""
    return not isinstance(device.name, Missing) and "GB10" in device.name


def _is_slow(device: Device) -> bool:
    clock, highest = device.sm_clock_mhz, device.sm_clock_max_mhz
    if isinstance(clock, Missing) or isinstance(highest, Missing):
        return False
    explained = any(reason in HARMLESS_REASONS for reason in _reasons(device))
    return (
        is_loaded(device, limits.LOADED_PERCENT)
        and not explained
        and clock < limits.STUCK_CLOCK_RATIO * highest
    )


def _reasons(device: Device) -> tuple[str, ...]:
    reasons = device.clocks_event_reasons
    return () if isinstance(reasons, Missing) else reasons


def _context_of(device: Device) -> Iterator[Evidence]:
    """Load, heat and power at that moment, where known, as evidence beside the reason."""
    for name, unit, limit in (
        ("utilization_percent", "%", None),
        ("temperature_celsius", "C", device.temperature_slowdown_celsius),
        ("power_draw_watts", "W", device.power_limit_enforced_watts),
    ):
        value = getattr(device, name)
        if not isinstance(value, Missing):
            yield Evidence(name, value, unit, None if isinstance(limit, Missing) else limit, "NVML")
