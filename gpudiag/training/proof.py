"""The checks after the verified steps: the model learned, a checkpoint resumes, a repeat is the same."""

from dataclasses import replace

import torch
import torch.distributed as dist

from gpudiag.model.codec import encode
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.training import RankProof
from gpudiag.training.kept import Digests, differing_names, digest_values
from gpudiag.training.precision import SMALL_MOVEMENT, order_tolerance
from gpudiag.training.strategies import start_strategy
from gpudiag.training.strategies.base import ScriptState, Setup, Strategy
from gpudiag.training.tensors import Tensors, finite, norm
from gpudiag.training.trainer import REPEATED_STEPS, VerifiedTraining, digests_of, run_steps
from gpudiag.training.workloads import build_model

# After a reload: the first step differs at most by the order of sums, the later ones build on its result.
_STEPS_AFTER_RELOAD = 3
# Added to the seed of the model that a checkpoint is loaded into: its own initial values must not survive.
_OTHER_START = 7919
_FAULTY = Missing(MissingReason.NOT_ASKED, "a fault is injected")


def prove(training: VerifiedTraining, folder: str) -> Strategy:
    """The strategy to go on with, a new object unless faults are injected; emits the RankProof."""
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
        tolerance_order=order_tolerance(job, group.device.type),
        gradients_here=training.gradients_here,
        buckets=training.strategy.buckets(),
    )
    if not job.faults:
        proof = _prove_checkpoint(training, folder, proof)
        proof = replace(proof, repeat_identical=_prove_repeat(training, folder, proof.tolerance_order))
    group.progress.emit({"kind": "proof", **encode(proof)})
    return training.strategy


def _prove_checkpoint(training: VerifiedTraining, folder: str, proof: RankProof) -> RankProof:
    """`proof` with what a new model got back from the checkpoint, and how it trains on from there.

    What was written must come back bit for bit. The steps after it need not: DDP rebuilds its buckets
    after the first step of a wrapped model, so a newly wrapped one sums the gradients of three or more
    ranks in another order.
    """
    obstacle = training.strategy.checkpoint_obstacle
    if obstacle is not None:
        return replace(proof, checkpoint_identical=Missing(MissingReason.NOT_ASKED, obstacle))
    device = training.group.device
    script = _script_state(training.job.steps, device)
    written = _kept(training, script)
    checkpoint = training.strategy.checkpoint(script)
    start = training.strategy.parameters()
    expected, scales = _go_on(training, training.job.steps)
    _restart(training, folder, _OTHER_START)
    script = training.strategy.reload(checkpoint)
    _set_generators(script)
    lost = differing_names(written, _kept(training, _script_state(int(script["step"]), device)))
    found, scales_found = _go_on(training, int(script["step"]))
    errors = [_share_of_movement(one, right, start) for one, right in zip(found, expected, strict=True)]
    if scales_found != scales:
        steps = next(
            step for step, pair in enumerate(zip(scales_found, scales, strict=True)) if pair[0] != pair[1]
        )
        lost = (*lost, f"the loss scale {steps + 1} steps later")
    return replace(
        proof,
        checkpoint_identical=not lost,
        checkpoint_lost=lost,
        checkpoint_error=None if None in errors else max(error for error in errors if error is not None),
    )


def _go_on(training: VerifiedTraining, first: int) -> tuple[list[Tensors], list[float]]:
    """The parameters and the loss scale after each of the steps that follow a checkpoint."""
    parameters: list[Tensors] = []
    scales = []
    for found in run_steps(training, range(first, first + _STEPS_AFTER_RELOAD)):
        parameters.append(found)
        scales.append(training.strategy.loss_scale())
    return parameters, scales


def _kept(training: VerifiedTraining, script: ScriptState) -> Digests:
    return {**training.strategy.kept_state(), **digest_values("script", script)}


def _script_state(step: int, device: torch.device) -> ScriptState:
    """What a script must save besides its model: its step, and the states of its random number generators."""
    state: ScriptState = {"step": step, "generator": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda_generator"] = torch.cuda.get_rng_state(device)
    return state


def _set_generators(script: ScriptState) -> None:
    torch.set_rng_state(script["generator"].cpu())
    if "cuda_generator" in script:
        torch.cuda.set_rng_state(script["cuda_generator"].cpu())


def _share_of_movement(found: Tensors, expected: Tensors, start: Tensors) -> float | None:
    """The distance of `found` from `expected`, over that of `expected` from `start`; None if not finite."""
    moved = norm({name: expected[name].double() - start[name].double() for name in expected})
    gap = norm({name: found[name].double() - expected[name].double() for name in expected})
    return finite(gap / max(moved, SMALL_MOVEMENT * norm(expected)))


def _prove_repeat(training: VerifiedTraining, folder: str, tolerance: float) -> Reading[bool]:
    """Whether the first steps, from the same start, give the same bits again.

    Where the framework sums gradients in the order of their arrival, agreement within `tolerance` is enough.
    """
    _restart(training, folder, 0)
    start = training.strategy.parameters()
    digests = training.step_digests[:REPEATED_STEPS]
    expected = training.first_parameters
    found: list[Tensors] = list(run_steps(training, range(len(digests))))
    if [digests_of(parameters) for parameters in found] == digests:
        return True
    if training.strategy.fixed_order:
        return False
    errors = [_share_of_movement(one, right, start) for one, right in zip(found, expected, strict=True)]
    return all(error is not None and error <= tolerance for error in errors)


def _restart(training: VerifiedTraining, folder: str, other_start: int) -> None:
    """Restart with a new model; in a new process group if the job says so or the old one is closed."""
    job, group = training.job, training.group
    group.barrier()
    training.strategy.close()
    if job.fresh_groups or not dist.is_initialized():
        group.renew()
    torch.manual_seed(job.seed + group.rank + other_start)
    model = build_model(job.workload, job.seed + group.rank + other_start).to(group.device)
    training.strategy = start_strategy(Setup(job, group, model, folder))
