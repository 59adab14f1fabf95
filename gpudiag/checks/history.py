"""The check of drift: is a GPU still as fast as it was in its own last good runs?"""

from gpudiag.checks.measured_limits import HISTORY_SHARES
from gpudiag.checks.registry import (
    FindingKind,
    Judgement,
    Level,
    check,
    could_not_look,
    does_not_apply,
    judged,
)
from gpudiag.checks.speeds import HISTORY_RUNS, device_of, find_baseline
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.history import Baseline, Sample
from gpudiag.model.reading import Missing
from gpudiag.units import significant

DRIFT = FindingKind(
    code="performance.drift",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_THRESHOLD,
    owner=Owner.HARDWARE,
    meaning="A speed is below what this very machine gave in its last good runs.",
    remedy="Look at `gpudiag history` for since when; compare clocks, temperature, driver and firmware with then.",
)


@check(
    "performance.drift",
    title="every speed is what it was in this machine's own good runs",
    needs=("history",),
    level=Level.QUICK,
    reports=(DRIFT,),
    reads=("samples",),
    limit=f"{HISTORY_SHARES.warn:.0%} of the own median over at least {HISTORY_RUNS} good runs (superbenchmark)",
)
def performance_drift(context: Context) -> Judgement:
    """WARN for each metric of this run that lies below its baseline; the CPU's are not judged."""
    samples = [sample for sample in context.samples if sample.judged]
    if not samples:
        return does_not_apply("nothing was measured that is compared with its history")
    pairs = [(sample, find_baseline(context, sample.metric, sample.device_uuid)) for sample in samples]
    known = [(sample, baseline) for sample, baseline in pairs if baseline is not None]
    if not known:
        return does_not_apply(f"fewer than {HISTORY_RUNS} good runs are stored to compare with")
    if any(sample.value != sample.value for sample, _ in known):
        return could_not_look("a measurement is not a number")
    slow = [
        (sample, baseline)
        for sample, baseline in known
        if sample.value < HISTORY_SHARES.warn * baseline.median
    ]
    return judged(*(_drift(context, sample, baseline) for sample, baseline in slow))


def _drift(context: Context, sample: Sample, baseline: Baseline) -> Finding:
    device = None if sample.device_uuid is None else device_of(context.snapshot, sample.device_uuid)
    host = HostSubject(context.snapshot.host)
    subject = host if device is None else device_subject(context.snapshot, device)
    who = context.snapshot.host if device is None else name_device(device)
    share = sample.value / baseline.median if baseline.median else 0.0
    message = f"{who}: {sample.metric} is at {share:.0%} of what it was"
    limit = HISTORY_SHARES.warn * baseline.median
    source = f"limit: {HISTORY_SHARES.warn:.0%} of the median of {baseline.count} good runs ({significant(baseline.median)})"
    assert not isinstance(context.history, Missing)  # noqa: S101 - the need saw to it
    evidence = Evidence(sample.metric, sample.value, sample.unit, limit, source)
    return DRIFT.finding(subject, message, evidence, Evidence("store", context.history.store))
