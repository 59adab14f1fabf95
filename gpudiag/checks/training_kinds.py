"""What `gpudiag train` may find: the code of each fault, what it means, what to do."""

from gpudiag.checks.registry import FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity


def _wrong(code: str, meaning: str, remedy: str) -> FindingKind:
    """A training that does not compute what it should: the job's fault, until the machine's is shown."""
    return FindingKind(
        code=code,
        outcome=Outcome.FAIL,
        severity=Severity.TRIAGE,
        category=Category.SW_OTHER,
        owner=Owner.JOB,
        meaning=meaning,
        remedy=remedy,
    )


def _note(code: str, meaning: str, remedy: str, owner: Owner = Owner.JOB) -> FindingKind:
    return FindingKind(
        code=code,
        outcome=Outcome.WARN,
        severity=Severity.MONITOR,
        category=Category.SW_OTHER,
        owner=owner,
        meaning=meaning,
        remedy=remedy,
    )


def _unknown(code: str, meaning: str, remedy: str) -> FindingKind:
    return FindingKind(
        code=code,
        outcome=Outcome.ERROR,
        severity=Severity.CONFIG,
        category=Category.SW_CONFIG,
        owner=Owner.JOB,
        meaning=meaning,
        remedy=remedy,
    )


NOT_PARALLEL = _wrong(
    "train.not_parallel",
    "Fewer workers trained together than were asked for: each trains alone, and nothing says so.",
    "Start it with a launcher (torchrun, horovodrun), and compare the framework's own count with yours.",
)
SINGLE_WORKER = _note(
    "train.single_worker",
    "One worker trained by itself, as asked: nothing was averaged, so nothing is proved about averaging.",
    "Give it two or more with `--nproc`.",
)
SHARDING = _wrong(
    "train.sharding",
    "Ranks keep more, or less, of the parameters or of the optimizer's state than the strategy says.",
    "Check the stage in the configuration, and that the model is sharded before the optimizer is made.",
)
INITIAL_PARAMETERS = _wrong(
    "train.initial_parameters",
    "Ranks begin with different parameters, so averaging their gradients trains no model at all.",
    "Broadcast the parameters of rank 0 before the first step, or wrap the model in DDP before changing it.",
)
BUFFERS_DIFFER = _wrong(
    "train.buffers_differ",
    "Buffers, such as running means, differ between ranks.",
    "Broadcast buffers as well: DDP's broadcast_buffers=True, hvd.broadcast_parameters(state_dict()).",
)
NOT_AVERAGED = _wrong(
    "train.not_averaged",
    "Gradients are not averaged over the ranks: each rank steps by its own samples alone.",
    "Call the wrapped model, not model.module; leave no_sync() before the last backward pass.",
)
TENSOR_NOT_AVERAGED = _wrong(
    "train.tensor_not_averaged",
    "Some parameters' gradients are not averaged over the ranks, the others are.",
    "Give the wrapper every parameter: nothing ignored, none added or unfrozen after wrapping.",
)
SUMMED = _wrong(
    "train.gradients_summed",
    "Gradients are added up over the ranks instead of averaged: the learning rate is multiplied.",
    "Divide by the world size: ReduceOp.AVG, or op=hvd.Average. Adam hides this; SGD does not.",
)
GRADIENT = _wrong(
    "train.gradient",
    "Gradients differ from those of a single process on the same samples by more than rounding explains.",
    "Compare on fewer ranks and with `--dtype float32`; if it stays, test the GPUs: gpudiag preflight.",
)
PARAMETERS = _wrong(
    "train.parameters",
    "Parameters after training differ from those of a single process by more than rounding explains.",
    "Check what changes gradients before the step: clipping, a loss scale, an optimizer of its own.",
)
RANKS_DIFFER = _wrong(
    "train.ranks_differ",
    "Ranks hold different parameters after a step, though all start from the same ones.",
    "Look at that rank's memory and links first: gpudiag nccl-test, gpudiag preflight.",
)
LOSS = _wrong(
    "train.loss",
    "The loss, averaged over the ranks, is not that of a single process on the same samples.",
    "Use the mean of a batch on every rank, with batches of equal size.",
)
LOSS_NOT_FALLING = _wrong(
    "train.loss_not_falling",
    "The model did not learn: the loss over the same samples is no lower after training.",
    "Check the learning rate, and that the optimizer was given the parameters of the wrapped model.",
)
UNMOVED = _wrong(
    "train.parameters_unmoved",
    "The parameters after training are those of before: no step was made.",
    "Make the optimizer after the model was moved and wrapped, and call step() on it.",
)
SAME_SAMPLES = _wrong(
    "train.same_samples",
    "Ranks read the same samples, so they do the same work twice.",
    "Give the loader a DistributedSampler, and this rank's number to it.",
)
NOT_COVERED = _wrong(
    "train.samples_left_out",
    "An epoch left samples out, though the data divides evenly over the ranks.",
    "Check what the sampler was given: the number of ranks, this rank's number, drop_last.",
)
ORDER_REPEATS = _wrong(
    "train.order_repeats",
    "Every epoch reads the samples in the same order.",
    "Call sampler.set_epoch(epoch) at the start of every epoch.",
)
UNEVEN = _wrong(
    "train.uneven_steps",
    "A rank runs out of data before the others, which then wait for it in the next step for ever.",
    "Use drop_last or a padding sampler, or `with model.join():` around the loop.",
)
NOT_FINITE = _wrong(
    "train.not_finite",
    "A loss or a gradient is infinite or no number; averaged, it spoils every rank.",
    "Look at that rank's samples of that step; if they are sound, test its GPU: gpudiag preflight.",
)
UNUSED = _wrong(
    "train.unused_parameters",
    "Parameters get no gradient: DDP waits for them, or leaves them as they are.",
    "Take them out of the model, or set find_unused_parameters=True.",
)
CHECKPOINT = _wrong(
    "train.checkpoint",
    "After reloading a checkpoint the next step is not the one that would have followed.",
    "Save and load the optimizer, the loss scaler and the sampler's epoch too.",
)
NOT_DETERMINISTIC = _note(
    "train.not_deterministic",
    "The same steps from the same start gave other bits the second time.",
    "Set torch.use_deterministic_algorithms(True); if it stays on one GPU only, test that GPU.",
    Owner.SOFTWARE,
)
OUT_OF_MEMORY = _wrong(
    "train.out_of_memory",
    "A rank ran out of memory.",
    "Use a smaller batch, or shard: `gpudiag train --advise` says which strategy fits.",
)
STRAGGLER = _note(
    "train.straggler",
    "A rank keeps the others waiting in most steps.",
    "Look for what else runs on that host's processors, at its data loading, and at its GPU's clocks.",
    Owner.HOST,
)
TEARDOWN = _note(
    "train.teardown",
    "A rank ended badly after its results were complete, while the process group was torn down.",
    "The results stand. If it happens again, report it with the versions of the framework.",
    Owner.SOFTWARE,
)
INCOMPLETE = _unknown(
    "train.incomplete",
    "Fewer steps were verified than planned, and nothing that was seen explains it.",
    "Run it again; if it stays so, report it with `--json` output.",
)
TIMED_OUT = _unknown(
    "train.timed_out",
    "The time for the whole run was over before it ended, with no rank to blame.",
    "Give it more time with `--timeout`, or fewer steps with `--steps`.",
)
SCRIPT_HUNG = _wrong(
    "train.script_hung",
    "No rank of the script moves any more: some wait for others, which are somewhere else.",
    "Compare where the ranks are: the one that is elsewhere left the common path just before.",
)
SCRIPT_FAILED = _wrong(
    "train.script_failed",
    "The script ended with an exit status other than 0.",
    "Read what it wrote last, above.",
)

TRAINING_FINDINGS = (
    NOT_PARALLEL,
    SINGLE_WORKER,
    SHARDING,
    INITIAL_PARAMETERS,
    BUFFERS_DIFFER,
    NOT_AVERAGED,
    TENSOR_NOT_AVERAGED,
    SUMMED,
    GRADIENT,
    PARAMETERS,
    RANKS_DIFFER,
    LOSS,
    LOSS_NOT_FALLING,
    UNMOVED,
    SAME_SAMPLES,
    NOT_COVERED,
    ORDER_REPEATS,
    UNEVEN,
    NOT_FINITE,
    UNUSED,
    CHECKPOINT,
    NOT_DETERMINISTIC,
    OUT_OF_MEMORY,
    STRAGGLER,
    TEARDOWN,
    INCOMPLETE,
    TIMED_OUT,
    SCRIPT_HUNG,
    SCRIPT_FAILED,
)
