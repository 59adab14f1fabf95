"""Lines of the kernel log, parsed: pure functions over text of drivers 470 to 590 and Linux 4.15 to 6.12.

A line is recognised anywhere in a text: dmesg, a syslog file, a job's log.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import NOT_ASKED, Missing, Reading
from gpudiag.reference.kernel_words import faults_until_restart, find_kernel_words, kernel_words
from gpudiag.reference.vocabulary import RECOVERY_ACTIONS, word_of

MAX_TEXT_CHARACTERS = 1000
# A line without one of these words, or of those of `kernel_words`, is no event (`markers`).
MARKERS = (
    *("NVRM", "SXid", "PCIe Bus Error", "AER: ", "ut of memory", "soft lockup", "for more than"),
    *("hard LOCKUP", "INFO: rcu_", "Hardware Error", "EDAC", "hardware memory"),
    *("failed with error", "[10de:", "reset done", "gpudiag: ", "gpudiag[", "RIP: 0010:", "pc : "),
)

_BUS_ID = (
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-7]))?"
)
_BUS_ID_PATTERN = re.compile(rf"(?<![0-9a-f:]){_BUS_ID}(?![0-9a-f:])", re.IGNORECASE)
_KERNEL_ADDRESS_PATTERN = re.compile(
    r"\b([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2})(?:\.([0-7]))?\b", re.IGNORECASE
)
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
    r"Link (?P<link>-?\d+) \((?P<intrinfo>0x[0-9a-f]+)(?:\s+(?P<error>0x[0-9a-f]+))?",
    re.IGNORECASE,
)
# 13, pid=4711, name=python3, Graphics SM Warp Exception on (GPC 2, TPC 3, SM 0): Out Of Range Address
_PLACE_PATTERN = re.compile(r"\bGPC (?P<gpc>\d+), ?TPC (?P<tpc>\d+)")
# nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error
_SXID_PATTERN = re.compile(
    r"(?P<switch>nvswitch\d+): SXid \((?P<where>[^)]*)\): (?P<code>\d+)\b"
    r"(?:, (?P<severity>Fatal|Non-?fatal))?(?:, Link (?P<link>\d+))?",
    re.IGNORECASE,
)
_OFF_BUS_PATTERN = re.compile(r"\bfallen off the bus\b")
# The driver names the GPU two lines before it reports that it has fallen off the bus.
_GPU_AT_PATTERN = re.compile(r"NVRM: The NVIDIA GPU (?P<where>[0-9a-f:.]+)", re.IGNORECASE)
_ADDRESS_NAMED = re.compile(rb"The NVIDIA GPU ([0-9a-fA-F:.]+)")
# Before a GPU's first Xid: NVRM: GPU at PCI:0000:5d:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7
_BOARD_PATTERN = re.compile(
    r"NVRM: GPU at (?:PCI:)?(?P<where>[0-9a-f:.]+): (?P<uuid>GPU-[0-9a-f-]{36})", re.IGNORECASE
)
_PCIE_PATTERN = re.compile(
    r"(?P<where>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?): PCIe Bus Error: "
    r"severity=(?P<severity>Correct\w+|Uncorrect\w+ \((?:Non-)?Fatal\))",
    re.IGNORECASE,
)
_OOM_PATTERN = re.compile(r"[Oo]ut of memory.*?: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>[^)]*)\)")
# pcieport 0000:00:03.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:17:00.0   (before 5.3:
# id=1700)
_AER_PATTERN = re.compile(
    r"AER: (?:Multiple )?(?P<severity>Correct\w+|Uncorrect\w+ \((?:Non-)?Fatal\)) error "
    r"(?:message )?received(?: from|:)? (?P<where>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])",
    re.IGNORECASE,
)
# What the firmware reports is a record of many lines (drivers/firmware/efi/cper.c), each with its number in
# front: {3}[Hardware Error]: event severity: recoverable   ...   section_type: PCIe error   ...   device_id:
# 0000:05:00.1
_RECORD_PATTERN = re.compile(r"(?P<record>\{\d+\})\[Hardware Error\]:\s+(?P<words>.*)")
_RECORD_SEVERITY_PATTERN = re.compile(r"event severity: (?P<word>\w+)")
_RECORD_SECTION_PATTERN = re.compile(r"section[_ ]type: (?P<section>[^,]+)")
_RECORD_DEVICE_PATTERN = re.compile(r"device_id: (?P<where>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_RECORD_LINES = 24  # of one section, at most
_RECORD_SEVERITIES = {
    "corrected": "corrected",
    "info": "corrected",
    "recoverable": "nonfatal",
    "fatal": "fatal",
}
# NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x24:0x72:1447)      NVRM: GPU0 RmInitAdapter: Cannot
# initialize ... NVRM: GPU 0000:05:00.0: rm_init_adapter failed, device minor number 0 NVRM: BAR1 is 0M @ 0x0
# (PCI:0000:56:00.0)    behind: This PCI I/O region assigned to your NVIDIA device is invalid nvidia: probe of
# 0000:c1:00.0 failed with error -1      (since 6.9: nvidia 0000:c1:00.0: probe with driver nvidia ...) NVRM:
# The NVIDIA probe routine failed for 1 device(s).
_NOT_STARTED_PATTERN = re.compile(
    r"NVRM: .*(?:RmInitAdapter failed|RmInitAdapter: Cannot|rm_init_adapter failed)"
    r"|NVRM: BAR\d+ is \d+M @ 0x[0-9a-f]+"
    r"|nvidia: probe of \S+ failed with error"
    r"|nvidia \S+: probe with driver nvidia failed with error"
    r"|NVRM: The NVIDIA probe routine failed"
    r"|NVRM: None of the NVIDIA (?:graphics adapters|devices) were initialized",
    re.IGNORECASE,
)
# NVRM: ignoring the legacy GPU 0000:07:00.0      NVRM: Ignoring probe for VF 0000:0d:00.4
# NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1292)  -  NVRM: installed in this system is not supported by
# the 304.116 NVRM: The NVIDIA GeForce GT 710 GPU installed in this system is  -  NVRM:  supported through the
# NVIDIA 470.xx Legacy drivers.
_IGNORED_PATTERN = re.compile(
    r"NVRM: ignoring (?:the legacy GPU|(?P<guest>probe for VF)) (?P<where>[0-9a-f:.]+)"
    r"|NVRM: installed in this system is not supported by|"
    r"NVRM:\s+supported through the NVIDIA \S+ Legacy drivers"
    r"|NVRM: .*is ignored by this driver",
    re.IGNORECASE,
)
_NOT_SUPPORTED = "driver.gpu_not_supported"
_HARD_LOCKUP_PATTERN = re.compile(r"Watchdog detected hard LOCKUP on cpu")
# rcu: INFO: rcu_sched self-detected stall on CPU; before 4.20 without `rcu:`; also: detected expedited stalls
# on
_RCU_STALL_PATTERN = re.compile(r"INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stalls?\b")
_LOCKUP_PATTERN = re.compile(r"BUG: soft lockup - CPU#\d+ stuck for \d+s! \[(?P<process>.+):(?P<pid>\d+)\]")
_BLOCKED_PATTERN = re.compile(
    r"INFO: task (?P<process>.+):(?P<pid>\d+) blocked (?:in I/O wait )?for more than \d+ seconds"
)
# mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00000000800400   (or `Machine Check: 0
# Bank ...`) [Hardware Error]: Corrected error, no action required.  (AMD; also: Deferred error, Uncorrected,
# ...; System Fatal error) Memory failure: 0x40fa6: Killing python3:1296 due to hardware memory corruption
_MACHINE_CHECK_PATTERN = re.compile(
    r"\[Hardware Error\]:.*machine check(?:.*Bank \d+: (?P<status>[0-9a-f]{16}))?"
    r"|\[Hardware Error\]: (?P<word>Corrected|Deferred|Uncorrected|System Fatal)\b"
    r"|EDAC \S+(?: \S+)?: \d+ (?P<counted>CE|UE)\b"
    r"|(?P<memory>Uncorrected hardware memory error|due to hardware memory corruption)",
    re.IGNORECASE,
)
_LOGGED = "events logged"  # of the corrected ones too; what was not corrected is named in lines of its own
_UNCORRECTED_BIT = 1 << 61  # UC of the bank's status (Intel SDM volume 3B, IA32_MCi_STATUS; AMD alike)
_MACHINE_CHECK_SEVERITIES = {
    "ce": "corrected",
    "ue": "fatal",
    "corrected": "corrected",
    "deferred": "nonfatal",
    "uncorrected": "fatal",
    "system fatal": "fatal",
}


# What restarts the GPUs and switches that earlier lines are about. All of them, when the driver is loaded:
# NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build ...
# One of them, when the kernel finds it again on the bus, or has reset it (drivers/pci/probe.c and pci.c):
# pci 0000:5d:00.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint        nvidia 0000:5d:00.0: reset done
# `nvidia-smi --gpu-reset` writes no line, so root may write one: `echo 'gpudiag: 5d:00.0 was reset' >
# /dev/kmsg`.
_RESTART_PATTERN = re.compile(
    r"(?P<all>NVRM: loading NVIDIA UNIX\b|\bgpudiag: all GPUs were reset\b)"
    r"|\bpci (?P<found>[0-9a-f:.]+): \[10de:[0-9a-f]{4}\] type 00 class 0x03"
    r"|\s(?P<reset>[0-9a-f:]+\.0): reset done\b"
    r"|\bgpudiag: (?:GPU )?(?P<reported>[0-9a-f:.]+|GPU-[0-9a-f-]{36}) was reset\b",
    re.IGNORECASE,
)
_RESTARTABLE = (KernelEventKind.XID, KernelEventKind.GPU_OFF_BUS, KernelEventKind.SXID)

# Behind a crash of the kernel, the module that it was in: RIP: 0010:uvm_hmm_unregister_gpu+0x51/0x3a0
# [nvidia_uvm] (on Arm: pc : uvm_hmm_unregister_gpu+0x51/0x3a0 [nvidia_uvm]). A warning, which is no crash,
# has such a line too.
_CRASHED_IN_PATTERN = re.compile(r"(?:RIP: 0010:|\bpc : )\S+\+0x\S+ \[(?P<module>\w+)")
_CRASH = "kernel.crash"
_CRASH_LINES = 12  # of a crash that are kept, up to the one that names the module

_PCIE_SECTION = "pcie"
_SECTIONS = (_PCIE_SECTION, "memory", "processor")
# Lines that are not events, but name what another line is about.
_CONTEXT_PATTERNS = (
    _GPU_AT_PATTERN,
    _BOARD_PATTERN,
    _RECORD_SECTION_PATTERN,
    _RECORD_DEVICE_PATTERN,
    _RESTART_PATTERN,
    _CRASHED_IN_PATTERN,
)


def parse_each_line(lines: Iterable[tuple[Reading[datetime], str]]) -> Iterator[KernelEvent | None]:
    """Each line's event or None, of one log: earlier lines fill in the GPU, later ones its restart."""
    lines = list(lines)
    events = list(_parse_with_names(lines))
    latest: dict[str, tuple[Reading[datetime], str]] = {}  # by what restarted: an address, a UUID or all
    for place in reversed(range(len(lines))):
        at, text = lines[place]
        event = events[place]
        if event is not None and (event.kind in _RESTARTABLE or event.fault in faults_until_restart()):
            names = (event.bus_id, event.gpu_uuid, _ALL)
            later = [latest[name] for name in names if name in latest]
            events[place] = _restarted(event, later)
        elif (match := _RESTART_PATTERN.search(text)) is not None:
            latest[_restarted_part(match)] = (at, text.strip()[:MAX_TEXT_CHARACTERS])
    return iter(events)


