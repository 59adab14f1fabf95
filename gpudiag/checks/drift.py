"""Checks against how this machine was when it was good: GPUs that are gone, parts that were exchanged."""

from collections.abc import Iterator
from functools import partial

from gpudiag.checks.allocation import granted
from gpudiag.checks.registry import FindingKind, Judgement, check, does_not_apply, judged
from gpudiag.checks.subjects import short_bus_id
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host_state import HostState
from gpudiag.model.reading import Missing
from gpudiag.units import format_size

_kind = partial(FindingKind, severity=Severity.MONITOR, category=Category.HW_OTHER, owner=Owner.HOST)
GPU_GONE = _kind(
    code="gpu.gone",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    meaning="A GPU that this machine had is not here any more, neither in the driver's list nor on the bus.",
    remedy="Look for its bus id in `dmesg`, then power-cycle the machine; if it stays away, reseat or replace it.",
)
PORT_GONE = _kind(
    code="infiniband.port_gone",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="An RDMA port that this machine had is not here any more.",
    remedy="Look for the card with `lspci | grep -i mellanox` and in `dmesg`; reseat it.",
)
CHANGED = _kind(
    code="machine.changed",
    outcome=Outcome.WARN,
    meaning="The machine is not as it was when it was recorded as good.",
    remedy="If the change is wanted, record the machine anew; else undo it.",
)
_MEMORY_SHARE = 0.98  # own choice: firmware and kernel versions keep a little more or less for themselves


@check(
    "machine.devices",
    title="every GPU and RDMA port that was here still is",
    needs=("nvml", "baseline"),
    reports=(GPU_GONE, PORT_GONE),
    reads=("devices", "pci_devices", "infiniband_ports"),
    limit="the recorded good state of this machine",
    confirmed="nvidia-smi -q of A100, H100, B200 and T4 (UUIDs)",
)
def machine_devices(context: Context) -> Judgement:
    """FAIL for a GPU, WARN for a port, that the machine had when it was good."""
    baseline = _baseline(context)
    if baseline is None:
        return does_not_apply("the recorded state is of another machine, or of another share of it")
    return judged(*_gone_gpus(context, baseline), *_gone_ports(context, baseline))


@check(
    "machine.settings",
    title="driver, firmware, memory and kernel are as recorded",
    needs=("nvml", "baseline"),
    reports=(CHANGED,),
    reads=("driver_version", "vbios_version", "kernel_release", "memory_total_bytes"),
    limit="the recorded good state of this machine",
    confirmed="nvidia-smi -q of A100, H100, B200 and T4; the Linux kernel's files",
)
def machine_settings(context: Context) -> Judgement:
    """WARN for each of driver, VBIOS, kernel and memory that is not as it was when the machine was good."""
    baseline = _baseline(context)
    if baseline is None:
        return does_not_apply("the recorded state is of another machine, or of another share of it")
    return judged(*_changes(context, baseline))


def _baseline(context: Context) -> Snapshot | None:
    """The recorded state, where it is of this machine and of the same share of it."""
    baseline, now = context.baseline, context.snapshot
    assert not isinstance(baseline, Missing)  # noqa: S101 - the runner answers for the need
    same_place = baseline.host == now.host and (baseline.machine.container is None) == (
        now.machine.container is None
    )
    return baseline if same_place and _share(baseline) == _share(now) else None


def _share(snapshot: Snapshot) -> int | None:
    grant = granted(snapshot.machine.allocation)
    return None if grant is None else grant[1]


def _gone_gpus(context: Context, baseline: Snapshot) -> Iterator[Finding]:
    here = {device.id.uuid for device in context.snapshot.devices}
    places = {device.id.bus_id for device in context.snapshot.devices}
    pci = context.snapshot.machine.pci_devices
    places |= set() if isinstance(pci, Missing) else {device.bus_id for device in pci}
    for device in baseline.devices:
        uuid, bus_id = device.id.uuid, device.id.bus_id
        if isinstance(uuid, Missing) or uuid in here or bus_id in places:
            continue  # what is still on the bus is the business of gpu.lost and gpu.count
        where = "" if isinstance(bus_id, Missing) else f" at {short_bus_id(bus_id)}"
        subject = DeviceSubject(uuid, bus_id, device.id.nvml_index, context.snapshot.host)
        evidence = Evidence("uuid", uuid, source=f"recorded {baseline.taken_at:%Y-%m-%d %H:%M}")
        serial = () if isinstance(device.serial, Missing) else (Evidence("serial", device.serial),)
        yield GPU_GONE.finding(subject, f"the GPU{where} that was here ({uuid}) is gone", evidence, *serial)


def _gone_ports(context: Context, baseline: Snapshot) -> Iterator[Finding]:
    before, now = _ports(baseline), _ports(context.snapshot)
    if before is None or now is None:
        return
    for port in sorted(before - now):
        evidence = Evidence("port", port, source=f"recorded {baseline.taken_at:%Y-%m-%d %H:%M}")
        message = f"the RDMA port {port} that was here is gone"
        yield PORT_GONE.finding(HostSubject(context.snapshot.host), message, evidence)


def _ports(snapshot: Snapshot) -> set[str] | None:
    state = snapshot.machine.state
    if not isinstance(state, HostState) or isinstance(state.infiniband_ports, Missing):
        return None
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
