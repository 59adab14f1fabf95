"""Training as part of a preflight: DDP at level quick, every other installed strategy at level standard."""

from gpudiag.checks.ranks import RANK_FINDINGS, RANK_LATE, RANK_TEARDOWN
from gpudiag.checks.registry import Judgement, Level, check, does_not_apply, judged
from gpudiag.checks.training import judge_training
from gpudiag.checks.training_kinds import (
    GRADIENTS_LEFT_SUMMED,
    NOTHING_CROSSED,
    PARAMETERS_SUMMED,
    SCRIPT_FAILED,
    SCRIPT_HUNG,
    SINGLE_WORKER,
    TRAINING_FINDINGS,
)
from gpudiag.model.context import Context
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing
from gpudiag.model.training import StrategyMeasurement

_ON_CPU_RANKS = "ranks on CPUs, with faults injected"
_LIMIT = "the maths of a single process on the same samples, by the tolerances of docs/training.md"

# No script of a user runs here; one worker alone is in order; ends in teardown and lateness have names of
# their own in training.
_ELSEWHERE = (
    *(SINGLE_WORKER, SCRIPT_HUNG, SCRIPT_FAILED, RANK_TEARDOWN, RANK_LATE),
    *(PARAMETERS_SUMMED, GRADIENTS_LEFT_SUMMED, NOTHING_CROSSED),
)
_REPORTS = tuple(kind for kind in (*TRAINING_FINDINGS, *RANK_FINDINGS) if kind not in _ELSEWHERE)


@check(
    "train.ddp",
    title="a few steps of DDP are the maths of a single process",
    needs=("training",),
    level=Level.QUICK,
    reports=_REPORTS,
    readings=("training",),
    confirmed=_ON_CPU_RANKS,
)
def train_ddp(context: Context) -> Judgement:
    """What is wrong with the training under DDP."""
    measured = [one for one in _measured(context) if one.strategy == "ddp"]
    return _judge(measured, "no training under DDP was run")


@check(
    "train.strategies",
    title="a few steps under every installed strategy are the maths of a single process",
    needs=("training",),
    level=Level.STANDARD,
    reports=_REPORTS,
    readings=("training",),
    confirmed=_ON_CPU_RANKS,
)
def train_strategies(context: Context) -> Judgement:
    """What is wrong with the training under all strategies but DDP."""
    measured = [one for one in _measured(context) if one.strategy != "ddp"]
    return _judge(measured, "no other strategy is installed")


def _judge(measured: list[StrategyMeasurement], nothing: str) -> Judgement:
    if not measured:
        return does_not_apply(nothing)
    findings: list[Finding] = []
    for one in measured:
        # A machine with one GPU is healthy, and has nothing to average.
        findings += [finding for finding in judge_training(one) if finding.code != SINGLE_WORKER.code]
    return judged(*findings)


def _measured(context: Context) -> tuple[StrategyMeasurement, ...]:
    measured = context.measures.training
    assert not isinstance(measured, Missing)  # noqa: S101 - the need saw to it
    return measured
