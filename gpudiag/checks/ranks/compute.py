"""Checks of how GPUs and CPUs compute: fast, lastingly, and always the same."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpudiag.checks.ranks.active import ON_CPU_RANKS, active_of, has_all, why_not_tested
from gpudiag.checks.ranks.measured_speeds import (
    NOT_ON_CPU,
    SpeedVerdict,
    any_opinion,
    device_of,
    is_shared,
    judge_against,
    matrix_opinions,
    name_evidence,
    peers_opinion,
    same_product,
    seen_meanwhile,
    slow_by_rank,
    subject_of,
    why_shared,
)
from gpudiag.checks.ranks.speed_list import judged_speeds
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    Level,
    check,
    could_not_look,
    does_not_apply,
    in_use,
    judged,
)
from gpudiag.model.active import (
    DETERMINISM,
    MATMUL,
    MEMORY_PATTERNS,
    NOT_TESTED,
    SUSTAINED,
    ActiveMeasurement,
    ComputeResult,
    DeterminismResult,
    PatternResult,
    SustainedResult,
    metric_of,
)
from gpudiag.model.context import Context
from gpudiag.model.device import Device
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject, Subject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing
from gpudiag.units import format_size, significant

_SLOWER_SHARE = 0.05  # our choice, after gpu-fryer and DCGM's targeted tests: 5 % is more than a warm-up
_kind = partial(
    FindingKind,
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
)
_COMPUTE_DETERMINISM_BASIS = Basis(
    reads="A hash over every bit of the results of products, attention and reductions from one seed, per"
    " dtype, repeated on every rank.",
    limit=(
        "All repeats on one device, and all identical devices, give the same result;"
        " if they do not, the majority is right."
    ),
    look_also=("gpudiag preflight --level long", "gpudiag list --wide", "dcgmi diag -r 3"),
)
MATMUL_SLOW = _kind(
    code="compute.slow",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.PERF_THRESHOLD,
    meaning="The GPU multiplies matrices slower than identical GPUs of this machine, or than before.",
    remedy="Look at its clocks, power limit and temperature under load: `gpudiag list --wide --watch 1`.",
    basis=Basis(
        reads="active.compute, active.telemetry",
        limit=(
            "65 % of what processors and data sheet allow at the clock that was seen, not under a power cap,"
            " not for an emulated dtype; 80 % of what gpudiag measured on a healthy GPU of the model;"
            " identical GPUs here; this machine's history"
        ),
        look_also=(
            "gpudiag list --wide",
            "gpudiag history",
            "nvidia-smi -q -d CLOCK,PERFORMANCE",
            "pcie.width",
        ),
    ),
)
NOT_REPEATABLE = _kind(
    code="compute.not_repeatable",
    meaning="The same computation gave different results on one device: it sometimes computes wrongly.",
    remedy=(
        "[hardware] Keep this device out of jobs; have it tested with the vendor's diagnostics and replaced."
    ),
    basis=_COMPUTE_DETERMINISM_BASIS,
)
MINORITY = _kind(
    code="compute.minority",
    meaning="From the same input, the device computes a different result from most identical ones here.",
    remedy=(
        "[hardware] Keep this device out of jobs; have it tested with the vendor's diagnostics and replaced."
    ),
    basis=_COMPUTE_DETERMINISM_BASIS,
)
NO_MAJORITY = _kind(
    code="compute.no_majority",
    severity=Severity.TRIAGE,
    meaning="Identical devices compute different results from the same input, and no result has a majority.",
    remedy="Run it again on more devices (`gpudiag preflight --level standard`) to find the wrong one.",
    basis=_COMPUTE_DETERMINISM_BASIS,
)
SLOWS_DOWN = _kind(
    code="compute.slows_down",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_THERMAL,
    meaning="Under a sustained load the GPU got slower from its first to its last minute.",
    remedy=(
        "[hardware] Look at its temperature and clocks in the report; check airflow, fans, paste and power."
    ),
    basis=Basis(
        reads="active.sustained, active.telemetry",
        limit=f"{_SLOWER_SHARE:.0%} from the first to the last minute (our choice)",
        look_also=("nvidia-smi -q -d TEMPERATURE,POWER,CLOCK", "clocks.throttled", "gpudiag history"),
    ),
)
_HEATING_MINUTES = 30.0  # our choice: what a job of hours reaches
HEATS_UP = _kind(
    code="compute.heats_up",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    category=Category.HW_THERMAL,
    meaning=(
        "Under a sustained load the GPU's temperature still rises at its end, towards"
        " the temperature that slows it down."
    ),
    remedy=(
        "[hardware] Check airflow, fans, paste and the coolant's flow; compare with the other"
        " GPUs: `gpudiag list --wide --watch 1`."
    ),
    basis=Basis(
        reads="active.telemetry during active.sustained, temperature_slowdown_celsius, or the margin to it",
        limit=(
            f"the slope over the last third of the load, continued for {_HEATING_MINUTES:.0f} minutes,"
            " stays below the slowdown temperature (our choice)"
        ),
        look_also=("nvidia-smi -q -d TEMPERATURE", "compute.slows_down", "clocks.throttled"),
    ),
)
PATTERN_MISMATCH = _kind(
    code="memory.pattern_mismatch",
    category=Category.HW_MEMORY,
    meaning=(
        "Memory returned a different bit pattern from the one written to it, and nothing reported an error."
    ),
    remedy="[hardware] Keep this device out of jobs; have its memory, or the GPU, replaced.",
    basis=Basis(
        reads="Eight patterns written to most of the free memory and read back, in two"
        " passes; the first wrong word, and every bit that flipped.",
        limit="No word may differ.",
        look_also=("gpudiag list --wide", "memory.row_remap_failed", "ecc.uncorrected_volatile"),
    ),
)
_MINUTE = 60.0
_LEAST_TEMPERATURES = 3  # below that a line through them means nothing
_LEAST_LOAD_SECONDS = 300.0  # our choice: a cooler needs some minutes to follow
_LEAST_SLOPE = 0.2  # degrees Celsius per minute; NVML counts whole degrees


@check(
    "compute.matmul",
    title="every GPU multiplies matrices as fast as its peers, and as before",
    needs=("active",),
    level=Level.QUICK,
    reports=(MATMUL_SLOW,),
    readings=("active.compute", "active.telemetry"),
    confirmed=BOTH_GPUS,
)
def compute_matmul(context: Context) -> Judgement:
    """WARN for each slow GPU, with the dtypes; SKIP where there is nothing to compare with."""
    measured = active_of(context)
    if measured.device_kind != "cuda":
        return does_not_apply(NOT_ON_CPU)
    if not has_all(context, MATMUL, [result.rank for result in measured.compute]):
        return could_not_look("not every GPU gave a result")
    if not measured.compute:
        return in_use(f"{NOT_TESTED}: {why_not_tested(context, (MATMUL,))}")
    results = [one for one in measured.compute if not is_shared(measured, one.device_uuid)]
    if not results:
        return in_use(why_shared(measured))
    verdicts = [_judge_matmul(context, result, results) for result in results]
    if not any_opinion(verdicts):
        return does_not_apply(
            "nothing to compare the speed with: no limit from the device, no identical GPU, no history"
        )
    return judged(
        *(_slow(context, slow) for slow in slow_by_rank(results, verdicts)),
        speeds=judged_speeds(context.snapshot, zip(results, verdicts, strict=True)),
    )


@check(
    "compute.determinism",
    title="the same computation gives the same result, every time and on every device",
    needs=("active",),
    level=Level.STANDARD,
    reports=(NOT_REPEATABLE, MINORITY, NO_MAJORITY),
    readings=("active.determinism",),
    confirmed=f"{ON_CPU_RANKS}; {BOTH_GPUS}",
)
def compute_determinism(context: Context) -> Judgement:
    """FAIL for a device whose results differ from its own, or from those of most identical devices."""
    measured = active_of(context)
    findings = [*_contradictions(measured.determinism, measured.host)]
    wrong = {finding.subject for finding in findings}
    groups: dict[tuple[str, str, str], list[DeterminismResult]] = defaultdict(list)
    for result in measured.determinism:
        groups[result.chain, result.dtype, result.device_name].append(result)
    votes = [finding for group in groups.values() for finding in _vote(group, measured.host)]
    findings += _once_per_subject(finding for finding in votes if finding.subject not in wrong)
    if not findings and not has_all(context, DETERMINISM, [one.rank for one in measured.determinism]):
        return could_not_look("not every rank gave its results")
    if not measured.determinism:
        return in_use(f"{NOT_TESTED}: {why_not_tested(context, (DETERMINISM,))}")
    return judged(*findings)


@check(
    "memory.patterns",
    title="memory returns what was written to it",
    needs=("active",),
    level=Level.LONG,
    reports=(PATTERN_MISMATCH,),
    readings=("active.patterns",),
    confirmed=ON_CPU_RANKS,
)
def memory_patterns(context: Context) -> Judgement:
    """FAIL for wrong words; ERROR where less memory than planned was tested: that is no pass."""
    measured = active_of(context)
    findings = tuple(_mismatch(context, result) for result in measured.patterns if result.wrong_words)
    if findings:
        return judged(*findings)
    if not has_all(context, MEMORY_PATTERNS, [one.rank for one in measured.patterns]):
        return could_not_look("not every rank tested its memory")
    if not measured.patterns:
        return in_use(f"{NOT_TESTED}: {why_not_tested(context, (MEMORY_PATTERNS,))}")
    short = [result for result in measured.patterns if result.tested_bytes < result.wanted_bytes]
    if short:
        first = short[0]
        return could_not_look(
            f"rank {first.rank} got {format_size(first.tested_bytes)} of"
            f" {format_size(first.wanted_bytes)} to test"
        )
    return judged()


@check(
    "compute.sustained",
    title="every GPU keeps its speed under a sustained load",
    needs=("active",),
    level=Level.LONG,
    reports=(SLOWS_DOWN,),
    readings=("active.sustained", "active.telemetry"),
)
def compute_sustained(context: Context) -> Judgement:
    """WARN for each GPU that got slower, with how its temperature and clock changed."""
    measured = active_of(context)
    if measured.device_kind != "cuda":
        return does_not_apply(NOT_ON_CPU)
    if not has_all(context, SUSTAINED, [one.rank for one in measured.sustained]):
        return could_not_look("not every GPU was under load to the end")
    if not measured.sustained:
        return in_use(f"{NOT_TESTED}: {why_not_tested(context, (SUSTAINED,))}")
    results = [one for one in measured.sustained if not is_shared(measured, one.device_uuid)]
    if not results:
        return in_use(why_shared(measured))
    return judged(*(finding for result in results for finding in _judge_load(context, result)))


@check(
    "compute.heat",
    title="every GPU's temperature settles under a sustained load",
    needs=("active",),
    level=Level.LONG,
    reports=(HEATS_UP,),
    readings=("active.telemetry", "temperature_slowdown_celsius"),
)
def compute_heat(context: Context) -> Judgement:
    """WARN for each GPU that will be too hot within half an hour, if it goes on so.

    It is SKIP where no limit is known.
    """
    measured = active_of(context)
    if measured.device_kind != "cuda":
        return does_not_apply("a processor's temperature is not read")
    if not has_all(context, SUSTAINED, [one.rank for one in measured.sustained]):
        return could_not_look("not every GPU was under load to the end")
    if not measured.sustained:
        return in_use(f"{NOT_TESTED}: {why_not_tested(context, (SUSTAINED,))}")
    loads = [result for result in measured.sustained if result.seconds >= _LEAST_LOAD_SECONDS]
    if not loads:
        return does_not_apply(f"the load was shorter than {_LEAST_LOAD_SECONDS / _MINUTE:.0f} minutes")
    slopes = [(result, slope) for result in loads if (slope := end_slope(measured, result))]
    limits = [(one, slope, _slowdown_celsius(context, one)) for one, slope in slopes]
    known = [(one, slope, limit) for one, slope, limit in limits if limit is not None]
    if not known:
        return does_not_apply("no temperature was read during the load, or no GPU reports what slows it down")
    return judged(*(finding for one in known for finding in _judge_heat(context, *one)))


@dataclass(frozen=True, slots=True)
class HeatSlope:
    """The last temperature in the last third of a load, and its change in degrees Celsius per minute."""

    last_celsius: float
    celsius_per_minute: float
    points: int


def end_slope(measured: ActiveMeasurement, result: SustainedResult) -> HeatSlope | None:
    """The slope at the end of that load.

    It is None where fewer than three temperatures were read in its last third.
    """
    ended = max((point.at_seconds for point in measured.telemetry), default=0.0)
    # The load is the last test: telemetry ends with it.
    points = [
        (point.at_seconds, float(point.temperature_celsius))
        for point in measured.telemetry
        if point.device_uuid == result.device_uuid
        and not isinstance(point.temperature_celsius, Missing)
        and point.at_seconds >= ended - result.seconds / 3
    ]
    if len({at for at, _ in points}) < _LEAST_TEMPERATURES:
        return None
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    return HeatSlope(points[-1][1], slope * _MINUTE, len(points))


def _slowdown_celsius(context: Context, result: SustainedResult) -> float | None:
    device = device_of(context.snapshot, result.device_uuid)
    return None if device is None else slowdown_celsius(device)


def slowdown_celsius(device: Device) -> float | None:
    """The temperature at which the GPU cuts its clocks; None where neither it nor the margin to it is known.

    From Ada on some drivers report only the margin: an H100 at 42 C has 45 left and slows down at -2, which
    is the 89 C that its NVML reports too (recorded with driver 580.159.04).
    """
    if not isinstance(device.temperature_slowdown_celsius, Missing):
        return float(device.temperature_slowdown_celsius)
    now, left, slows_at = (
        device.temperature_celsius,
        device.temperature_margin_celsius,
        device.temperature_margin_slowdown_celsius,
    )
    if isinstance(now, Missing) or isinstance(left, Missing) or isinstance(slows_at, Missing):
        return None
    return float(now + left - slows_at)


def _judge_heat(
    context: Context, result: SustainedResult, slope: HeatSlope, limit: float
) -> Iterator[Finding]:
    reached = slope.last_celsius + slope.celsius_per_minute * _HEATING_MINUTES
    if slope.celsius_per_minute < _LEAST_SLOPE or reached < limit:
        return
    subject, name = subject_of(context, result.rank, result.device_uuid)
    message = (
        f"{name} is at {slope.last_celsius:.0f} C after {result.seconds / _MINUTE:.0f} min of load, and"
        f" rises by {slope.celsius_per_minute:.1f} C a minute"
    )
    source = f"NVML, {slope.points} readings over the last third of the load"
    evidence = (
        Evidence(
            "temperature_celsius", slope.last_celsius, "C", limit, "NVML; limit: its slowdown temperature"
        ),
        Evidence("temperature_celsius_slope", round(slope.celsius_per_minute, 2), "C/min", source=source),
    )
    yield HEATS_UP.finding(subject, message, *evidence)


def _judge_matmul(context: Context, result: ComputeResult, results: Sequence[ComputeResult]) -> SpeedVerdict:
    device = device_of(context.snapshot, result.device_uuid)
    peers = [
        other.flops_per_second
        for other in results
        if other.rank != result.rank
        and (other.dtype, other.size) == (result.dtype, result.size)
        and same_product(context.snapshot, result.device_uuid, other.device_uuid)
    ]
    seen = seen_meanwhile(active_of(context), result)
    by_device = () if device is None else matrix_opinions(device, result.dtype, result.size, seen)
    expectations = (*by_device, *peers_opinion(peers))
    return judge_against(
        context, metric_of(result), result.device_uuid, result.flops_per_second, "FLOP/s", expectations
    )


def _slow(context: Context, slow: Sequence[tuple[ComputeResult, SpeedVerdict]]) -> Finding:
    first = slow[0][0]
    subject, name = subject_of(context, first.rank, first.device_uuid)
    speeds = (
        (
            f"{one.dtype} products of {one.size} x {one.size} at"
            f" {significant(one.flops_per_second / 1e12)} TFLOP/s"
        )
        for one, _ in slow
    )
    evidence = [*name_evidence(slow, lambda result: result.dtype), *_meanwhile(context, first)]
    return MATMUL_SLOW.finding(subject, f"{name}: {', '.join(speeds)}", *evidence)


def _meanwhile(context: Context, result: ComputeResult) -> Iterator[Evidence]:
    """The best burst beside the median, and the GPU's power, clock and the reasons for it during the test."""
    best = result.flops_per_second * result.time_p50_seconds / result.time_best_seconds
    yield Evidence("best_flops_per_second", best, "FLOP/s", source=f"best of the same run, {result.dtype}")
    seen = seen_meanwhile(active_of(context), result)
    if seen is None:
        return
    source = "NVML, median during the run"
    if not isinstance(seen.power_draw_watts, Missing):
        yield Evidence("power_draw_watts", seen.power_draw_watts, "W", source=source)
    if not isinstance(seen.sm_clock_mhz, Missing):
        yield Evidence("sm_clock_mhz", seen.sm_clock_mhz, "MHz", source=source)
    if not isinstance(seen.clocks_event_reasons, Missing):
        reasons = ", ".join(seen.clocks_event_reasons) or "none"
        yield Evidence("clocks_event_reasons", reasons, source="NVML, during the run")


