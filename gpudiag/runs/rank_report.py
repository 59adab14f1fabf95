"""What was seen of the machine before and after ranks measured, and remedies as they fit it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.checks.builtin import BUILTIN
from gpudiag.checks.gpu.holders import memory_free
from gpudiag.checks.ranks.rising_counters import find_movements
from gpudiag.checks.runner import findings_worst_first, run_checks
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.measure import HostCounters, Movement
from gpudiag.model.remedy import platform_of
from gpudiag.probe.host.counters import read_host_counters
from gpudiag.runs.placement import Placement

_SNAPSHOT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Watch:
    """The machine before a run; `snapshot` is set if the run uses GPUs."""

    counters: HostCounters
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class Watched:
    """What changed during a run, and the faults that appeared meanwhile."""

    movements: tuple[Movement, ...]
    findings: tuple[Finding, ...]


def start_watch(*, gpus: bool) -> Watch:
    """Read this host's counters before a run, and with `gpus` its GPUs and kernel log."""
    return Watch(read_host_counters(), _take_snapshot() if gpus else None)


def finish_watch(watch: Watch, host: str) -> Watched:
    """Read the same again after the run, and return what changed."""
    counters = (watch.counters, read_host_counters())
    if watch.snapshot is None:
        return Watched(find_movements(host, counters, None), ())
    before, after = watch.snapshot, _take_snapshot()
    movements = find_movements(host, counters, (before, after))
    return Watched(movements, find_new(before, after))


def find_new(before: Snapshot, after: Snapshot) -> tuple[Finding, ...]:
    """The faults of the second snapshot that the first one does not show, worst first."""
    known = {(finding.code, finding.subject) for finding in _judge(Context(before))}
    found = _judge(Context(after, earlier=before))
    return tuple(finding for finding in found if (finding.code, finding.subject) not in known)


def _take_snapshot() -> Snapshot:
    from gpudiag.probe.inventory import take_snapshot  # only where there are GPUs

    return take_snapshot(("nvml",), _SNAPSHOT_SECONDS, kernel_log=True)


def _judge(context: Context) -> tuple[Finding, ...]:
    # Ranks that have just ended may still be listed with their memory.
    results = run_checks(context, (check for check in BUILTIN if check is not memory_free))
    faults = (Outcome.FAIL, Outcome.WARN)
    return tuple(finding for finding in findings_worst_first(results) if finding.outcome in faults)


def fit_to_place(findings: Sequence[Finding], placement: Placement) -> tuple[Finding, ...]:
    """The findings with every remedy as it can be done on the machine where the ranks are placed."""
    platform = platform_of(snapshot_of(placement).machine)
    return tuple(finding.on(platform) for finding in findings)


def snapshot_of(placement: Placement) -> Snapshot:
    """The machine when ranks were placed."""
    assert placement.snapshot is not None  # noqa: S101 - whoever places ranks has looked at the machine
    return placement.snapshot
