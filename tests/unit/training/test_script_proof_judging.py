"""What is said of a user's training by what its ranks showed: each mistake by its code, and what must not be
accused.
"""

from dataclasses import replace
from typing import Any

import pytest

from gpudiag.checks.training.script_proof import judge_proof
from gpudiag.model.reading import Missing
from gpudiag.model.script import ScriptFacts
from gpudiag.model.training import ScriptResult

RANKS = 3
SCRIPT = ScriptResult("train.py", RANKS, "spawn", (), (), (RANKS,) * RANKS, 5.0)


def rank_facts(rank: int, **values: Any) -> ScriptFacts:
    """A rank of DDP that is right."""
    sound = ScriptFacts(
        steps=20,
        backwards=20,
        parameters=(("0.1", 1, "2x2", "a"), ("0.2", 2, "2x2", "b"), ("0.10", 10, "2x2", "c")),
        wrapped=1,
        forwards=20,
        sampler="distributed",
        share=(rank, RANKS),
        epochs=2,
        samples=tuple(range(rank * 10, rank * 10 + 10)),
    )
    return replace(sound, **values)


def looks(last: str) -> tuple[tuple[str, int, str, str], ...]:
    return (("0.1", 1, "2x2", "a"), ("0.2", 2, "2x2", last))


def judge(change: Any = None, script: ScriptResult = SCRIPT) -> tuple[list[str], dict[str, Any]]:
    facts = {rank: rank_facts(rank, **(change(rank) if change else {})) for rank in range(RANKS)}
    findings, verifications = judge_proof(facts, script, "a1", ended_well=True)
    return [finding.code for finding in findings], {one.name: one.passed for one in verifications}


def test_training_that_is_right_has_no_finding_and_all_of_it_was_seen() -> None:
    codes, seen = judge()
    assert codes == []
    assert list(seen.values()) == [True] * 5


