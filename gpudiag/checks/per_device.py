"""Judges GPU by GPU: an unreadable one costs only itself; and how counters moved since an earlier snapshot.

A GPU that gives no readings at all is reported by `gpu.lost` and `gpu.hung`, and by no other check.

A counter is compared only within one life of the driver: the same boot, the same driver, and a count
that did not fall. Elsewhere it started anew, and its rise is not known.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpudiag.checks import limits
from gpudiag.checks.gpu.instruments import lone_failure
from gpudiag.checks.registry import Judgement, does_not_apply, judged
from gpudiag.checks.subjects import name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.finding import Finding, Outcome, worst
from gpudiag.model.reading import Missing, MissingReason, is_without_word, value_or
from gpudiag.reference.reading_names import explain_missing, name_reading

# --- GPU by GPU

JudgeDevice = Callable[[Snapshot, Device], Iterable[Finding]]

# A reading that should have been there; the other reasons lie in the hardware, the driver or the user.
_FAILED = frozenset(
    (
        MissingReason.ERROR,
        MissingReason.TIMED_OUT,
        MissingReason.ATTACHING,
        MissingReason.DEVICE_LOST,
        MissingReason.RESET_REQUIRED,
    )
)
# The reason for a skip where GPUs give different ones: first what can be fixed.
_REPARABLE_FIRST = (
    MissingReason.NO_PERMISSION,
    MissingReason.FUNCTION_NOT_FOUND,
    MissingReason.IN_USE,
    MissingReason.NOT_ASKED,
    MissingReason.SOURCE_ABSENT,
    MissingReason.NOT_SUPPORTED,
    MissingReason.ERROR,  # of a lone instrument, which nvml.value_not_read reports
)


@dataclass(frozen=True, slots=True)
class Gap:
    """A reading that one GPU does not give."""

    device: Device
    field: str
    missing: Missing

    def text(self) -> str:
        """A sentence part: what is missing, on which GPU, and why."""
        return f"{name_device(self.device)}: {name_reading(self.field)}: {explain_missing(self.missing)}"


def judge_devices(
    snapshot: Snapshot,
    fields: tuple[str, ...],
    judge: JudgeDevice,
    *,
    either: tuple[tuple[str, ...], ...] = (),
) -> Judgement:
    """The judgement over every GPU that gives all of `fields`, or all of one set of `either`."""
    findings: list[Finding] = []
    gaps: list[Gap] = []
    looked = 0
    for device in answering(snapshot):
        found = [list(_gaps(device, wanted)) for wanted in (fields, *either)]
        gaps += [gap for missing in found for gap in missing if not _by_design(gap) or all(found)]
        if not all(found):
            looked += 1
            findings += judge(snapshot, device)
    judgement = conclude(findings, looked, gaps)
    unlike = [gap for gap in gaps if _differs_from_its_like(snapshot, gap)]
    if judgement.outcome is not Outcome.PASS or not unlike:
        return judgement
    reason = f"{_several(unlike)}, though other GPUs of its kind report it"
    return Judgement(Outcome.SKIP, reason=reason, missing_reason=unlike[0].missing.reason)


def conclude(findings: list[Finding], looked: int, gaps: list[Gap]) -> Judgement:
    """The judgement from findings and gaps: a reading that failed makes it ERROR at least."""
    failed = [
        gap for gap in gaps if gap.missing.reason in _FAILED and gap.field not in lone_failure(gap.device)
    ]
    if failed:
        outcome = worst((Outcome.ERROR, *(finding.outcome for finding in findings)))
        return Judgement(outcome, tuple(findings), _several(failed), failed[0].missing.reason)
    if looked:
        return judged(*findings)
    if not gaps:
        return Judgement(
            Outcome.SKIP, reason="no GPU gives readings", missing_reason=MissingReason.DEVICE_LOST
        )
    gap = min(gaps, key=lambda gap: _REPARABLE_FIRST.index(gap.missing.reason))
    return Judgement(Outcome.SKIP, reason=gap.text(), missing_reason=gap.missing.reason)


def answering(snapshot: Snapshot) -> tuple[Device, ...]:
    """The GPUs that answer, and so give readings."""
    return tuple(device for device in snapshot.devices if device.responding is True)


def too_few_alike(snapshot: Snapshot, wanted: int = 2) -> Judgement | None:
    """SKIP where there are not `wanted` GPUs of any one product, so none to compare with."""
    if any(len(alike(snapshot, device)) + 1 >= wanted for device in answering(snapshot)):
        return None
    return does_not_apply(f"fewer than {wanted} GPUs of one kind are here to compare")


def nobody_works(snapshot: Snapshot, percent: int) -> Judgement | None:
    """SKIP where no GPU is at work, for readings that mean nothing on an idle GPU."""
    if any(is_loaded(device, percent) for device in answering(snapshot)):
        return None
    return does_not_apply("no GPU is under load, and an idle one need not be fast")


def alike(snapshot: Snapshot, device: Device) -> tuple[Device, ...]:
    """The other GPUs of the same product and board in this machine, which should be alike.

    One product comes on boards of many makers, with other firmware, limits, coolers and even memory: boards
    are equal where their PCI subsystem is, and where it is unknown, by the product alone.
    """
    return tuple(
        other
        for other in answering(snapshot)
        if other is not device
        and other.name == device.name
        and not isinstance(other.name, Missing)
        and _on_equal_boards(other, device)
    )


def _on_equal_boards(device: Device, other: Device) -> bool:
    boards = (device.pci_subsystem_id, other.pci_subsystem_id)
    return any(isinstance(board, Missing) for board in boards) or boards[0] == boards[1]


def same_in(snapshot: Snapshot, device: Device) -> Device | None:
    """The GPU of that UUID in another snapshot; None where it is not there or gave no readings."""
    for other in answering(snapshot):
        if not isinstance(device.id.uuid, Missing) and other.id.uuid == device.id.uuid:
            return other
    return None


def is_loaded(device: Device, percent: int) -> bool:
    """Whether the GPU is known to be at work at least `percent` of the time."""
    load = device.utilization_percent
    return not isinstance(load, Missing) and load >= percent and not _was_just_woken(device)


def _was_just_woken(device: Device) -> bool:
    """Whether the load is of the question itself.

    Without persistence mode the driver starts an unused GPU for whoever asks, and NVML then reports up to
    100 %.
    """
    used = value_or(device.memory_used_bytes, limits.UNUSED_MEMORY_BYTES)
    alone = device.persistence_mode == "disabled" and device.processes == ()
    return alone and used < limits.UNUSED_MEMORY_BYTES


def memory_waits(device: Device) -> tuple[str, bool] | None:
    """Whether bad memory of the GPU waits for a reset, with the reading's name.

    It is None where NVML does not report it.
    """
    for name in ("row_remap_pending", "page_retirement_pending"):  # since Ampere, and before it
        pending = getattr(device, name)
        if not isinstance(pending, Missing):
            return name, pending
    return None


def _differs_from_its_like(snapshot: Snapshot, gap: Gap) -> bool:
    """Whether a GPU of the same product, split by MIG as this one is or not, gives the reading."""
    return any(
        not isinstance(getattr(other, gap.field, gap.missing), Missing)
        for other in alike(snapshot, gap.device)
        if other.mig_mode == gap.device.mig_mode
    )


def _by_design(gap: Gap) -> bool:
    """Whether this GPU never gives the reading: no gap where there was another way to look."""
    return gap.missing.reason not in _FAILED


def _gaps(device: Device, fields: tuple[str, ...]) -> Iterator[Gap]:
    for field in fields:
        value = getattr(device, field)
        if isinstance(value, Missing):
            yield Gap(device, field, value)
        elif is_without_word(value):
            words = f"the driver reports {value.rpartition('_')[2]}, which gpudiag does not know"
            yield Gap(device, field, Missing(MissingReason.ERROR, words))


def _several(gaps: list[Gap]) -> str:
    more = f", and {len(gaps) - 1} more" if len(gaps) > 1 else ""
    return f"{gaps[0].text()}{more}"


# --- counters

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_MINUTE = 60.0


_SOURCE = "the earlier reading"
# What a counter was on a GPU that the earlier snapshot does not have.
NOT_THERE = Missing(MissingReason.SOURCE_ABSENT, "the earlier reading does not have this GPU")


@dataclass(frozen=True, slots=True)
class Pair:
    """One GPU now, and the same GPU in the earlier snapshot."""

    device: Device
    before: Device


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter of one GPU: what it was, and how far it has risen."""

    device: Device
    before: int | float
    rise: int | float
    source: str  # where the earlier value comes from, for the evidence


