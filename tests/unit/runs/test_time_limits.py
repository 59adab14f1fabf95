"""Limits of time grow with the GPUs: what healthy ones take is never more than half of the limit."""

import re
from pathlib import Path

import pytest

from gpudiag.ranks.agents.local import end_seconds
from gpudiag.runs.active import expected_seconds, limit_seconds, plan_active
from gpudiag.runs.placement import Placement
from gpudiag.runs.preflight_measures import (
    collective_limit,
    describe_collective_cost,
    describe_training_cost,
    training_limit,
)

LEVELS = ("quick", "standard", "long")
GPUS = (1, 2, 4, 8, 16)
CPU = Placement("gloo", 4)
# Published (public logs; NVIDIA/nccl issue 1646): the start of NCCL on 8 ranks, usual and at its worst.
NCCL_STARTS = (3.8, 60.0)


def place(gpus: int) -> Placement:
    return Placement("nccl", gpus)


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("level", LEVELS)
def test_active_tests_have_twice_the_time_that_they_are_expected_to_take(level, gpus):
    plan = plan_active(level, place(gpus), None)
    assert plan is not None
    assert limit_seconds(plan, level, gpus) >= 2 * expected_seconds(plan, gpus)


@pytest.mark.parametrize("level", LEVELS)
def test_training_on_eight_gpus_has_time_for_its_imports_contexts_and_three_starts_of_nccl(level):
    imports, contexts = 5.0, 8 * 1.0
    assert training_limit(place(8), level) >= 2 * (imports + contexts + 3 * NCCL_STARTS[0])
    assert training_limit(place(8), level) > training_limit(place(1), level) > training_limit(CPU, "quick")


def test_the_all_reduce_outlasts_the_slowest_start_of_nccl_that_was_published():
    assert collective_limit(place(8)) > NCCL_STARTS[1]
    assert collective_limit(CPU) < 30


def test_ranks_with_contexts_have_more_time_to_die():
    assert end_seconds(0) == 2.0
    assert end_seconds(8) - end_seconds(0) >= 8 * 2.0


@pytest.mark.parametrize("text", ["docs/commands.md", "gpudiag/cli/preflight.py"])
def test_level_quick_takes_as_long_as_is_promised(text):
    """What the parts say that they cost, and 3 s for looks at the machine, with one GPU and with 16."""
    promises = re.findall(
        r"(\d+) s,? and (\d+) s for each", (Path(__file__).parents[3] / text).read_text(encoding="utf-8")
    )
    assert promises
    for base, each in promises:
        for gpus in GPUS:
            plan = plan_active("quick", place(gpus), None)
            assert plan is not None
            said = [describe_collective_cost(place(gpus)), describe_training_cost(place(gpus), "quick")]
            parts = [int(seconds) for cost in said for seconds in re.findall(r"about (\d+) s", cost)]
            expected = 3 + sum(parts) + expected_seconds(plan, gpus)
            assert len(parts) == 2
            assert expected - 2 <= int(base) + int(each) * gpus <= expected + 10
