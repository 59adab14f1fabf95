"""Lines of the kernel about the machine and its GPUs: error records, stuck processors, GPUs that did not
start.
"""

from tests.scenarios.kinds.kernel_log import DAY, HOUR, logged, up_for
from tests.scenarios.kinds.trial import Kind, Trial

_MACHINES = ("h100x8", "a100x8", "b200x8", "rtx4090x2")
_BRIDGE = "0000:00:03.0"


def _record(severity: str, section: str, device: str = "", gpu: int = 1) -> str:
    """A record of the firmware, as Linux prints it (drivers/firmware/efi/cper.c)."""
    lines = (
        "Hardware error from APEI Generic Hardware Error Source: 1",
        *(
            ("It has been corrected by h/w and requires no further action",)
            if severity == "corrected"
            else ()
        ),
        f"event severity: {severity}",
        f" Error 0, type: {severity}",
        f"  section_type: {section}",
        *((f"  device_id: {device}",) if device else ()),
    )
    return "".join(
        logged(f"{{1}}[Hardware Error]: {line}", HOUR - place / 1000, gpu) for place, line in enumerate(lines)
    )


def _found(words: str, machine: str, code: str, *texts: str) -> Trial:
    return Trial(words, machine, (code,), differs="".join(logged(text, HOUR, 1) for text in texts))


def _quiet(words: str, machine: str, *texts: str, age: float = HOUR) -> Trial:
    return Trial(words, machine, differs="".join(logged(text, age, 1) for text in texts) + up_for(30))


_RECORDS = tuple(
    trial
    for machine in _MACHINES
    for trial in (
        Trial(
            "memory, recoverable",
            machine,
            ("kernel.machine_check",),
            differs=_record("recoverable", "memory error"),
        ),
        Trial(
            "a bridge, fatal",
            machine,
            ("kernel.pcie_error",),
            differs=_record("fatal", "PCIe error", _BRIDGE),
        ),
        Trial(
            "a GPU, fatal",
            machine,
            ("kernel.pcie_error 1",),
            differs=_record("fatal", "PCIe error", "{gpu}.0"),
        ),
        Trial("memory, corrected", machine, differs=_record("corrected", "memory error")),
        Trial("a GPU, corrected", machine, differs=_record("corrected", "PCIe error", "{gpu}.0")),
    )
)
_STUCK = tuple(
    trial
    for machine in _MACHINES
    for trial in (
        _found("hard lockup", machine, "kernel.hard_lockup",
            "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3"),
        _found("RCU stall", machine, "kernel.rcu_stall", "rcu: INFO: rcu_sched self-detected stall on CPU"),
        _found(
            "an uncorrected machine check", machine, "kernel.machine_check",
            "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 9: be00000000800400",
        ),
        _quiet(
            "one corrected memory error", machine, "mce: [Hardware Error]: Machine check events logged",
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        ),
        _quiet("an RCU stall two days ago", machine, "rcu: INFO: rcu_sched self-detected stall on CPU",
            age=2 * DAY),
    )
)  # fmt: skip
_NOT_STARTED = tuple(
    trial
    for machine in _MACHINES
    for trial in (
        _found(
            "RmInitAdapter failed, and it works now", machine, "gpu.start_failed 1",
            "NVRM: GPU {gpu}.0: RmInitAdapter failed! (0x24:0x72:1447)",
            "NVRM: GPU {gpu}.0: rm_init_adapter failed, device minor number 1",
        ),
        _found(
            "the probe of a GPU that is nowhere failed", machine, "gpu.not_started",
            "nvidia 0000:f3:00.0: probe with driver nvidia failed with error -1",
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        ),
        _found(
            "a PCI region is invalid", machine, "gpu.not_started",
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
            "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:f3:00.0)", "nvidia: probe of 0000:f3:00.0 failed with error -1",
        ),
        _quiet("another driver's probe", machine, "mlx5_core: probe of 0000:f3:00.0 failed with error -12"),
        _quiet("it failed two days ago and works", machine,
            "NVRM: GPU {gpu}.0: RmInitAdapter failed! (0x24:0x72:1447)", age=2 * DAY),
    )
)  # fmt: skip

_ANNOUNCED = tuple(
    trial
    for machine in _MACHINES
    for trial in (
        _found(
            "the firmware of a GPU does not answer, without an Xid", machine, "driver.gpu_locked",
            "NVRM: GPU1 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 18",
        ),
        _found(
            "the same with its Xid", machine, "xid.hardware 1",
            "NVRM: GPU1 _kgspLogRpcTimeout: ********* GSP Timeout *********",
            "NVRM: Xid (PCI:{gpu}): 119, pid=7, name=python3, Timeout after 45s of waiting for RPC response",
        ),
        _quiet("a loaded driver answers again", machine,
            "NVRM: GPU1 _kgspLogRpcTimeout: ********* GSP Timeout *********",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build"),
        _found("a module is too hot", machine, "kernel.network_cable_fault",
            "mlx5_core 0000:f3:00.0: Port module event[error]: module 0, Cable error, High Temperature"),
        _quiet("a module is plugged", machine,
            "mlx5_core 0000:f3:00.0: Port module event: module 0, Cable plugged"),
    )
)  # fmt: skip


def _port(device: str, layer: str) -> str:
    folder = f"sys/class/infiniband/{device}/ports/1"
    files = {"state": "1: DOWN", "phys_state": "3: Disabled", "link_layer": layer}
    entries = ", ".join(f'"{folder}/{name}" = "{words}\\n"' for name, words in files.items())
    return f"[host]\nextra_files = {{ {entries} }}\n"


_PORTS = tuple(
    trial
    for machine in ("h100x8", "a100x8", "b200x8", "h200x8")
    for trial in (
        Trial(
            "an InfiniBand port",
            machine,
            ("infiniband.port_disabled",),
            differs=_port("mlx5_2", "InfiniBand"),
        ),
        Trial("an Ethernet port that is not used", machine, differs=_port("mlx5_2", "Ethernet")),
    )
)

KINDS = (
    Kind("kernel lines: error records of the firmware", _RECORDS),
    Kind("kernel lines: stuck processors, machine checks", _STUCK),
    Kind("kernel lines: a GPU that did not start", _NOT_STARTED),
    Kind("kernel lines: a GPU that does not move, a module of a network card", _ANNOUNCED),
    Kind("a network port that is turned off", _PORTS),
)