def seconds_between(context: Context) -> float:
    """Seconds from the earlier snapshot to this one; the need `earlier` makes sure that there is one."""
    earlier = context.earlier
    assert not isinstance(earlier, Missing)  # noqa: S101 - the runner answers for the need
    return (context.snapshot.taken_at - earlier.taken_at).total_seconds()


def hours_between(context: Context) -> float:
    """Hours from the earlier snapshot to this one."""
    return seconds_between(context) / SECONDS_PER_HOUR


def minutes_between(context: Context) -> float:
    """Minutes from the earlier snapshot to this one."""
    return seconds_between(context) / SECONDS_PER_MINUTE


def moved(context: Context, device: Device, field: str) -> Counter | None:
    """How `field` of that GPU moved since the earlier snapshot, else since the baseline; None: not known.

    Only for counts over the GPU's life, which no restart resets.
    """
    for snapshot, source in ((context.earlier, _SOURCE), (context.baseline, "the baseline")):
        if isinstance(snapshot, Missing):
            continue
        before = same_in(snapshot, device)
        was = None if before is None else getattr(before, field)
        now = getattr(device, field)
        if was is not None and not isinstance(was, Missing) and not isinstance(now, Missing):
            return Counter(device, was, now - was, source)
    return None


def paired(context: Context, field: str) -> tuple[tuple[Pair, ...], list[Gap]] | Judgement:
    """Each GPU that has `field` in both snapshots, and the gaps; or why counters cannot be compared."""
    earlier = context.earlier
    assert not isinstance(earlier, Missing)  # noqa: S101 - the runner answers for the need
    restart = _restart(earlier, context.snapshot)
    if restart:
        return does_not_apply(restart)
    pairs: list[Pair] = []
    gaps: list[Gap] = []
    for device in answering(context.snapshot):
        before, now = same_in(earlier, device), getattr(device, field)
        was = NOT_THERE if before is None else getattr(before, field)
        missing = next((value for value in (now, was) if isinstance(value, Missing)), None)
        if missing is not None:
            gaps.append(Gap(device, field, missing))
        elif before is not None:
            pairs.append(Pair(device, before))
    return tuple(pairs), gaps


def counted(context: Context, field: str) -> tuple[Counter, ...] | Judgement:
    """How `field` rose on each GPU that has it in both snapshots, or why that is not known."""
    found = paired(context, field)
    if isinstance(found, Judgement):
        return found
    pairs, gaps = found
    if not pairs:
        return conclude([], 0, gaps)
    counts = ((pair, getattr(pair.before, field), getattr(pair.device, field)) for pair in pairs)
    # A count that fell was reset in between: its rise is not known.
    return tuple(Counter(pair.device, was, now - was, _SOURCE) for pair, was, now in counts if now >= was)


def _restart(earlier: Snapshot, now: Snapshot) -> str:
    """Why counters of the two snapshots cannot be compared; empty where they can."""
    before, after = earlier.machine.boot_id, now.machine.boot_id
    if not isinstance(before, Missing) and not isinstance(after, Missing) and before != after:
        return "the machine was restarted since the earlier reading: the counters started again from zero"
    if earlier.driver_version != now.driver_version:
        return "the driver was changed since the earlier reading: the counters started again from zero"
    if now.taken_at <= earlier.taken_at:
        return "the earlier reading is not earlier than this one, so nothing can be counted"
    return ""