@pytest.mark.parametrize(
    ("change", "code", "disproved"),
    [
        (lambda rank: {"parameters": looks(f"r{rank}")}, "train.ranks_differ", "parameters_alike"),
        (lambda rank: {"parameters": looks(f"r{rank}"), "forwards": 0}, "train.not_averaged",
            "parameters_alike"),
        (
            lambda rank: {"parameters": looks(f"r{rank}"), "forwards": 0, "wrapped": 0},
            "train.not_averaged",
            "gradients_crossed",
        ),
        (lambda rank: {"summed": "parameters"}, "train.parameters_summed", None),
        (lambda rank: {"summed": "gradients"}, "train.gradients_left_summed", None),
        (lambda rank: {"share": (0, RANKS)}, "train.same_samples", "own_samples"),
        (lambda rank: {"sampler": "whole", "share": None, "samples": (*range(3),
            *range(100 * rank + 100, 100 * rank + 110))}, "train.same_samples", "own_samples"),
        (lambda rank: {"repeated_epochs": 1}, "train.order_repeats", "order_changes"),
        (lambda rank: {"not_finite_backward": 4 if rank == 1 else 5}, "train.not_finite", "losses_finite"),
        (lambda rank: {"forwards": 0, "wrapped": 0}, "train.no_gradient_crossed", "gradients_crossed"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_code(change: Any, code: str, disproved: str | None) -> None:
    codes, seen = judge(change)
    assert codes == [code]
    assert disproved is None or seen[disproved] is False


BEFORE = ("0.0", 0, "2x2", "start")


@pytest.mark.parametrize(("change", "code", "words"), [
    # modelscope/FunASR/pull/3472 (the last micro-batch is the one without), karpathy/build-nanogpt/pull/30
    (lambda rank: {"parameters": looks(f"r{rank}"), "unsynchronized": 20}, "train.not_averaged",
        "inside no_sync()"),
    (lambda rank: {"parameters": looks(f"r{rank}"), "unsynchronized": 3}, "train.ranks_differ",
        "though DDP averages"),
    # vllm-project/speculators/pull/926, Hzfinfdu/Diffusion-BERT/issues/30: rank 0 alone loads the checkpoint
    (lambda rank: {"parameters": (("0.0", 0, "2x2", f"r{rank}"), *looks("b"))}, "train.initial_parameters",
        "before the first step"),
    (lambda rank: {"parameters": (BEFORE, *looks(f"r{rank}")),
        "settings": ("lr 0.1", f"weight_decay {rank // 2}")}, "train.ranks_differ",
        "weight_decay 0 on ranks 0 and 1; weight_decay 1 on rank 2"),
    (lambda rank: {"parameters": (BEFORE, *looks(f"r{rank}")), "settings": ("lr 0.1",)}, "train.ranks_differ",
        "averages the gradients"),
])  # fmt: skip
def test_why_ranks_under_ddp_differ_is_said(change: Any, code: str, words: str) -> None:
    facts = {rank: rank_facts(rank, **change(rank)) for rank in range(RANKS)}
    (finding,), verifications = judge_proof(facts, SCRIPT, "a1", ended_well=True)
    assert finding.code == code
    assert words in finding.message
    assert next(one for one in verifications if one.name == "parameters_alike").passed is False


def test_a_look_before_the_first_step_accuses_nobody_whose_parameters_are_alike() -> None:
    assert judge(lambda rank: {"parameters": (BEFORE, *looks("b")), "unsynchronized": 0})[0] == []


def test_other_parameters_on_every_rank_are_model_parallelism_where_gradients_cross_in_another_way() -> None:
    codes, seen = judge(
        lambda rank: (
            {"parameters": looks(f"r{rank}"), "forwards": 0, "wrapped": 0, "crossed": 40}
            | {"samples": tuple(range(10)), "share": None, "sampler": "whole"}
        )
    )
    assert codes == []
    assert isinstance(seen["parameters_alike"], Missing)
    assert isinstance(seen["own_samples"], Missing)


def test_sharded_parameters_are_not_held_against_each_other_and_that_is_said() -> None:
    codes, seen = judge(lambda rank: {"parameters": (), "sharded": True, "forwards": 0})
    assert codes == []
    assert "part" in seen["parameters_alike"].detail


def test_a_few_samples_in_common_accuse_no_shards_of_the_users_own() -> None:
    near = tuple(range(2))
    codes, _ = judge(
        lambda rank: {
            "sampler": "whole",
            "share": None,
            "samples": (*near, *range(100 * rank + 100, 100 * rank + 200)),
        }
    )
    assert codes == []


def test_samples_that_repeat_on_one_rank_tell_nothing() -> None:
    codes, _ = judge(lambda rank: {"sampler": "whole", "share": None, "samples": (1, 2, 3) * 10})
    assert codes == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda rank: {"sampler": "other", "share": None, "samples": tuple(range(10))},
            "sampler that is there",
        ),
        (lambda rank: {"share": (0, RANKS)}, "this rank: num_replicas="),
        (
            lambda rank: {"sampler": "whole", "share": None, "samples": tuple(range(10))},
            "a DistributedSampler with",
        ),
    ],
)
def test_a_sampler_that_is_in_place_is_not_to_be_added(change: Any, words: str) -> None:
    facts = {rank: rank_facts(rank, **change(rank)) for rank in range(RANKS)}
    (finding, *_), _ = judge_proof(facts, SCRIPT, "a1", ended_well=True)
    assert (finding.code, words in finding.remedy) == ("train.same_samples", True)


def test_nothing_is_said_of_ranks_that_never_joined() -> None:
    assert judge(script=replace(SCRIPT, group_world_sizes=(0,) * RANKS)) == ([], {})


def judge_one_rank(**values: Any) -> tuple[list[str], dict[str, Any]]:
    script = replace(SCRIPT, world_size=1, group_world_sizes=(0,))
    findings, verifications = judge_proof({0: rank_facts(0, **values)}, script, "a1", ended_well=True)
    return [finding.code for finding in findings], {one.name: one.passed for one in verifications}


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ({"forwards": 0, "wrapped": 0}, []),
        ({"forwards": 0, "wrapped": 0, "steps": 0}, []),
        ({"not_finite_backward": 2}, ["train.not_finite"]),
        ({"repeated_epochs": 1}, ["train.order_repeats"]),
        ({"steps": 0, "backwards": 0, "parameters": (), "forwards": 9}, ["train.not_trained"]),
    ],
)
def test_one_rank_has_nothing_to_average_and_must_have_trained(values: Any, codes: list[str]) -> None:
    found, seen = judge_one_rank(**values)
    assert found == codes
    assert set(seen) == {"losses_finite", "order_changes"}


def test_one_rank_that_reported_nothing_is_not_accused() -> None:
    script = replace(SCRIPT, world_size=1, group_world_sizes=(0,))
    assert judge_proof({}, script, "a1", ended_well=True) == ((), ())
