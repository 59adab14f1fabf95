"""Checks against this machine's own past: parts that changed since its last good run, speeds that fell."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from gpudiag.checks.gpu.gone import in_container, share_of
from gpudiag.checks.ranks.bandwidth import HOST_SLOW, MEMORY_SLOW
from gpudiag.checks.ranks.compute import MATMUL_SLOW
from gpudiag.checks.ranks.measured_speeds import HISTORY_RUNS, device_of, find_baseline
from gpudiag.checks.registry import (
    Basis,
    FindingKind,
    Judgement,
    Level,
    Restated,
    check,
    could_not_look,
    does_not_apply,
    judged,
    not_readable,
)
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.active import DEVICE_TO_HOST, HOST_TO_DEVICE, MATMUL, MEMORY_COPY
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.history import Baseline, Sample
from gpudiag.model.reading import Missing, Reading
from gpudiag.reference.speeds import speed_limits
from gpudiag.units import format_size, significant

_BASIS = Basis(
    reads=(
        "UUIDs and bus ids of the GPUs, RDMA ports, driver, VBIOS, kernel, processor and"
        " memory, now and in the last good run."
    ),
    limit="this machine's last good run",
    look_also=("gpu.missing", "lspci -d 10de:", "dmesg -T | grep -i -e NVRM -e mlx5"),
)
_MEMORY_SHARE = 0.98  # our choice: firmware and kernel versions keep a little more or less for themselves

DRIFT = FindingKind(
    code="performance.drift",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_THRESHOLD,
    owner=Owner.HARDWARE,
    meaning="A speed is below that of this machine's last good runs.",
    remedy=(
        "`gpudiag history` shows when it began; compare clocks, temperature,"
        " driver and firmware with that time."
    ),
    basis=Basis(
        reads="samples",
        limit=f"95 % of this machine's median over at least {HISTORY_RUNS} good runs (superbenchmark)",
        look_also=("gpudiag history", "gpudiag list --wide", "machine.changed"),
    ),
)
# The checks of these tests compare a GPU's speed with its past too: one fault, one finding.
_STATED_BY = {
    MEMORY_COPY: MEMORY_SLOW.code,
    HOST_TO_DEVICE: HOST_SLOW.code,
    DEVICE_TO_HOST: HOST_SLOW.code,
    MATMUL: MATMUL_SLOW.code,
}

_kind = partial(
    FindingKind, severity=Severity.MONITOR, category=Category.HW_OTHER, owner=Owner.HOST, basis=_BASIS
)
PORT_GONE = _kind(
    code="infiniband.port_gone",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="An RDMA port that this machine had is no longer here.",
    remedy=(
        "[hardware] Look for the card with `lspci | grep -i mellanox` and in `dmesg`; reseat it."
        " If it was taken out on"
        " purpose: `gpudiag list --json --output now.json; gpudiag preflight --expect now.json`."
    ),
)
CHANGED = _kind(
    code="machine.changed",
    outcome=Outcome.WARN,
    meaning="The machine differs from its last good run.",
    remedy="If the change is wanted, accept it once: "
    "`gpudiag list --json --output now.json; gpudiag preflight --expect now.json`. Otherwise undo it.",
)


@check(
    "machine.ports",
    title="every RDMA port of the last good run is still here",
    needs=("host_state", "baseline"),
    reports=(PORT_GONE,),
    readings=("infiniband_ports",),
    confirmed="the Linux kernel's /sys/class/infiniband",
)
def machine_ports(context: Context) -> Judgement:
    """WARN for each port that the machine had in its last good run and has no more."""
    baseline = _baseline(context)
    if isinstance(baseline, str):
        return does_not_apply(baseline)
    before, now = _ports(baseline), _ports(context.snapshot)
    if isinstance(now, Missing):
        return not_readable("RDMA ports", now)
    if isinstance(before, Missing):
        return not_readable("RDMA ports of the last good run", before)
    return judged(*_gone_ports(context, baseline, before - now))


@check(
    "machine.settings",
    title="driver, firmware, memory and kernel are as recorded",
    needs=("nvml", "baseline"),
    reports=(CHANGED,),
    readings=("driver_version", "vbios_version", "kernel_release", "memory_total_bytes"),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4; the Linux kernel's files",
)
def machine_settings(context: Context) -> Judgement:
    """WARN where driver, VBIOS, kernel or memory differ from the machine's last good run."""
    baseline = _baseline(context)
    if isinstance(baseline, str):
        return does_not_apply(baseline)
    return judged(*_changes(context, baseline))


def _baseline(context: Context) -> Snapshot | str:
    """The recorded state, or why it cannot be compared: another machine, or another share of this one."""
    if not isinstance(context.expected_machine, Missing):
        return "--expect is compared instead: machine.expected"
    baseline, now = context.baseline, context.snapshot
    assert not isinstance(baseline, Missing)  # noqa: S101 - the runner answers for the need
    same_place = baseline.host == now.host and in_container(baseline) == in_container(now)
    if not same_place or share_of(baseline) != share_of(now):
        return "the recorded state is of another machine, or of another part of it"
    return baseline


def _gone_ports(context: Context, baseline: Snapshot, gone: set[str]) -> Iterator[Finding]:
    for port in sorted(gone):
        evidence = Evidence("port", port, source=f"recorded {baseline.taken_at:%Y-%m-%d %H:%M}")
        message = f"the RDMA port {port} that was here is gone"
        yield PORT_GONE.finding(HostSubject(context.snapshot.host), message, evidence)