def reports_restart(text: str) -> bool:
    """Whether the line would settle earlier lines about a GPU or a switch."""
    return _RESTART_PATTERN.search(text) is not None


_ALL = "all"


def _restarted_part(match: re.Match[str]) -> str:
    """What was restarted by that line: a PCI address, a UUID, or all."""
    if match["all"]:
        return _ALL
    name: str = match["found"] or match["reset"] or match["reported"]
    return parse_bus_id(name) or f"GPU-{name[len('GPU-') :].lower()}"


def _restarted(event: KernelEvent, later: list[tuple[Reading[datetime], str]]) -> KernelEvent:
    """The event with the first line that reports its restart; `later` are the first of each kind after it."""
    if not later:
        return event
    at, text = min(later, key=lambda one: _seconds(one[0]))
    return replace(event, restarted_by=text, restarted_at=None if isinstance(at, Missing) else at)


def _seconds(at: Reading[datetime]) -> float:
    return float("inf") if isinstance(at, Missing) else at.timestamp()


def _parse_with_names(lines: list[tuple[Reading[datetime], str]]) -> Iterator[KernelEvent | None]:
    """Each line's event or None, with the GPU that an earlier line names."""
    gpu_named_before: str | None = None
    boards: dict[str, str] = {}
    for place, (at, text) in enumerate(lines):
        named, board = _GPU_AT_PATTERN.search(text), _BOARD_PATTERN.search(text)
        if named:
            gpu_named_before = parse_bus_id(named["where"])
        if board and (bus_id := parse_bus_id(board["where"])):
            boards[bus_id] = board["uuid"]
        event = parse_kernel_line(text, at)
        if event is None:
            yield None
        elif (record := _RECORD_PATTERN.search(text)) and _RECORD_SEVERITY_PATTERN.search(text):
            following = (line for _, line in lines[place + 1 : place + _RECORD_LINES])
            yield _of_record(event, record["record"], following)
        elif event.kind is KernelEventKind.GPU_OFF_BUS and event.bus_id is None and gpu_named_before:
            yield _off_bus(text, at, gpu_named_before)
        elif event.kind is KernelEventKind.GPU_IGNORED and event.bus_id is None and "not supported" in text:
            yield replace(event, bus_id=gpu_named_before)
        elif event.fault == _CRASH:
            following = (line for _, line in lines[place : place + _CRASH_LINES])
            found = (match["module"] for line in following if (match := _CRASHED_IN_PATTERN.search(line)))
            yield replace(event, unit=next(found, None))
        elif event.kind is KernelEventKind.XID and event.gpu_uuid is None and event.bus_id in boards:
            yield replace(event, gpu_uuid=boards[event.bus_id])
        else:
            yield event


