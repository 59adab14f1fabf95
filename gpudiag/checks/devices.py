"""Checks of the GPUs themselves: lost, hung, fewer than there should be."""

from gpudiag.checks.allocation import granted
from gpudiag.checks.needs import NO_TRACE
from gpudiag.checks.registry import FindingKind, Judgement, Restated, check, does_not_apply, judged
from gpudiag.checks.subjects import device_subject, name_device, name_pci_gpu
from gpudiag.checks.traces import pci_gpus, traces_for
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import DeviceSubject, Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host import PciDevice
from gpudiag.model.reading import Missing, MissingReason

GPU_LOST = FindingKind(
    code="gpu.lost",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    meaning="The GPU no longer answers on the bus (NVML return code 15, GPU is lost), or NVML wants it reset first.",
    remedy="Drain the machine and power-cycle it; if the GPU is lost again, have it replaced.",
)
GPU_RECOVERY_NEEDED = FindingKind(
    code="gpu.recovery_needed",
    outcome=Outcome.FAIL,
    severity=Severity.RESET,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning="The driver says that the GPU must be reset, or the machine rebooted, before it is used again.",
    remedy="Drain the GPU and do what the driver asks for.",
)
GPU_RECOVERY_ADVISED = FindingKind(
    code="gpu.recovery_advised",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning="The driver asks for a recovery step that leaves the GPU usable meanwhile.",
    remedy="Let running jobs end, then do what the driver asks for.",
)
GPU_HUNG = FindingKind(
    code="gpu.hung",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.SW_OTHER,
    owner=Owner.HOST,
    meaning="The GPU was not read within the deadline: a call into the driver hangs, or each call is slow.",
    remedy="Try `gpudiag list --deadline 30`; if it hangs there too, look at `dmesg`, drain the machine and reboot it.",
)
GPU_NOT_READ = FindingKind(
    code="gpu.not_read",
    outcome=Outcome.ERROR,
    severity=Severity.UNKNOWN,
    category=Category.SW_OTHER,
    owner=Owner.HOST,
    meaning="The driver lists the GPU and gives no readings for it, for a reason other than a loss or a hang.",
    remedy="Run `nvidia-smi -q -i INDEX` as root to see the driver's own words.",
)
GPU_MISSING = FindingKind(
    code="gpu.missing",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_PCIE,
    owner=Owner.HARDWARE,
    meaning="The PCI bus shows a GPU that the driver does not list.",
    remedy="Look for its bus id in `dmesg` (Xid 79, RmInitAdapter failed); power-cycle the machine.",
)
GPU_COUNT = FindingKind(
    code="gpu.count",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HOST,
    meaning="The number of GPUs is not what the machine, the job or the user says it should be.",
    remedy="Compare with `lspci -d 10de:` and with what the scheduler or the container was given.",
)

# The words of NVML's GPU recovery action (field 230) that make a GPU unfit until they are followed.
_UNFIT_ACTIONS = ("gpu_reset", "node_reboot", "drain_and_reset", "bus_reset", "system_reboot")
# What the driver asks a recovery for, worst first: where one of these is found, that is the fault, and what
# the driver asks for is its remedy.
ASKED_FOR_BY = (
    "memory.unrepairable", "memory.row_remap_failed", "ecc.sram_threshold_exceeded", "ecc.sram_uncorrected",
    "ecc.uncorrected_rising", "ecc.uncorrected_volatile", "nvlink.link_down", "nvlink.recovery_failed",
    "xid.repeated", "xid.hardware", "memory.row_remap_pending", "memory.page_retirement_pending",
    "memory.repair_pending",
)  # fmt: skip


@check(
    "gpu.lost",
    title="every GPU is on the bus and asks for no recovery",
    needs=("gpus",),
    reports=(GPU_LOST, GPU_RECOVERY_NEEDED, GPU_RECOVERY_ADVISED),
    reads=("return codes of every NVML call", "recovery_action (NVML field 230)"),
    limit="none: NVML says that the GPU is lost, or what recovery it wants",
    confirmed="nvidia-smi -q of A100, H100, B200 and T4 (recovery action: none)",
)
def gpu_lost(context: Context) -> Judgement:
    """A finding for each GPU that is lost, or that the driver wants recovered."""
    found = (_lost(context.snapshot, device) for device in _listed(context.snapshot))
    findings = tuple(finding for finding in found if finding is not None)
    return judged(*findings, restated=tuple(map(_request, findings)))


@check(
    "gpu.hung",
    title="every GPU answers within the deadline",
    needs=("gpus",),
    reports=(GPU_HUNG, GPU_NOT_READ),
    reads=("whether NVML calls come back", "their return codes"),
    limit="the deadline: 1.5 s at level instant, 5 s elsewhere (--deadline)",
    confirmed="the clock of the parent process",
)
def gpu_hung(context: Context) -> Judgement:
    """A finding for each GPU that did not answer in time, or not at all for another reason."""
    found = (_silent(context.snapshot, device) for device in _listed(context.snapshot))
    return judged(*(finding for finding in found if finding is not None))


