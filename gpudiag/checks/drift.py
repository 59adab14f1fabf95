"""Checks against how this machine was in its last good run: ports that are gone, parts that were exchanged."""

from collections.abc import Iterator
from functools import partial

from gpudiag.checks.gone import in_container, share_of
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, Reading
from gpudiag.units import format_size

_BASIS = Basis(
    reads="UUIDs and bus ids of the GPUs, RDMA ports, driver, VBIOS, kernel, processor and memory, as"
    " they are and as they were in the last good run.",
    limit="this machine's last good run",
    look_also=("gpu.missing", "lspci -d 10de:", "dmesg -T | grep -i -e NVRM -e mlx5"),
)
_kind = partial(
    FindingKind, severity=Severity.MONITOR, category=Category.HW_OTHER, owner=Owner.HOST, basis=_BASIS
)
PORT_GONE = _kind(
    code="infiniband.port_gone",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="An RDMA port that this machine had is not here any more.",
    remedy="Look for the card with `lspci | grep -i mellanox` and in `dmesg`; reseat it. "
    "If it was taken out on purpose: `gpudiag list --json --output now.json; gpudiag preflight --expect now.json`.",
)
CHANGED = _kind(
    code="machine.changed",
    outcome=Outcome.WARN,
    meaning="The machine is not as it was in its last good run.",
    remedy="If the change is wanted, accept it once: "
    "`gpudiag list --json --output now.json; gpudiag preflight --expect now.json`. Otherwise undo it.",
)
_MEMORY_SHARE = 0.98  # own choice: firmware and kernel versions keep a little more or less for themselves


@check(
    "machine.ports",
    title="every RDMA port that was here still is",
    needs=("host_state", "baseline"),
    reports=(PORT_GONE,),
    readings=("infiniband_ports",),
    confirmed="the Linux kernel's /sys/class/infiniband",
)
def machine_ports(context: Context) -> Judgement:
    """WARN for a port that the machine had when it was good."""
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
    """WARN for each of driver, VBIOS, kernel and memory that is not as it was when the machine was good."""
    baseline = _baseline(context)
    if isinstance(baseline, str):
        return does_not_apply(baseline)
    return judged(*_changes(context, baseline))


def _baseline(context: Context) -> Snapshot | str:
    """The recorded state, or why it is not compared: it is of another machine, or of another share of it."""
    if not isinstance(context.expected_machine, Missing):
        return "--expect is compared instead: machine.expected"
    baseline, now = context.baseline, context.snapshot
    assert not isinstance(baseline, Missing)  # noqa: S101 - the runner answers for the need
    same_place = baseline.host == now.host and in_container(baseline) == in_container(now)
    if not same_place or share_of(baseline) != share_of(now):
        return "the recorded state is of another machine, or of another share of it"
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