def _ports(snapshot: Snapshot) -> Reading[set[str]]:
    state = snapshot.machine.state
    if isinstance(state, Missing):
        return state
    if isinstance(state.infiniband_ports, Missing):
        return state.infiniband_ports
    return {f"{port.device}:{port.port}" for port in state.infiniband_ports}


def _changes(context: Context, baseline: Snapshot) -> Iterator[Finding]:
    now, machine = context.snapshot, context.snapshot.machine
    for name, value, before in (
        ("driver_version", now.driver_version, baseline.driver_version),
        ("kernel_release", machine.kernel_release, baseline.machine.kernel_release),
        ("processor", machine.processor, baseline.machine.processor),
    ):
        if not isinstance(value, Missing) and not isinstance(before, Missing) and value != before:
            evidence = Evidence(name, value, limit=before, source="limit: the recorded good state")
            message = f"{name.replace('_', ' ')} was {before} and is {value}"
            yield CHANGED.finding(HostSubject(now.host), message, evidence)
    yield from _less_memory(now, baseline)
    yield from _other_firmware(now, baseline)


def _less_memory(now: Snapshot, baseline: Snapshot) -> Iterator[Finding]:
    memory, before = now.machine.memory_total_bytes, baseline.machine.memory_total_bytes
    if isinstance(memory, Missing) or isinstance(before, Missing) or memory >= _MEMORY_SHARE * before:
        return
    evidence = Evidence("memory_total_bytes", memory, "bytes", before, "limit: the recorded good state")
    message = f"the machine had {format_size(before)} of memory and has {format_size(memory)}"
    yield CHANGED.finding(HostSubject(now.host), message, evidence)


def _other_firmware(now: Snapshot, baseline: Snapshot) -> Iterator[Finding]:
    before = {device.id.uuid: device.vbios_version for device in baseline.devices}
    for device in now.devices:
        own, was = device.vbios_version, before.get(device.id.uuid)
        if was is None or isinstance(own, Missing) or isinstance(was, Missing) or own == was:
            continue
        subject = DeviceSubject(device.id.uuid, device.id.bus_id, device.id.nvml_index, now.host)
        evidence = Evidence("vbios_version", own, limit=was, source="limit: the recorded good state")
        yield CHANGED.finding(
            subject, f"VBIOS of GPU {device.id.nvml_index} was {was} and is {own}", evidence
        )


_Drifted = tuple[Sample, Baseline]


@check(
    "performance.drift",
    title="every speed is as in this machine's own good runs",
    needs=("history",),
    level=Level.QUICK,
    reports=(DRIFT,),
    readings=("samples",),
)
def performance_drift(context: Context) -> Judgement:
    """WARN for each GPU, and the machine, whose speed is below its baseline; CPU speeds are not judged."""
    samples = [sample for sample in context.samples if sample.judged]
    if not samples:
        return does_not_apply("nothing that was measured has a history to compare with")
    pairs = [(sample, find_baseline(context, sample.metric, sample.device_uuid)) for sample in samples]
    known = [(sample, baseline) for sample, baseline in pairs if baseline is not None]
    if not known:
        return does_not_apply(f"fewer than {HISTORY_RUNS} good runs are stored to compare with")
    if any(sample.value != sample.value for sample, _ in known):
        return could_not_look("a measurement is not a number")
    drifted: dict[tuple[Subject, str], list[_Drifted]] = defaultdict(list)
    for sample, baseline in known:
        if sample.value < speed_limits()["history"].warn * baseline.median:
            drifted[_whose(context, sample)].append((sample, baseline))
    restated = tuple(_drift(context, whose, slow) for whose, slow in drifted.items())
    return judged(*(one.finding for one in restated), restated=restated)


def _whose(context: Context, sample: Sample) -> tuple[Subject, str]:
    """The subject whose speed it is, and its name in a message."""
    device = None if sample.device_uuid is None else device_of(context.snapshot, sample.device_uuid)
    if device is None:
        return HostSubject(context.snapshot.host), context.snapshot.host
    return device_subject(context.snapshot, device), name_device(device)


def _drift(context: Context, whose: tuple[Subject, str], slow: list[_Drifted]) -> Restated:
    subject, name = whose
    slow.sort(key=_share)
    worst, *others = slow
    message = f"{worst[0].metric} is at {_share(worst):.0%} of its earlier value"
    if others:
        message += f", and {len(others)} more {'is' if len(others) == 1 else 'are'} lower too"
    assert not isinstance(context.history, Missing)  # noqa: S101 - the need saw to it
    evidence = (*(_evidence(*one) for one in slow), Evidence("store", context.history.store))
    stated = (_STATED_BY.get(sample.metric.partition(".")[0]) for sample, _ in slow)
    stated_by = tuple(dict.fromkeys(code for code in stated if code is not None))
    return Restated(DRIFT.finding(subject, f"{name}: {message}", *evidence), stated_by, message)


def _share(one: _Drifted) -> float:
    sample, baseline = one
    return sample.value / baseline.median


def _evidence(sample: Sample, baseline: Baseline) -> Evidence:
    share, median = speed_limits()["history"].warn, baseline.median
    source = f"limit: {share:.0%} of the median of {baseline.count} good runs ({significant(median)})"
    return Evidence(sample.metric, sample.value, sample.unit, share * median, source)
