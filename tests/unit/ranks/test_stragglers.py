"""Lateness by arrival: who is late, who only waited, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpudiag.model.evidence import Scalar
from gpudiag.model.measure import Incident
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.ranks.clock import SAME_CLOCK, ClockOffset
from gpudiag.ranks.diagnosis.stragglers import (
    find_stragglers,
    limit_seconds,
    list_lateness,
    measure_lateness,
)
from gpudiag.ranks.rank.arrivals import Arrivals, HostUse

MILLISECOND = 1_000_000
STEP = 100 * MILLISECOND
USE = HostUse(
    cpu_seconds=1.0,
    runqueue_seconds=0.1,
    involuntary_switches=0,
    steal_seconds=0.0,
    throttled_seconds=0.0,
    thermal_throttles=Missing(MissingReason.NOT_SUPPORTED),
    allowed_cpus=(0, 1),
)


def rank(
    late_milliseconds: float | Sequence[float] = 0.0, iterations: int = 40, use: HostUse = USE
) -> Arrivals:
    """A rank that comes late to every collective; all leave together, 5 ms after the last can have come."""
    late = [late_milliseconds] * iterations if isinstance(late_milliseconds, float) else late_milliseconds
    starts = [number * STEP for number in range(len(late))]
    return Arrivals(
        clock="one",
        first_iteration=0,
        arrived=tuple(start + int(value * MILLISECOND) for start, value in zip(starts, late, strict=True)),
        left=tuple(start + 25 * MILLISECOND for start in starts),
        host_use=use,
    )


def find(*ranks: Arrivals, offsets: Mapping[int, ClockOffset] | None = None) -> tuple[Incident, ...]:
    arrivals = dict(enumerate(ranks))
    known = dict.fromkeys(arrivals, SAME_CLOCK) if offsets is None else offsets
    return find_stragglers(arrivals, known, dict.fromkeys(arrivals, "a1"), started=0.0)


def facts(incident: Incident) -> dict[str, Scalar]:
    return {fact.name: fact.value for fact in incident.evidence}


def test_the_late_rank_is_named_and_not_those_who_waited() -> None:
    (incident,) = find(rank(), rank(), rank(), rank(20.0))
    assert (incident.kind, incident.rank, incident.host) == ("late", 3, "a1")
    assert facts(incident)["late_by"] == pytest.approx(0.02)
    assert facts(incident)["transfer"] == pytest.approx(0.005)


def test_of_two_ranks_the_one_that_comes_second_is_late() -> None:
    assert [incident.rank for incident in find(rank(20.0), rank())] == [0]


def test_two_late_ranks_are_named_the_later_first() -> None:
    assert [incident.rank for incident in find(rank(), rank(10.0), rank(), rank(20.0))] == [3, 1]


def test_ranks_that_come_together_are_not_late() -> None:
    assert find(rank(), rank(0.3), rank(0.1), rank()) == ()


def test_turns_are_not_a_straggler() -> None:
    by_turns = [[20.0 if number % 4 == own else 0.0 for number in range(40)] for own in range(4)]
    assert find(*(rank(late) for late in by_turns)) == ()


def test_less_than_a_twentieth_of_the_step_is_not_late() -> None:
    assert find(rank(), rank(), rank(1.2)) == ()  # of 25 ms


def test_a_few_iterations_prove_nothing() -> None:
    assert find(rank(iterations=19), rank(20.0, iterations=19)) == ()


def test_a_clock_that_is_not_known_could_be_the_late_ones() -> None:
    assert find(rank(), rank(20.0), offsets={0: SAME_CLOCK}) == ()


def test_other_clocks_are_brought_to_ours() -> None:
    ahead = replace(
        rank(20.0),
        arrived=tuple(moment + 5_000_000_000 for moment in rank(20.0).arrived),
        left=tuple(moment + 5_000_000_000 for moment in rank(20.0).left),
    )
    (incident,) = find(
        rank(), ahead, rank(), offsets={0: SAME_CLOCK, 1: ClockOffset(5.0, 0.001), 2: SAME_CLOCK}
    )
    assert incident.rank == 1
    assert facts(incident)["late_by"] == pytest.approx(0.02)
    assert facts(incident)["clock_error"] == 0.001


def test_what_the_clocks_cannot_tell_is_not_lateness() -> None:
    offsets = {0: SAME_CLOCK, 1: ClockOffset(0.0, 0.008)}
    assert find(rank(), rank(20.0), offsets=offsets) == ()  # three times the error is more


def test_ranks_with_other_iterations_are_not_compared() -> None:
    assert find(rank(), rank(20.0, iterations=39)) == ()


def test_one_rank_is_not_late() -> None:
    assert find(rank(20.0)) == ()


@pytest.mark.parametrize(
    ("use", "cause"),
    [
        (replace(USE, runqueue_seconds=0.9), "host late: ready to run, but no processor is free"),
        (replace(USE, cpu_seconds=1.8), "compute late"),
        (replace(USE, cpu_seconds=1.3, runqueue_seconds=0.35), "compute late"),  # both together explain it
        (USE, "off the processor: it waits for input, a lock or a sleep"),
        (
            replace(USE, runqueue_seconds=Missing(MissingReason.NOT_SUPPORTED)),
            "unknown: the kernel does not show how long it waited for a processor",
        ),
    ],
)
def test_the_cause_is_told_by_processor_time(use: HostUse, cause: str) -> None:
    (incident,) = find(rank(), rank(20.0, use=use))
    assert facts(incident)["cause"] == cause


def test_what_the_host_did_is_evidence() -> None:
    use = replace(USE, steal_seconds=0.4, throttled_seconds=0.2, involuntary_switches=31, allowed_cpus=(0,))
    (incident,) = find(rank(), rank(20.0, use=use))
    evidence = facts(incident)
    assert (evidence["steal"], evidence["throttled"], evidence["involuntary_switches"]) == (0.4, 0.2, 31)
    assert evidence["allowed_cpus"] == "0"


def test_the_limit_is_the_largest_of_three() -> None:
    lateness = measure_lateness({0: rank(), 1: rank()})
    assert lateness is not None
    assert limit_seconds(lateness) == pytest.approx(0.05 * 0.025)
    assert limit_seconds(replace(lateness, step_seconds=0.001)) == 0.001
    assert limit_seconds(replace(lateness, clock_error_seconds=0.01)) == pytest.approx(0.03)


def queued(late_milliseconds: Sequence[float], burst: int = 10) -> Arrivals:
    """A rank that runs ahead on a GPU: it waits for the end of a burst, and for nothing within it."""
    told = rank(late_milliseconds)
    return replace(told, awaited=tuple(number % burst == 0 for number in range(len(late_milliseconds))))


def test_one_hiccup_on_a_gpu_does_not_make_a_burst_late() -> None:
    hiccup = [0.0] * 3 + [30.0] * 37
    assert find(queued([0.0] * 40, burst=40), queued(hiccup, burst=40)) == ()
    # The same moments of ranks that wait for each other are those of a rank that is late again and again.
    assert [incident.rank for incident in find(rank([0.0] * 40), rank(hiccup))] == [1]


def test_a_rank_that_falls_further_behind_with_each_collective_on_a_gpu_is_late_by_each_step() -> None:
    further = [10.0 * (number % 10 + 1) for number in range(40)]
    (incident,) = find(queued([0.0] * 40), queued(further))
    assert incident.rank == 1
    assert facts(incident)["late_by"] == pytest.approx(0.01)
    assert facts(incident)["late_in_total"] == pytest.approx(0.4)


def test_lateness_over_time_shows_who_was_late_when():
    late = rank([0.0] * 20 + [10.0] * 20)
    arrivals = {0: rank(), 1: late, 2: rank()}
    series = list_lateness(arrivals, dict.fromkeys(arrivals, SAME_CLOCK), started=0.0)
    assert not isinstance(series, Missing)
    assert [one.rank for one in series.ranks] == [0, 1, 2]
    first, second = series.ranks[1].late_seconds[:10], series.ranks[1].late_seconds[10:]
    assert set(first) == {0.0}
    assert set(second) == {0.01}
    assert set(series.ranks[0].late_seconds) == {0.0}
    assert series.iterations == 40
    assert series.span_seconds * len(series.ranks[0].late_seconds) == pytest.approx(39 * 0.1)


def test_lateness_over_time_is_no_guess_about_a_clock_or_of_one_rank():
    assert isinstance(list_lateness({0: rank(), 1: rank()}, {0: SAME_CLOCK}, 0.0), Missing)
    assert isinstance(list_lateness({0: rank()}, {0: SAME_CLOCK}, 0.0), Missing)


def test_lateness_of_many_ranks_stays_small():
    arrivals = dict.fromkeys(range(512), rank(iterations=400))
    series = list_lateness(arrivals, dict.fromkeys(arrivals, SAME_CLOCK), started=0.0)
    assert not isinstance(series, Missing)
    assert len(series.ranks[0].late_seconds) < 20
