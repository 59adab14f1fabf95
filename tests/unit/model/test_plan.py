"""What an nccl-test plan accepts, and what it refuses in one sentence."""

from typing import Any

import pytest

from gpudiag.errors import UsageError
from gpudiag.model.option import Plan, plan_fields
from gpudiag.model.plan import BandwidthPlan, NcclTestPlan, PreflightPlan
from gpudiag.model.training import TrainingPlan


def test_the_default_plan_needs_no_flag() -> None:
    assert NcclTestPlan().to_argv() == ()


@pytest.mark.parametrize("plan_type", [NcclTestPlan, BandwidthPlan, PreflightPlan, TrainingPlan])
def test_every_field_says_its_flag_what_it_is_for_and_its_bounds(plan_type: type[Plan]) -> None:
    declared = plan_fields(plan_type)
    flags = [one.option.flag for one in declared]
    assert len(set(flags)) == len(flags)
    for one in declared:
        assert one.option.flag.startswith("--"), one.name
        assert one.option.help, one.name
        assert one.option.metavar or one.value_type is bool, one.name
        if one.value_type in (int, float):
            assert one.option.low is not None, one.name
            assert one.option.high is not None, one.name


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"op": ("nonsense",)}, "choose from"),
        ({"op": ("all_redcue",)}, "did you mean all_reduce?"),
        ({"dtype": ("flaot32",)}, "did you mean float32?"),
        ({"backend": "ncll"}, "did you mean nccl?"),
        ({"reduce": "product"}, ""),
        ({"verify": "never"}, ""),
        ({"op": ()}, "choose from"),
        ({"dtype": ("int8", "int8")}, "once"),
        ({"dtype": ("all", "int8")}, ""),
        ({"reduce": "avg", "dtype": ("float32", "int8")}, "float32"),
        ({"nproc": 0}, "1 to"),
        ({"nproc": -3}, "1 to"),
        ({"min_bytes": 1024**3, "max_bytes": 1024**2}, "swap"),
        ({"min_bytes": -1}, "0 to"),
        ({"max_bytes": 2**60}, "0 to"),
        ({"step_factor": 1}, "2 to"),
        ({"iterations": 0}, "1 to"),
        ({"warmup": -1}, "0 to"),
        ({"timeout_seconds": 0.0}, "1 to"),
        ({"timeout_seconds": float("nan")}, "1 to"),
        ({"rendezvous_timeout_seconds": 1e9}, "1 to"),
        ({"inject": ("kill:1@3",), "verify": "last"}, "implies"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_in_one_sentence(fields: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        NcclTestPlan(**fields)
    assert "\n" not in refused.value.message
    assert hint in refused.value.hint


def test_faults_are_flags_of_their_own() -> None:
    plan = NcclTestPlan(inject=("kill:1@3", "slow:0:5"), dtype=("int8", "float32"))
    assert plan.to_argv() == ("--dtype", "int8,float32", "--inject", "kill:1@3", "--inject", "slow:0:5")


def test_an_average_of_moved_integers_is_no_contradiction() -> None:
    assert NcclTestPlan(reduce="avg", dtype=("int8",), op=("all_gather",)).reduce == "avg"


def test_a_switch_is_a_flag_without_a_value() -> None:
    assert NcclTestPlan(unaligned=True).to_argv() == ("--unaligned",)
