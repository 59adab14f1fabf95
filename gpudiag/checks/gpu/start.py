"""The check of GPUs that the driver failed to initialise since boot, by the kernel log."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gpudiag.checks.host.kernel_faults import WINDOW
from gpudiag.checks.registry import Basis, FindingKind, Judgement, Restated, check, judged
from gpudiag.checks.subjects import device_subject, name_device, short_bus_id
from gpudiag.checks.traces import pci_gpus
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing, MissingReason

_BASIS = Basis(
    reads="Lines of the kernel log of this boot: RmInitAdapter failed, probe failed with an error, a PCI"
    " region (BAR) that is invalid; against the GPUs that NVML lists.",
    limit="None for a GPU that is not listed; 24 hours for one that works now (own choice).",
    look_also=(
        "dmesg -T | grep -e NVRM -e nvidia",
        "gpu.missing",
        "xid 79",
        "xid 119",
        "lspci -vvs 5d:00.0 | grep Region",
    ),
)
_kind = partial(FindingKind, category=Category.HW_OTHER, owner=Owner.HARDWARE, stated=True, basis=_BASIS)
NOT_STARTED = _kind(
    code="gpu.not_started",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="The kernel log says that the driver could not start a GPU (RmInitAdapter failed, probe failed, a PCI region "
    "that is invalid), and the driver does not list it.",
    remedy="Power-cycle the machine; if it fails again, reseat or replace the GPU. Where the line names a PCI region "
    "(BAR), look at the firmware's settings (Above 4G Decoding, MMIO size) and `pci=realloc`.",
)
START_FAILED = _kind(
    code="gpu.start_failed",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="According to the kernel log, the driver could not start a GPU within the last day; what it lists now may be all there is.",
    remedy="Read `dmesg -T | grep -e NVRM -e nvidia` around that line; if it comes back, power-cycle the machine.",
)
# These report that the driver does not list the GPU; the log says why.
_STATED_BY = ("gpu.missing", "gpu.gone", "gpu.lost")


@check(
    "gpu.started",
    title="the driver could start every GPU",
    needs=("kernel_log",),
    reports=(NOT_STARTED, START_FAILED),
    readings=("kernel_log", "devices", "pci_devices"),
    confirmed="the NVIDIA driver's own messages",
)
def gpu_started(context: Context) -> Judgement:
    """FAIL for a GPU that the log says did not start and that is not listed; WARN for one that works now."""
    snapshot = context.snapshot
    log = snapshot.kernel_log
    assert not isinstance(log, Missing)  # noqa: S101 - the need saw to it
    events = [event for event in log if event.kind is KernelEventKind.GPU_NOT_STARTED]
    if snapshot.source("nvml").state not in (SourceState.OK, SourceState.NO_DEVICES):
        return judged()  # no GPU is listed, and source.nvml reports why
    listed = [device for device in snapshot.devices if not isinstance(device.id.nvml_index, Missing)]
    if pci_gpus(snapshot) and not listed:
        return judged()  # gpu.count reports that none is listed
    found = list(_judge(snapshot, events))
    return replace(judged(*found), restated=tuple(Restated(one, _STATED_BY, _SAID) for one in found))


_SAID = "the kernel log says that it did not start"


def _judge(snapshot: Snapshot, events: list[KernelEvent]) -> Iterator[Finding]:
    """One finding for each GPU that the lines name; one for the machine where none of them names any."""
    by_gpu: dict[str | None, list[KernelEvent]] = {}
    for event in events:
        by_gpu.setdefault(event.bus_id, []).append(event)
    unnamed = by_gpu.pop(None, [])
    for bus_id, about in by_gpu.items():
        device = next((device for device in snapshot.devices if device.id.bus_id == bus_id), None)
        finding = _finding(snapshot, bus_id or "", device, about)
        if finding is not None:
            yield finding
    recent = [event for event in unnamed if _is_recent(snapshot, event)]
    if recent and not by_gpu:
        message = f"the driver could not start a GPU ({_words(recent[-1])})"
        yield START_FAILED.finding(HostSubject(snapshot.host), message, *_facts(recent))


def _finding(
    snapshot: Snapshot, bus_id: str, device: Device | None, events: list[KernelEvent]
) -> Finding | None:
    if device is not None and not isinstance(device.id.nvml_index, Missing):
        if not _is_recent(snapshot, events[-1]):
            return None
        message = f"{name_device(device)} did not start, and is listed now ({_words(events[-1])})"
        return START_FAILED.finding(device_subject(snapshot, device), message, *_facts(events))
    absent = Missing(MissingReason.SOURCE_ABSENT)
    subject = DeviceSubject(absent if device is None else device.id.uuid, bus_id, absent, snapshot.host)
    message = f"the GPU at {short_bus_id(bus_id)} did not start ({_words(events[-1])})"
    return NOT_STARTED.finding(subject, message, *_facts(events))


def _is_recent(snapshot: Snapshot, event: KernelEvent) -> bool:
    return isinstance(event.last_at, Missing) or snapshot.taken_at - event.last_at <= WINDOW


def _words(event: KernelEvent) -> str:
    """The line without the prefix that every line of the driver has."""
    return event.text.removeprefix("NVRM: ").rstrip("!.")[:120]


def _facts(events: list[KernelEvent]) -> Iterator[Evidence]:
    last = events[-1]
    yield Evidence("line", last.text[:200], source="kernel log")
    yield Evidence(
        "count", sum(1 + event.more for event in events), limit=0, source="kernel log of this boot"
    )
    if not isinstance(last.last_at, Missing):
        yield Evidence("at", last.last_at.isoformat(timespec="seconds"), source="kernel log")
