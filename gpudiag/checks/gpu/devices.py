"""Checks of the GPUs themselves: not initialised, lost, hung, fewer than there should be."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from gpudiag.checks.gpu.availability import granted
from gpudiag.checks.host.kernel_faults import WINDOW
from gpudiag.checks.logged_reasons import with_logged_reason
from gpudiag.checks.needs import NEEDS, NO_GPU
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    Restated,
    check,
    could_not_look,
    does_not_apply,
    judged,
)
from gpudiag.checks.subjects import device_subject, name_device, name_pci_gpu, short_bus_id
from gpudiag.checks.traces import pci_gpus, traces_for
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host import PciDevice, gpus_on_bus
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing, MissingReason, is_without_word
from gpudiag.model.untrusted_text import shorten_text
from gpudiag.reference.reading_names import explain_missing
from gpudiag.reference.vocabulary import UNFIT_ACTIONS, name_action

# --- GPUs that the driver could not initialise

_BASIS = Basis(
    reads="Lines of the kernel log of this boot: RmInitAdapter failed, probe failed with an error, a PCI"
    " region (BAR) that is invalid; against the GPUs that NVML lists.",
    limit="None for a GPU that is not listed; 24 hours for one that works now (our choice).",
    look_also=(
        "dmesg -T | grep -e NVRM -e nvidia",
        "gpu.missing",
        "xid 79",
        "xid 119",
        "lspci -vvs 5d:00.0 | grep Region",
    ),
)
_kind = partial(FindingKind, category=Category.HW_OTHER, owner=Owner.HARDWARE, stated=True, basis=_BASIS)
NOT_STARTED = _kind(
    code="gpu.not_started",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning=(
        "The kernel log shows that the driver could not start a GPU (RmInitAdapter failed, probe failed,"
        " a PCI region that is invalid), and the driver does not list it."
    ),
    remedy=(
        "[hardware] [power cycle: Power-cycle the machine]; if it fails again, reseat or replace the GPU."
        " Where the line names a PCI"
        " region (BAR), look at the firmware's settings (Above 4G Decoding, MMIO size) and `pci=realloc`."
    ),
)
START_FAILED = _kind(
    code="gpu.start_failed",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning=(
        "According to the kernel log, the driver could not start a GPU within the last day;"
        " it may list fewer GPUs than the machine has."
    ),
    remedy=(
        "Read `dmesg -T | grep -e NVRM -e nvidia` around that line;"
        " if it comes back, [power cycle: power-cycle the machine]."
    ),
)
# These report that the driver does not list the GPU; the log shows why.
_STATED_BY = ("gpu.missing", "gpu.gone", "gpu.lost")


@check(
    "gpu.started",
    title="the driver could start every GPU",
    needs=("kernel_log",),
    reports=(NOT_STARTED, START_FAILED),
    readings=("kernel_log", "devices", "pci_devices"),
    confirmed="the NVIDIA driver's own messages",
)
def gpu_started(context: Context) -> Judgement:
    """FAIL for a GPU whose start failed in the log and that is not listed; WARN for one that works now."""
    snapshot = context.snapshot
    log = snapshot.kernel_log
    assert not isinstance(log, Missing)  # noqa: S101 - the need saw to it
    events = _starts_that_failed(log)
    if snapshot.source("nvml").state not in (SourceState.OK, SourceState.NO_DEVICES):
        return judged()  # no GPU is listed, and source.nvml reports why
    listed = [device for device in snapshot.devices if not isinstance(device.id.nvml_index, Missing)]
    if pci_gpus(snapshot) and not listed:
        return judged()  # gpu.count reports that none is listed
    found = list(_judge(snapshot, events))
    return replace(judged(*found), restated=tuple(Restated(one, _STATED_BY, _RESTATED) for one in found))


def _starts_that_failed(log: Iterable[KernelEvent]) -> list[KernelEvent]:
    """The lines about GPUs that the driver could not start; not cards that it ignores (legacy ones)."""
    lines = list(log)
    ignored = {event.bus_id for event in lines if event.kind is KernelEventKind.GPU_IGNORED}
    return [
        event
        for event in lines
        if event.kind is KernelEventKind.GPU_NOT_STARTED
        and event.bus_id not in ignored
        and not (ignored and event.bus_id is None)
    ]


_RESTATED = "the kernel log shows that it did not start"


def _judge(snapshot: Snapshot, events: list[KernelEvent]) -> Iterator[Finding]:
    """One finding for each GPU that the lines name; one for the machine where none of them names any."""
    by_gpu: dict[str | None, list[KernelEvent]] = {}
    for event in events:
        by_gpu.setdefault(event.bus_id, []).append(event)
    unnamed = by_gpu.pop(None, [])
    for bus_id, about in by_gpu.items():
        device = next((device for device in snapshot.devices if device.id.bus_id == bus_id), None)
        finding = _finding(snapshot, bus_id or "", device, about)
        if finding is not None:
            yield finding
    recent = [event for event in unnamed if _is_recent(snapshot, event)]
    if recent and not by_gpu:
        message = f"the driver could not start a GPU ({_words(recent[-1])})"
        yield START_FAILED.finding(HostSubject(snapshot.host), message, *_facts(recent))


def _finding(
    snapshot: Snapshot, bus_id: str, device: Device | None, events: list[KernelEvent]
) -> Finding | None:
    if device is not None and not isinstance(device.id.nvml_index, Missing):
        if not _is_recent(snapshot, events[-1]):
            return None
        message = f"{name_device(device)} did not start, and is listed now ({_words(events[-1])})"
        return START_FAILED.finding(device_subject(snapshot, device), message, *_facts(events))
    absent = Missing(MissingReason.SOURCE_ABSENT)
    subject = DeviceSubject(absent if device is None else device.id.uuid, bus_id, absent, snapshot.host)
    message = f"the GPU at {short_bus_id(bus_id)} did not start ({_words(events[-1])})"
    return with_logged_reason(snapshot, NOT_STARTED.finding(subject, message, *_facts(events)))


def _is_recent(snapshot: Snapshot, event: KernelEvent) -> bool:
    return isinstance(event.last_at, Missing) or snapshot.taken_at - event.last_at <= WINDOW


def _words(event: KernelEvent) -> str:
    """The line without the prefix that every line of the driver has."""
    return shorten_text(event.text.removeprefix("NVRM: ").rstrip("!."), 120)


def _facts(events: list[KernelEvent]) -> Iterator[Evidence]:
    last = events[-1]
    yield Evidence("line", last.text, source="kernel log")
    yield Evidence(
        "count", sum(1 + event.more for event in events), limit=0, source="kernel log of this boot"
    )
    if not isinstance(last.last_at, Missing):
        yield Evidence("at", last.last_at.isoformat(timespec="seconds"), source="kernel log")


# --- GPUs that are lost, hung or fewer than there should be

_GPU_RECOVERY_NEEDED_BASIS = Basis(
    reads="NVML field 230, the driver's recovery action: none, GPU reset, node reboot, drain P2P, drain"
    " and reset, bus reset, system reboot; return code 16 (reset required) of any NVML call.",
    limit="None: the driver itself asks for it. Drain P2P and the IMEX domain are WARN; every other"
    " action is FAIL, even one that gpudiag does not know.",
    look_also=("nvidia-smi -q | grep -A1 'GPU Recovery Action'", "xid 154", "xid.hardware"),
)
_gpu_kind = partial(FindingKind, outcome=Outcome.FAIL, severity=Severity.ISOLATE, owner=Owner.HOST)
GPU_LOST = _gpu_kind(
    code="gpu.lost",
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    meaning="The GPU no longer answers on the bus (NVML return code 15, GPU is lost).",
    remedy=(
        "[hardware] [power cycle: Drain the machine and power-cycle it];"
        " if the GPU is lost again, have it replaced."
    ),
    basis=Basis(
        reads="Every NVML call on the GPU; return code 15 (GPU is lost) or 28 (GPU not found)"
        " from any of them.",
        limit="None: NVML itself reports it.",
        look_also=(
            "xid 79",
            "xid 143",
            "gpu.missing",
            "dmesg -T | grep -e NVRM -e AER",
            "the server's own event log (ipmitool sel list)",
        ),
    ),
)
GPU_RECOVERY_NEEDED = FindingKind(
    code="gpu.recovery_needed",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning=(
        "The driver reports that the GPU must be reset, or the machine rebooted, before it is"
        " used again (its recovery action, or NVML return code 16). A recovery action that"
        " gpudiag does not know counts as one."
    ),
    remedy="Drain the GPU and do what the driver asks for.",
    basis=_GPU_RECOVERY_NEEDED_BASIS,
)
GPU_RECOVERY_ADVISED = FindingKind(
    code="gpu.recovery_advised",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning="The driver asks for a recovery step that leaves the GPU usable.",
    remedy="Let running jobs end, then do what the driver asks for.",
    basis=_GPU_RECOVERY_NEEDED_BASIS,
)
GPU_HUNG = _gpu_kind(
    code="gpu.hung",
    category=Category.SW_OTHER,
    meaning="The GPU was not read within the deadline: a call into the driver hangs, or each call is slow.",
    remedy=(
        "[host] Try `gpudiag list --deadline 30`; if it hangs there too, look at"
        " `dmesg`, drain the machine and reboot it."
    ),
    basis=Basis(
        reads="Whether each NVML call on the GPU returns, in a child process with a thread per GPU.",
        limit="`--deadline`: 1.5 s for the bare command, 5 s elsewhere. Busy drivers have been"
        " seen to take 2 s.",
        look_also=("xid 119", "xid 62", "cat /proc/PID/stack of a process in state D", "host.blocked_task"),
    ),
)
GPU_NOT_READ = _gpu_kind(
    code="gpu.not_read",
    outcome=Outcome.ERROR,
    severity=Severity.UNKNOWN,
    category=Category.SW_OTHER,
    meaning=(
        "The driver lists the GPU and gives no readings for it, for a reason other than a loss or a hang."
    ),
    remedy="Run `nvidia-smi -q -i INDEX` as root to see the driver's own words.",
    basis=Basis(
        reads="The return code of the first NVML calls on the GPU.",
        limit="None: any code but success, a loss or a hang.",
        look_also=("nvidia-smi -q -i INDEX", "dmesg -T | grep -i nvrm"),
    ),
)
GPU_ATTACHING = _gpu_kind(
    code="gpu.attaching",
    outcome=Outcome.ERROR,
    severity=Severity.UNKNOWN,
    category=Category.SW_OTHER,
    meaning=(
        "The driver was still attaching the GPU when time ran out: nothing is known about it"
        " yet. Without persistence mode it does so for the first program that asks, one GPU"
        " after the other, 1 to 5 seconds each."
    ),
    remedy=(
        "[driver] Ask again, and give it time: `gpudiag list --deadline 60`. Run nvidia-persistenced,"
        " and it happens only once per boot."
    ),
    basis=Basis(
        reads="Whether the GPU's first handle (nvmlDeviceGetHandleByIndex) has come:"
        " without persistence mode the driver starts the GPU for it.",
        limit="5 seconds for each GPU that is still missing; published figures are 1 to 4.3 s a GPU.",
        look_also=(
            "nvidia-smi -q -i INDEX | grep Persistence",
            "systemctl status nvidia-persistenced",
            "gpudiag list --deadline 60",
        ),
    ),
)
GPU_MISSING = _gpu_kind(
    code="gpu.missing",
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    meaning="The PCI bus shows a GPU that the driver does not list.",
    remedy=(
        "Look for its bus id in `dmesg` (Xid 79, RmInitAdapter failed); [power cycle:"
        " power-cycle the machine]."
    ),
    basis=Basis(
        reads=(
            "NVIDIA devices of class 0300 and 0302 in /sys/bus/pci, their drivers and physical functions,"
            " against the GPUs that NVML lists; the kernel log; the GPUs of the last good run."
        ),
        limit=(
            "Each that NVIDIA's driver has must be in both; so must one that no driver has and that"
            " failed to start, or that was here before. No fault: virtual functions, GPUs of virtual"
            " machines (vfio-pci), cards that the driver ignores, GPUs outside a job's control group or"
            " without a node in /dev, guests with confidential computing. Inside a container the device"
            " nodes count instead of the bus."
        ),
        look_also=("lspci -nnk -d 10de:", "xid 79", "xid 143", "gpu.lost"),
    ),
)
GPU_COUNT = _gpu_kind(
    code="gpu.count",
    category=Category.HW_OTHER,
    meaning="The number of GPUs differs from what the machine has, the job was given or the user expects.",
    remedy="Compare with `lspci -d 10de:` and with what the scheduler or the container was given.",
    basis=Basis(
        reads="The number of GPUs that NVML lists.",
        limit="`--expect-gpus`, else `--at-least-gpus` and the PCI bus, else what the"
        " allocation grants (SLURM_GPUS_ON_NODE, SLURM_JOB_GPUS, CUDA_VISIBLE_DEVICES,"
        " NVIDIA_VISIBLE_DEVICES), else the PCI bus.",
        look_also=("lspci -d 10de:", "env | grep -e SLURM -e VISIBLE", "gpu.missing", "cuda.no_device"),
    ),
)

_RESET_FIRST = (
    "Drain the GPU, end what holds it, and [reset: reset it: `nvidia-smi -i INDEX -r`;"
    " reboot the machine where that is refused]."
)
_UNKNOWN_ACTION = (
    "Drain the GPU; `nvidia-smi -i INDEX -q` has NVIDIA's word for it (GPU Recovery"
    " Action). A newer gpudiag may know it."
)
# The faults for which the driver asks for a recovery, worst first: where one is found, it is the fault, and
# what the driver asks for is its remedy.
ASKED_FOR_BY = tuple(
    """
    memory.unrepairable memory.row_remap_failed ecc.sram_threshold_exceeded ecc.sram_uncorrected
    ecc.uncorrected_rising ecc.uncorrected_volatile nvlink.link_down nvlink.recovery_failed xid.repeated
    xid.hardware memory.row_remap_pending memory.page_retirement_pending memory.repair_pending
    """.split()
)


_NONE_LISTED = "NVML lists no GPU"


@check(
    "gpu.lost",
    title="every GPU is on the bus and asks for no recovery",
    needs=("gpus",),
    reports=(GPU_LOST, GPU_RECOVERY_NEEDED, GPU_RECOVERY_ADVISED),
    readings=("return codes of every NVML call", "recovery_action (NVML field 230)"),
    confirmed=f"nvidia-smi -q of A100, H100, B200 and T4 (recovery action: none); {BOTH_GPUS}",
)
def gpu_lost(context: Context) -> Judgement:
    """A finding for each GPU that is lost, or that the driver wants recovered."""
    if not _listed(context.snapshot):
        return does_not_apply(_NONE_LISTED)
    found = (_lost(context.snapshot, device) for device in _listed(context.snapshot))
    findings = tuple(finding for finding in found if finding is not None)
    return judged(*findings, restated=tuple(map(_request, findings)))


@check(
    "gpu.hung",
    title="every GPU answers within the deadline",
    needs=("gpus",),
    reports=(GPU_HUNG, GPU_ATTACHING, GPU_NOT_READ),
    readings=("whether NVML calls return", "their return codes"),
    confirmed="the clock of the parent process",
)
def gpu_hung(context: Context) -> Judgement:
    """A finding for each GPU that did not answer in time, or not at all for another reason."""
    if not _listed(context.snapshot):
        return does_not_apply(_NONE_LISTED)
    found = (_silent(context.snapshot, device) for device in _listed(context.snapshot))
    return judged(*(finding for finding in found if finding is not None))


@check(
    "gpu.count",
    title="all GPUs that should be here are here",
    reports=(GPU_MISSING, GPU_COUNT),
    readings=("NVML's list", "pci_devices", "device_nodes", "allocation variables"),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4; the Linux kernel's PCI bus",
)
def gpu_count(context: Context) -> Judgement:
    """Findings where NVML lists fewer GPUs than the bus, the allocation or the user expects.

    Without a GPU and a trace of one: PASS if the user expects none, else ERROR (decision 0001).
    """
    if context.snapshot.source("nvml").state is SourceState.NOT_ASKED:
        return does_not_apply("NVML was not asked")
    if not traces_for(context):
        none_expected = 0 in (context.expected_gpus, context.at_least_gpus)
        return judged() if none_expected else could_not_look(NO_GPU)
    absent = NEEDS["nvml"](context)
    if absent is not None:
        return absent
    listed = _listed(context.snapshot)
    expected = context.expected_gpus
    if not isinstance(expected, Missing):
        return judged(*_against(context.snapshot, len(listed), expected, "--expect-gpus"))
    least = context.at_least_gpus
    if not isinstance(least, Missing):
        return judged(*_fewer_than(context, listed, least))
    grant = granted(context.snapshot.machine.allocation)
    if grant is not None and len(listed) < grant[1]:
        return judged(*_against(context.snapshot, len(listed), grant[1], grant[0]))
    if grant is not None and len(listed) == grant[1]:
        return judged()
    return judged(*_not_in_nvml(context, listed))


def _lost(snapshot: Snapshot, device: Device) -> Finding | None:
    responding, action = device.responding, device.recovery_action
    subject = device_subject(snapshot, device)
    if isinstance(responding, Missing):
        if responding.reason is MissingReason.RESET_REQUIRED:
            return _reset_required(snapshot, device, responding)
        if responding.reason is not MissingReason.DEVICE_LOST:
            return None
        words = responding.detail or "GPU is lost"
        message = f"{name_device(device)} is off the bus: {words}"
        return GPU_LOST.finding(subject, message, Evidence("responding", words, source="NVML"))
    if isinstance(action, Missing) or action == "none":
        return None
    evidence = Evidence("recovery_action", action, source="NVML field 230")
    if is_without_word(action):
        number = action.rpartition("_")[2]
        message = (
            f"{name_device(device)}: the driver asks for recovery action"
            f" {number}, which gpudiag does not know"
        )
        return GPU_RECOVERY_NEEDED.finding(subject, message, evidence, remedy=_UNKNOWN_ACTION)
    kind = GPU_RECOVERY_NEEDED if action in UNFIT_ACTIONS else GPU_RECOVERY_ADVISED
    message = f"{name_device(device)}: the driver asks for {name_action(action)}"
    return kind.finding(subject, message, evidence)


def _reset_required(snapshot: Snapshot, device: Device, responding: Missing) -> Finding:
    words = responding.detail or "GPU requires reset"
    message = f"{name_device(device)} is on the bus and must be reset before it is used again: {words}"
    subject, evidence = device_subject(snapshot, device), Evidence("responding", words, source="NVML")
    return GPU_RECOVERY_NEEDED.finding(subject, message, evidence, remedy=_RESET_FIRST)


def _request(finding: Finding) -> Restated:
    """The driver's request, to be joined to the fault behind it; a lost GPU is reported by itself."""
    if finding.evidence[0].name != "recovery_action":
        return Restated(finding, ())
    unfit = finding.code == GPU_RECOVERY_NEEDED.code
    return Restated(
        finding, ASKED_FOR_BY, request=name_action(str(finding.evidence[0].value)) if unfit else ""
    )


