"""Checks of the sources: does NVML answer, call by call, and do the sources agree?"""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache, partial

from gpudiag.checks import limits
from gpudiag.checks.gpu.instruments import asks_only, lone_failure
from gpudiag.checks.logged_reasons import with_logged_reason
from gpudiag.checks.needs import NO_TRACE, nvml_silent
from gpudiag.checks.per_device import answering, is_loaded, judge_devices
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    check,
    could_not_look,
    does_not_apply,
    judged,
)
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.checks.traces import Trace, gpus_of_guests, pci_gpus, traces_for
from gpudiag.model.context import Context
from gpudiag.model.device import (
    SOURCES_OF_GPUS,
    Device,
    Disagreement,
    FabricState,
    FailedCall,
    PeerAccess,
    Snapshot,
    SourceState,
    SourceStatus,
)
from gpudiag.model.evidence import Evidence, HostSubject, SourceSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, MissingReason, is_without_word
from gpudiag.reference.reading_names import name_reading, name_state

# --- the sources

# The driver is installed, and does not answer as it should.
_UNCLEAR_STATES = (SourceState.TIMED_OUT, SourceState.FAILED)
_NO_START_BASIS = Basis(
    reads="What nvmlInit answers, against every trace of a GPU: PCI bus, /dev/nvidia*, /proc/driver/nvidia,"
    " allocation variables.",
    limit="None: a machine with a trace of a GPU must have a working NVML.",
    look_also=(
        "gpudiag list --sources all",
        "nvidia-smi",
        "dmesg -T | grep -i nvrm",
        "driver.version_mismatch",
        "driver.not_loaded",
    ),
)
_SLOW_START_BASIS = Basis(
    reads="How long nvmlInit takes, in a child process that is abandoned at the deadline.",
    limit=(
        "`--deadline`: 1.5 s for the bare command, 5 s for `gpudiag list`. Without"
        " persistence mode eight GPUs may take longer."
    ),
    look_also=(
        "gpudiag list --deadline 30",
        "nvidia-smi -q -d PERFORMANCE",
        "ps -eo pid,stat,wchan:32,comm | grep ' D'",
    ),
)


def _nvml_kind(state: SourceState, meaning: str, remedy: str) -> FindingKind:
    """A kind for one way in which NVML can fail on a machine that has a GPU."""
    return FindingKind(
        code=f"nvml.{state.value}",
        outcome=Outcome.FAIL,
        severity=Severity.TRIAGE if state in _UNCLEAR_STATES else Severity.CONFIG,
        category=Category.SW_OTHER,
        owner=Owner.HOST,
        meaning=meaning,
        remedy=remedy,
        basis=_SLOW_START_BASIS if state is SourceState.TIMED_OUT else _NO_START_BASIS,
    )


NVML_KINDS = {
    SourceState.LIBRARY_ABSENT: _nvml_kind(
        SourceState.LIBRARY_ABSENT,
        "The machine has a GPU, or was given one, and libnvidia-ml.so.1 is not installed.",
        "Install the NVIDIA driver; its libraries come with it.",
    ),
    SourceState.DRIVER_NOT_LOADED: _nvml_kind(
        SourceState.DRIVER_NOT_LOADED,
        "The driver's library is installed, but its kernel module is not loaded.",
        (
            "[driver] Run `sudo modprobe nvidia`; if that fails, `dmesg` shows why (DKMS build, Secure Boot,"
            " nouveau)."
        ),
    ),
    SourceState.VERSION_MISMATCH: _nvml_kind(
        SourceState.VERSION_MISMATCH,
        "The loaded kernel module and the driver's library have different versions, as after an upgrade.",
        "[host] Reboot, or stop every GPU process and reload the nvidia modules.",
    ),
    SourceState.NO_PERMISSION: _nvml_kind(
        SourceState.NO_PERMISSION,
        "The driver denies access to this user or container.",
        "Look at the permissions of /dev/nvidiactl and /dev/nvidia*, and at the job's device cgroup.",
    ),
    SourceState.TIMED_OUT: _nvml_kind(
        SourceState.TIMED_OUT,
        "The driver did not answer within the deadline: it hangs, or it"
        " starts slowly without persistence mode.",
        "[host] Try `gpudiag list --deadline 30`; if that hangs too, look at `dmesg` and reboot.",
    ),
    SourceState.FAILED: _nvml_kind(
        SourceState.FAILED,
        "NVML could not be started, for another reason.",
        "Run `nvidia-smi` and look at `dmesg`; in a container, restart it.",
    ),
}

