"""The checks by which `gpudiag nccl-test` and `gpudiag train` judge what their ranks measured.

Not in BUILTIN: a preflight judges the same measurement by checks of its own, for it injects no faults, always
verifies, and holds speeds against the past by `performance.drift`. The functions that judge are the same.
"""

from dataclasses import replace

from gpudiag.checks.gpu.holders import describe_beside, own_pids
from gpudiag.checks.ranks.active import collective_all_reduce
from gpudiag.checks.ranks.collective import (
    COLLECTIVE_NOT_VERIFIED,
    COLLECTIVE_SLOW,
    COLLECTIVE_SPEED,
    INJECT_NOT_FIRED,
    PLANNED_FINDINGS,
    judge_collective_speed,
)
from gpudiag.checks.ranks.localisation import LOCALISATION_FINDINGS
from gpudiag.checks.registry import Judgement, check, does_not_apply, judged
from gpudiag.checks.training.run import TRAINING_RUN_FINDINGS, judge_training, train_ddp
from gpudiag.model.active import NOT_TESTED
from gpudiag.model.context import Context
from gpudiag.model.reading import Missing

collective_run = replace(
    collective_all_reduce,
    name="collective.run",
    title="every planned size of every operation is measured, with exactly the right data",
    reports=(*PLANNED_FINDINGS, COLLECTIVE_NOT_VERIFIED, INJECT_NOT_FIRED, *LOCALISATION_FINDINGS),
)


@check(
    "collective.speed",
    title="collectives are as fast as on machines of this kind, and as before on this machine",
    needs=("collective",),
    reports=(COLLECTIVE_SLOW, COLLECTIVE_SPEED),
    readings=("collective.results",),
)
def collective_speed(context: Context) -> Judgement:
    """A finding per operation whose speed can be compared; the snapshot has the GPUs that took part."""
    measured = context.measures.collective
    assert not isinstance(measured, Missing)  # noqa: S101 - the need saw to it
    beside = describe_beside(context.snapshot, context.snapshot.devices, own_pids(context.measures))
    if beside:
        return does_not_apply(f"{NOT_TESTED} for speed, because others use it: {beside}")
    history = () if isinstance(context.history, Missing) else context.history.baselines
    earlier = {baseline.metric: baseline for baseline in history if baseline.device_uuid is None}
    found = judge_collective_speed(measured, context.snapshot.devices, context.environment, earlier)
    return judged(*found) if found else does_not_apply("there is no speed to compare with")


@check(
    "train.run",
    title="training under each strategy gives the results of a single process",
    needs=("training",),
    reports=TRAINING_RUN_FINDINGS,
    readings=("training",),
    confirmed=train_ddp.confirmed,
)
def train_run(context: Context) -> Judgement:
    """Everything wrong with each strategy's run, one worker alone included: the user asked for several."""
    measured = context.measures.training
    assert not isinstance(measured, Missing)  # noqa: S101 - the need saw to it
    return judged(*(finding for one in measured for finding in judge_training(one)))