def parse_kernel_line(text: str, at: Reading[datetime]) -> KernelEvent | None:
    """The event that one line reports; None for any other line."""
    text = text.strip()[:MAX_TEXT_CHARACTERS]
    for parse in _PARSERS:
        event = parse(text, at)
        if event is not None:
            return event
    return None


def markers() -> tuple[str, ...]:
    """Texts of which every line that is an event holds one; other lines are skipped."""
    return (*MARKERS, *(part for words in kernel_words() for part in words.parts))


def has_event(text: str) -> bool:
    """Whether a line is an event, or names the GPU that the next one is about."""
    if any(pattern.search(text) for pattern in _CONTEXT_PATTERNS):
        return True
    return parse_kernel_line(text, NOT_ASKED) is not None


def gpu_named_last(log: bytes, end: int) -> bytes:
    """The address of the GPU that the driver named last, within 1000 bytes before `end`; empty for none."""
    named = log.rfind(b"The NVIDIA GPU ", max(0, end - 1000), end)
    match = _ADDRESS_NAMED.match(log, named) if named >= 0 else None
    return match[1] if match else b""


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
    nvlink, place = _NVLINK5_PATTERN.search(rest), _PLACE_PATTERN.search(rest)
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
        error=int(nvlink["error"], 16) if nvlink and nvlink["error"] else None,
        place=f"GPC {int(place['gpc'])}, TPC {int(place['tpc'])}" if place else None,
        link=_link(nvlink["link"]) if nvlink else None,
        recovery_action=word_of(RECOVERY_ACTIONS, int(recovery["action"], 16)) if recovery else None,
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