@check(
    "gpu.count",
    title="all GPUs that should be here are here",
    needs=("nvml",),
    reports=(GPU_MISSING, GPU_COUNT),
    reads=("NVML's list", "pci_devices", "device_nodes", "allocation variables"),
    limit="--expect-gpus, else the allocation, else the PCI bus",
    confirmed="nvidia-smi -q of A100, H100, B200 and T4; the Linux kernel's PCI bus",
)
def gpu_count(context: Context) -> Judgement:
    """Findings where NVML lists fewer GPUs than the bus, the allocation or the user says."""
    if not traces_for(context):
        return does_not_apply(NO_TRACE)
    listed = _listed(context.snapshot)
    expected = context.expected_gpus
    if not isinstance(expected, Missing):
        return judged(*_against(context.snapshot, len(listed), expected, "--expect-gpus"))
    grant = granted(context.snapshot.machine.allocation)
    if grant is not None and len(listed) < grant[1]:
        return judged(*_against(context.snapshot, len(listed), grant[1], grant[0]))
    if grant is not None and len(listed) == grant[1]:
        return judged()
    return judged(*_not_in_nvml(context.snapshot, listed))


def _lost(snapshot: Snapshot, device: Device) -> Finding | None:
    responding, action = device.responding, device.recovery_action
    subject = device_subject(snapshot, device)
    if isinstance(responding, Missing):
        if responding.reason is not MissingReason.DEVICE_LOST:
            return None
        words = responding.detail or "GPU is lost"
        message = f"{name_device(device)} is off the bus: {words}"
        return GPU_LOST.finding(subject, message, Evidence("responding", words, source="NVML"))
    if isinstance(action, Missing) or action == "none":
        return None
    kind = GPU_RECOVERY_NEEDED if action in _UNFIT_ACTIONS else GPU_RECOVERY_ADVISED
    message = f"{name_device(device)}: the driver asks for {action.replace('_', ' ')}"
    evidence = Evidence("recovery_action", action, source="NVML field 230")
    return kind.finding(subject, message, evidence)


def _request(finding: Finding) -> Restated:
    """What the driver asks for, to be told with the fault that it asks it for; a loss is told by itself."""
    if finding.code == GPU_LOST.code:
        return Restated(finding, ())
    unfit = finding.code == GPU_RECOVERY_NEEDED.code
    request = str(finding.evidence[0].value).replace("_", " ")
    return Restated(finding, ASKED_FOR_BY, request=f"The driver asks for {request}." if unfit else "")


def _silent(snapshot: Snapshot, device: Device) -> Finding | None:
    responding = device.responding
    if not isinstance(responding, Missing) or responding.reason is MissingReason.DEVICE_LOST:
        return None
    subject = device_subject(snapshot, device)
    if responding.reason is MissingReason.TIMED_OUT:
        words = responding.detail or "no answer by the deadline"
        message = f"{name_device(device)} hangs or is slow: {words}"
        return GPU_HUNG.finding(subject, message, Evidence("responding", words, source="NVML"))
    words = responding.detail or responding.reason.value.replace("_", " ")
    message = f"{name_device(device)} gives no readings: {words}"
    return GPU_NOT_READ.finding(subject, message, Evidence("responding", words, source="NVML"))


def _listed(snapshot: Snapshot) -> tuple[Device, ...]:
    """The GPUs that NVML lists, lost and hung ones too; rows that only the PCI bus gave are gpu.count's."""
    return tuple(device for device in snapshot.devices if not isinstance(device.id.nvml_index, Missing))


def _against(snapshot: Snapshot, listed: int, expected: int, says: str) -> tuple[Finding, ...]:
    if listed == expected:
        return ()
    message = f"{_gpus(listed)} here, {expected} expected ({says})"
    evidence = Evidence("gpu_count", listed, unit="GPUs", limit=expected, source=f"NVML; limit: {says}")
    return (GPU_COUNT.finding(HostSubject(snapshot.host), message, evidence),)


def _not_in_nvml(snapshot: Snapshot, listed: tuple[Device, ...]) -> tuple[Finding, ...]:
    """GPUs that this process should see and NVML does not list."""
    on_bus = pci_gpus(snapshot)
    if snapshot.machine.container is not None:
        return _against_nodes(snapshot, len(listed))
    if on_bus and not listed:
        message = f"the driver lists none of the {_gpus(len(on_bus))} on the PCI bus"
        evidence = Evidence("gpu_count", 0, unit="GPUs", limit=len(on_bus), source="NVML; limit: PCI bus")
        return (GPU_COUNT.finding(HostSubject(snapshot.host), message, evidence),)
    known = {device.id.bus_id for device in listed}
    return tuple(_missing(snapshot, gpu) for gpu in on_bus if gpu.bus_id not in known)


def _against_nodes(snapshot: Snapshot, listed: int) -> tuple[Finding, ...]:
    """Inside a container the bus shows the host's GPUs; the device nodes say which were given."""
    nodes = snapshot.machine.device_nodes
    if isinstance(nodes, Missing):
        return ()
    given = sum(1 for node in nodes if node.removeprefix("/dev/nvidia").isdecimal())
    return _against(snapshot, listed, given, "device nodes in the container") if listed < given else ()


def _missing(snapshot: Snapshot, gpu: PciDevice) -> Finding:
    driver = "no driver" if isinstance(gpu.driver, Missing) else f"driver {gpu.driver}"
    message = f"{name_pci_gpu(gpu)} is on the PCI bus ({driver} bound) and the driver does not list it"
    subject = DeviceSubject(
        uuid=Missing(MissingReason.SOURCE_ABSENT), bus_id=gpu.bus_id,
        nvml_index=Missing(MissingReason.SOURCE_ABSENT), host=snapshot.host,
    )  # fmt: skip
    return GPU_MISSING.finding(subject, message, Evidence("pci_device_id", gpu.device_id, source="PCI bus"))


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
