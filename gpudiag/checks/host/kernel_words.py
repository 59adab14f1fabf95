"""Check of the kernel's words about cards, links, crashes, power states, disks and heat.

One entry of the table (reference/kernel_words.py), which `gpudiag explain` reads too, is one code.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpudiag.checks.gpu.gone import find_gone, gone_subject
from gpudiag.checks.host.kernel_faults import WINDOW, is_recent
from gpudiag.checks.registry import Basis, FindingKind, Judgement, Restated, check, judged
from gpudiag.checks.subjects import device_subject, kernel_address, short_bus_id
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence, HostSubject, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.kernel_log import BURST_SILENCE, KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing
from gpudiag.reference.failures import failures
from gpudiag.reference.kernel_words import KernelWords, faults_until_restart, kernel_words

# These report in full the fault of a GPU that by the driver's line does not move, or needs a reset.
_REPORTED_BY = (
    "gpu.lost",
    "gpu.hung",
    "gpu.recovery_needed",
    "xid.hardware",
    "gpu.missing",
    "gpu.not_started",
)
_LINK_DOWN = "kernel.pcie_link_down"
_CRASH = "kernel.crash"
_STATED_BY = ("gpu.gone", "gpu.missing")
_RESTATED = "the kernel log shows that a PCI Express link went down"
_MOST_PLACES = 4  # addresses that a message names


def _kind(words: KernelWords) -> FindingKind:
    return FindingKind(
        code=words.id,
        outcome=Outcome.WARN,
        severity=Severity.TRIAGE,
        category=Category.HW_PCIE if "pcie" in words.id else Category.SW_OTHER,
        owner=Owner(words.owner),
        meaning=f"Within the last day {words.title}. {words.cause}",
        remedy=words.written_remedy,
        basis=Basis(
            reads=f"kernel_log: {words.source}",
            limit=f"no such line within {WINDOW.total_seconds() / 3600:.0f} hours (our choice)",
            look_also=("dmesg -T | tail -50", "gpudiag explain FILE", "host.kernel_log"),
        ),
    )


_KINDS = {words.id: _kind(words) for words in kernel_words() if not words.reason_of}
_TITLES = {words.id: words.title for words in kernel_words()}


@check(
    "host.kernel_words",
    title="the kernel log reports no fault of cards, links, drivers, disks or cooling within the last day",
    needs=("kernel_log",),
    reports=tuple(_KINDS.values()),
    readings=("kernel_log",),
    confirmed="the Linux kernel's own messages",
)
def host_kernel_words(context: Context) -> Judgement:
    """WARN for each fault, once for each GPU that its lines name and once for all other devices."""
    snapshot, log = context.snapshot, context.snapshot.kernel_log
    assert not isinstance(log, Missing)  # noqa: S101 - the need saw to it
    recent = [
        _with_gpu(event, log)
        for event in log
        if event.kind is KernelEventKind.FAULT and event.restarted_by is None and is_recent(snapshot, event)
    ]
    found: list[Finding] = []
    for code in _KINDS:
        found += _judge(snapshot, code, [event for event in recent if event.fault == code])
    restated = tuple(
        Restated(one, _REPORTED_BY, _TITLES[one.code]) for one in found if one.code in faults_until_restart()
    )
    gone = [] if isinstance(context.known_gpus, Missing) else find_gone(snapshot, context.known_gpus)
    links = [one for one in found if one.code == _LINK_DOWN and isinstance(one.subject, HostSubject)]
    if not gone or not links:
        return judged(*found, restated=restated)
    # What was behind the link is known: that GPU's finding reports it.
    named = replace(links[0], subject=gone_subject(snapshot, gone[0]))
    found = [named if one is links[0] else one for one in found]
    return judged(*found, restated=(*restated, Restated(named, _STATED_BY, _RESTATED)))


def _with_gpu(event: KernelEvent, log: Iterable[KernelEvent]) -> KernelEvent:
    """A line about a GPU that names none with the GPU whose Xid is near it in time, where there is one."""
    if event.bus_id is not None or event.fault not in faults_until_restart():
        return event
    near = {one.bus_id for one in log if one.kind is KernelEventKind.XID and _is_near(one, event)}
    return replace(event, bus_id=near.pop()) if len(near) == 1 else event


def _judge(snapshot: Snapshot, code: str, events: list[KernelEvent]) -> Iterator[Finding]:
    by_gpu: dict[int, list[KernelEvent]] = {}
    others: list[KernelEvent] = []
    for event in events:
        place = next((at for at, gpu in enumerate(snapshot.devices) if event.bus_id == gpu.id.bus_id), None)
        (others if place is None or event.bus_id is None else by_gpu.setdefault(place, [])).append(event)
    if len(by_gpu) == 1:
        # The port above a GPU reports in the same moment what became of the GPU.
        ((_, about),) = by_gpu.items()
        near = [event for event in others if any(_is_near(event, other) for other in about)]
        about += near
        others = [event for event in others if event not in near]
    for place, about in by_gpu.items():
        yield _finding(snapshot, code, about, snapshot.devices[place])
    if others:
        yield _finding(snapshot, code, others, None)


def _is_near(event: KernelEvent, other: KernelEvent) -> bool:
    if isinstance(event.at, Missing) or isinstance(other.at, Missing):
        return False
    return abs(event.at - other.at) <= BURST_SILENCE


def _finding(snapshot: Snapshot, code: str, events: list[KernelEvent], device: Device | None) -> Finding:
    kind = _KINDS[code]
    first, last = events[0], events[-1]
    count = sum(1 + event.more for event in events)
    times = "once" if count == 1 else f"{count} lines"
    subject: Subject = HostSubject(snapshot.host) if device is None else device_subject(snapshot, device)
    message = f"{_TITLES[code]}{_where(events, device)}{_more(snapshot, code, events)}: {times} within a day"
    facts = [
        Evidence("line", first.text, source="kernel log"),
        Evidence("count", count, limit=0, source="kernel log of 24 hours"),
    ]
    if not isinstance(first.at, Missing):
        facts.append(Evidence("at", first.at.isoformat(timespec="seconds"), source="kernel log"))
    if last is not first:
        facts.append(Evidence("last_line", last.text, source="kernel log"))
    if count > 1 and not isinstance(last.last_at, Missing):
        facts.append(Evidence("last_at", last.last_at.isoformat(timespec="seconds"), source="kernel log"))
    address = next((kernel_address(event.bus_id) for event in events if event.bus_id), None)
    remedy = kind.written_remedy.replace("ADDRESS", address) if address else ""
    return kind.finding(subject, message, *facts, remedy=remedy)


def _where(events: list[KernelEvent], device: Device | None) -> str:
    """The addresses of the devices, in brackets; empty where no line names one, or the subject is it."""
    places = list(dict.fromkeys(short_bus_id(event.bus_id) for event in events if event.bus_id))
    if not places or device is not None:
        return ""
    more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    return f" ({', '.join(places[:_MOST_PLACES])}{more})"


def _more(snapshot: Snapshot, code: str, events: list[KernelEvent]) -> str:
    """The facts that only this fault has: a crash's module, the GPUs that are left, the driver's number."""
    if code == _CRASH:
        module = next((event.unit for event in events if event.unit), None)
        return f" (in {module})" if module else ""
    if code == _LINK_DOWN:
        listed = sum(1 for device in snapshot.devices if not isinstance(device.id.nvml_index, Missing))
        return f", and it may have been a GPU ({listed} are listed now)"
    detail = failures()[code].detail_of(events[0].text)
    return f" ({detail})" if detail else ""
