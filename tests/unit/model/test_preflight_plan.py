import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.checks import BUILTIN
from gpudiag.errors import UsageError
from gpudiag.model.plan import FAIL_ON, LEVELS, PreflightPlan
from gpudiag.runs.preflight_plan import choose_checks, gathering_level

NAMES = st.sampled_from([check.name for check in BUILTIN])


@given(
    st.sampled_from(LEVELS), st.lists(NAMES, unique=True, max_size=3), st.sampled_from(FAIL_ON), st.booleans()
)
def test_a_plan_is_its_flags_and_back(level, only, fail_on, strict):
    if strict and fail_on != "any":
        return
    plan = PreflightPlan(level=level, only=tuple(only), fail_on=fail_on, strict=strict)
    argv = list(plan.to_argv())
    assert ("--strict" in argv) == strict
    assert argv.count("--level") == (level != "quick")
    assert (",".join(only) in argv) == bool(only) or not only


@pytest.mark.parametrize(
    "fields",
    [
        {"level": "fast"},
        {"fail_on": "job"},
        {"expect_gpus": -1},
        {"expect_gpus": 10**9},
        {"at_least_gpus": -1},
        {"expect_gpus": 8, "at_least_gpus": 8},
        {"expect_driver": "x" * 100},
        {"only": ("gpu",), "skip": ("gpu",)},
        {"strict": True, "fail_on": "host"},
        {"force": True, "level": "instant"},
        {"duration_seconds": 60.0, "level": "quick"},
        {"duration_seconds": 7200.0, "level": "long"},
    ],
)
def test_what_cannot_be_run_is_refused(fields):
    with pytest.raises(UsageError):
        PreflightPlan(**fields)


def test_each_level_includes_the_one_below():
    counts = [len(choose_checks(PreflightPlan(level=level))) for level in LEVELS]
    assert counts == sorted(counts)
    assert counts[-1] == len(BUILTIN)


def test_a_check_that_is_named_runs_whatever_its_level_and_brings_its_measurements():
    plan = PreflightPlan(level="instant", only=("memory.patterns",))
    checks = choose_checks(plan)
    assert [check.name for check in checks] == ["memory.patterns"]
    assert gathering_level(plan, checks) == "long"


def test_a_topic_stays_within_the_level():
    names = {check.name for check in choose_checks(PreflightPlan(level="instant", only=("memory",)))}
    assert "memory.row_remap" in names
    assert "memory.patterns" not in names


def test_skipping_everything_is_refused():
    with pytest.raises(UsageError):
        choose_checks(PreflightPlan(only=("gpu.lost",), skip=("gpu",)))
