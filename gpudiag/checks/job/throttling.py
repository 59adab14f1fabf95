"""Whether the processor quota of a rank's control group holds it back, by two looks; and in which words."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.model.job import ProcessLook, QuotaLook, RankSeen

# As for gpudiag's own ranks: fewer periods show little, and a burst uses up the quota of one.
_LEAST_PERIODS = 5
_LEAST_SHARE = 0.5
_LEAST_SECONDS = 0.01  # of a processor between the looks, by a process that wants to run


@dataclass(frozen=True, slots=True)
class Throttle:
    """What a quota did to a rank's control group between two looks."""

    file: str  # that sets the quota
    processors: float  # that the group may use at once
    periods: int
    throttled_periods: int
    throttled_seconds: float

    @property
    def words(self) -> str:
        """`the control group /sys/fs/cgroup/a was throttled in 10 of 10 periods and for 0.9 s` and so on."""
        return (
            f"the control group {self.file.rpartition('/')[0]} was throttled in {self.throttled_periods} of"
            f" {self.periods} periods and for {self.throttled_seconds:.1f} s while it was looked at (quota:"
            f" {self.processors:.3g} processors)"
        )

    @property
    def remedy(self) -> str:
        """How to raise the quota of that group."""
        none = "max" if self.file.endswith("/cpu.max") else "-1"
        return (
            "Raise the quota: resources.limits.cpu of Kubernetes, `docker update --cpus N`, CPUQuota= of"
            f" systemd; as root and until the group is made again, `echo {none} > {self.file}`."
        )


def find_throttle(seen: RankSeen) -> Throttle | None:
    """What the strictest quota did between the first and the last look; None where it hardly held it back.

    A rank that takes no processor time, nor its children, is not held back, whatever else its group does.
    """
    first, last = seen.first, seen.last
    if not (ran(seen.looks) or children_ran(seen)):
        return None
    before = {one.file: one for one in first.quotas}
    grown = [_between(before[one.file], one) for one in last.quotas if one.file in before]
    worst = max(grown, key=lambda one: one.throttled_periods, default=None)
    if worst is None or worst.periods < _LEAST_PERIODS:
        return None
    return worst if worst.throttled_periods > _LEAST_SHARE * worst.periods else None


def ran(looks: Sequence[ProcessLook]) -> bool:
    """Whether a process took any processor time between its first and its last look."""
    return bool(looks) and looks[-1].cpu_seconds - looks[0].cpu_seconds >= _LEAST_SECONDS


def children_ran(seen: RankSeen) -> bool:
    """Whether a child of a rank, such as a loader's worker, took any processor time between the looks."""
    return any(ran(child.looks) for child in seen.children)


def _between(earlier: QuotaLook, later: QuotaLook) -> Throttle:
    return Throttle(
        later.file,
        later.processors,
        later.periods - earlier.periods,
        later.throttled_periods - earlier.throttled_periods,
        later.throttled_seconds - earlier.throttled_seconds,
    )
