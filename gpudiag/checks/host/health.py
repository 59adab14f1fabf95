"""Checks of the host's own health: processors, NUMA, disks, clock, memory errors."""

from collections.abc import Iterator
from functools import partial
from typing import TypeGuard

from gpudiag.checks import limits
from gpudiag.checks.gpu.availability import is_granted
from gpudiag.checks.per_device import answering
from gpudiag.checks.registry import (
    Basis,
    FindingKind,
    Judgement,
    check,
    could_not_look,
    does_not_apply,
    judged,
    not_readable,
)
from gpudiag.checks.subjects import device_subject, host_finding, host_state, is_virtual, name_device
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, FileSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host_state import Filesystem, ProcessorLayout, parse_processor_list
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.units import format_size

_KERNEL = "the Linux kernel's own files"
_TSC = "tsc"  # the processor's own counter; the others cost an access to the chipset for each reading
_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.HOST)
_HOST_DISK_BASIS = Basis(
    reads="statvfs of /, of the temporary, working, home and cache folders: bytes, files, read-only.",
    limit=(
        f"{limits.DISK_FULL_SHARE:.0%} free (FAIL), {limits.DISK_LOW_SHARE:.0%} free (WARN), bytes and files"
    ),
    look_also=("df -h", "df -i", "dmesg -T | grep -i -e ext4 -e xfs -e nvme"),
)
_HOST_CLOCK_BASIS = Basis(
    reads="/sys/devices/system/clocksource, and adjtimex(2).",
    limit="tsc on bare metal where the processor has it; set by a time server",
    look_also=("timedatectl", "dmesg -T | grep -i tsc"),
)
GOVERNOR = _kind(
    code="host.governor",
    outcome=Outcome.WARN,
    meaning="The processors' frequency is not set for performance: launches and data loading are slower.",
    remedy="Set it as root: `cpupower frequency-set -g performance`.",
    basis=Basis(
        reads="cpufreq/scaling_governor of every processor.",
        limit="performance, on bare-metal servers",
        look_also=("cpupower frequency-info",),
    ),
)
NUMA_FAR = _kind(
    code="host.numa_far",
    outcome=Outcome.WARN,
    owner=Owner.JOB,
    meaning="None of the processors that this process may use is near this GPU: every copy crosses sockets.",
    remedy="Bind each rank to its GPU's NUMA node (`numactl --cpunodebind`, Slurm `--gpu-bind=closest`).",
    basis=Basis(
        reads="The NUMA node of each GPU, the processors of each node, and those that this process may use.",
        limit="at least one allowed processor on the GPU's NUMA node",
        look_also=("nvidia-smi topo -m", "numactl --show"),
    ),
)
DISK_FULL = _kind(
    code="host.disk_full",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="A file system that jobs write to is full or nearly full, in bytes or in files.",
    remedy="Free some space there: checkpoints, caches (`du -xsh * | sort -h`), container images.",
    basis=_HOST_DISK_BASIS,
)
DISK_LOW = _kind(
    code="host.disk_low",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="A file system that jobs write to will soon be full.",
    remedy="Free some space there, or write checkpoints elsewhere.",
    basis=_HOST_DISK_BASIS,
)
DISK_READ_ONLY = _kind(
    code="host.disk_read_only",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="A file system that jobs write to is mounted read-only, as the kernel does after errors on it.",
    remedy="Look for its errors in `dmesg`, repair it, and mount it again.",
    basis=_HOST_DISK_BASIS,
)
CLOCK_SOURCE = _kind(
    code="host.clock_source",
    outcome=Outcome.WARN,
    meaning=(
        "The kernel uses a slow clock source although the processor has a"
        " fast one: every timestamp costs more."
    ),
    remedy="See in `dmesg | grep -i tsc` why the kernel gave it up; a firmware update often fixes it.",
    basis=_HOST_CLOCK_BASIS,
)
CLOCK_UNSYNCHRONIZED = _kind(
    code="host.clock_unsynchronized",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="No time server sets this machine's clock: logs of several machines cannot be ordered by time.",
    remedy="Start chrony or systemd-timesyncd.",
    basis=_HOST_CLOCK_BASIS,
)
MEMORY_UNCORRECTED = _kind(
    code="host.memory_uncorrected",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_MEMORY,
    owner=Owner.HARDWARE,
    meaning="The host's memory lost data that ECC could not restore, since the machine was started.",
    remedy=(
        "[hardware] Drain the machine; find the module (`edac-util -v`, `ras-mc-ctl --errors`) and replace"
        " it."
    ),
    stated=True,
    basis=Basis(
        reads="ue_count of every memory controller in /sys/devices/system/edac.",
        limit="0",
        look_also=("edac-util -v", "host.memory_fault", "dmesg -T | grep -i -e edac -e mce"),
    ),
)


