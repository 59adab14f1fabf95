"""Which rank is late to the collectives, judged by arrival and never by duration.

The late rank has the shortest duration, as it does not wait. Lateness is how much later than the median it
arrived; its processor time beside others' shows why (collectives.md section 6.4, with a floor that an
oversubscribed host does not reach). On GPUs no host process waits for a rank that was once late: there only
what it adds counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind, LatenessSeries, RankLateness
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.ranks.clock import ClockOffset
from gpudiag.ranks.rank.arrivals import Arrivals, HostUse
from gpudiag.ranks.stages import MEASURE

ITERATIONS_AT_LEAST = 20
LATE_SHARE_OF_STEP = 0.05
CLOCK_ERRORS = 3.0
# With more ranks than processors, scheduling makes ranks late by fractions of a millisecond in turn.
LATE_FLOOR_SECONDS = 1e-3
# In at least this share of its iterations a straggler is late by half the limit or more.
CONSISTENT_SHARE = 0.75
# Work and waiting together must explain at least this share of all the time that the rank was late.
EXPLAINED_SHARE = 0.5

# Of the series over time: as many spans as a screen shows, and fewer where there are many ranks, so that a
# report does not grow with their square.
_SPANS, _SPANS_AT_LEAST, _SPANS_OF_ALL = 96, 12, 8000


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late ranks arrived at the timed collectives, and how long these took once all were there.

    `late_seconds` has each rank's median over iterations; `transfer_seconds` is the median time
    that the last to arrive spent inside; `step_seconds` from the first arrival to the last return.
    """

    iterations: int
    late_seconds: Mapping[int, float]
    transfer_seconds: float
    step_seconds: float
    clock_error_seconds: float


_Samples = Mapping[int, Sequence[float]]  # rank -> seconds late, iteration by iteration


def align(arrivals: Mapping[int, Arrivals], offsets: Mapping[int, ClockOffset]) -> Mapping[int, Arrivals]:
    """The arrivals converted to one clock, of the ranks whose clock offset is known."""
    return {
        rank: replace(
            reported,
            arrived=tuple(moment - int(offsets[rank].seconds * 1e9) for moment in reported.arrived),
            left=tuple(moment - int(offsets[rank].seconds * 1e9) for moment in reported.left),
        )
        for rank, reported in arrivals.items()
        if rank in offsets
    }


def measure_lateness(arrivals: Mapping[int, Arrivals], clock_error_seconds: float = 0.0) -> Lateness | None:
    """The lateness of all ranks, their arrivals on one clock; None where their iterations differ."""
    arrivals = _without_run_ahead(arrivals)
    samples = _lateness_samples(arrivals)
    if samples is None:
        return None
    arrived = list(zip(*(rank.arrived for rank in arrivals.values()), strict=True))
    left = list(zip(*(rank.left for rank in arrivals.values()), strict=True))
    last = [moments.index(max(moments)) for moments in arrived]
    transfers = [ends[who] - starts[who] for who, starts, ends in zip(last, arrived, left, strict=True)]
    steps = [max(ends) - min(starts) for starts, ends in zip(arrived, left, strict=True)]
    return Lateness(
        iterations=len(arrived),
        late_seconds={rank: median(values) for rank, values in samples.items()},
        transfer_seconds=median(transfers) / 1e9,
        step_seconds=median(steps) / 1e9,
        clock_error_seconds=clock_error_seconds,
    )


def find_stragglers(
    reported: Mapping[int, Arrivals],
    offsets: Mapping[int, ClockOffset],
    hosts: Mapping[int, str],
    started: float,
) -> tuple[Incident, ...]:
    """The ranks that the others wait for in most iterations, the latest first, each with the cause.

    `offsets` are of each rank's clock from that of `started`, the run's start in seconds; empty if one is
    unknown.
    """
    if not reported or not reported.keys() <= offsets.keys():
        return ()
    arrivals = _without_run_ahead(align(reported, offsets))
    clock_error_seconds = max(offsets[rank].error_seconds for rank in arrivals)
    lateness, samples = measure_lateness(arrivals, clock_error_seconds), _lateness_samples(arrivals)
    if lateness is None or samples is None or lateness.iterations < ITERATIONS_AT_LEAST:
        return ()
    limit = limit_seconds(lateness)
    late = [rank for rank, seconds in lateness.late_seconds.items() if seconds > limit]
    consistent = [rank for rank in late if _share_above(samples[rank], limit / 2) >= CONSISTENT_SHARE]
    return tuple(
        Incident(
            kind=IncidentKind.LATE,
            rank=rank,
            host=hosts[rank],
            stage=MEASURE,
            at_seconds=max(0.0, arrivals[rank].arrived[0] / 1e9 - started),
            evidence=(*_lateness_evidence(rank, lateness, limit), *_cause_evidence(rank, samples, arrivals)),
        )
        for rank in sorted(consistent, key=lambda rank: -lateness.late_seconds[rank])
    )