_NOT_SILENT = (
    MissingReason.DEVICE_LOST,
    MissingReason.RESET_REQUIRED,  # gpu.lost reports those
    MissingReason.NOT_ASKED,  # it is asleep
)


def _silent(snapshot: Snapshot, device: Device) -> Finding | None:
    responding = device.responding
    if not isinstance(responding, Missing) or responding.reason in _NOT_SILENT:
        return None
    subject = device_subject(snapshot, device)
    if responding.reason is MissingReason.TIMED_OUT:
        words = responding.detail or "no answer by the deadline"
        message = f"{name_device(device)} hangs or is slow: {words}"
        return GPU_HUNG.finding(subject, message, Evidence("responding", words, source="NVML"))
    if responding.reason is MissingReason.ATTACHING:
        words = responding.detail or "no handle by the deadline"
        message = f"{name_device(device)} is being attached by the driver: {words}"
        return GPU_ATTACHING.finding(subject, message, Evidence("responding", words, source="NVML"))
    words = explain_missing(responding)
    message = f"{name_device(device)} gives no readings: {words}"
    return GPU_NOT_READ.finding(subject, message, Evidence("responding", words, source="NVML"))


def _listed(snapshot: Snapshot) -> tuple[Device, ...]:
    """The GPUs that NVML lists, lost and hung ones too; rows that only the PCI bus gave are gpu.count's."""
    return tuple(device for device in snapshot.devices if not isinstance(device.id.nvml_index, Missing))