def _gpu_not_started(text: str, at: Reading[datetime]) -> KernelEvent | None:
    if not _NOT_STARTED_PATTERN.search(text):
        return None
    return KernelEvent(
        kind=KernelEventKind.GPU_NOT_STARTED,
        at=at,
        text=text,
        bus_id=parse_bus_id(text.replace("PCI:", "")),
        fault=find_kernel_words(text),
    )


def _gpu_ignored(text: str, at: Reading[datetime]) -> KernelEvent | None:
    match = _IGNORED_PATTERN.search(text)
    if match is None:
        return None
    return KernelEvent(
        kind=KernelEventKind.GPU_IGNORED,
        at=at,
        text=text,
        bus_id=parse_bus_id(text),
        fault=None if match["guest"] else _NOT_SUPPORTED,
    )


def _of_record(event: KernelEvent, record: str, following: Iterable[str]) -> KernelEvent:
    """The event of a firmware record, with what it is about by its lines: PCIe device, memory, processor."""
    for text in following:
        match = _RECORD_PATTERN.search(text)
        if match is None or match["record"] != record:
            continue
        if _RECORD_SEVERITY_PATTERN.search(match["words"]):
            break  # the next record of that number
        section = _RECORD_SECTION_PATTERN.search(match["words"])
        if section:
            words = section["section"].lower()
            event = replace(event, unit=next((one for one in _SECTIONS if one in words), None))
        device = _RECORD_DEVICE_PATTERN.search(match["words"])
        if device and event.unit == _PCIE_SECTION:
            bus_id = parse_bus_id(device["where"])
            return replace(event, kind=KernelEventKind.PCIE_ERROR, bus_id=bus_id, unit=None)
    return event


