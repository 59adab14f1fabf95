"""The active tests on CPU ranks: they measure, they find what is injected, and they leave nothing behind."""

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks
from gpudiag.model.active import (
    DETERMINISM,
    MATMUL,
    MEMORY_COPY,
    MEMORY_PATTERNS,
    SUSTAINED,
    ActiveMeasurement,
    ActivePlan,
)
from gpudiag.model.context import Context
from gpudiag.model.evidence import RankSubject
from gpudiag.model.report import Measures
from gpudiag.ranks.inject import parse_fault
from gpudiag.runs.active import describe_cost, expected_seconds, measure_active, plan_active
from gpudiag.runs.placement import Placement
from tests.unit.model.nouns import make_snapshot

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(300)]
MIB = 1024**2
RANKS = 4
ON_CPU = Placement("gloo", RANKS)


def measure(*tests: str, faults: tuple[str, ...] = (), pattern_bytes: int = 4 * MIB) -> ActiveMeasurement:
    plan = ActivePlan(tests, "cpu", ("float32", "bfloat16"), 0.05, pattern_bytes, sustained_seconds=1.0)
    parsed = tuple(parse_fault(text, RANKS) for text in faults)
    return measure_active(plan, ON_CPU, "standard", faults=parsed)


def codes(measured: ActiveMeasurement) -> set[tuple[str, object]]:
    checks = [check for check in BUILTIN if "active" in check.needs]
    results = run_checks(Context(make_snapshot(), Measures(active=measured)), checks)
    return {(finding.code, finding.subject) for result in results for finding in result.findings}


def test_every_test_measures_on_every_rank():
    measured = measure(MEMORY_COPY, MATMUL, DETERMINISM, MEMORY_PATTERNS, SUSTAINED)
    assert measured.done == measured.tests
    assert measured.incidents == ()
    everyone = set(range(RANKS))
    for results in (measured.bandwidth, measured.compute, measured.determinism, measured.patterns):
        assert {result.rank for result in results} == everyone
    assert all(result.wrong_bytes == 0 and result.bytes_per_second > 0 for result in measured.bandwidth)
    assert len({result.digest for result in measured.determinism}) == 6  # three chains, two dtypes
    assert all(result.tested_bytes == 4 * MIB and not result.wrong_words for result in measured.patterns)
    assert all(len(result.points) >= 2 for result in measured.sustained)
    assert codes(measured) == set()


def test_a_bit_that_flips_in_one_repeat_is_found_on_its_rank():
    measured = measure(DETERMINISM, faults=("bitflip:2@1",))
    assert codes(measured) == {("compute.not_repeatable", RankSubject(2, measured.host))}


@pytest.mark.each_run
def test_products_of_8_bit_floats_repeat_and_show_one_flipped_bit():
    torch = pytest.importorskip("torch")
    from gpudiag.bandwidth.compute import SCALED_CHAINS

    data = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    try:
        first, again = (SCALED_CHAINS["matmul"](data) for _ in range(2))
    except (AttributeError, TypeError, RuntimeError) as error:
        pytest.skip(f"this torch multiplies no 8-bit floats on a processor: {error}")
    assert torch.equal(first, again)
    assert bool(first.isfinite().all())
    assert len(first.unique()) > 100  # not saturated: a wrong product would show
    spoilt = data.clone()
    spoilt[5, 7] = -spoilt[5, 7]
    assert not torch.equal(SCALED_CHAINS["matmul"](spoilt), first)


@pytest.mark.each_run
def test_a_bit_that_flips_in_memory_is_found_with_its_place():
    measured = measure(MEMORY_PATTERNS, faults=("bitflip:1@3",))
    wrong = [result for result in measured.patterns if result.wrong_words]
    assert [(result.rank, result.wrong_words, result.first_offset_bytes) for result in wrong] == [
        (1, 1, 2 * MIB)
    ]
    assert wrong[0].first_pattern == "inverse checkerboard"
    assert int(str(wrong[0].flipped_bits), 16).bit_count() == 1


def test_a_bit_that_flips_in_a_copy_is_found():
    measured = measure(MEMORY_COPY, faults=("bitflip:3@0",))
    assert [result.rank for result in measured.bandwidth if result.wrong_bytes] == [3]


def test_a_rank_that_dies_is_named_and_what_was_measured_before_stays():
    measured = measure(MEMORY_COPY, DETERMINISM, faults=("kill:1@3",))
    assert measured.bandwidth
    assert ("rank.died", RankSubject(1, measured.host)) in codes(measured)
    assert DETERMINISM not in measured.done


@pytest.mark.each_run
def test_the_cost_is_said_before_and_grows_with_the_level():
    plans = [plan_active(level, ON_CPU, None) for level in ("quick", "standard", "long")]
    assert plans[0] is None
    standard, long = plans[1], plans[2]
    assert standard is not None
    assert long is not None
    assert set(standard.tests) < set(long.tests)
    assert expected_seconds(standard, RANKS) < expected_seconds(long, RANKS)
    assert "4 CPU ranks" in describe_cost(standard, ON_CPU)
    assert "full load" in describe_cost(long, ON_CPU)


@pytest.mark.each_run
def test_gpus_are_tested_at_level_quick_already():
    one = Placement("nccl", 1)
    plan = plan_active("quick", one, None)
    assert plan is not None
    assert "peer_copy" not in plan.tests
    standard = plan_active("standard", Placement("nccl", 8), None)
    assert standard is not None
    assert "peer_copy" in standard.tests
