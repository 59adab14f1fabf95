"""Checks of how power and clocks are set: lowered limits, locked clocks, GPUs that differ in them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.per_device import alike, is_loaded, judge_devices, too_few_alike
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

_CAPTURES = "nvidia-smi -q of A100, H100, B200 and T4"
_kind = partial(
    FindingKind, outcome=Outcome.WARN, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.HOST
)
_POWER_LIMIT_BASIS = Basis(
    reads="Power draw, enforced power limit and the device's default limit.",
    limit=f"{limits.POWER_LIMIT_RATIO:.0%} of the device's default; the limit that most peers have",
    look_also=("nvidia-smi -q -d POWER", "clocks.power_capped"),
)
_CLOCKS_APPLICATION_BASIS = Basis(
    reads="nvmlDeviceGetApplicationsClock and nvmlDeviceGetDefaultApplicationsClock.",
    limit="the device's default; the clock that most peers have",
    look_also=("nvidia-smi -q -d CLOCK", "power.limit_lowered"),
)
POWER_LIMIT_LOWERED = _kind(
    code="power.limit_lowered",
    category=Category.HW_POWER,
    meaning="The GPU's power limit is below its default: it will be slower than others of its kind.",
    remedy="Set it back as root with `nvidia-smi -i INDEX -pl` and the default, or ask the provider why it is lowered.",
    basis=_POWER_LIMIT_BASIS,
)
POWER_LIMIT_DIFFERS = _kind(
    code="power.limit_differs",
    category=Category.HW_POWER,
    meaning="Identical GPUs of this machine have different power limits: the lowest sets everyone's pace.",
    remedy="Set it to the limit of the others as root with `nvidia-smi -i INDEX -pl`.",
    basis=_POWER_LIMIT_BASIS,
)
CLOCKS_LOWERED = _kind(
    code="clocks.application_lowered",
    meaning="The application clocks are set below the GPU's default.",
    remedy="Reset them as root with `nvidia-smi -i INDEX -rac` (and `-rgc` for locked clocks).",
    basis=_CLOCKS_APPLICATION_BASIS,
)
CLOCKS_DIFFER = _kind(
    code="clocks.application_differs",
    meaning="Identical GPUs of this machine have different application clocks: the lowest sets everyone's pace.",
    remedy="Reset them as root with `nvidia-smi -i INDEX -rac` (and `-rgc` for locked clocks).",
    basis=_CLOCKS_APPLICATION_BASIS,
)
IDLE_DRAW = _kind(
    code="power.idle_draw",
    severity=Severity.TRIAGE,
    category=Category.HW_POWER,
    meaning="An idle GPU draws far more power than the idle GPUs beside it.",
    remedy="No process is on it: reset it (`nvidia-smi -i INDEX -r`); if it stays, watch it under load.",
    basis=replace(
        _POWER_LIMIT_BASIS,
        limit=f"{limits.IDLE_POWER_PEER_RATIO:.0f} times the median of the other idle GPUs, and"
        f" {limits.IDLE_POWER_MORE_WATTS:.0f} W more (own choice)",
    ),
)


@check(
    "power.limit",
    title="power limits are at their default, and alike",
    needs=("gpus",),
    reports=(POWER_LIMIT_LOWERED, POWER_LIMIT_DIFFERS),
    readings=("power_limit_enforced_watts", "power_limit_default_watts"),
    confirmed=_CAPTURES,
)
def power_limit(context: Context) -> Judgement:
    """WARN for a limit below the default, or unlike that of the other GPUs of the same product."""
    fields = ("power_limit_enforced_watts", "power_limit_default_watts")
    return judge_devices(context.snapshot, fields, _judge_limit)


@check(
    "clocks.application",
    title="application clocks are at their default, and alike",
    needs=("gpus",),
    reports=(CLOCKS_LOWERED, CLOCKS_DIFFER),
    readings=("graphics_clock_application_mhz", "graphics_clock_application_default_mhz"),
    confirmed="nvidia-smi -q of A100, H100 and B200",
)
def clocks_application(context: Context) -> Judgement:
    """WARN for application clocks below the default, or unlike those of the other GPUs of the same product."""
    fields = ("graphics_clock_application_mhz", "graphics_clock_application_default_mhz")
    return judge_devices(context.snapshot, fields, _judge_clocks)


@check(
    "power.idle_draw",
    title="idle GPUs draw about the same power",
    needs=("gpus",),
    reports=(IDLE_DRAW,),
    readings=("power_draw_watts", "utilization_percent", "processes"),
    confirmed=_CAPTURES,
)
def power_idle_draw(context: Context) -> Judgement:
    """WARN for an idle GPU that draws far more than other idle GPUs of its kind."""
    few = too_few_alike(context.snapshot)
    return few or judge_devices(
        context.snapshot, ("power_draw_watts", "utilization_percent", "processes"), _judge_idle
    )


def _judge_limit(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    limit, default = device.power_limit_enforced_watts, device.power_limit_default_watts
    if isinstance(limit, Missing) or isinstance(default, Missing):
        return
    subject, usual = device_subject(snapshot, device), _usual(snapshot, device, "power_limit_enforced_watts")
    peers = () if usual is None else (Evidence("power_limit_of_peers", usual, "W", source="the other GPUs"),)
    if limit < limits.POWER_LIMIT_RATIO * default:
        message = f"{name_device(device)}: power limit {limit:.0f} W, its default is {default:.0f} W"
        evidence = Evidence(
            "power_limit_enforced_watts", limit, "W", default, "NVML; limit: the device's default"
        )
        remedy = f"Set it back as root with `nvidia-smi -i INDEX -pl {default:.0f}`, or ask the provider why it is lowered."
        yield POWER_LIMIT_LOWERED.finding(subject, message, evidence, *peers, remedy=remedy)
    elif usual is not None and limit < limits.POWER_LIMIT_RATIO * usual:
        message = f"{name_device(device)}: power limit {limit:.0f} W, most others have {usual:.0f} W"
        evidence = Evidence("power_limit_enforced_watts", limit, "W", usual, "NVML; limit: peers")
        remedy = f"Set it to the limit of the others as root with `nvidia-smi -i INDEX -pl {usual:.0f}`."
        yield POWER_LIMIT_DIFFERS.finding(subject, message, evidence, remedy=remedy)


def _judge_clocks(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    clock, default = device.graphics_clock_application_mhz, device.graphics_clock_application_default_mhz
    if isinstance(clock, Missing) or isinstance(default, Missing):
        return
    subject, usual = (
        device_subject(snapshot, device),
        _usual(snapshot, device, "graphics_clock_application_mhz"),
    )
    source = "nvmlDeviceGetApplicationsClock"
    if clock < default:
        message = f"{name_device(device)}: application clock {clock} MHz, its default is {default} MHz"
        evidence = Evidence(
            "graphics_clock_application_mhz", clock, "MHz", default, f"{source}; limit: default"
        )
        yield CLOCKS_LOWERED.finding(subject, message, evidence)
    elif usual is not None and clock < usual:
        message = f"{name_device(device)}: application clock {clock} MHz, most others have {usual:.0f} MHz"
        evidence = Evidence("graphics_clock_application_mhz", clock, "MHz", usual, f"{source}; limit: peers")
        yield CLOCKS_DIFFER.finding(subject, message, evidence)


def _judge_idle(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    others = sorted(
        peer.power_draw_watts
        for peer in alike(snapshot, device)
        if _is_idle(peer) and not isinstance(peer.power_draw_watts, Missing)
    )
    draw = device.power_draw_watts
    if not others or isinstance(draw, Missing) or not _is_idle(device):
        return
    median = others[len(others) // 2]
    limit = max(limits.IDLE_POWER_PEER_RATIO * median, median + limits.IDLE_POWER_MORE_WATTS)
    if draw > limit:
        message = (
            f"{name_device(device)} is idle and draws {draw:.0f} W; the other idle ones draw {median:.0f} W"
        )
        evidence = Evidence("power_draw_watts", draw, "W", limit, "NVML; limit: idle peers")
        yield IDLE_DRAW.finding(device_subject(snapshot, device), message, evidence)


def _is_idle(device: Device) -> bool:
    known = not isinstance(device.utilization_percent, Missing)
    return known and not is_loaded(device, limits.IDLE_PERCENT + 1) and device.processes == ()


def _usual(snapshot: Snapshot, device: Device, field: str) -> float | None:
    """The value that most other GPUs of the same product have; None where none has a majority."""
    values = (getattr(peer, field) for peer in alike(snapshot, device))
    counts = Counter(value for value in values if not isinstance(value, Missing))
    if not counts:
        return None
    value, votes = counts.most_common(1)[0]
    return float(value) if votes > counts.total() / 2 else None