_WITHOUT_DRIVER = (SourceState.DRIVER_NOT_LOADED, SourceState.LIBRARY_ABSENT)
_FOR_GUESTS = (
    "vfio-pci holds every GPU here, for virtual machines: run jobs and gpudiag in those. Where that is meant,"
    " check this machine with `gpudiag preflight --expect-gpus 0`; where not, [driver] remove the ids of"
    " vfio-pci (`grep -r vfio /etc/modprobe.d /proc/cmdline`) and reboot."
)
_kind = partial(
    FindingKind, outcome=Outcome.WARN, severity=Severity.TRIAGE, category=Category.SW_OTHER, owner=Owner.HOST
)
DISAGREEMENT = _kind(
    code="source.disagreement",
    owner=Owner.SOFTWARE,
    meaning="Two sources report different facts about the same GPUs, and no setting explains it.",
    remedy="Run `gpudiag list --sources all` to see the sources side by side.",
    basis=Basis(
        reads="Count, order, memory, names and driver version, as NVML, GPUtil"
        " (nvidia-smi) and torch report them.",
        limit="None: they must agree, unless a setting (CUDA_VISIBLE_DEVICES,"
        " CUDA_DEVICE_ORDER, MIG, a CPU build) explains it.",
        look_also=("gpudiag list --sources all", "env | grep CUDA_"),
    ),
)


@check(
    "source.nvml",
    title="NVML answers",
    reports=tuple(NVML_KINDS.values()),
    readings=("nvmlInit", "every trace of a GPU: PCI bus, device nodes, driver, allocation"),
    confirmed=f"nvidia-smi -q of A100, H100, B200 and T4 (it answers); {BOTH_GPUS}",
)
def nvml_answers(context: Context) -> Judgement:
    """FAIL where a machine with a trace of a GPU has no working NVML; SKIP where there is no trace."""
    status = context.snapshot.source("nvml")
    if status.state is SourceState.NOT_ASKED:
        return does_not_apply("NVML was not asked")
    traces = traces_for(context)
    if not traces:
        return does_not_apply(NO_TRACE)
    kind = NVML_KINDS.get(status.state)
    if kind is None:
        return judged()
    cause = (status.reason or name_state(status.state)).partition(": ")[0]
    message = f"NVML does not work ({traces[0].text}): {cause}"
    evidence = [Evidence("state", name_state(status.state), source="NVML")]
    if status.reason is not None:
        evidence.append(Evidence("reason", status.reason, source="NVML"))
    evidence += (Evidence("trace", trace.text, source=trace.place) for trace in traces)
    subject = SourceSubject("nvml", context.snapshot.host)
    finding = kind.finding(subject, message, *evidence, remedy=_remedy(context.snapshot, status, traces))
    return judged(with_logged_reason(context.snapshot, finding))


