"""Lines of the kernel log, taken apart: pure functions over text, no I/O.

The layouts are those that the NVIDIA driver (470 to 590) and Linux 4.15 to 6.12 print. A line is
recognised anywhere in a text, so that the same functions read dmesg, a syslog file and a job's log.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Reading

MAX_TEXT_CHARACTERS = 1000

# The numbers of NVML's field 230 and of Xid 154 are the same.
# https://docs.nvidia.com/deploy/nvml-api, nvmlDeviceGpuRecoveryAction_t, read 2026-11.
RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}

_BUS_ID = (
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-7]))?"
)
_BUS_ID_PATTERN = re.compile(rf"(?<![0-9a-f:]){_BUS_ID}(?![0-9a-f:])", re.IGNORECASE)
_GPU_UUID_PATTERN = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
# NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101        (drivers before 346)
# NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 94, pid=77, name=python3, Contained: ...   (a MIG instance)
_XID_PATTERN = re.compile(r"\bXid \((?P<where>[^)]*)\): (?P<code>\d+)\b(?:,\s*(?P<rest>.*))?")
_PID_PATTERN = re.compile(r"\bpid='?(?P<pid>\d+)'?")
_PROCESS_PATTERN = re.compile(r"\bname=(?P<process>[^,]+)")
_CAUSE_PATTERN = re.compile(r"caused by previous Xid (?P<code>\d+)")
# 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
_RECOVERY_PATTERN = re.compile(
    r"recovery action changed from \S+ \([^)]*\) to 0x(?P<action>[0-9a-f]+)", re.IGNORECASE
)
# 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 ...); Link -1 means no single link
_NVLINK5_PATTERN = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_/]+)\s+(?P<severity>Fatal|Non-?fatal)\s+XC\d+ i\d+ "
    r"Link (?P<link>-?\d+) \((?P<intrinfo>0x[0-9a-f]+)",
    re.IGNORECASE,
)
# nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error
_SXID_PATTERN = re.compile(
    r"(?P<switch>nvswitch\d+): SXid \((?P<where>[^)]*)\): (?P<code>\d+)\b"
    r"(?:, (?P<severity>Fatal|Non-?fatal))?(?:, Link (?P<link>\d+))?",
    re.IGNORECASE,
)
_OFF_BUS_PATTERN = re.compile(r"\bfallen off the bus\b")
# The driver names the GPU two lines before it says that it has fallen off the bus.
_GPU_AT_PATTERN = re.compile(r"NVRM: The NVIDIA GPU (?P<where>[0-9a-f:.]+)", re.IGNORECASE)
_PCIE_PATTERN = re.compile(
    r"(?P<where>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): PCIe Bus Error: "
    r"severity=(?P<severity>Correct\w+|Uncorrect\w+ \((?:Non-)?Fatal\))",
    re.IGNORECASE,
)
_OOM_PATTERN = re.compile(r"[Oo]ut of memory.*?: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>[^)]*)\)")
_LOCKUP_PATTERN = re.compile(r"BUG: soft lockup - CPU#\d+ stuck for \d+s! \[(?P<process>.+):(?P<pid>\d+)\]")
_BLOCKED_PATTERN = re.compile(r"INFO: task (?P<process>.+):(?P<pid>\d+) blocked for more than \d+ seconds")
_MACHINE_CHECK_PATTERN = re.compile(
    r"\[Hardware Error\]:.*machine check|EDAC \S+: \d+ (?P<corrected>CE|UE)\b", re.IGNORECASE
)


def parse_kernel_lines(lines: Iterable[tuple[Reading[datetime], str]]) -> Iterator[KernelEvent]:
    """The events among those lines of one log, in order; each line comes with its time."""
    gpu_named_before: str | None = None
    for at, text in lines:
        named = _GPU_AT_PATTERN.search(text)
        if named:
            gpu_named_before = parse_bus_id(named["where"])
        event = parse_kernel_line(text, at)
        if event is None:
            continue
        if event.kind is KernelEventKind.GPU_OFF_BUS and event.bus_id is None and gpu_named_before:
            event = _off_bus(text, at, gpu_named_before)
        yield event


def parse_kernel_line(text: str, at: Reading[datetime]) -> KernelEvent | None:
    """The event that one line reports; None for any other line."""
    text = text.strip()[:MAX_TEXT_CHARACTERS]
    for parse in _PARSERS:
        event = parse(text, at)
        if event is not None:
            return event
    return None


def parse_bus_id(text: str) -> str | None:
    """The first PCI address in a text as `dddddddd:bb:dd.f` in lower case; None where there is none."""
    match = _BUS_ID_PATTERN.search(text)
    if match is None:
        return None
    domain, function = match["domain"] or "0", match["function"] or "0"
    return f"{domain.lower().zfill(8)}:{match['bus'].lower()}:{match['device'].lower()}.{function}"


def _xid(text: str, at: Reading[datetime]) -> KernelEvent | None:
    match = _XID_PATTERN.search(text)
    if match is None:
        return None
    rest = match["rest"] or ""
    uuid = _GPU_UUID_PATTERN.search(match["where"])
    pid, process = _PID_PATTERN.search(rest), _PROCESS_PATTERN.search(rest)
    cause, recovery = _CAUSE_PATTERN.search(rest), _RECOVERY_PATTERN.search(rest)
    nvlink = _NVLINK5_PATTERN.search(rest)
    return KernelEvent(
        kind=KernelEventKind.XID,
        at=at,
        text=text,
        bus_id=parse_bus_id(match["where"].removeprefix("PCI:")),
        gpu_uuid=uuid[0] if uuid else None,
        xid_code=int(match["code"]),
        caused_by_xid=int(cause["code"]) if cause else None,
        pid=int(pid["pid"]) if pid else None,
        process=_known(process["process"]) if process else None,
        severity=_severity(nvlink["severity"]) if nvlink else None,
        unit=nvlink["unit"] if nvlink else None,
        subcode=nvlink5_subcode(int(nvlink["intrinfo"], 16)) if nvlink else None,
        link=_link(nvlink["link"]) if nvlink else None,
        recovery_action=_recovery_action(recovery["action"]) if recovery else None,
    )


def nvlink5_subcode(interrupt_information: int) -> int:
    """The subcode of an NVLink 5 error: bits 20 to 25 of the first word that the line prints.

    Source: NVIDIA's Xid catalog, sheet "XID 144-150 Decode", 2025-10.
    """
    return (interrupt_information >> 20) & 0x3F


def _sxid(text: str, at: Reading[datetime]) -> KernelEvent | None:
    match = _SXID_PATTERN.search(text)
    if match is None:
        return None
    return KernelEvent(
        kind=KernelEventKind.SXID,
        at=at,
        text=text,
        bus_id=parse_bus_id(match["where"].removeprefix("PCI:")),
        sxid_code=int(match["code"]),
        severity=_severity(match["severity"]) if match["severity"] else None,
        unit=match["switch"],
        link=int(match["link"]) if match["link"] else None,
    )


def _gpu_off_bus(text: str, at: Reading[datetime]) -> KernelEvent | None:
    if "NVRM" not in text or not _OFF_BUS_PATTERN.search(text):
        return None
    return _off_bus(text, at, parse_bus_id(text))


def _off_bus(text: str, at: Reading[datetime], bus_id: str | None) -> KernelEvent:
    return KernelEvent(kind=KernelEventKind.GPU_OFF_BUS, at=at, text=text, bus_id=bus_id)


def _pcie_error(text: str, at: Reading[datetime]) -> KernelEvent | None:
    match = _PCIE_PATTERN.search(text)
    if match is None:
        return None
    words = match["severity"].lower()
    severity = "corrected" if words.startswith("correct") else "nonfatal" if "non-fatal" in words else "fatal"
    return KernelEvent(
        kind=KernelEventKind.PCIE_ERROR,
        at=at,
        text=text,
        bus_id=parse_bus_id(match["where"]),
        severity=severity,
    )


def _machine_check(text: str, at: Reading[datetime]) -> KernelEvent | None:
    match = _MACHINE_CHECK_PATTERN.search(text)
    if match is None:
        return None
    severity = {"CE": "corrected", "UE": "fatal"}.get((match["corrected"] or "").upper())
    return KernelEvent(kind=KernelEventKind.MACHINE_CHECK, at=at, text=text, severity=severity)


def _about_process(
    kind: KernelEventKind, pattern: re.Pattern[str]
) -> Callable[[str, Reading[datetime]], KernelEvent | None]:
    """A parser for lines that name a process and its pid."""

    def parse(text: str, at: Reading[datetime]) -> KernelEvent | None:
        match = pattern.search(text)
        if match is None:
            return None
        return KernelEvent(kind=kind, at=at, text=text, pid=int(match["pid"]), process=match["process"])

    return parse


_PARSERS: tuple[Callable[[str, Reading[datetime]], KernelEvent | None], ...] = (
    _xid,
    _sxid,
    _gpu_off_bus,
    _pcie_error,
    _about_process(KernelEventKind.OUT_OF_MEMORY_KILL, _OOM_PATTERN),
    _about_process(KernelEventKind.SOFT_LOCKUP, _LOCKUP_PATTERN),
    _about_process(KernelEventKind.BLOCKED_TASK, _BLOCKED_PATTERN),
    _machine_check,
)


def _known(word: str) -> str | None:
    """A name, or None for the driver's own `<unknown>`."""
    word = word.strip().strip("'\"")
    return None if word in ("", "<unknown>") else word


def _severity(word: str) -> str:
    return "fatal" if word.lower() == "fatal" else "nonfatal"


def _link(text: str) -> int | None:
    """A link's number; the driver prints -1 for an error of no single link."""
    return int(text) if int(text) >= 0 else None


def _recovery_action(hexadecimal: str) -> str:
    number = int(hexadecimal, 16)
    return RECOVERY_ACTIONS.get(number, f"action_{number}")
