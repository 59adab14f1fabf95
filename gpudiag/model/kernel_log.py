"""What the kernel said about the GPUs and the machine: one line of its log, taken apart."""

from datetime import datetime
from enum import StrEnum

from gpudiag.model.noun import noun
from gpudiag.model.reading import Reading


class KernelEventKind(StrEnum):
    """What a line of the kernel log reports."""

    XID = "xid"  # the NVIDIA driver's report about one GPU
    SXID = "sxid"  # the same about one NVSwitch
    GPU_OFF_BUS = "gpu_off_bus"  # "fallen off the bus" without an Xid number
    PCIE_ERROR = "pcie_error"  # PCIe Advanced Error Reporting
    OUT_OF_MEMORY_KILL = "out_of_memory_kill"
    SOFT_LOCKUP = "soft_lockup"  # a processor stuck in the kernel
    BLOCKED_TASK = "blocked_task"  # a task in uninterruptible sleep for minutes
    MACHINE_CHECK = "machine_check"  # the processor or its memory reports a fault


@noun
class KernelEvent:
    """One line of the kernel log. A field is None where lines of that kind, or this line, do not have it.

    `severity` is the line's own word: `fatal` or `nonfatal` (NVLink and NVSwitch), `fatal`,
    `nonfatal` or `corrected` (PCIe). `recovery_action` is what Xid 154 asks for, in the words of
    `Device.recovery_action`. `unit` and `subcode` take NVLink 5 errors (Xid 144 to 150) further apart.
    """

    kind: KernelEventKind
    at: Reading[datetime]
    text: str  # without the log's own prefix, cut to 1,000 characters
    bus_id: str | None = None  # dddddddd:bb:dd.f
    gpu_uuid: str | None = None
    xid_code: int | None = None
    sxid_code: int | None = None
    caused_by_xid: int | None = None  # "caused by previous Xid 149"
    pid: int | None = None
    process: str | None = None
    severity: str | None = None
    unit: str | None = None
    subcode: int | None = None
    link: int | None = None
    recovery_action: str | None = None