@check(
    "host.governor",
    title="processors are set for performance",
    needs=("gpus", "host_state"),
    reports=(GOVERNOR,),
    readings=("/sys/devices/system/cpu/*/cpufreq/scaling_governor",),
    confirmed=_KERNEL,
)
def host_governor(context: Context) -> Judgement:
    """WARN for another governor than performance, where the machine offers a choice."""
    layout = host_state(context).processor_layout
    if isinstance(layout, Missing):
        return not_readable("the processors", layout)
    if layout.virtual_machine:
        return does_not_apply("the hypervisor sets the frequency")
    if isinstance(layout.governors, Missing):
        return not_readable("frequency governors", layout.governors)
    if _is_laptop(context):
        return does_not_apply("a laptop saves power on purpose")
    others = [governor for governor in layout.governors if governor != "performance"]
    if not others:
        return judged()
    evidence = Evidence("scaling_governor", ", ".join(others), limit="performance", source="cpufreq")
    return judged(host_finding(context, GOVERNOR, f"the frequency governor is {', '.join(others)}", evidence))


@check(
    "host.numa",
    title="processors near each GPU may be used",
    needs=("gpus", "host_state"),
    reports=(NUMA_FAR,),
    readings=("numa_node", "Cpus_allowed_list", "/sys/devices/system/node/node*/cpulist"),
    confirmed=_KERNEL,
)
def host_numa(context: Context) -> Judgement:
    """WARN for a GPU whose NUMA node has no processor that this process may use."""
    layout = host_state(context).processor_layout
    if isinstance(layout, Missing):
        return not_readable("the processors", layout)
    if isinstance(layout.allowed, Missing) or isinstance(layout.numa_nodes, Missing):
        missing = layout.allowed if isinstance(layout.allowed, Missing) else layout.numa_nodes
        assert isinstance(missing, Missing)  # noqa: S101 - one of the two is
        return not_readable("processors and NUMA nodes", missing)
    if len(layout.numa_nodes) < 2:
        return does_not_apply("the machine has one NUMA node")
    if all(isinstance(device.numa_node, Missing) for device in answering(context.snapshot)):
        return does_not_apply("the firmware names no NUMA node for the GPUs")
    return judged(*_far_gpus(context, layout))


@check(
    "host.disk",
    title="the disks have room, and are writable",
    needs=("host_state",),
    reports=(DISK_READ_ONLY, DISK_FULL, DISK_LOW),
    readings=("statvfs of /, /tmp, the working, home and cache folders",),
    confirmed=_KERNEL,
)
def host_disk(context: Context) -> Judgement:
    """FAIL for a full or read-only file system, WARN for one that is nearly full."""
    filesystems = host_state(context).filesystems
    if isinstance(filesystems, Missing):
        return not_readable("file systems", filesystems)
    readable = [one for one in filesystems if not isinstance(one.total_bytes, Missing)]
    if not readable:
        return could_not_look("no file system could be read")
    return judged(*(finding for one in readable for finding in _judge_filesystem(context, one)))


@check(
    "host.clock",
    title="the clock is fast to read, and correct",
    needs=("host_state",),
    reports=(CLOCK_SOURCE, CLOCK_UNSYNCHRONIZED),
    readings=("/sys/devices/system/clocksource", "adjtimex"),
    confirmed=_KERNEL,
)
def host_clock(context: Context) -> Judgement:
    """WARN for a slow clock source on bare metal, and for a clock that no service sets."""
    state = host_state(context)
    clock = state.clock
    if isinstance(clock, Missing):
        return not_readable("the clock", clock)
    if isinstance(clock.source, Missing) and isinstance(clock.synchronized, Missing):
        return not_readable("the clock", clock.source)
    findings = []
    set_here = context.snapshot.machine.container is None and not is_virtual(state)
    slow = not isinstance(clock.source, Missing) and clock.source != _TSC
    if slow and "x86" in _architecture(context) and not is_virtual(state):
        known = () if isinstance(clock.sources_available, Missing) else clock.sources_available
        source = "/sys/devices/system/clocksource"
        evidence = Evidence("clocksource", str(clock.source), limit=_TSC, source=source)
        available = Evidence("available", " ".join(known), source=source)
        message = f"the kernel's clock source is {clock.source}"
        findings.append(host_finding(context, CLOCK_SOURCE, message, evidence, available))
    if clock.synchronized is False and set_here:
        evidence = Evidence("synchronized", False, limit=True, source="adjtimex")
        findings.append(
            host_finding(context, CLOCK_UNSYNCHRONIZED, "no time server sets the clock", evidence)
        )
    if set_here and not findings and _is_refused(clock.synchronized):
        return not_readable("whether a time server sets the clock", clock.synchronized)
    return judged(*findings)