def _contradictions(results: tuple[DeterminismResult, ...], host: str) -> Iterator[Finding]:
    """A finding for each rank whose repeats differ, by the first chain in which they do."""
    first: dict[int, DeterminismResult] = {}
    for result in results:
        if result.deviating:
            first.setdefault(result.rank, result)
    for rank, result in sorted(first.items()):
        message = (
            f"rank {rank}: {result.deviating} of {result.repeats} repeats of the {result.chain} chain in "
            f"{result.dtype} gave a different result"
        )
        evidence = Evidence("deviating", result.deviating, "repeats", 0, _chain(result))
        yield NOT_REPEATABLE.finding(RankSubject(rank, host), message, evidence, *_device_facts(result))


def _vote(group: list[DeterminismResult], host: str) -> Iterator[Finding]:
    """Findings where identical devices differ: the minority, or all where there is no majority."""
    votes = Counter(result.digest for result in group)
    if len(votes) < 2:
        return
    digest, count = votes.most_common(1)[0]
    if count <= len(group) / 2:
        message = f"{len(group)} identical devices gave {len(votes)} different results ({_chain(group[0])})"
        evidence = Evidence("different_results", len(votes), limit=1, source=_chain(group[0]))
        yield NO_MAJORITY.finding(HostSubject(host), message, evidence)
        return
    for result in group:
        if result.digest != digest:
            message = f"rank {result.rank} computes a different result from {count} of {len(group)} like it"
            evidence = Evidence("digest", result.digest, limit=digest, source=f"majority; {_chain(result)}")
            yield MINORITY.finding(RankSubject(result.rank, host), message, evidence, *_device_facts(result))


