import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import UsageError
from gpudiag.model.plan import BANDWIDTH_TESTS, BandwidthPlan


@given(st.lists(st.sampled_from(BANDWIDTH_TESTS), unique=True), st.booleans())
def test_a_plan_is_its_flags(tests, force):
    argv = list(BandwidthPlan(tuple(tests), force).to_argv())
    assert ("--force" in argv) == force
    assert argv[:2] == ["--test", ",".join(tests)] if tests else "--test" not in argv


@pytest.mark.parametrize("tests", [("memory",), ("matmul", "matmul"), ("memory_patterns",)])
def test_what_cannot_be_run_is_refused(tests):
    with pytest.raises(UsageError):
        BandwidthPlan(tests)
