"""What a wrong step is blamed on, by its measured parts: changed gradients, settings, momentum, old weights,
parts of shards.
"""

from typing import Any

import pytest

from gpudiag.checks.training.strategy import judge_training
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Finding, Owner
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.training import StrategyMeasurement
from tests.unit.training.measurements import (
    TENSORS,
    make_measurement,
    make_parts,
    make_proof,
    make_start,
    make_step,
    make_step_parts,
    tensors,
    with_steps,
)
from tests.unit.training.test_blame import MOVED, WRONG, first, of_ranks, rank_of

SAME = {"gradient_scale": 1.0, "gradient_rest": 0.0}
TIMES = {"scale": 0.5, "rest": 1e-8}


def blamed(values: dict[str, Any], *, alone: bool = False) -> Finding:
    """The finding for a step of those parts, on all of three ranks or on rank 1 alone."""
    made = {**MOVED, "step_parts": make_step_parts(**values)}
    return first(of_ranks(3, lambda rank, step: made if step and (rank == 1 or not alone) else {}))


@pytest.mark.parametrize(("values", "code", "words"), [
    # Between backward pass and step: github.com/modelscope/twinkle/pull/290,
    # github.com/huggingface/diffusers/pull/721.
    ({**TIMES, "gradient_scale": 0.707, "gradient_rest": 1e-9, "settings": ()}, "train.gradients_scaled",
        "0.707 times"),
    ({"gradient_scale": 0.8, "gradient_rest": 0.3, "settings": ()}, "train.gradient", "clipping each value"),
    # Settings: github.com/huggingface/accelerate/issues/2142.
    ({**SAME, **TIMES, "settings": ("lr is 0.025, not 0.05",)}, "train.parameters", "lr is 0.025, not 0.05"),
    ({**SAME, "settings": ("momentum is 0.5, not 0.9",)}, "train.parameters", "momentum is 0.5"),
    ({**SAME, **TIMES, "settings": ()}, "train.parameters", "settings are right"),
    ({**SAME, **TIMES, "settings": None}, "train.parameters", "another learning rate, or more steps"),
    # State: github.com/vllm-project/speculators/pull/926.
    ({**SAME, "settings": (), "momentum_kept": 1e-5, "momentum_rest": 1e-6}, "train.parameters",
        "without the momentum"),
    # Nothing of that: not named after it.
    ({**SAME, "settings": (), "momentum_kept": 0.4, "momentum_rest": 1e-6}, "train.parameters",
        "not those of a single process"),
    ({**SAME, "settings": (), "momentum_kept": 1e-5, "momentum_rest": 0.3}, "train.parameters",
        "not those of a single process"),
])  # fmt: skip
def test_a_step_is_blamed_on_what_was_seen_of_it(values: dict[str, Any], code: str, words: str) -> None:
    finding = blamed(values)
    assert (finding.code, rank_of(finding), finding.owner) == (code, None, Owner.JOB)
    assert words in finding.message
    one = blamed(values, alone=True)
    assert (one.code.replace("ranks_differ", "parameters"), rank_of(one), one.owner) == (code, 1, Owner.JOB)


def test_a_rank_that_goes_its_own_way_in_all_elements_is_no_hardware() -> None:
    finding = blamed({}, alone=True)
    assert (finding.code, rank_of(finding), finding.owner) == ("train.ranks_differ", 1, Owner.JOB)
    assert finding.remedy.startswith("Look for what only that rank does")
    few = blamed({"elements_off": 1}, alone=True)
    assert (few.code, few.owner) == ("train.rank_corrupt", Owner.HARDWARE)