def _once_per_subject(findings: Iterator[Finding]) -> list[Finding]:
    first: dict[Subject, Finding] = {}
    for finding in findings:
        first.setdefault(finding.subject, finding)
    return list(first.values())


def _mismatch(context: Context, result: PatternResult) -> Finding:
    subject, name = subject_of(context, result.rank, result.device_uuid)
    words = "word" if result.wrong_words == 1 else "words"
    message = f"{name}: {result.wrong_words} {words} of memory came back wrong"
    facts = (
        ("first_pattern", result.first_pattern, None),
        ("first_offset_bytes", result.first_offset_bytes, "bytes"),
        ("flipped_bits", result.flipped_bits, None),
    )
    source = f"{format_size(result.tested_bytes)} tested with {len(result.patterns)} patterns"
    evidence = [Evidence("wrong_words", result.wrong_words, "words", 0, source)]
    evidence += [Evidence(name, value, unit) for name, value, unit in facts if not isinstance(value, Missing)]
    return PATTERN_MISMATCH.finding(subject, message, *evidence)


def _judge_load(context: Context, result: SustainedResult) -> Iterator[Finding]:
    first, last = first_and_last(result)
    if not first or last >= (1 - _SLOWER_SHARE) * first:
        return
    subject, name = subject_of(context, result.rank, result.device_uuid)
    message = f"{name} lost {1 - last / first:.0%} of its speed in {result.seconds / _MINUTE:.0f} min of load"
    source = f"limit: {1 - _SLOWER_SHARE:.0%} of the first minute"
    evidence = Evidence("flops_per_second", last, "FLOP/s", (1 - _SLOWER_SHARE) * first, source)
    yield SLOWS_DOWN.finding(subject, message, evidence, *_slopes(context, result))