def _against(snapshot: Snapshot, listed: int, expected: int, expected_by: str) -> tuple[Finding, ...]:
    if listed == expected:
        return ()
    message = f"{_gpus(listed)} here, {expected} expected ({expected_by})"
    evidence = Evidence(
        "gpu_count", listed, unit="GPUs", limit=expected, source=f"NVML; limit: {expected_by}"
    )
    return (GPU_COUNT.finding(HostSubject(snapshot.host), message, evidence),)


def _fewer_than(context: Context, listed: tuple[Device, ...], least: int) -> tuple[Finding, ...]:
    """A finding for each GPU of the bus that NVML does not list, and one if their count is too small."""
    snapshot, named = context.snapshot, _not_in_nvml(context, listed)
    if len(listed) + len(named) >= least or any(finding.code == GPU_COUNT.code for finding in named):
        return named
    return (*named, *_against(snapshot, len(listed), least, "--at-least-gpus"))


def _not_in_nvml(context: Context, listed: tuple[Device, ...]) -> tuple[Finding, ...]:
    """GPUs that this process should see and NVML does not list."""
    snapshot = context.snapshot
    on_bus = pci_gpus(snapshot)
    if snapshot.machine.container is not None:
        return _against_nodes(snapshot, len(listed))
    if on_bus and not listed:
        failed = [] if isinstance(snapshot.kernel_log, Missing) else _starts_that_failed(snapshot.kernel_log)
        not_started = (
            f"; the kernel log shows that the driver could not start them ({_words(failed[-1])})"
            if failed
            else ""
        )
        message = f"the driver lists none of the {_gpus(len(on_bus))} on the PCI bus{not_started}"
        evidence = Evidence("gpu_count", 0, unit="GPUs", limit=len(on_bus), source="NVML; limit: PCI bus")
        facts = _facts(failed) if failed else ()
        remedy = NOT_STARTED.written_remedy if failed else ""
        finding = GPU_COUNT.finding(HostSubject(snapshot.host), message, evidence, *facts, remedy=remedy)
        return (with_logged_reason(snapshot, finding),)
    known_ids = [device.id.bus_id for device in listed]
    known = set(known_ids)
    unlisted = [gpu for gpu in _may_be_missing(context) if gpu.bus_id not in known]
    if len(unlisted) <= sum(isinstance(bus_id, Missing) for bus_id in known_ids):
        return ()  # they may be rows that NVML lists without a bus id
    if len(unlisted) > _NAMED_ONE_BY_ONE:
        return (_many_missing(snapshot, unlisted),)
    return tuple(_missing(snapshot, gpu) for gpu in unlisted)