def test_weights_of_an_earlier_step_were_loaded() -> None:
    """github.com/Hzfinfdu/Diffusion-BERT/issues/30: not all ranks load the checkpoint."""
    again = {"parameter_error": 0.02, "parameters": tensors("p0", 0.02), "step_parts": make_step_parts()}
    finding = first(with_steps({(1, 2): again}))
    assert (finding.code, rank_of(finding), finding.owner) == ("train.ranks_differ", 1, Owner.JOB)
    assert "holds the parameters of after step 0 again" in finding.message
    unmoved = {
        "parameter_error": 0.02,
        "parameters": tensors("p1", 0.02),
        "step_parts": make_step_parts(unmoved=TENSORS),
    }
    assert "changes no parameter" in first(with_steps({(1, 2): unmoved})).message


def in_shards(scales: tuple[float, ...], rest: float = 1e-9) -> Finding:
    """The finding where each rank's part of the average is that many times what it should be."""

    def change(rank: int, step: int) -> dict[str, Any]:
        made = make_parts(shares=(0.1,) * len(scales), rest=0.5, own_scale=scales[rank], own_rest=rest)
        return {**WRONG, "gradient_parts": made, "held_error": abs(scales[rank] - 1), "computed_error": 1e-8}

    return first(of_ranks(len(scales), change))


def test_parts_that_each_rank_scales_by_itself() -> None:
    """github.com/sgl-project/SpecForge/pull/663, github.com/pytorch/pytorch/issues/170862: clipping by a
    rank's own norm.
    """
    finding = in_shards((0.3, 0.2))
    assert (finding.code, rank_of(finding), finding.owner) == ("train.gradients_scaled", None, Owner.JOB)
    assert "clipping by the norm of that part alone" in finding.message
    one = in_shards((1.0, 0.4, 1.0))
    assert (one.code, rank_of(one)) == ("train.gradients_scaled", 1)
    assert "clipping" not in one.message
    assert in_shards((0.3, 0.2), rest=0.3).code == "train.gradient"


def test_gradients_that_are_computed_and_reach_no_parameter_are_not_averaged() -> None:
    """FSDP2 with set_requires_gradient_sync(False): no parameter is unused, and no state is missing for want
    of shards.
    """
    lost = {"unused": TENSORS, "gradients": (), "computed_error": 1e-8}
    measurement = with_steps({(rank, 0): lost for rank in (0, 1)})
    proofs = tuple(make_proof(rank, optimizer_state_here=0, moved=False) for rank in (0, 1))
    finding = first(
        make_measurement(
            strategy="fsdp2",
            steps=measurement.steps,
            proofs=proofs,
            starts=tuple(make_start(rank, parameters_here=50) for rank in (0, 1)),
        )
    )
    assert (finding.code, rank_of(finding)) == ("train.not_averaged", None)
    assert "none reached the parameters" in finding.message
    unknown = {**lost, "computed_error": Missing(MissingReason.NOT_ASKED)}
    assert first(with_steps({(rank, 0): unknown for rank in (0, 1)})).code == "train.unused_parameters"


def frozen(*ranks: int) -> StrategyMeasurement:
    """A run that ended in its first step, which only these ranks have ended; they lack a gradient."""
    ended = tuple(make_step(rank, 0, unused=("1.weight",)) for rank in ranks)
    died = Incident(IncidentKind.DIED, 1, "a1", "verify", 1.0, (Evidence("signal", "SIGABRT"),))
    return make_measurement(steps=ended, proofs=(), incidents=(died,))


def test_a_parameter_that_is_frozen_on_one_rank_comes_before_what_it_ends_in() -> None:
    """github.com/pytorch/pytorch/issues/43259: the others wait for that gradient in the averaging."""
    findings = judge_training(frozen(1))
    assert (findings[0].code, rank_of(findings[0])) == ("train.unused_parameters", 1)
    assert "1.weight got no gradient in step 0 on rank 1" in findings[0].message
    together = with_steps({(1, step): {"unused": ("1.weight",)} for step in range(3)})
    one = first(together)
    assert (one.code, rank_of(one), "and one on the others" in one.message) == (
        "train.unused_parameters",
        1,
        True,
    )
