"""Cases of the checks of the kernel log: Xids, SXids, and other trouble of the machine."""

from collections.abc import Callable
from functools import partial

from gpudiag.model.device import DeviceId, Snapshot, SourceState, SourceStatus
from gpudiag.model.history import History
from gpudiag.model.kernel_log import KernelEvent
from tests.scenarios.situations import Change, Remember, case, gpu, machine, now, top
from tests.unit.checks.kernel_events import event_from, recovery, sxid, xid

MINUTES_A_DAY = 24 * 60
Event = Callable[..., KernelEvent]


def log(*events: Event) -> Change:
    """The kernel log holds these events, and no others."""
    return lambda snapshot: top(kernel_log=tuple(event(on=snapshot) for event in events))(snapshot)


def stored(*events: Event) -> Remember:
    """The store holds these events of earlier runs."""
    return lambda snapshot: History(
        snapshot.host, "store", kernel_events=tuple(event(on=snapshot) for event in events)
    )


def on_gpu(code: int, days_ago: float = 0.1, rest: str = "") -> Event:
    return partial(xid, code, gpu=3, minutes_ago=days_ago * MINUTES_A_DAY, rest=rest)


def on_switch(code: int, severity: str = "Fatal", days_ago: float = 0.1) -> Event:
    return partial(sxid, code, minutes_ago=days_ago * MINUTES_A_DAY, severity=severity)


def line(text: str, days_ago: float) -> Change:
    return log(partial(event_from, text, days_ago * MINUTES_A_DAY))


def elsewhere(index: int) -> Change:
    """A machine whose GPU of that index is at another address, so that nothing is at its own."""
    return gpu(index, id=DeviceId("GPU-9", "00000000:9f:00.0", index))


def only_gpu(index: int) -> Change:
    """A job that was given one GPU, and has it."""
    return lambda snapshot: machine(allocation={"CUDA_VISIBLE_DEVICES": "0"})(
        top(devices=snapshot.devices[index : index + 1])(snapshot)
    )


RESET = partial(recovery, 1, gpu=3, minutes_ago=0.1 * MINUTES_A_DAY)
RESET_LONG_AGO = partial(recovery, 1, gpu=3, minutes_ago=8 * MINUTES_A_DAY)

XID = (
    # The driver asked for a reset and now asks for none.
    case("xid.kernel_log", "xid.hardware")(now(log(on_gpu(48))), now(log(on_gpu(48), RESET))),
    case("xid.kernel_log", "xid.settled")(
        now(log(on_gpu(48), RESET)), now(log(on_gpu(48, 8), RESET_LONG_AGO))
    ),
    case("xid.kernel_log", "xid.repeated")(
        now(log(on_gpu(48)), remembered=stored(on_gpu(48, 3))),
        now(log(on_gpu(48)), remembered=stored(on_gpu(48, 40))),
    ),
    case("xid.kernel_log", "xid.wear")(now(log(on_gpu(94, 6.9))), now(log(on_gpu(94, 7.1)))),
    case("xid.kernel_log", "xid.application")(now(log(on_gpu(31, 0.9))), now(log(on_gpu(31, 1.1)))),
    case("xid.kernel_log", "xid.driver")(now(log(on_gpu(38, 0.9))), now(log(on_gpu(38, 1.1)))),
    case("xid.kernel_log", "xid.unknown")(now(log(on_gpu(999))), now(log(on_gpu(45)))),
    case("xid.kernel_log", "xid.other_gpu")(
        now(log(on_gpu(79)), only_gpu(0)), now(log(on_gpu(79)), only_gpu(3))
    ),
    case("xid.kernel_log", "xid.note")(now(log(on_gpu(43, 0.9))), now(log(on_gpu(43, 1.1)))),
)

SXID = (
    case("sxid.kernel_log", "sxid.fatal")(
        now(log(on_switch(20034), on_gpu(74))), now(log(on_switch(20034), on_gpu(31)))
    ),
    case("sxid.kernel_log", "sxid.settled")(
        now(log(on_switch(23001, days_ago=2))), now(log(on_switch(23001, days_ago=8)))
    ),
    case("sxid.kernel_log", "sxid.error")(now(log(on_switch(20034))), now(log(on_switch(23001)))),
    case("sxid.kernel_log", "sxid.unknown")(now(log(on_switch(29999))), now(log(on_switch(20034)))),
    case("sxid.kernel_log", "sxid.note")(
        now(log(on_switch(11012, "Non-fatal"))), now(log(on_switch(12028, "Non-fatal")))
    ),
)

TROUBLE = tuple(
    case("host.kernel_log", code)(now(line(text, 0.9)), now(line(near, days)))
    for code, text, near, days in (
        (
            "kernel.out_of_memory_kill",
            "Out of memory: Killed process 42 (python3) total-vm:1kB",
            "Out of memory: Killed process 42 (python3) total-vm:1kB",
            1.1,
        ),
        (
            "kernel.soft_lockup",
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [nvidia-smi:99]",
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [nvidia-smi:99]",
            1.1,
        ),
        (
            "kernel.blocked_task",
            "INFO: task python3:4711 blocked for more than 120 seconds.",
            "INFO: task python3:4711 blocked for more than 120 seconds.",
            1.1,
        ),
        (
            "kernel.machine_check",
            "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 9: be00000000800400",
            "mce: [Hardware Error]: Machine check events logged",
            0.9,
        ),
        (
            "kernel.machine_check",
            "{2}[Hardware Error]: event severity: recoverable",
            "{2}[Hardware Error]: event severity: corrected",
            0.9,
        ),
        (
            "kernel.machine_check",
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
            0.9,
        ),
        (
            "kernel.hard_lockup",
            "NMI watchdog: Watchdog detected hard LOCKUP on cpu 7",
            "NMI watchdog: Watchdog detected hard LOCKUP on cpu 7",
            1.1,
        ),
        (
            "kernel.rcu_stall",
            "rcu: INFO: rcu_sched self-detected stall on CPU",
            "INFO: rcu_sched self-detected stall on CPU { 3}",
            1.1,
        ),
        (
            "kernel.pcie_error",
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction",
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
            0.9,
        ),
    )
)


def log_status(state: SourceState, reason: str) -> Change:
    """A log without trouble, and how its reading went."""

    def change(snapshot: Snapshot) -> Snapshot:
        status = SourceStatus("kernel_log", state, reason)
        return top(sources=(*snapshot.sources, status))(log()(snapshot))

    return change


UNREAD = (
    case("host.kernel_log", "kernel.log_unread")(
        now(log_status(SourceState.TIMED_OUT, "read from /var/log/syslog; older lines were not read")),
        now(
            log_status(
                SourceState.OK, "read from /var/log/syslog; older lines were only searched for new Xids"
            )
        ),
    ),
)

RM_INIT = "NVRM: GPU 0000:a8:00.0: RmInitAdapter failed! (0x24:0x72:1447)"
STARTED = (
    case("gpu.started", "gpu.not_started")(now(line(RM_INIT, 3.0), elsewhere(5)), now(line(RM_INIT, 3.0))),
    case("gpu.started", "gpu.start_failed")(now(line(RM_INIT, 0.9)), now(line(RM_INIT, 1.1))),
    case("gpu.started", "gpu.start_failed")(
        now(line("NVRM: The NVIDIA probe routine failed for 1 device(s).", 0.9)),
        now(line("NVRM: The NVIDIA probe routine failed for 1 device(s).", 1.1)),
    ),
)

KERNEL_LOG_CASES = (*XID, *SXID, *TROUBLE, *UNREAD, *STARTED)
