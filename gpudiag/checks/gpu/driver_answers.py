"""Checks of NVML's answers: calls that fail, and values that gpudiag has no word for."""

from collections.abc import Iterator
from dataclasses import fields, replace

from gpudiag.checks import limits
from gpudiag.checks.per_device import answering, is_loaded, judge_devices
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, judged
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, FabricState, FailedCall, PeerAccess, Snapshot
from gpudiag.model.evidence import Evidence, SourceSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, is_without_word

CALL_FAILED = FindingKind(
    code="nvml.call_failed",
    outcome=Outcome.ERROR,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.HOST,
    meaning="NVML answered with an error where it should have answered, so that part of the GPU was not looked at.",
    remedy="Compare with `nvidia-smi -q`, and look at `dmesg` (Xid, NVRM); if it stays, reset the GPU or reload the "
    "driver. An error that a healthy GPU gives under your driver is worth a report to gpudiag.",
    basis=Basis(
        reads="the return code of every NVML call",
        limit="success, or an answer that this GPU has no such thing, this driver does not"
        " know it, or this user may not ask (nvmlReturn_t)",
        look_also=("nvidia-smi -q", "dmesg | grep -e NVRM -e Xid", "gpudiag list --wide", "gpu.not_read"),
    ),
)
_MAX_NAMED = 3
# Questions about two GPUs: one that is lost or hangs makes them fail on the other.
_ABOUT_TWO = ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor")

UNKNOWN_VALUE = FindingKind(
    code="driver.unknown_value",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.HOST,
    meaning="The driver gave a number that gpudiag has no word for: whether it is a fault is not known.",
    remedy="See what NVIDIA calls it with `nvidia-smi -i INDEX -q`. A newer driver may have new words.",
    basis=Basis(
        reads="Modes, fabric state, peer access and clock event reasons, each a number"
        " for which nvml.h has a word; shown as `unknown_9` in `--json`.",
        limit="The enumerations of nvml.h as of driver 595. A new architecture or brand"
        " is noted and is no finding.",
        look_also=("nvidia-smi -q", "gpudiag list --json"),
    ),
)
# These name the product, not its state: a newer product is no fault.
_IDENTITY = ("architecture", "brand")
# gpu.lost reports it, with what to do.
_TOLD_ELSEWHERE = ("recovery_action",)
_REASONS = "clocks_event_reasons"


@check(
    "source.nvml_calls",
    title="no call into NVML fails",
    needs=("nvml",),
    reports=(CALL_FAILED,),
    readings=("the return code of every NVML call",),
)
def nvml_calls(context: Context) -> Judgement:
    """An ERROR finding per GPU, and for the library, with failed calls; gpu.lost and gpu.hung have silent GPUs."""
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
    told = ", ".join(f"{call.function} ({call.words})" for call in calls[:_MAX_NAMED]) + more
    evidence = tuple(
        Evidence("failed_call", f"{call.function}: {call.words}", source="NVML") for call in calls
    )
    if index is None:
        return CALL_FAILED.finding(
            SourceSubject("nvml", snapshot.host), f"NVML answers with an error: {told}", *evidence
        )
    device = next((device for device in snapshot.devices if device.id.nvml_index == index), None)
    if device is None or isinstance(device.responding, Missing):
        return None  # gpu.lost, gpu.hung
    message = f"{name_device(device)}: NVML answers with an error: {told}"
    return CALL_FAILED.finding(device_subject(snapshot, device), message, *evidence)


@check(
    "driver.values",
    title="gpudiag has a word for everything that the driver says",
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
        "and their like",
    ),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4 (all known)",
)
def driver_values(context: Context) -> Judgement:
    """WARN for each GPU whose state the driver gives as a number that has no name; a note for its product."""
    snapshot = context.snapshot
    judgement = judge_devices(snapshot, (_REASONS,), _judge, either=(("peers",), ("fabric",)))
    notes = [note for device in answering(snapshot) for note in _notes(device)]
    return replace(judgement, reason="; ".join(notes)) if notes and not judgement.reason else judgement


def _judge(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    told = {name: value for name, value in _unknown(device) if _matters(device, name)}
    if not told:
        return
    words = ", ".join(f"{name.replace('_', ' ')} {value.rpartition('_')[2]}" for name, value in told.items())
    facts = (Evidence(name, value, source="NVML") for name, value in told.items())
    message = f"{name_device(device)}: the driver says something that gpudiag has no word for: {words}"
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
    for field in fields(device):
        if field.name in _TOLD_ELSEWHERE:
            continue
        value = getattr(device, field.name)
        members = value if isinstance(value, tuple) else (value,)
        for member in members:
            if is_without_word(member):
                yield field.name, member
                break
    yield from _unknown_of_parts(device)


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
