"""What is proved after the verified steps: learning, a checkpoint that goes on alike, a repeat that is the same."""

from dataclasses import replace

from gpudiag.model.codec import encode
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.training import RankProof
from gpudiag.training.strategies import start_strategy
from gpudiag.training.strategies.base import Setup, Strategy
from gpudiag.training.tensors import finite
from gpudiag.training.trainer import VerifiedTraining, take_steps
from gpudiag.training.workloads import build_model

_REPEATED_STEPS = 3
# Added to the seed of the model that a checkpoint is read into: nothing of its own start may survive.
_OTHER_START = 7919
_FAULTY = Missing(MissingReason.NOT_ASKED, "a fault is injected")


def prove(training: VerifiedTraining, folder: str) -> Strategy:
    """Tell what was proved; the strategy to go on with, in a process group of its own."""
    job, group = training.job, training.group
    after = training.strategy.parameters()
    moved = any(not after[name].equal(training.start[name]) for name in after)
    proof = RankProof(
        rank=group.rank,
        loss_before=finite(training.reference.evaluate(training.start)),
        loss_after=finite(training.reference.evaluate(after)),
        moved=moved,
        optimizer_state_here=training.strategy.optimizer_state_here(),
        optimizer_state_whole=training.reference.state_elements(),
        checkpoint_identical=_FAULTY,
        repeat_identical=_FAULTY,
    )
    if not job.faults:
        checkpoint = _prove_checkpoint(training, folder)
        repeat = _prove_repeat(training, folder)
        proof = replace(proof, checkpoint_identical=checkpoint, repeat_identical=repeat)
    group.progress.emit({"kind": "proof", **encode(proof)})
    return training.strategy


def _prove_checkpoint(training: VerifiedTraining, folder: str) -> Reading[bool]:
    """Whether the next step is the same bit for bit in a new process group that read the checkpoint."""
    obstacle = training.strategy.checkpoint_obstacle
    if obstacle is not None:
        return Missing(MissingReason.NOT_ASKED, obstacle)
    steps = range(training.job.steps, training.job.steps + 1)
    checkpoint = training.strategy.checkpoint()
    expected = list(take_steps(training, steps))
    _restart(training, folder, _OTHER_START)
    training.strategy.reload(checkpoint)
    return list(take_steps(training, steps)) == expected


def _prove_repeat(training: VerifiedTraining, folder: str) -> Reading[bool]:
    """Whether the first steps, from the same start, give the same bits again."""
    _restart(training, folder, 0)
    expected = training.step_digests[:_REPEATED_STEPS]
    return list(take_steps(training, range(len(expected)))) == expected


def _restart(training: VerifiedTraining, folder: str, other_start: int) -> None:
    """Begin again in a new process group."""
    job, group = training.job, training.group
    group.barrier()
    training.strategy.close()
    group.renew()
    model = build_model(job.workload, job.seed + group.rank + other_start).to(group.device)
    training.strategy = start_strategy(Setup(job, group, model, folder))
