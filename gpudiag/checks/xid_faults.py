"""Faults of GPUs among the Xids: one cause on one GPU, in every burst that it made."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpudiag.checks.bursts import GpuBurst, entry_of, gpu_bursts
from gpudiag.model.device import Snapshot
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import Missing, Reading

RECOVERY_XID = 154  # "GPU recovery action changed from ... to ..."


@dataclass(frozen=True, slots=True)
class GpuFault:
    """One cause on one GPU, in every burst that it made."""

    bursts: tuple[GpuBurst, ...]
    before: tuple[GpuBurst, ...] = ()  # in the stored history

    @property
    def last(self) -> GpuBurst:
        """The latest burst."""
        return self.bursts[-1]

    @property
    def times(self) -> int:
        """How many bursts there were, stored ones included."""
        return len(self.bursts) + len(self.before)

    @property
    def first_at(self) -> Reading[datetime]:
        """When the first of them was logged."""
        return (*self.before, *self.bursts)[0].root.at

    @property
    def asked_for_recovery(self) -> bool:
        """Whether the driver logged, with one of these bursts, that the GPU must be recovered."""
        asked = (event.recovery_action for burst in self.bursts for event in burst.events)
        return any(action not in (None, "none") for action in asked)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the driver asks for to recover a GPU, and where it says so; `action` None: it does not say."""

    action: str | None
    source: str


def collect_faults(
    snapshot: Snapshot, events: Iterable[KernelEvent], earlier: Iterable[KernelEvent] = ()
) -> tuple[GpuFault, ...]:
    """The faults among `events`; `earlier` are stored ones, which only count as repeats."""
    before: dict[tuple[str, int | None], list[GpuBurst]] = {}
    for burst in gpu_bursts(snapshot, earlier):
        before.setdefault(_fault_key(burst), []).append(burst)
    faults: dict[tuple[str, int | None], list[GpuBurst]] = {}
    for burst in gpu_bursts(snapshot, events):
        faults.setdefault(_fault_key(burst), []).append(burst)
    return tuple(GpuFault(tuple(bursts), tuple(before.get(key, ()))) for key, bursts in faults.items())


def read_recovery(fault: GpuFault) -> Recovery:
    """The driver's current answer where NVML gives one, otherwise the last Xid 154 of these bursts."""
    device = fault.last.device
    if device is not None and not isinstance(device.recovery_action, Missing):
        return Recovery(device.recovery_action, "NVML field 230")
    said = [
        event.recovery_action for burst in fault.bursts for event in burst.events if event.recovery_action
    ]
    # Without NVML's current answer a "none" that was logged earlier settles nothing.
    action = said[-1] if said and said[-1] != "none" else None
    return Recovery(action, f"Xid {RECOVERY_XID}")


def _fault_key(burst: GpuBurst) -> tuple[str, int | None]:
    root = burst.root
    entry = entry_of(root)
    where = root.bus_id or root.gpu_uuid or ""
    if burst.device is not None and not isinstance(burst.device.id.bus_id, Missing):
        where = burst.device.id.bus_id
    return where, entry.code if entry else root.xid_code
