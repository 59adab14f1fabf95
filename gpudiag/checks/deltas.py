"""How counters moved between an earlier snapshot and this one.

A counter is compared only within one life of the driver: the same boot, the same driver, and a count
that did not fall. Elsewhere it started anew, and its rise is not known.
"""

from dataclasses import dataclass

from gpudiag.checks.per_device import Gap, answering, conclude, same_in
from gpudiag.checks.registry import Judgement, does_not_apply
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import Missing, MissingReason

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
        return "the machine was restarted since the earlier reading: the counters began anew"
    if earlier.driver_version != now.driver_version:
        return "the driver was changed since the earlier reading: the counters began anew"
    if now.taken_at <= earlier.taken_at:
        return "the earlier reading is not earlier: no time has passed in which to count"
    return ""