def _may_be_missing(context: Context) -> list[PciDevice]:
    """The GPUs of the bus that NVML must list.

    If devices may be hidden on purpose: only those that failed to start, or that were here before.
    """
    snapshot, functions = context.snapshot, context.snapshot.machine.pci_devices
    if isinstance(functions, Missing):
        return []
    own, known = {gpu.bus_id for gpu in pci_gpus(snapshot)}, context.known_gpus
    in_job = not isinstance(snapshot.machine.job_cgroup, Missing)
    if snapshot.confidential_computing == "enabled" or in_job or _has_nodes_for_listed_alone(snapshot):
        own = set()
    was_here = set() if isinstance(known, Missing) else {gpu.bus_id for gpu in known.gpus}
    return [gpu for gpu in gpus_on_bus(functions) if gpu.bus_id in own | was_here | _failed(snapshot)]


def _has_nodes_for_listed_alone(snapshot: Snapshot) -> bool:
    """Whether /dev has nodes for exactly the GPUs that NVML lists: LXC gives a system some of its host's."""
    nodes = snapshot.machine.device_nodes
    if isinstance(nodes, Missing):
        return False
    return 0 < sum(node.removeprefix("/dev/nvidia").isdecimal() for node in nodes) == len(_listed(snapshot))


def _failed(snapshot: Snapshot) -> set[str]:
    """The addresses of GPUs that did not start, or that fell off the bus, by the kernel log."""
    log = () if isinstance(snapshot.kernel_log, Missing) else snapshot.kernel_log
    failed = [*_starts_that_failed(log), *(one for one in log if one.kind is KernelEventKind.GPU_OFF_BUS)]
    return {event.bus_id for event in failed if event.bus_id is not None}


