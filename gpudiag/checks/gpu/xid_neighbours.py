"""What stands beside an Xid in the kernel log: the Xid that caused it, or an error of the GPU's link.

An application's Xid (13, 31, 43, 45 ...) on a GPU whose link has just failed is that failure's.
"""

from collections.abc import Iterable, Iterator

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.kernel_log import BURST_SILENCE, KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing
from gpudiag.reference.xid import Xid, XidKind, xids

# Findings that state what the lines beside an application's Xid report, best first.
STATED_BY_NEIGHBOURS = (
    "kernel.pcie_recovery_failed",
    "kernel.pcie_link_down",
    "kernel.pcie_error",
    "kernel.iommu_fault",
    "kernel.power_state",
    "pcie.fatal_error",
    "pcie.nonfatal_errors",
    "pcie.fatal_error_since_boot",
    "pcie.nonfatal_errors_since_boot",
)
_LINK_FAULTS = (
    "kernel.pcie_recovery_failed",
    "kernel.pcie_link_down",
    "kernel.iommu_fault",
    "kernel.power_state",
)
_FOLLOWERS = (XidKind.APPLICATION, XidKind.SYMPATHETIC, XidKind.INFORMATIONAL)
_NVLINK = range(144, 151)  # NVLink 5 errors, by NVIDIA's Xid catalog


def cause_named_by(event: KernelEvent, entry: Xid | None) -> Xid | None:
    """The catalogue's entry of the Xid that the line names as its cause, if that is the graver one."""
    if event.caused_by_xid is None or (entry is not None and entry.kind not in _FOLLOWERS):
        return None
    return xids().get(event.caused_by_xid)


def is_named_nvlink_error(event: KernelEvent) -> bool:
    """Whether only another Xid's line names this NVLink error: its own line is not in the log."""
    return event.caused_by_xid in _NVLINK


def is_nvlink_error(event: KernelEvent) -> bool:
    """Whether the event is an NVLink 5 error, or names one as its cause."""
    return event.xid_code in _NVLINK or is_named_nvlink_error(event)


def has_link_error_beside(
    snapshot: Snapshot, device: Device | None, root: KernelEvent, entry: Xid | None
) -> bool:
    """Whether an application's Xid came within a burst of an error on the same GPU's link."""
    if (
        device is None
        or entry is None
        or entry.kind not in _FOLLOWERS
        or isinstance(snapshot.kernel_log, Missing)
    ):
        return False
    return any(
        _is_within(event, root)
        for event in _link_errors(snapshot.kernel_log)
        if event.bus_id == device.id.bus_id
    )


def _link_errors(log: Iterable[KernelEvent]) -> Iterator[KernelEvent]:
    for event in log:
        uncorrected = event.kind is KernelEventKind.PCIE_ERROR and event.severity != "corrected"
        if uncorrected or (event.kind is KernelEventKind.FAULT and event.fault in _LINK_FAULTS):
            yield event


def _is_within(event: KernelEvent, root: KernelEvent) -> bool:
    if isinstance(event.at, Missing) or isinstance(root.at, Missing):
        return False
    ends = event.until or event.at
    return event.at - BURST_SILENCE <= root.at <= ends + BURST_SILENCE


def count_lines(events: Iterable[KernelEvent]) -> int:
    """How many lines of the log the events stand for."""
    return sum(1 + event.more for event in events)
