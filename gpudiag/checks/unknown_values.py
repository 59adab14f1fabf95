"""The check of words that the driver has and gpudiag has not: an unknown number is told, never dropped."""

from collections.abc import Iterator
from dataclasses import fields, replace

from gpudiag.checks import limits
from gpudiag.checks.per_device import answering, is_loaded, judge_devices
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.device_details import FabricState, PeerAccess
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, is_without_word

UNKNOWN_VALUE = FindingKind(
    code="driver.unknown_value",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.HOST,
    meaning="The driver gave a number that gpudiag has no word for: whether it is a fault is not known.",
    remedy="Look what NVIDIA calls it with `nvidia-smi -i INDEX -q`. A newer driver may have new words.",
    basis=Basis(
        reads="Modes, fabric state, peer access and clock event reasons, each a number"
        " that nvml.h gives a word; shown as `unknown_9` in `--json`.",
        limit="The enumerations of nvml.h as of driver 595. A new architecture or brand"
        " is noted and is no finding.",
        look_also=("nvidia-smi -q", "gpudiag list --json"),
    ),
)
# What a GPU is, not how it is: a newer product is no trouble.
_IDENTITY = ("architecture", "brand")
# gpu.lost tells it, with what to do.
_TOLD_ELSEWHERE = ("recovery_action",)
_REASONS = "clocks_event_reasons"


@check(
    "driver.values",
    title="the driver says nothing that gpudiag has no word for",
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
    """WARN for each GPU whose state the driver tells in a number without a word; a note for its product."""
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
    message = f"{name_device(device)}: the driver says what gpudiag has no word for: {words}"
    yield UNKNOWN_VALUE.finding(device_subject(snapshot, device), message, *facts)


def _notes(device: Device) -> Iterator[str]:
    """A sentence for each word about what the GPU is."""
    for name, value in _unknown(device):
        if name in _IDENTITY:
            yield f"{name_device(device)}: {name} is {value}"


def _matters(device: Device, name: str) -> bool:
    """Whether it may be trouble: a reason for slow clocks matters on a GPU that is at work."""
    if name == _REASONS:
        return is_loaded(device, limits.LOADED_PERCENT)
    return name not in _IDENTITY


def _unknown(device: Device) -> Iterator[tuple[str, str]]:
    """The readings that are numbers without a word, by name; of many alike the first."""
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