@check(
    "source.agreement",
    title="the sources agree",
    reports=(DISAGREEMENT,),
    readings=("count, order, memory, names and driver version by NVML, GPUtil and torch",),
    confirmed=f"nvidia-smi -q of A100, H100, B200 and T4 against simulated machines; {BOTH_GPUS}",
)
def sources_agree(context: Context) -> Judgement:
    """WARN for each disagreement that no setting explains."""
    snapshot = context.snapshot
    differing = (item for item in snapshot.disagreements if not _is_judged_elsewhere(item))
    unexplained = [item for item in differing if not item.expected]
    if unexplained:
        return judged(*(_disagreement(snapshot, item) for item in unexplained))
    seers = [status for status in snapshot.sources if status.name in SOURCES_OF_GPUS]
    asked = [status for status in seers if status.state is not SourceState.NOT_ASKED]
    if not traces_for(context):
        return does_not_apply(NO_TRACE)
    if len(asked) < 2:
        return does_not_apply("only one source was asked")
    silent = [status for status in asked if status.state not in (SourceState.OK, SourceState.NO_DEVICES)]
    return judged() if len(asked) - len(silent) > 1 else _nobody_to_compare_with(silent)


def _nobody_to_compare_with(silent: list[SourceStatus]) -> Judgement:
    """SKIP where no other source is installed, else ERROR; the reason names those without an answer."""
    nvml = next((status for status in silent if status.name == "nvml"), None)
    if nvml is not None:
        return nvml_silent(nvml)
    silence = "; ".join(f"{status.name}: {status.reason or name_state(status.state)}" for status in silent)
    reason = f"only NVML answered; {silence}"
    if all(status.state is SourceState.LIBRARY_ABSENT for status in silent):
        return Judgement(Outcome.SKIP, reason=reason, missing_reason=MissingReason.SOURCE_ABSENT)
    return could_not_look(reason)


def _remedy(snapshot: Snapshot, status: SourceStatus, traces: tuple[Trace, ...]) -> str:
    """The remedy in the source's words, after its `cause: `; empty where the catalogue's applies."""
    drivers = {gpu.driver for gpu in pci_gpus(snapshot) if not isinstance(gpu.driver, Missing)}
    if status.state in _WITHOUT_DRIVER and not pci_gpus(snapshot) and gpus_of_guests(snapshot):
        return _FOR_GUESTS
    if status.state is SourceState.LIBRARY_ABSENT and "nouveau" in drivers:
        return "[driver] nouveau holds the GPU: blacklist it, install the NVIDIA driver, and reboot."
    advice = (status.reason or "").partition(": ")[2]
    remedy = f"{advice[0].upper()}{advice[1:]}." if advice else ""
    if remedy and status.state is SourceState.DRIVER_NOT_LOADED and snapshot.machine.container is None:
        remedy = f"[driver] {remedy}"  # in a container, the source's words are about its host
    if status.state is SourceState.DRIVER_NOT_LOADED and [trace.place for trace in traces] == ["nvml"]:
        remedy += f"{' ' * bool(remedy)}If there should be no GPU here: `gpudiag preflight --expect-gpus 0`."
    return remedy


def _is_judged_elsewhere(item: Disagreement) -> bool:
    """Whether another check names the cause: cuda.context for contexts, gpu.count for the bus."""
    if item.field == "context_starts":
        return True
    counts = {count for source, count in item.values.items() if source != "pci"}
    return item.field == "count" and len(counts) == 1


def _disagreement(snapshot: Snapshot, item: Disagreement) -> Finding:
    values = ", ".join(f"{source} {value}" for source, value in item.values.items())
    about = f" of {item.uuid}" if item.uuid else ""
    evidence = tuple(
        Evidence(item.field, value, source=source)
        for source, value in item.values.items()
        if value is not None
    )
    message = f"the sources differ on the {name_reading(item.field)}{about} ({values}): {item.reason}"
    return DISAGREEMENT.finding(HostSubject(snapshot.host), message, *evidence)


# --- single calls and values