def _against_nodes(snapshot: Snapshot, listed: int) -> tuple[Finding, ...]:
    """Findings by the device nodes: in a container the bus shows the host's GPUs, the nodes those given."""
    nodes = snapshot.machine.device_nodes
    if isinstance(nodes, Missing):
        return ()
    given = sum(1 for node in nodes if node.removeprefix("/dev/nvidia").isdecimal())
    return _against(snapshot, listed, given, "device nodes in the container") if listed < given else ()


_NAMED_ONE_BY_ONE = 4  # more GPUs that are missing alike are one finding with a count: our choice


def _many_missing(snapshot: Snapshot, gpus: list[PciDevice]) -> Finding:
    places = ", ".join(short_bus_id(gpu.bus_id) for gpu in gpus)
    message = f"{len(gpus)} GPUs are on the PCI bus and the driver does not list them: {places}"
    evidence = Evidence("gpu_count", len(gpus), unit="GPUs", limit=0, source="PCI bus; not in NVML")
    return GPU_MISSING.finding(HostSubject(snapshot.host), message, evidence)


def _missing(snapshot: Snapshot, gpu: PciDevice) -> Finding:
    driver = "no driver" if isinstance(gpu.driver, Missing) else f"driver {gpu.driver}"
    message = f"{name_pci_gpu(gpu)} is on the PCI bus ({driver} bound) and the driver does not list it"
    subject = DeviceSubject(
        uuid=Missing(MissingReason.SOURCE_ABSENT),
        bus_id=gpu.bus_id,
        nvml_index=Missing(MissingReason.SOURCE_ABSENT),
        host=snapshot.host,
    )
    evidence = Evidence("pci_device_id", gpu.device_id, source="PCI bus")
    return with_logged_reason(snapshot, GPU_MISSING.finding(subject, message, evidence))


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