def list_lateness(
    reported: Mapping[int, Arrivals], offsets: Mapping[int, ClockOffset], started: float
) -> Reading[LatenessSeries]:
    """Which rank was late when, or why that is not known; `started` and `offsets` as in `find_stragglers`."""
    if not reported or not reported.keys() <= offsets.keys():
        return Missing(MissingReason.TIMED_OUT, "the clock of some rank's machine is not known")
    arrivals = _without_run_ahead(align(reported, offsets))
    clock_error_seconds = max(offsets[rank].error_seconds for rank in arrivals)
    lateness, samples = measure_lateness(arrivals, clock_error_seconds), _lateness_samples(arrivals)
    if lateness is None or samples is None:
        return Missing(MissingReason.NOT_SUPPORTED, "one rank, or ranks that timed different iterations")
    moments = [
        min(arrived) / 1e9 for arrived in zip(*(one.arrived for one in arrivals.values()), strict=True)
    ]
    spans = max(_SPANS_AT_LEAST, min(_SPANS, len(moments) // 2, _SPANS_OF_ALL // len(arrivals)))
    span_seconds = max((moments[-1] - moments[0]) / spans, 1e-6)
    places = [min(spans - 1, int((moment - moments[0]) / span_seconds)) for moment in moments]
    return LatenessSeries(
        from_seconds=max(0.0, round(moments[0] - started, 6)),
        span_seconds=round(span_seconds, 9),
        iterations=lateness.iterations,
        limit_seconds=limit_seconds(lateness),
        ranks=tuple(
            RankLateness(rank, _means(values, places, spans)) for rank, values in sorted(samples.items())
        ),
    )


def _means(values: Sequence[float], places: Sequence[int], spans: int) -> tuple[float | None, ...]:
    """The mean of the values at each place; who comes before the median rank is not late."""
    sums, counts = [0.0] * spans, [0] * spans
    for value, place in zip(values, places, strict=True):
        sums[place] += max(0.0, value)
        counts[place] += 1
    return tuple(
        round(total / count, 6) if count else None for total, count in zip(sums, counts, strict=True)
    )


def limit_seconds(lateness: Lateness) -> float:
    """The median lateness, in seconds, above which a rank is a straggler."""
    return max(
        LATE_SHARE_OF_STEP * lateness.step_seconds,
        CLOCK_ERRORS * lateness.clock_error_seconds,
        LATE_FLOOR_SECONDS,
    )


def _without_run_ahead(arrivals: Mapping[int, Arrivals]) -> Mapping[int, Arrivals]:
    """The arrivals, each moved earlier by how late its rank already was, if it came without having waited."""
    late = _lateness_samples(arrivals)
    if late is None:
        return arrivals
    return {rank: _earlier(reported, late[rank]) for rank, reported in arrivals.items()}


def _earlier(reported: Arrivals, late: Sequence[float]) -> Arrivals:
    if not reported.awaited:
        return reported
    known = [0, *(int(seconds * 1e9) for seconds in late[:-1])]
    carried = [0 if awaited else before for awaited, before in zip(reported.awaited, known, strict=True)]
    return replace(
        reported,
        arrived=tuple(moment - before for moment, before in zip(reported.arrived, carried, strict=True)),
        left=tuple(moment - before for moment, before in zip(reported.left, carried, strict=True)),
        awaited=(),
    )


def _lateness_samples(arrivals: Mapping[int, Arrivals]) -> _Samples | None:
    """Seconds that each rank arrived after the median rank, by iteration; None if not comparable."""
    ranks = list(arrivals.values())
    comparable = len({(rank.first_iteration, len(rank.arrived)) for rank in ranks}) == 1
    if len(ranks) < 2 or not comparable:
        return None
    # The lower median: of two ranks, the first.
    middles = [
        sorted(moments)[(len(ranks) - 1) // 2]
        for moments in zip(*(rank.arrived for rank in ranks), strict=True)
    ]
    return {
        number: [(moment - middle) / 1e9 for moment, middle in zip(rank.arrived, middles, strict=True)]
        for number, rank in arrivals.items()
    }


def _share_above(values: Sequence[float], limit: float) -> float:
    return sum(value > limit for value in values) / len(values)


def _lateness_evidence(rank: int, lateness: Lateness, limit: float) -> tuple[Evidence, ...]:
    source = f"arrival times of {lateness.iterations} iterations"
    facts = (
        Evidence(
            "late_by", round(lateness.late_seconds[rank], 6), unit="s", limit=round(limit, 6), source=source
        ),
        Evidence("transfer", round(lateness.transfer_seconds, 6), unit="s", source=source),
        Evidence("step", round(lateness.step_seconds, 6), unit="s", source=source),
    )
    if lateness.clock_error_seconds == 0.0:
        return facts
    error = round(lateness.clock_error_seconds, 6)
    return (*facts, Evidence("clock_error", error, unit="s", source="messages between the agents"))


def _cause_evidence(rank: int, samples: _Samples, arrivals: Mapping[int, Arrivals]) -> tuple[Evidence, ...]:
    """Whether the rank computed longer, waited for a processor, or left it by itself."""
    total = sum(value for value in samples[rank] if value > 0)
    use = arrivals[rank].host_use
    others = [other.host_use for number, other in arrivals.items() if number != rank]
    waiting = _excess(use.runqueue_seconds, [other.runqueue_seconds for other in others])
    working = _excess(use.cpu_seconds, [other.cpu_seconds for other in others])
    facts = [
        Evidence("late_in_total", round(total, 6), unit="s", source="arrival times"),
        *_excess_evidence("waited_for_processor", waiting, "/proc/PID/schedstat, more than the other ranks"),
        *_excess_evidence("computed_longer", working, "/proc/PID/schedstat, more than the other ranks"),
    ]
    if isinstance(waiting, Missing) or isinstance(working, Missing):
        cause = "unknown: the kernel does not show how long it waited for a processor"
    elif max(waiting, 0.0) + max(working, 0.0) < EXPLAINED_SHARE * total:
        cause = "off the processor: it waits for input, a lock or a sleep"
    else:
        cause = "host late: ready to run, but no processor is free" if waiting >= working else "compute late"
    return (
        Evidence("cause", cause, source="processor time of all ranks"),
        *facts,
        *_host_evidence(use, others),
    )


def _excess(own: Reading[float], others: Sequence[Reading[float]]) -> Reading[float]:
    """How much more than the median of the other ranks."""
    if isinstance(own, Missing):
        return own
    return own - median(other for other in others if not isinstance(other, Missing))


def _excess_evidence(name: str, excess: Reading[float], source: str) -> tuple[Evidence, ...]:
    return () if isinstance(excess, Missing) else (Evidence(name, round(excess, 6), unit="s", source=source),)


def _host_evidence(use: HostUse, others: Sequence[HostUse]) -> tuple[Evidence, ...]:
    """What else the host did to the rank (steal, throttling and so on), if anything."""
    facts = []
    counted = (
        ("involuntary_switches", use.involuntary_switches, None, "/proc/PID/status"),
        ("steal", use.steal_seconds, "s", "/proc/stat, processors that the rank may use"),
        ("throttled", use.throttled_seconds, "s", "cpu.stat of the cgroup"),
        ("thermal_throttles", use.thermal_throttles, None, "/sys, processors that the rank may use"),
    )
    for name, value, unit, source in counted:
        if not isinstance(value, Missing) and value > 0:
            facts.append(Evidence(name, value, unit=unit, source=source))
    if any(set(use.allowed_cpus) < set(other.allowed_cpus) for other in others):
        cpus = ",".join(map(str, use.allowed_cpus))
        facts.append(Evidence("allowed_cpus", cpus, source="affinity; the other ranks may use more"))
    return tuple(facts)