def _pcie_error(text: str, at: Reading[datetime]) -> KernelEvent | None:
    match = _PCIE_PATTERN.search(text) or _AER_PATTERN.search(text)
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
    record = _RECORD_PATTERN.search(text)
    if record:  # one of its lines gives the severity; `_of_record` reads the others
        found = _RECORD_SEVERITY_PATTERN.search(record["words"])
        if found is None:
            return None
        severity = _RECORD_SEVERITIES.get(found["word"].lower(), "fatal")
        return KernelEvent(kind=KernelEventKind.MACHINE_CHECK, at=at, text=text, severity=severity)
    match = _MACHINE_CHECK_PATTERN.search(text)
    if match is None:
        return None
    return KernelEvent(
        kind=KernelEventKind.MACHINE_CHECK,
        at=at,
        text=text,
        severity=_severity_of_machine_check(match, text),
        unit="memory" if match["memory"] else None,
    )


def _severity_of_machine_check(match: re.Match[str], text: str) -> str | None:
    if match["status"]:
        return "fatal" if int(match["status"], 16) & _UNCORRECTED_BIT else "corrected"
    if match["memory"]:
        return "fatal"
    if _LOGGED in text:
        return "corrected"
    return _MACHINE_CHECK_SEVERITIES.get((match["word"] or match["counted"] or "").lower())


def _known_fault(text: str, at: Reading[datetime]) -> KernelEvent | None:
    fault = find_kernel_words(text)
    if fault is None:
        return None
    # In front of a colon an address may lack its function, as in the driver's own lines: `nvidia 0000:41:00:
    # AER ...`.
    named = _KERNEL_ADDRESS_PATTERN.search(text)
    bus_id = f"{named[1]:0>8}:{named[2]}.{named[3] or 0}".lower() if named else parse_bus_id(text)
    return KernelEvent(kind=KernelEventKind.FAULT, at=at, text=text, bus_id=bus_id, fault=fault)


def _without_process(
    kind: KernelEventKind, pattern: re.Pattern[str]
) -> Callable[[str, Reading[datetime]], KernelEvent | None]:
    """A parser for lines that are one kind of event, and name no process."""
    return lambda text, at: KernelEvent(kind=kind, at=at, text=text) if pattern.search(text) else None


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
    _gpu_not_started,
    _gpu_ignored,
    _pcie_error,
    _about_process(KernelEventKind.OUT_OF_MEMORY_KILL, _OOM_PATTERN),
    _about_process(KernelEventKind.SOFT_LOCKUP, _LOCKUP_PATTERN),
    _without_process(KernelEventKind.HARD_LOCKUP, _HARD_LOCKUP_PATTERN),
    _without_process(KernelEventKind.RCU_STALL, _RCU_STALL_PATTERN),
    _about_process(KernelEventKind.BLOCKED_TASK, _BLOCKED_PATTERN),
    _machine_check,
    _known_fault,
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