CALL_FAILED = _kind(
    code="nvml.call_failed",
    outcome=Outcome.ERROR,
    meaning="NVML answered with an error instead of a reading, so part of the GPU was not checked.",
    remedy=(
        "Compare with `nvidia-smi -q`, and look at `dmesg` (Xid, NVRM); if it stays, [reset:"
        " reset the GPU or reload"
        " the driver]. If a healthy GPU gives this error under your driver, please report it to gpudiag."
    ),
    basis=Basis(
        reads="the return code of every NVML call",
        limit=(
            "success, or an answer that the GPU does not support it, the driver does not know it, or the"
            " user has no permission (nvmlReturn_t)"
        ),
        look_also=("nvidia-smi -q", "dmesg | grep -e NVRM -e Xid", "gpudiag list --wide", "gpu.not_read"),
    ),
)
VALUE_NOT_READ = _kind(
    code="nvml.value_not_read",
    severity=Severity.MONITOR,
    meaning=(
        "One instrument of the GPU (power, fan, a temperature, a clock, utilization)"
        " gave no value; all else of it was read."
    ),
    remedy=(
        "Ask again: `gpudiag list --wide`. If it stays, compare with"
        " `nvidia-smi -q -i INDEX`, and look at `dmesg` (Xid, NVRM)."
    ),
    basis=Basis(
        reads="the return code of every NVML call; a call that fails is made a second time",
        limit=(
            "One instrument of a GPU; a second failed reading is nvml.call_failed. Our choice:"
            " a V100's power was `ERR!` once and the GPU healthy (Azure/azhpc-diagnostics issue 77)."
        ),
        look_also=("nvidia-smi -q -i INDEX", "gpudiag list --wide", "nvml.call_failed"),
    ),
)
_MAX_NAMED = 3
# Questions about two GPUs: one that is lost or hangs makes them fail on the other.
_ABOUT_TWO = ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor")

UNKNOWN_VALUE = _kind(
    code="driver.unknown_value",
    meaning="The driver gave a number that gpudiag does not know: it may or may not be a fault.",
    remedy="`nvidia-smi -i INDEX -q` shows NVIDIA's name for it. Newer drivers have new values.",
    basis=Basis(
        reads=(
            "Modes, fabric state, peer access and clock event reasons, each a number that nvml.h names;"
            " shown as `unknown_9` in `--json`."
        ),
        limit="The enumerations of nvml.h as of driver 595. A new architecture or brand is no finding.",
        look_also=("nvidia-smi -q", "gpudiag list --json"),
    ),
)
# These name the product, not its state: a newer product is no fault.
_IDENTITY = ("architecture", "brand")
# gpu.lost reports it, with what to do.
_REPORTED_ELSEWHERE = ("recovery_action",)
_REASONS = "clocks_event_reasons"


@check(
    "source.nvml_calls",
    title="no call into NVML fails",
    needs=("nvml",),
    reports=(CALL_FAILED, VALUE_NOT_READ),
    readings=("the return code of every NVML call",),
    confirmed=BOTH_GPUS,
)
def nvml_calls(context: Context) -> Judgement:
    """ERROR per GPU (WARN for one instrument), and for the library, with failed calls; silent GPUs not."""
    snapshot = context.snapshot
    found = [_failed(snapshot, index, calls) for index, calls in _by_gpu(snapshot).items()]
    return judged(*(finding for finding in found if finding is not None))


def _by_gpu(snapshot: Snapshot) -> dict[int | None, list[FailedCall]]:
    silent = any(isinstance(device.responding, Missing) for device in snapshot.devices)
    calls: dict[int | None, list[FailedCall]] = {}
    for call in snapshot.failed_calls:
        if not (silent and call.function in _ABOUT_TWO):
            calls.setdefault(call.nvml_index, []).append(call)
    return calls


