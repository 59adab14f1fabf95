"""Checks of the modes a GPU is in: compute mode, MIG, and work that looks stuck."""

from collections.abc import Iterator, Sequence
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.deltas import Pair, paired, seconds_between
from gpudiag.checks.per_device import conclude, is_loaded, judge_devices, nobody_works
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

_CAPTURES = "nvidia-smi -q of A100, H100, B200 and T4"
_BUSY_PERCENT, _QUIET_MEMORY_PERCENT = 95, 5  # sichek, default_event_rules.yaml (gpu hang)
_QUIET_POWER_SHARE = 0.3  # of the limit; sichek has 160 of 700 W for H100, 100 of 400 W for others
_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.HOST)
_MODE_COMPUTE_BASIS = Basis(
    reads="nvmlDeviceGetComputeMode.",
    limit="default",
    look_also=("nvidia-smi -q -d COMPUTE", "cuda.device_unavailable"),
)
_MODE_MIG_BASIS = Basis(
    reads="nvmlDeviceGetMigMode, now and pending, and the instances that there are.",
    limit="the pending mode is the current one; MIG on has instances",
    look_also=("nvidia-smi mig -lgi", "nvidia-smi -L"),
)
COMPUTE_PROHIBITED = _kind(
    code="mode.compute_prohibited",
    outcome=Outcome.FAIL,
    meaning="The GPU's compute mode lets no program use it.",
    remedy="Allow it as root: `nvidia-smi -i INDEX -c DEFAULT`.",
    stated=True,
    basis=_MODE_COMPUTE_BASIS,
)
COMPUTE_EXCLUSIVE = _kind(
    code="mode.compute_exclusive",
    outcome=Outcome.WARN,
    meaning="One process at a time may use the GPU: a debugger, a second rank or a monitor beside the job fails.",
    remedy="If that is not wanted, as root: `nvidia-smi -i INDEX -c DEFAULT`.",
    basis=_MODE_COMPUTE_BASIS,
)
MIG_PENDING = _kind(
    code="mode.mig_pending",
    outcome=Outcome.WARN,
    severity=Severity.RESET,
    meaning="Someone turned MIG on or off, and the change waits for a reset of the GPU.",
    remedy="Reset the GPU (`nvidia-smi -i INDEX -r` with nobody on it) or reboot.",
    basis=_MODE_MIG_BASIS,
)
MIG_EMPTY = _kind(
    code="mode.mig_without_instances",
    outcome=Outcome.WARN,
    meaning="MIG is on and the GPU has no instance: no program can use any part of it.",
    remedy="Create instances (`nvidia-smi mig -i INDEX -lgip` lists the possible ones), or turn MIG off "
    "(`nvidia-smi -i INDEX -mig 0`).",
    basis=_MODE_MIG_BASIS,
)
LOOKS_STUCK = _kind(
    code="gpu.looks_stuck",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="The GPU is fully busy, moves no data and draws little power: as in a collective that waits forever.",
    remedy="See where its process is with `py-spy dump`, and at the other ranks; see `gpudiag nccl-test`.",
    basis=Basis(
        reads="Load, memory load and power draw, in two snapshots a minute or more apart.",
        limit=f"{_BUSY_PERCENT} % busy, memory below {_QUIET_MEMORY_PERCENT} %, power below {_QUIET_POWER_SHARE:.0%}"
        " of the limit, a minute apart (after sichek)",
        look_also=("py-spy dump --pid PID", "rank.silent", "collective.timed_out", "gpudiag list"),
    ),
)


@check(
    "mode.compute",
    title="the compute mode lets programs use every GPU",
    needs=("gpus",),
    reports=(COMPUTE_PROHIBITED, COMPUTE_EXCLUSIVE),
    readings=("compute_mode",),
    confirmed=_CAPTURES,
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
    confirmed=_CAPTURES,
)
def mode_mig(context: Context) -> Judgement:
    """WARN for a mode change that is pending, and for MIG without an instance."""
    return judge_devices(context.snapshot, ("mig_mode", "mig_mode_pending", "mig_instances"), _judge_mig)


@check(
    "gpu.looks_stuck",
    title="no GPU is busy doing nothing",
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
        f"{names}: exclusive-process mode lets one process in, and a copy between GPUs needs contexts of two"
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
    remedy = f"See where its process is with {stack}, and at the other ranks; see `gpudiag nccl-test`."
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
