"""The Report of what ranks measured, judged by checks, with what was seen of the machine before and after."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudiag.checks.builtin import BUILTIN
from gpudiag.checks.gpu.holders import memory_free
from gpudiag.checks.ranks.rising_counters import find_movements
from gpudiag.checks.runner import findings_worst_first, run_checks
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import CheckResult, Finding, Outcome, outcome_of_findings
from gpudiag.model.history import History
from gpudiag.model.measure import HostCounters, Movement
from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.report import Measures, Report
from gpudiag.probe.host.counters import read_host_counters
from gpudiag.runs.gate import judge_results
from gpudiag.runs.placement import Placement

# --- the machine meanwhile

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


# --- the report


def build_context(measures: Measures, placement: Placement, history: Reading[History] = NOT_ASKED) -> Context:
    """The checks' context: the measures, the machine when ranks were placed, and the GPUs that took part."""
    snapshot = replace(_snapshot_of(placement), devices=placement.devices)
    return Context(snapshot, measures, history=history, environment=dict(os.environ))


def list_seen(name: str, findings: Sequence[Finding]) -> tuple[CheckResult, ...]:
    """A result with the findings from before or beside the measurement; empty if there are none."""
    return (CheckResult(name, outcome_of_findings(findings), tuple(findings)),) if findings else ()


def build_rank_report(measures: Measures, placement: Placement, results: tuple[CheckResult, ...]) -> Report:
    """The report of those results.

    Raises:
        ValueError: a check could not judge what was measured. That is a bug of ours, and the documents that
            show this report have no field for it.
    """
    for result in results:
        if result.outcome is Outcome.ERROR and not result.findings:
            raise ValueError(f"{result.check}: {result.reason}")
    return Report(judge_results(results), results, _snapshot_of(placement), measures)


def _snapshot_of(placement: Placement) -> Snapshot:
    assert placement.snapshot is not None  # noqa: S101 - whoever places ranks has looked at the machine
    return placement.snapshot
