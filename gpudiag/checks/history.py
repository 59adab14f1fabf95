"""The check of drift: is a GPU still as fast as it was in its own last good runs?"""

from collections import defaultdict

from gpudiag.checks.bandwidth import HOST_SLOW, MEMORY_SLOW
from gpudiag.checks.compute import MATMUL_SLOW
from gpudiag.checks.registry import (
    Basis,
    FindingKind,
    Judgement,
    Level,
    Restated,
    check,
    could_not_look,
    does_not_apply,
    judged,
)
from gpudiag.checks.speeds import HISTORY_RUNS, device_of, find_baseline
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.active import DEVICE_TO_HOST, HOST_TO_DEVICE, MATMUL, MEMORY_COPY
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, HostSubject, Subject
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.history import Baseline, Sample
from gpudiag.model.reading import Missing
from gpudiag.reference.speeds import speed_limits
from gpudiag.units import significant

DRIFT = FindingKind(
    code="performance.drift",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_THRESHOLD,
    owner=Owner.HARDWARE,
    meaning="A speed is below what this very machine gave in its last good runs.",
    remedy="Look at `gpudiag history` for since when; compare clocks, temperature, driver and firmware with then.",
    basis=Basis(
        reads="samples",
        limit=f"95 % of the own median over at least {HISTORY_RUNS} good runs (superbenchmark)",
        look_also=("gpudiag history", "gpudiag list --wide", "machine.changed"),
    ),
)
# The checks of these tests hold a GPU's speed against its past too, beside all else that they know.
_STATED_BY = {
    MEMORY_COPY: MEMORY_SLOW.code,
    HOST_TO_DEVICE: HOST_SLOW.code,
    DEVICE_TO_HOST: HOST_SLOW.code,
    MATMUL: MATMUL_SLOW.code,
}
_Drifted = tuple[Sample, Baseline]


@check(
    "performance.drift",
    title="every speed is what it was in this machine's own good runs",
    needs=("history",),
    level=Level.QUICK,
    reports=(DRIFT,),
    readings=("samples",),
)
def performance_drift(context: Context) -> Judgement:
    """WARN for each GPU, and for the machine, with what lies below its baseline; the CPU's is not judged."""
    samples = [sample for sample in context.samples if sample.judged]
    if not samples:
        return does_not_apply("nothing was measured that is compared with its history")
    pairs = [(sample, find_baseline(context, sample.metric, sample.device_uuid)) for sample in samples]
    known = [(sample, baseline) for sample, baseline in pairs if baseline is not None]
    if not known:
        return does_not_apply(f"fewer than {HISTORY_RUNS} good runs are stored to compare with")
    if any(sample.value != sample.value for sample, _ in known):
        return could_not_look("a measurement is not a number")
    drifted: dict[tuple[Subject, str], list[_Drifted]] = defaultdict(list)
    for sample, baseline in known:
        if sample.value < speed_limits()["history"].warn * baseline.median:
            drifted[_whose(context, sample)].append((sample, baseline))
    restated = tuple(_drift(context, whose, slow) for whose, slow in drifted.items())
    return judged(*(one.finding for one in restated), restated=restated)


def _whose(context: Context, sample: Sample) -> tuple[Subject, str]:
    """Whose speed it is, and how a message names it."""
    device = None if sample.device_uuid is None else device_of(context.snapshot, sample.device_uuid)
    if device is None:
        return HostSubject(context.snapshot.host), context.snapshot.host
    return device_subject(context.snapshot, device), name_device(device)


def _drift(context: Context, whose: tuple[Subject, str], slow: list[_Drifted]) -> Restated:
    subject, name = whose
    slow.sort(key=_share)
    worst, *others = slow
    message = f"{worst[0].metric} is at {_share(worst):.0%} of what it was"
    if others:
        message += f", and {len(others)} more {'is' if len(others) == 1 else 'are'} lower too"
    assert not isinstance(context.history, Missing)  # noqa: S101 - the need saw to it
    evidence = (*(_evidence(*one) for one in slow), Evidence("store", context.history.store))
    told = (_STATED_BY.get(sample.metric.partition(".")[0]) for sample, _ in slow)
    stated_by = tuple(dict.fromkeys(code for code in told if code is not None))
    return Restated(DRIFT.finding(subject, f"{name}: {message}", *evidence), stated_by, message)


def _share(one: _Drifted) -> float:
    sample, baseline = one
    return sample.value / baseline.median


def _evidence(sample: Sample, baseline: Baseline) -> Evidence:
    share, median = speed_limits()["history"].warn, baseline.median
    source = f"limit: {share:.0%} of the median of {baseline.count} good runs ({significant(median)})"
    return Evidence(sample.metric, sample.value, sample.unit, share * median, source)
