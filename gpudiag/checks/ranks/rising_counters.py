"""Which counters rose during a run: the likely cause of what went wrong in it."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from gpudiag.checks.subjects import device_subject
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence, HostSubject, Subject
from gpudiag.model.finding import Finding
from gpudiag.model.measure import HostCounters, Movement
from gpudiag.model.reading import Missing, Reading
from gpudiag.units import significant

# Findings that slow links, throttled GPUs and busy hosts explain; a process that died, stopped or entered
# another collective they do not.
_EXPLAINABLE = frozenset(
    {"collective.slow", "collective.corrupted", "collective.stalled", "rank.late", "rank.silent"}
)
_DEVICE_COUNTERS = (
    ("pcie_replay_count", "PCIe replays"),
    ("ecc_corrected_volatile", "corrected ECC errors"),
    ("ecc_uncorrected_volatile", "uncorrected ECC errors"),
    ("row_remap_correctable", "rows remapped for corrected errors"),
    ("row_remap_uncorrectable", "rows remapped for uncorrected errors"),
)
_LINK_COUNTERS = ("crc_flit_errors", "crc_data_errors", "replay_errors", "recovery_errors")
_HOST_COUNTERS = (
    ("tcp_retransmits", "TCP segments retransmitted", ""),
    ("tcp_timeouts", "TCP retransmission timeouts", ""),
    ("interface_errors", "network interface errors", ""),
    ("interface_drops", "packets dropped by network interfaces", ""),
    ("steal_seconds", "processor time taken by the hypervisor", "s"),
    ("throttled_seconds", "time held back by the control group's quota", "s"),
    ("oom_kills", "processes killed for lack of memory", ""),
)


def find_movements(
    host: str,
    counters: tuple[HostCounters, HostCounters],
    snapshots: tuple[Snapshot, Snapshot] | None,
) -> tuple[Movement, ...]:
    """Every counter that rose between two moments; GPUs only where two snapshots of them were taken."""
    found = list(_of_devices(*snapshots)) if snapshots is not None else []
    return (*found, *_of_host(host, *counters))


def explain_by(findings: Sequence[Finding], movements: Reading[tuple[Movement, ...]]) -> tuple[Finding, ...]:
    """The findings; the counters that rose come first in the evidence of those that they may explain."""
    moved = () if isinstance(movements, Missing) else movements
    evidence = tuple(_as_evidence(movement) for movement in moved)
    return tuple(
        replace(finding, evidence=(*evidence, *finding.evidence)) if finding.code in _EXPLAINABLE else finding
        for finding in findings
    )


def _as_evidence(movement: Movement) -> Evidence:
    """A movement as evidence: the counter's rise since before the run."""
    rise = round(movement.rise, 3) if movement.unit else int(movement.rise)
    return Evidence(movement.name, rise, movement.unit or None, source=f"{movement.source}, during the run")


def describe_movement(movement: Movement) -> str:
    """A movement in a few words: `PCIe replays +12`."""
    rise = f"{significant(movement.rise)} {movement.unit}" if movement.unit else f"{movement.rise:.0f}"
    return f"{movement.name} +{rise}"


def _of_host(host: str, before: HostCounters, after: HostCounters) -> Iterator[Movement]:
    for field, name, unit in _HOST_COUNTERS:
        yield from _risen(
            HostSubject(host), name, getattr(before, field), getattr(after, field), unit, "/proc"
        )


def _of_devices(before: Snapshot, after: Snapshot) -> Iterator[Movement]:
    earlier = {device.id.uuid: device for device in before.devices if not isinstance(device.id.uuid, Missing)}
    for device in after.devices:
        uuid = device.id.uuid
        if not isinstance(uuid, Missing) and uuid in earlier:
            yield from _of_device(device_subject(after, device), earlier[uuid], device)


def _of_device(subject: Subject, before: Device, after: Device) -> Iterator[Movement]:
    for field, name in _DEVICE_COUNTERS:
        yield from _risen(subject, name, getattr(before, field), getattr(after, field), "", "NVML")
    yield from _of_parts(subject, before.throttle_seconds, after.throttle_seconds, "throttled by {}", "s")
    yield from _of_parts(subject, before.pcie_errors, after.pcie_errors, "PCIe errors, {}", "")
    if isinstance(before.nvlinks, Missing) or isinstance(after.nvlinks, Missing):
        return
    for link, earlier in zip(after.nvlinks, before.nvlinks, strict=False):
        for counter in _LINK_COUNTERS:
            name = f"NVLink {link.link} {counter.replace('_', ' ')}"
            yield from _risen(subject, name, getattr(earlier, counter), getattr(link, counter), "", "NVML")


def _of_parts(subject: Subject, before: object, after: object, name: str, unit: str) -> Iterator[Movement]:
    """The movements of the fields of a reading that is made of several counters."""
    if isinstance(before, Missing) or isinstance(after, Missing):
        return
    for field in fields(after):  # type: ignore[arg-type]
        words = name.format(field.name.replace("_", " "))
        yield from _risen(
            subject, words, getattr(before, field.name), getattr(after, field.name), unit, "NVML"
        )


def _risen(
    subject: Subject, name: str, before: Reading[float], after: Reading[float], unit: str, source: str
) -> Iterator[Movement]:
    """The movement of a counter that rose; one that fell was reset, and its rise is not known."""
    if not isinstance(before, Missing) and not isinstance(after, Missing) and after > before:
        yield Movement(subject, name, before, after, unit, source)
