"""What ranks measured, taken away in every way in which it can go: no check of it passes then."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.registry import Check
from gpudiag.checks.runner import run_checks
from gpudiag.model.active import ActiveMeasurement
from gpudiag.model.context import Context
from gpudiag.model.device import Snapshot, SourceState, SourceStatus
from gpudiag.model.finding import Outcome
from gpudiag.model.measure import CollectiveMeasurement, IncidentKind
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import Measures
from gpudiag.model.training import StrategyMeasurement
from gpudiag.runs.placement import place_tests
from gpudiag.store.baselines import samples_of
from tests.scenarios.active_cases import SICK, good_runs
from tests.scenarios.rank_cases import happened
from tests.scenarios.situations import look_at_machine
from tests.scenarios.training_cases import SOUND, sharded
from tests.unit.checks.active_measures import MEMORY_SPEED, measure_cpu, measure_gpus
from tests.unit.collectives.measurements import make_measurement

ON_RANKS = ("collective", "active", "training", "operations", "history")
OF_MEASURES = [check for check in BUILTIN if set(ON_RANKS) & set(check.needs)]
ON_RANKS_ALONE = [check for check in OF_MEASURES if "history" not in check.needs]
BASES = ("h100x8", "none")

_OF_ACTIVE = ("bandwidth", "compute", "determinism", "patterns", "sustained", "telemetry", "done")
_OF_TRAINING = ("starts", "steps", "epoch_ends", "proofs", "speeds")
STUCK = tuple(happened(IncidentKind.SILENT, "waited_in", "all_reduce") for _ in range(2))


def sound(base: str) -> Measures:
    """What the ranks of a sound machine measure."""
    active = measure_cpu() if base == "none" else measure_gpus(look_at_machine(base))
    return Measures(make_measurement(), active, (SOUND, sharded(SOUND)), make_measurement())


def outcome(check: Check, base: str, measures: Measures) -> Outcome:
    look = look_at_machine(base)
    history = good_runs(MEMORY_SPEED, "memory_copy")(look) if look.devices else NOT_ASKED
    context = Context(look, measures, history=history, samples=samples_of(measures))
    return run_checks(context, (check,))[0].outcome


def emptied(measures: Measures, **values: Any) -> Measures:
    """The same runs without a result of any rank, and with these facts."""
    collective, active, training = known(measures)
    return Measures(
        replace(collective, results=(), sizes_planned=2, **values),
        replace(active, **dict.fromkeys(_OF_ACTIVE, ()), **values),
        tuple(replace(run, **dict.fromkeys(_OF_TRAINING, ()), **values) for run in training),
        replace(collective, results=(), sizes_planned=2, **values),
    )


def without_ranks(measures: Measures) -> Measures:
    """The same runs with nothing of two ranks, and nobody who says why."""
    collective, active, training = known(measures)
    return Measures(
        replace(collective, results=collective.results[:1], sizes_planned=2),
        replace(active, **{kind: others(getattr(active, kind)) for kind in _OF_ACTIVE[:-2]}, done=()),
        tuple(
            replace(run, **{kind: others(getattr(run, kind)) for kind in _OF_TRAINING}) for run in training
        ),
        replace(collective, results=collective.results[:1], sizes_planned=2),
    )


def others(results: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(result for result in results if result.rank not in (1, SICK))


def known(
    measures: Measures,
) -> tuple[CollectiveMeasurement, ActiveMeasurement, tuple[StrategyMeasurement, ...]]:
    assert not isinstance(measures.collective, Missing)
    assert not isinstance(measures.active, Missing)
    assert not isinstance(measures.training, Missing)
    return measures.collective, measures.active, measures.training


def nowhere(look: Snapshot) -> Measures:
    """What a preflight notes where the ranks have no place to work, by its own words."""
    place = place_tests(look, (), NOT_ASKED, force=False)
    assert isinstance(place, Missing)
    return Measures(place, place, place, place)


def without_torch(look: Snapshot, reason: MissingReason, state: SourceState) -> Measures:
    silent = SourceStatus("torch", state, "torch's words")
    sources = tuple(silent if status.name == "torch" else status for status in look.sources)
    return nowhere(replace(look, simulated=None, torch=Missing(reason), sources=sources))


def missing(reason: MissingReason, base: str) -> Measures:
    gone = Missing(reason, "why")
    return Measures(gone, gone, gone, gone)


GONE: dict[str, Callable[[str], Measures]] = {
    "no result": lambda base: emptied(sound(base)),
    "the time was over": lambda base: emptied(sound(base), timed_out=True),
    "stuck": lambda base: emptied(sound(base), incidents=STUCK),
    "some ranks": lambda base: without_ranks(sound(base)),
    "torch absent": lambda base: without_torch(
        look_at_machine(base), MissingReason.SOURCE_ABSENT, SourceState.LIBRARY_ABSENT
    ),
    "torch hangs": lambda base: without_torch(
        look_at_machine(base), MissingReason.TIMED_OUT, SourceState.TIMED_OUT
    ),
    **{f"missing: {reason}": partial(missing, reason) for reason in MissingReason},
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("check", OF_MEASURES, ids=lambda check: check.name)
def test_sound_devices_pass(check: Check, base: str):
    found = outcome(check, base, sound(base))
    assert found is Outcome.PASS or (base == "none" and found is Outcome.SKIP)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("gone", GONE)
def test_no_check_passes_without_what_ranks_measured(gone: str, base: str):
    measures = GONE[gone](base)
    passed = {check.name for check in OF_MEASURES if outcome(check, base, measures) is Outcome.PASS}
    assert passed == set()


@pytest.mark.parametrize("reason", list(MissingReason), ids=str)
def test_what_should_have_been_measured_and_was_not_is_an_error(reason: MissingReason):
    no_fault = reason in (MissingReason.NOT_ASKED, MissingReason.NOT_SUPPORTED, MissingReason.IN_USE)
    expected = Outcome.SKIP if no_fault else Outcome.ERROR
    found = {outcome(check, "h100x8", missing(reason, "h100x8")) for check in ON_RANKS_ALONE}
    assert found == {expected}


@pytest.mark.parametrize("reason", list(MissingReason), ids=str)
def test_a_history_that_is_missing_judges_no_speed(reason: MissingReason):
    look, measures = look_at_machine("h100x8"), sound("h100x8")
    gone: Reading[Any] = Missing(reason, "why")
    context = Context(look, measures, history=gone, samples=samples_of(measures))
    for check in BUILTIN:
        if "history" in check.needs:
            assert run_checks(context, (check,))[0].outcome in (Outcome.SKIP, Outcome.ERROR)
