"""The entry point of a rank of `gpudiag train` under a strategy of torch."""

from collections.abc import Mapping
from typing import Any

from gpudiag.model.codec import decode
from gpudiag.ranks.rank.context import RankContext
from gpudiag.ranks.stages import MEASURE, VERIFY, WARMUP
from gpudiag.reference.training import strategy_facts
from gpudiag.training.group import TrainingGroup
from gpudiag.training.precision import make_deterministic
from gpudiag.training.proof import SpeedTest, prove
from gpudiag.training.strategies import start_strategy
from gpudiag.training.strategies.base import Setup
from gpudiag.training.trainer import VerifiedTraining
from gpudiag.training.training_job import TrainingJob
from gpudiag.training.workloads import Epochs, Samples, build_model, make_data


def run(context: RankContext) -> Mapping[str, Any]:
    """`{"finished": True}`, at the rank's end; its results have gone to the agent as they came.

    `context.arguments` is an encoded TrainingJob.
    """
    job = decode(TrainingJob, context.arguments)
    group = TrainingGroup(context, job.backend, job.run)
    make_deterministic(group.device)
    samples = Samples(*make_data(job.workload, job.sample_count, job.seed))
    epochs = Epochs(job, samples, group.rank, whole=strategy_facts()[job.strategy].one_voice)
    setup = make_setup(job, group, context.run_directory, job.seed + group.rank)
    training = VerifiedTraining(start_strategy(setup), epochs)
    context.progress.enter_stage(VERIFY)
    uneven = training.run()
    strategy = prove(training, context.run_directory) if not uneven else training.strategy
    if job.measured and not uneven:
        context.progress.enter_stage(WARMUP)
        test = SpeedTest(strategy, epochs, training.held_bytes())
        test.warm_up()
        context.progress.enter_stage(MEASURE)
        test.measure()
    if not uneven and not job.faults:
        training.look_again(job.steps + job.steps)
    strategy.close()
    return {"finished": True}


def make_setup(job: TrainingJob, group: TrainingGroup, folder: str, seed: int) -> Setup:
    """A strategy's Setup with a model made from `seed`; an injected `badinit` turns the broadcast off."""
    broadcasts = all(fault.kind != "badinit" for fault in job.faults)
    model = build_model(job.workload, seed).to(group.device)
    return Setup(job, group, model, folder, broadcasts)