def _is_refused(reading: Reading[bool]) -> TypeGuard[Missing]:
    """Whether it should have been readable: a sandbox that forbids the call is no clock that is well."""
    return isinstance(reading, Missing) and reading.reason is not MissingReason.SOURCE_ABSENT


@check(
    "host.memory",
    title="the host's memory has no uncorrectable errors",
    needs=("host_state",),
    reports=(MEMORY_UNCORRECTED,),
    readings=("/sys/devices/system/edac/mc/mc*/ue_count",),
)
def host_memory(context: Context) -> Judgement:
    """FAIL for uncorrectable errors of the host's memory since it was started."""
    errors = host_state(context).memory_errors
    if isinstance(errors, Missing):
        return not_readable("memory controllers (EDAC)", errors)
    if not errors.uncorrected:
        return judged()
    evidence = Evidence("ue_count", errors.uncorrected, "errors", 0, "/sys/devices/system/edac")
    message = f"{errors.uncorrected} uncorrectable errors of the host's memory since boot"
    return judged(host_finding(context, MEMORY_UNCORRECTED, message, evidence))


def _far_gpus(context: Context, layout: ProcessorLayout) -> Iterator[Finding]:
    assert not isinstance(layout.allowed, Missing)  # noqa: S101 - the caller has looked
    assert not isinstance(layout.numa_nodes, Missing)  # noqa: S101
    allowed = parse_processor_list(layout.allowed)
    nodes = {node.node: parse_processor_list(node.processors) for node in layout.numa_nodes}
    for device in answering(context.snapshot):
        node = device.numa_node
        if not is_granted(context.snapshot, device):
            continue
        if isinstance(node, Missing) or node not in nodes or not nodes[node] or nodes[node] & allowed:
            continue
        message = (
            f"{name_device(device)} is on NUMA node {node}, and this process may use none of its processors"
        )
        evidence = Evidence("numa_node", node, source=f"sysfs; allowed processors: {layout.allowed}")
        yield NUMA_FAR.finding(device_subject(context.snapshot, device), message, evidence)


def _judge_filesystem(context: Context, one: Filesystem) -> Iterator[Finding]:
    subject, source = FileSubject(one.path, 1), f"statvfs {one.path}"
    if one.read_only is True:
        message = f"{one.path} is mounted read-only"
        yield DISK_READ_ONLY.finding(
            subject, message, Evidence("read_only", True, limit=False, source=source)
        )
        return
    for free, total, words in (
        (one.available_bytes, one.total_bytes, "bytes"),
        (one.files_available, one.files_total, "files"),
    ):
        if isinstance(free, Missing) or isinstance(total, Missing) or total == 0:
            continue
        share = free / total
        kind = DISK_FULL if share < limits.DISK_FULL_SHARE else DISK_LOW
        if share < limits.DISK_LOW_SHARE:
            left = format_size(free) if words == "bytes" else f"{free} files"
            limit = limits.DISK_FULL_SHARE if kind is DISK_FULL else limits.DISK_LOW_SHARE
            evidence = Evidence(f"{words}_free_share", share, None, limit, source)
            yield kind.finding(subject, f"{one.path}: {left} left, {share:.1%} of all", evidence)
            return


def _is_laptop(context: Context) -> bool:
    names = (device.name for device in context.snapshot.devices)
    return any("Laptop" in name for name in names if not isinstance(name, Missing))


def _architecture(context: Context) -> str:
    architecture = context.snapshot.machine.processor_architecture
    return "" if isinstance(architecture, Missing) else architecture