def first_and_last(result: SustainedResult) -> tuple[float, float]:
    """Median speed of the first and of the last minute, or of the first and last third of a shorter load."""
    span = min(_MINUTE, result.seconds / 3)
    first = [point.flops_per_second for point in result.points if point.at_seconds <= span]
    last = [point.flops_per_second for point in result.points if point.at_seconds >= result.seconds - span]
    if not first or not last:
        return 0.0, 0.0
    return statistics.median(first), statistics.median(last)


def _slopes(context: Context, result: SustainedResult) -> Iterator[Evidence]:
    """How fast temperature and clock changed under load, per minute."""
    points = [one for one in active_of(context).telemetry if one.device_uuid == result.device_uuid]
    for name, unit in (("temperature_celsius", "C/min"), ("sm_clock_mhz", "MHz/min")):
        known = [
            (point.at_seconds, float(value))
            for point in points
            if not isinstance(value := getattr(point, name), Missing)
        ]
        if len({at for at, _ in known}) > 1:
            slope = statistics.linear_regression(*zip(*known, strict=True)).slope
            yield Evidence(f"{name}_slope", round(slope * _MINUTE, 2), unit, source="NVML, during the load")


def _chain(result: DeterminismResult) -> str:
    return f"{result.chain} chain, {result.dtype}, {result.repeats} repeats"


def _device_facts(result: DeterminismResult) -> Iterator[Evidence]:
    yield Evidence("device", result.device_name)
    if not isinstance(result.device_uuid, Missing):
        yield Evidence("device_uuid", result.device_uuid)
