"""The kernel's messages about the GPUs and the machine: one line of its log, parsed."""

from datetime import datetime, timedelta

from gpudiag.compat import StrEnum
from gpudiag.model.codec import noun
from gpudiag.model.reading import Missing, Reading

# The kernel counts from boot, a syslog daemon writes with a delay, and the clock may be set between the two.
SAME_EVENT_SECONDS = 2.0
# A burst ends when the log is silent for this long: NVIDIA Fleet Intelligence, "Xid bursts", 2026.
BURST_SILENCE = timedelta(minutes=3)


class KernelEventKind(StrEnum):
    """What a line of the kernel log reports."""

    XID = "xid"  # the NVIDIA driver's report about one GPU
    SXID = "sxid"  # the same about one NVSwitch
    GPU_OFF_BUS = "gpu_off_bus"  # "fallen off the bus" without an Xid number
    GPU_NOT_STARTED = "gpu_not_started"  # the driver could not take the GPU into use
    GPU_IGNORED = (
        "gpu_ignored"  # a card that the driver leaves alone by design: too old for it, or a virtual function
    )
    PCIE_ERROR = "pcie_error"  # PCIe Advanced Error Reporting
    OUT_OF_MEMORY_KILL = "out_of_memory_kill"
    SOFT_LOCKUP = "soft_lockup"  # a processor stuck in the kernel
    HARD_LOCKUP = "hard_lockup"  # the same, with its interrupts off
    RCU_STALL = "rcu_stall"  # a processor does not get to the kernel's deferred work
    BLOCKED_TASK = "blocked_task"  # a task in uninterruptible sleep for minutes
    MACHINE_CHECK = "machine_check"  # the processor or its memory reports a fault
    FAULT = "fault"  # another fault of the machine, in words that reference/kernel_words.py has


@noun
class KernelEvent:
    """One line of the kernel log. A field is None where lines of that kind, or this line, do not have it.

    `severity` is the line's own word: `fatal` or `nonfatal` (NVLink and NVSwitch), `fatal`,
    `nonfatal` or `corrected` (PCIe, machine checks). `fault` is the id of the known failure that the words
    report; of a crash of the kernel `unit` is the module it was in (`nvidia_uvm`). `recovery_action` is what
    Xid 154 asks for, in the words of `Device.recovery_action`. `unit`, `subcode` and `error` take NVLink 5
    errors (Xid 144 to 150) further apart, `place` (`GPC 2, TPC 3`) those of a kernel (Xid 13). `boot_id` is
    the kernel's own name for the boot that logged it, and `boot_seconds` how long after its start: a clock
    that is set changes `at` of an old line, and never these. `more` is how many lines like this one, but for
    their numbers, followed it until `until` and are not kept. `restarted_by` is the first later line of the
    same log which reports that the GPU or the NVSwitch of this one was restarted (the driver was loaded, the
    device was reset), and `restarted_at` its time.
    """

    kind: KernelEventKind
    at: Reading[datetime]
    # without the log's own prefix, cut to 1,000 characters; empty: no line, it came from NVML's events
    text: str
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
    error: int | None = None
    place: str | None = None
    link: int | None = None
    recovery_action: str | None = None
    fault: str | None = None
    boot_id: str | None = None
    boot_seconds: float | None = None
    more: int = 0
    until: datetime | None = None
    restarted_by: str | None = None
    restarted_at: datetime | None = None

    @property
    def last_at(self) -> Reading[datetime]:
        """When the last of the lines that this one stands for was logged."""
        return self.until or self.at


def is_same_event(one: KernelEvent, other: KernelEvent) -> bool:
    """Whether both are one line, read twice: by boot and time since boot, else by the clock."""
    if one.text != other.text:
        return False
    if one.boot_id is not None and other.boot_id is not None:
        if one.boot_id != other.boot_id:
            return False
        if one.boot_seconds is not None and other.boot_seconds is not None:
            return abs(one.boot_seconds - other.boot_seconds) <= SAME_EVENT_SECONDS
    if isinstance(one.at, Missing) or isinstance(other.at, Missing):
        return True
    return abs((one.at - other.at).total_seconds()) <= SAME_EVENT_SECONDS
