"""Checks of how GPUs are set: compute mode, MIG, work that looks stuck, power limits, locked clocks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.majority import describe_split, split_group, usual_value
from gpudiag.checks.per_device import (
    Pair,
    alike,
    conclude,
    is_loaded,
    judge_devices,
    nobody_works,
    paired,
    seconds_between,
    too_few_alike,
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
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

# --- modes

_CAPTURES = "nvidia-smi -q of A100, H100, B200 and T4"
_BUSY_PERCENT, _QUIET_MEMORY_PERCENT = 95, 5  # sichek, default_event_rules.yaml (gpu hang)
_QUIET_POWER_SHARE = 0.3  # of the limit; sichek has 160 of 700 W for H100, 100 of 400 W for others
_mode_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.HOST)
_MODE_COMPUTE_BASIS = Basis(
    reads="nvmlDeviceGetComputeMode.",
    limit="default",
    look_also=("nvidia-smi -q -d COMPUTE", "cuda.device_unavailable"),
)
_MODE_MIG_BASIS = Basis(
    reads="nvmlDeviceGetMigMode, now and pending, and the instances that exist.",
    limit="the pending mode is the current one; MIG on has instances",
    look_also=("nvidia-smi mig -lgi", "nvidia-smi -L"),
)
COMPUTE_PROHIBITED = _mode_kind(
    code="mode.compute_prohibited",
    outcome=Outcome.FAIL,
    meaning="The GPU's compute mode allows no program to use it.",
    remedy="Allow it as root: `nvidia-smi -i INDEX -c DEFAULT`.",
    stated=True,
    basis=_MODE_COMPUTE_BASIS,
)
COMPUTE_EXCLUSIVE = _mode_kind(
    code="mode.compute_exclusive",
    outcome=Outcome.WARN,
    meaning=(
        "One process at a time may use the GPU: a debugger, a second rank or a monitor beside the job fails."
    ),
    remedy="If that is not wanted, as root: `nvidia-smi -i INDEX -c DEFAULT`.",
    basis=_MODE_COMPUTE_BASIS,
)
MIG_PENDING = _mode_kind(
    code="mode.mig_pending",
    outcome=Outcome.WARN,
    severity=Severity.RESET,
    meaning="Someone turned MIG on or off, and the change waits for a reset of the GPU.",
    remedy="[reset: Reset the GPU (`nvidia-smi -i INDEX -r` while no process uses it) or reboot].",
    basis=_MODE_MIG_BASIS,
)
MIG_EMPTY = _mode_kind(
    code="mode.mig_without_instances",
    outcome=Outcome.WARN,
    meaning="MIG is on and the GPU has no instance: no program can use any part of it.",
    remedy=(
        "[host] Create instances (`nvidia-smi mig -i INDEX -lgip` lists the possible ones), or turn MIG off"
        " (`nvidia-smi -i INDEX -mig 0`)."
    ),
    basis=_MODE_MIG_BASIS,
)
LOOKS_STUCK = _mode_kind(
    code="gpu.looks_stuck",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning=(
        "The GPU is fully busy, moves no data and draws little power:"
        " like in a collective that waits forever."
    ),
    remedy="Look at its process with `py-spy dump`, and at the other ranks; test with `gpudiag nccl-test`.",
    basis=Basis(
        reads="Load, memory load and power draw, in two snapshots a minute or more apart.",
        limit=(
            f"{_BUSY_PERCENT} % busy, memory below {_QUIET_MEMORY_PERCENT} %, power below"
            f" {_QUIET_POWER_SHARE:.0%} of the limit, a minute apart (after sichek)"
        ),
        look_also=("py-spy dump --pid PID", "rank.silent", "collective.timed_out", "gpudiag list"),
    ),
)


@check(
    "mode.compute",
    title="the compute mode allows programs on every GPU",
    needs=("gpus",),
    reports=(COMPUTE_PROHIBITED, COMPUTE_EXCLUSIVE),
    readings=("compute_mode",),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def mode_compute(context: Context) -> Judgement:
    """FAIL for a prohibited GPU, WARN for an exclusive one."""
    return judge_devices(context.snapshot, ("compute_mode",), _judge_compute)


@check(
    "mode.mig",
    title="MIG is as it should be, and no change is pending",
    needs=("gpus",),
    reports=(MIG_PENDING, MIG_EMPTY),
    readings=("mig_mode", "mig_mode_pending", "mig_instances"),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def mode_mig(context: Context) -> Judgement:
    """WARN for a mode change that is pending, and for MIG without an instance."""
    return judge_devices(context.snapshot, ("mig_mode", "mig_mode_pending", "mig_instances"), _judge_mig)


@check(
    "gpu.looks_stuck",
    title="no GPU is busy without work",
    needs=("gpus", "earlier"),
    reports=(LOOKS_STUCK,),
    readings=(
        "utilization_percent",
        "memory_utilization_percent",
        "power_draw_watts",
        "power_limit_enforced_watts",
    ),
)
def gpu_looks_stuck(context: Context) -> Judgement:
    """WARN for a GPU that two readings, a minute apart or more, show busy without data or power."""
    if seconds_between(context) < limits.STUCK_CLOCK_SECONDS:
        return does_not_apply("the earlier reading is less than a minute old")
    found = nobody_works(context.snapshot, _BUSY_PERCENT) or paired(context, "memory_utilization_percent")
    if isinstance(found, Judgement):
        return found
    pairs, gaps = found
    return conclude([one for pair in pairs for one in _judge_stuck(context.snapshot, pair)], len(pairs), gaps)


def describe_exclusive(devices: Sequence[Device]) -> str | None:
    """Which GPUs admit one process at a time, and what cannot be measured on them; None where none does."""
    held = [device for device in devices if device.compute_mode in ("exclusive_process", "exclusive_thread")]
    if not held:
        return None
    names = ", ".join(name_device(device) for device in held)
    return (
        f"{names}: exclusive-process mode allows one process, and a copy between GPUs needs contexts of two"
    )


def _judge_compute(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    mode, subject = device.compute_mode, device_subject(snapshot, device)
    kinds = {"prohibited": COMPUTE_PROHIBITED, "exclusive_process": COMPUTE_EXCLUSIVE}
    kind = kinds.get(
        "" if isinstance(mode, Missing) else mode.replace("exclusive_thread", "exclusive_process")
    )
    if kind is not None:
        message = f"{name_device(device)}: compute mode is {str(mode).replace('_', ' ')}"
        yield kind.finding(
            subject,
            message,
            Evidence("compute_mode", str(mode), limit="default", source="nvmlDeviceGetComputeMode"),
        )


def _judge_mig(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    subject, name, source = device_subject(snapshot, device), name_device(device), "nvmlDeviceGetMigMode"
    if device.mig_mode != device.mig_mode_pending:
        evidence = Evidence(
            "mig_mode_pending", str(device.mig_mode_pending), limit=str(device.mig_mode), source=source
        )
        yield MIG_PENDING.finding(
            subject, f"{name}: MIG will be {device.mig_mode_pending} after a reset", evidence
        )
    elif device.mig_mode == "enabled" and device.mig_instances == ():
        evidence = Evidence("mig_instances", 0, "instances", 1, source)
        yield MIG_EMPTY.finding(subject, f"{name}: MIG is on and there is no instance", evidence)


def _judge_stuck(snapshot: Snapshot, pair: Pair) -> Iterator[Finding]:
    device = pair.device
    if not (_is_quiet(device) and _is_quiet(pair.before)):
        return
    processes = () if isinstance(device.processes, Missing) else device.processes
    pids = ", ".join(str(process.pid) for process in processes) or "not known"
    message = f"{name_device(device)} is fully busy, moves no data and draws little power (process {pids})"
    evidence = [
        Evidence(name, value, unit, limit, "NVML; limit: after sichek")
        for name, unit, limit in (
            ("utilization_percent", "%", _BUSY_PERCENT),
            ("memory_utilization_percent", "%", _QUIET_MEMORY_PERCENT),
            ("power_draw_watts", "W", None),
        )
        if not isinstance(value := getattr(device, name), Missing)
    ]
    stack = f"`py-spy dump --pid {processes[0].pid}`" if processes else "`py-spy dump`"
    remedy = f"Look at its process with {stack}, and at the other ranks; test with `gpudiag nccl-test`."
    yield LOOKS_STUCK.finding(device_subject(snapshot, device), message, *evidence, remedy=remedy)


def _is_quiet(device: Device) -> bool:
    memory, draw, limit = (
        device.memory_utilization_percent,
        device.power_draw_watts,
        device.power_limit_enforced_watts,
    )
    if isinstance(memory, Missing) or isinstance(draw, Missing) or isinstance(limit, Missing):
        return False
    return (
        is_loaded(device, _BUSY_PERCENT)
        and memory < _QUIET_MEMORY_PERCENT
        and draw < _QUIET_POWER_SHARE * limit
    )


# --- power and clocks

_power_kind = partial(
    FindingKind, outcome=Outcome.WARN, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.HOST
)
_POWER_LIMIT_BASIS = Basis(
    reads="Power draw, enforced power limit and the device's default limit.",
    limit=(
        f"{limits.POWER_LIMIT_RATIO:.0%} of the device's default;"
        " the limit that most of them have, two at least"
    ),
    look_also=("nvidia-smi -q -d POWER", "clocks.power_capped"),
)
_CLOCKS_APPLICATION_BASIS = Basis(
    reads="nvmlDeviceGetApplicationsClock and nvmlDeviceGetDefaultApplicationsClock.",
    limit="the device's default; the clock that most of them have, two at least",
    look_also=("nvidia-smi -q -d CLOCK", "power.limit_lowered"),
)
POWER_LIMIT_LOWERED = _power_kind(
    code="power.limit_lowered",
    category=Category.HW_POWER,
    meaning="The GPU's power limit is below its default: it will be slower than others of its kind.",
    remedy=(
        "[host] Set it back as root with `nvidia-smi -i INDEX -pl` and the default,"
        " or ask the provider why it is lowered."
    ),
    basis=_POWER_LIMIT_BASIS,
)
POWER_LIMIT_DIFFERS = _power_kind(
    code="power.limit_differs",
    category=Category.HW_POWER,
    meaning="Identical GPUs of this machine have different power limits: the lowest slows all of them down.",
    remedy="[host] Set it to the limit of the others as root with `nvidia-smi -i INDEX -pl`.",
    basis=_POWER_LIMIT_BASIS,
)
CLOCKS_LOWERED = _power_kind(
    code="clocks.application_lowered",
    meaning="The application clocks are set below the GPU's default.",
    remedy="[host] Reset them as root with `nvidia-smi -i INDEX -rac` (and `-rgc` for locked clocks).",
    basis=_CLOCKS_APPLICATION_BASIS,
)
CLOCKS_DIFFER = _power_kind(
    code="clocks.application_differs",
    meaning=(
        "Identical GPUs of this machine have different application clocks: the lowest slows all of them down."
    ),
    remedy="[host] Reset them as root with `nvidia-smi -i INDEX -rac` (and `-rgc` for locked clocks).",
    basis=_CLOCKS_APPLICATION_BASIS,
)
IDLE_DRAW = _power_kind(
    code="power.idle_draw",
    severity=Severity.TRIAGE,
    category=Category.HW_POWER,
    meaning="An idle GPU draws far more power than the idle GPUs beside it.",
    remedy=(
        "No process is on it: [reset: reset it (`nvidia-smi -i INDEX -r`)];"
        " if that does not help, watch it under load."
    ),
    basis=replace(
        _POWER_LIMIT_BASIS,
        limit=f"{limits.IDLE_POWER_PEER_RATIO:.0f} times the median of the other idle GPUs, and"
        f" {limits.IDLE_POWER_MORE_WATTS:.0f} W more (our choice)",
    ),
)


@check(
    "power.limit",
    title="power limits are at their default and equal",
    needs=("gpus",),
    reports=(POWER_LIMIT_LOWERED, POWER_LIMIT_DIFFERS),
    readings=("power_limit_enforced_watts", "power_limit_default_watts"),
    confirmed=f"{_CAPTURES}; {BOTH_GPUS}",
)
def power_limit(context: Context) -> Judgement:
    """WARN for a limit below the default, or unlike that of the other GPUs of the same product."""
    fields = ("power_limit_enforced_watts", "power_limit_default_watts")
    return judge_devices(context.snapshot, fields, _judge_limit)


@check(
    "clocks.application",
    title="application clocks are at their default and equal",
    needs=("gpus",),
    reports=(CLOCKS_LOWERED, CLOCKS_DIFFER),
    readings=("graphics_clock_application_mhz", "graphics_clock_application_default_mhz"),
    confirmed=f"nvidia-smi -q of A100, H100 and B200; {BOTH_GPUS}",
)
def clocks_application(context: Context) -> Judgement:
    """WARN for application clocks below the default, or unlike those of other GPUs of the product."""
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
    subject = device_subject(snapshot, device)
    usual = usual_value(snapshot, device, "power_limit_enforced_watts")
    peers = (
        (Evidence("power_limit_of_peers", usual, "W", source="the other GPUs"),)
        if isinstance(usual, float) and usual != limit
        else ()
    )
    if limit < limits.POWER_LIMIT_RATIO * default:
        message = f"{name_device(device)}: power limit {limit:.0f} W, its default is {default:.0f} W"
        evidence = Evidence(
            "power_limit_enforced_watts", limit, "W", default, "NVML; limit: the device's default"
        )
        remedy = (
            f"[host] Set it back as root with `nvidia-smi -i INDEX -pl {default:.0f}`, or ask"
            " the provider why it is lowered."
        )
        yield POWER_LIMIT_LOWERED.finding(subject, message, evidence, *peers, remedy=remedy)
    elif isinstance(usual, float) and limit < limits.POWER_LIMIT_RATIO * usual:
        message = f"{name_device(device)}: power limit {limit:.0f} W, most others have {usual:.0f} W"
        evidence = Evidence("power_limit_enforced_watts", limit, "W", usual, "NVML; limit: peers")
        remedy = (
            f"[host] Set it to the limit of the others as root with `nvidia-smi -i INDEX -pl {usual:.0f}`."
        )
        yield POWER_LIMIT_DIFFERS.finding(subject, message, evidence, remedy=remedy)
    else:
        yield from _judge_split(
            snapshot,
            device,
            POWER_LIMIT_DIFFERS,
            ("power limit", "power_limit_enforced_watts", "power_limit_default_watts", "W"),
            limits.POWER_LIMIT_RATIO,
        )


def _judge_split(
    snapshot: Snapshot,
    device: Device,
    kind: FindingKind,
    words: tuple[str, str, str, str],
    least_share: float,
) -> Iterator[Finding]:
    """One finding if like GPUs differ in a setting without a majority; `words`: name, fields, unit."""
    name, field, default_field, unit = words
    group = split_group(snapshot, device, field)
    values = [getattr(one, field) for one in group]
    defaults = [getattr(one, default_field) for one in group]
    known = [
        (value, default)
        for value, default in zip(values, defaults, strict=True)
        if not isinstance(default, Missing)
    ]
    if not group or min(values) >= least_share * max(values):
        return
    if any(value < least_share * default for value, default in known):
        return
    split = describe_split(group, field, f" {unit}")
    evidence = Evidence(field, split, limit="the same on all", source="NVML")
    remedy = f"Find out which {name} is meant, and set it on all of them."
    message = f"GPUs of one kind differ in their {name}: {split}"
    yield kind.finding(HostSubject(snapshot.host), message, evidence, remedy=remedy)


def _judge_clocks(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    clock, default = device.graphics_clock_application_mhz, device.graphics_clock_application_default_mhz
    if isinstance(clock, Missing) or isinstance(default, Missing):
        return
    subject = device_subject(snapshot, device)
    usual = usual_value(snapshot, device, "graphics_clock_application_mhz")
    source = "nvmlDeviceGetApplicationsClock"
    if clock < default:
        message = f"{name_device(device)}: application clock {clock} MHz, its default is {default} MHz"
        evidence = Evidence(
            "graphics_clock_application_mhz", clock, "MHz", default, f"{source}; limit: default"
        )
        yield CLOCKS_LOWERED.finding(subject, message, evidence)
    elif isinstance(usual, int) and clock < usual:
        message = f"{name_device(device)}: application clock {clock} MHz, most others have {usual:.0f} MHz"
        evidence = Evidence("graphics_clock_application_mhz", clock, "MHz", usual, f"{source}; limit: peers")
        yield CLOCKS_DIFFER.finding(subject, message, evidence)
    else:
        yield from _judge_split(
            snapshot,
            device,
            CLOCKS_DIFFER,
            (
                "application clock",
                "graphics_clock_application_mhz",
                "graphics_clock_application_default_mhz",
                "MHz",
            ),
            1.0,
        )


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