def _failed(snapshot: Snapshot, index: int | None, calls: list[FailedCall]) -> Finding | None:
    more = f" and {len(calls) - _MAX_NAMED} more" if len(calls) > _MAX_NAMED else ""
    failed = ", ".join(f"{call.function} ({call.words})" for call in calls[:_MAX_NAMED]) + more
    evidence = tuple(
        Evidence("failed_call", f"{call.function}: {call.words}", source="NVML") for call in calls
    )
    if index is None:
        return CALL_FAILED.finding(
            SourceSubject("nvml", snapshot.host), f"NVML answers with an error: {failed}", *evidence
        )
    device = next((device for device in snapshot.devices if device.id.nvml_index == index), None)
    if device is None or isinstance(device.responding, Missing):
        return None  # gpu.lost, gpu.hung
    lone = lone_failure(device)
    if lone and asks_only(calls, lone):
        what = " and ".join(name_reading(name) for name in lone)
        message = f"{name_device(device)}: {what}: no value ({calls[0].words}), while all else was read"
        return VALUE_NOT_READ.finding(device_subject(snapshot, device), message, *evidence)
    message = f"{name_device(device)}: NVML answers with an error: {failed}"
    return CALL_FAILED.finding(device_subject(snapshot, device), message, *evidence)


@check(
    "driver.values",
    title="gpudiag knows every value that the driver reports",
    needs=("gpus",),
    reports=(UNKNOWN_VALUE,),
    readings=(
        "compute_mode",
        "ecc_mode",
        "mig_mode",
        "persistence_mode",
        "fabric",
        "peers",
        _REASONS,
        "and similar ones",
    ),
    confirmed=f"nvidia-smi -q of A100, H100, B200 and T4 (all known); {BOTH_GPUS}",
)
def driver_values(context: Context) -> Judgement:
    """WARN for each GPU whose state the driver gives as a number that has no name; a note for its product."""
    snapshot = context.snapshot
    judgement = judge_devices(snapshot, (_REASONS,), _judge, either=(("peers",), ("fabric",)))
    notes = [note for device in answering(snapshot) for note in _notes(device)]
    return replace(judgement, reason="; ".join(notes)) if notes and not judgement.reason else judgement


def _judge(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    unknown = {name: value for name, value in _unknown(device) if _matters(device, name)}
    if not unknown:
        return
    words = ", ".join(
        f"{name.replace('_', ' ')} {value.rpartition('_')[2]}" for name, value in unknown.items()
    )
    facts = (Evidence(name, value, source="NVML") for name, value in unknown.items())
    message = f"{name_device(device)}: the driver reports a value that gpudiag does not know: {words}"
    yield UNKNOWN_VALUE.finding(device_subject(snapshot, device), message, *facts)


def _notes(device: Device) -> Iterator[str]:
    """A sentence for each unnamed value that describes the product."""
    for name, value in _unknown(device):
        if name in _IDENTITY:
            yield f"{name_device(device)}: {name} is {value}"


def _matters(device: Device, name: str) -> bool:
    """Whether the value may mean a fault: a reason for slow clocks does only on a busy GPU."""
    if name == _REASONS:
        return is_loaded(device, limits.LOADED_PERCENT)
    return name not in _IDENTITY


def _unknown(device: Device) -> Iterator[tuple[str, str]]:
    """The readings whose number has no word, by name; of several alike the first."""
    for name in _asked_names():
        value = getattr(device, name)
        members = value if isinstance(value, tuple) else (value,)
        for member in members:
            if is_without_word(member):
                yield name, member
                break
    yield from _unknown_of_parts(device)


@cache
def _asked_names() -> tuple[str, ...]:
    """The readings that may be a number without a word."""
    return tuple(field.name for field in fields(Device) if field.name not in _REPORTED_ELSEWHERE)


def _unknown_of_parts(device: Device) -> Iterator[tuple[str, str]]:
    parts: list[tuple[str, FabricState | PeerAccess]] = []
    if isinstance(device.fabric, FabricState):
        parts.append(("fabric", device.fabric))
    if not isinstance(device.peers, Missing):
        parts += [("peers", peer) for peer in device.peers]
    for name, part in parts:
        for field in fields(part):
            value = getattr(part, field.name)
            if is_without_word(value):
                yield f"{name}.{field.name}", value
