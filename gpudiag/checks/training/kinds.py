"""What `gpudiag train` may find: the code of each fault, what it means, what to do, and its words."""

from collections.abc import Sequence

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.training import GradientParts, StepParts

_ITS_OWN = "the user's own script failed; another one may start"
_TRAIN_NOT_PARALLEL_BASIS = Basis(
    reads="The framework's own count of workers (world size, hvd.size, device_ids, replicas), the ZeRO"
    " stage, and the elements of parameters and optimizer state that each rank keeps.",
    limit="What was asked for; shards together hold every element once, with at most one element of"
    " padding per tensor and rank.",
    look_also=("env | grep -e RANK -e WORLD_SIZE -e MASTER -e HOROVOD", "gpudiag train --nproc 2"),
)
_TRAIN_INITIAL_PARAMETERS_BASIS = Basis(
    reads="A digest of every tensor on every rank, before the first step and after each one; ranks start"
    " from different seeds on purpose.",
    limit="None: the bits must be the same on all ranks.",
    look_also=("gpudiag train --inject badinit", "gpudiag nccl-test", "collective.corrupted"),
)
_TRAIN_NOT_AVERAGED_BASIS = Basis(
    reads="The gradients after synchronisation, against those of a plain model on the samples of all"
    " ranks, and against those of the rank's own samples.",
    limit="Relative L2 error by dtype and device: float32 256, bfloat16 32, float16 64 unit roundoffs,"
    " four times that on a GPU; see docs/training.md.",
    look_also=("gpudiag train --inject nosync:3", "gpudiag train --inject sumgrad", "train.parameters"),
)
_TRAIN_GRADIENTS_SCALED_BASIS = Basis(
    reads=(
        "The gradients after synchronisation, compared with a multiple, with those of an earlier step or of"
        " several, with the mean of some ranks, with a mean of other weights; whether parameters had a"
        " gradient already before the forward pass."
    ),
    limit="The rule explains all but 5 % of the error, which is rounding (our choice).",
    look_also=("train.gradient", "train.not_averaged", "docs/training.md"),
)
_TRAIN_PARAMETERS_BASIS = Basis(
    reads=(
        "Parameters and mean loss of every step, against the single-process run;"
        " the loss over all samples before and after; the tensors that the optimizer was"
        " given; whether all bits fit in a shorter dtype."
    ),
    limit="As for gradients, growing with the number of steps; 16 times wider for Adam. The loss must"
    " fall, and parameters must move.",
    look_also=("gpudiag train --optimizer sgd", "train.gradient", "docs/training.md"),
)
_TRAIN_SAME_SAMPLES_BASIS = Basis(
    reads="The indices of the samples that each rank read, epoch by epoch, and how many steps they gave.",
    limit="None: shards are disjoint, cover everything, change their order every epoch, and are equally"
    " long.",
    look_also=(
        "gpudiag train --inject samedata",
        "gpudiag train --inject noset_epoch",
        "gpudiag train --inject uneven",
    ),
)
_TRAIN_NOT_FINITE_BASIS = Basis(
    reads="Each rank's own loss and the averaged gradient of every step; the exception that ended a rank.",
    limit="None: one number that is not finite reaches every rank.",
    look_also=("gpudiag train --inject nan:1@3", "gpudiag train --inject oom:1", "gpudiag preflight"),
)
_TRAIN_TEARDOWN_BASIS = Basis(
    reads="Which steps every rank reported, and how its process ended after them.",
    limit="Every planned step on every rank; `--timeout` for each strategy.",
    look_also=("gpudiag train --json", "rank.died"),
)
_TRAIN_PARAMETERS_SUMMED_BASIS = Basis(
    reads="Digests and norms of the parameters and gradients of the script's model on every rank, after"
    " the first and some later steps, and the collectives that carried them.",
    limit=(
        "None: a sum of what N ranks have is N times their mean; a gradient that was"
        " averaged is the same on all ranks."
    ),
    look_also=("gpudiag train --script", "train.gradients_summed", "docs/training.md"),
)
_TRAIN_NOT_TRAINED_BASIS = Basis(
    reads=(
        "How many backward passes began, and how many steps optimizers of"
        " torch made, in the script's one rank."
    ),
    limit="None: not one of either.",
    look_also=("gpudiag train --script", "train.no_gradient_crossed", "docs/training.md"),
)
_TRAIN_SCRIPT_HUNG_BASIS = Basis(
    reads="Each rank's Python stack, processor time, children and files, once a second; the exit status"
    " of the script.",
    limit="`--hang-after`: no rank moves for 60 s; 30 times as long if others wait for a rank that works.",
    look_also=("gpudiag nccl-test", "py-spy dump --pid PID", "rank.silent"),
)
RANK_CORRUPT = FindingKind(
    code="train.rank_corrupt",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning=(
        "One rank alone has numbers that its samples do not give, and no rule of any training explains them."
    ),
    remedy=(
        "Keep jobs off that rank's GPU or host, and test it: gpudiag"
        " preflight --level long, gpudiag nccl-test."
    ),
    basis=Basis(
        reads="Each rank's own gradients and parameters, against those of a plain model on"
        " the samples of that rank.",
        limit=(
            "The limits of `train.gradient` and `train.parameters`, exceeded by one rank alone, by an"
            " error that no other rule explains."
        ),
        look_also=("gpudiag preflight --level long", "gpudiag nccl-test", "collective.corrupted"),
    ),
)

_NAMED_TENSORS = 4
# A factor whose relative distance from a fraction is below this is that fraction.
_NEAR = 0.001
# A fault flips one bit or a few: a handful of elements, and few of all.
_FEW_ELEMENTS = 4
_FEW_SHARE = 0.05


def _wrong(code: str, meaning: str, remedy: str, jobs_may_start: str = "", *, basis: Basis) -> FindingKind:
    """The kind of a training that computes wrongly: the job's fault, until the machine's is shown."""
    return FindingKind(
        code=code,
        outcome=Outcome.FAIL,
        severity=Severity.TRIAGE,
        category=Category.SW_OTHER,
        owner=Owner.JOB,
        meaning=meaning,
        remedy=remedy,
        basis=basis,
        jobs_may_start=jobs_may_start,
    )


def _note(code: str, meaning: str, remedy: str, owner: Owner = Owner.JOB, *, basis: Basis) -> FindingKind:
    return FindingKind(
        code=code,
        outcome=Outcome.WARN,
        severity=Severity.MONITOR,
        category=Category.SW_OTHER,
        owner=owner,
        meaning=meaning,
        remedy=remedy,
        basis=basis,
    )


def _unknown(code: str, meaning: str, remedy: str, *, basis: Basis) -> FindingKind:
    return FindingKind(
        code=code,
        outcome=Outcome.ERROR,
        severity=Severity.CONFIG,
        category=Category.SW_CONFIG,
        owner=Owner.JOB,
        meaning=meaning,
        remedy=remedy,
        basis=basis,
    )


NOT_PARALLEL = _wrong(
    "train.not_parallel",
    "Fewer workers trained together than planned: each trains alone, without an error.",
    "Start it with a launcher (torchrun, horovodrun), and compare the framework's own count with yours.",
    basis=_TRAIN_NOT_PARALLEL_BASIS,
)
SINGLE_WORKER = _note(
    "train.single_worker",
    "One worker trained by itself, as asked: nothing was averaged, so nothing is proved about averaging.",
    "Give it two or more with `--nproc`.",
    basis=_TRAIN_NOT_PARALLEL_BASIS,
)
SHARDING = _wrong(
    "train.sharding",
    "Ranks keep more, or less, of the parameters or of the optimizer's state than the strategy prescribes.",
    "Check the stage in the configuration, and that the model is sharded before the optimizer is created.",
    basis=_TRAIN_NOT_PARALLEL_BASIS,
)
INITIAL_PARAMETERS = _wrong(
    "train.initial_parameters",
    "Ranks begin with different parameters, so averaging their gradients trains no model.",
    "Broadcast the parameters of rank 0 before the first step, or wrap the model in DDP before changing it.",
    basis=_TRAIN_INITIAL_PARAMETERS_BASIS,
)
BUFFERS_DIFFER = _wrong(
    "train.buffers_differ",
    "Buffers, such as running means, differ between ranks.",
    "Broadcast buffers as well: DDP's forward_sync_buffers=True (broadcast_buffers before torch 2.13),"
    " hvd.broadcast_parameters(state_dict()).",
    basis=_TRAIN_INITIAL_PARAMETERS_BASIS,
)
NOT_AVERAGED = _wrong(
    "train.not_averaged",
    "Gradients are not averaged over the ranks: each rank steps on its own samples alone.",
    "Call the wrapped model, not model.module; leave no_sync() before the last backward pass.",
    basis=_TRAIN_NOT_AVERAGED_BASIS,
)
TENSOR_NOT_AVERAGED = _wrong(
    "train.tensor_not_averaged",
    "The gradients of some parameters are not averaged over the ranks; those of the others are.",
    "Give the wrapper every parameter: nothing ignored, none added or unfrozen after wrapping.",
    basis=_TRAIN_NOT_AVERAGED_BASIS,
)
SUMMED = _wrong(
    "train.gradients_summed",
    "Gradients are added up over the ranks instead of averaged: the learning rate is multiplied.",
    "Divide by the world size: ReduceOp.AVG, or op=hvd.Average. Adam hides this; SGD does not.",
    basis=_TRAIN_NOT_AVERAGED_BASIS,
)
SCALED = _wrong(
    "train.gradients_scaled",
    "Gradients are those of a single process times a constant factor: the learning rate is multiplied.",
    "Look for one division too many or too few: the world size, the steps of"
    " accumulation, the loss scale, clipping.",
    basis=_TRAIN_GRADIENTS_SCALED_BASIS,
)
LATE_GRADIENT = _wrong(
    "train.gradients_late",
    "A step uses the gradients of the previous step.",
    "Wait for the averaging before the step: a communication hook, or overlap, hands over an older result.",
    basis=_TRAIN_GRADIENTS_SCALED_BASIS,
)
ACCUMULATED = _wrong(
    "train.gradients_accumulated",
    "The gradients of the previous step are still in those of this step.",
    "Call zero_grad() before every backward pass, on the optimizer that steps.",
    basis=_TRAIN_GRADIENTS_SCALED_BASIS,
)
IN_GROUPS = _wrong(
    "train.averaged_in_groups",
    "Gradients are averaged within groups of ranks, and not over all of them:"
    " each group trains a model of its own.",
    "Give the wrapper the process group, or the mesh, of all ranks that train the same model.",
    basis=_TRAIN_GRADIENTS_SCALED_BASIS,
)
WEIGHED = _wrong(
    "train.ranks_weighed",
    "The gradients of some ranks count more than those of others, or not at all.",
    "Divide by the same number on every rank, and clip only after the averaging.",
    basis=_TRAIN_GRADIENTS_SCALED_BASIS,
)
TENSOR_NOT_STEPPED = _wrong(
    "train.tensor_not_stepped",
    "Some parameters have a gradient, but the optimizer does not change them.",
    "Give the optimizer every parameter of the wrapped model, and create it after the last layer.",
    basis=Basis(
        reads="Which tensors the optimizer moved in a step that had a gradient for them.",
        limit="None: a tensor with a gradient changes.",
        look_also=("train.parameters", "train.parameters_unmoved"),
    ),
)
OTHER_SAMPLES = _wrong(
    "train.other_samples",
    "A rank trains on inputs or targets that do not belong to the samples that it read.",
    "Look at what that rank does between reading and the model: collate function,"
    " augmentation, a shuffle of one of the two.",
    basis=Basis(
        reads="A digest of the inputs and of the targets of each batch, against those of"
        " the samples whose indices the rank was given.",
        limit="None: the same samples give the same bits.",
        look_also=("train.same_samples", "train.gradient"),
    ),
)
GRADIENT = _wrong(
    "train.gradient",
    "Gradients differ from those of a single process on the same samples by more than rounding explains.",
    "Compare on fewer ranks and with `--dtype float32`; if it happens"
    " again, test the GPUs: gpudiag preflight.",
    basis=_TRAIN_NOT_AVERAGED_BASIS,
)
PARAMETERS = _wrong(
    "train.parameters",
    "Parameters after training differ from those of a single process by more than rounding explains.",
    "Check what changes gradients before the step: clipping, a loss scale, a custom optimizer.",
    basis=_TRAIN_PARAMETERS_BASIS,
)
RANKS_DIFFER = _wrong(
    "train.ranks_differ",
    "Ranks hold different parameters after a step, although all start from the same ones.",
    "Look for what only that rank does: a checkpoint, or an optimizer's state, that it alone loaded;"
    " other settings. Where nothing differs, test its GPU: gpudiag preflight.",
    basis=_TRAIN_INITIAL_PARAMETERS_BASIS,
)
LOSS = _wrong(
    "train.loss",
    "The loss, averaged over the ranks, is not that of a single process on the same samples.",
    "Use the mean of a batch on every rank, with batches of equal size.",
    basis=_TRAIN_PARAMETERS_BASIS,
)
LOSS_NOT_FALLING = _wrong(
    "train.loss_not_falling",
    "The model did not learn: the loss over the same samples is no lower after training.",
    "Check the learning rate, and that the optimizer was given the parameters of the wrapped model.",
    basis=_TRAIN_PARAMETERS_BASIS,
)
UNMOVED = _wrong(
    "train.parameters_unmoved",
    "The parameters did not change in training: no step was made.",
    "Create the optimizer after the model was moved and wrapped, and call step() on it.",
    basis=_TRAIN_PARAMETERS_BASIS,
)
SAME_SAMPLES = _wrong(
    "train.same_samples",
    "Ranks read the same samples, so they do the same work twice.",
    "Give the loader a DistributedSampler with this rank.",
    basis=_TRAIN_SAME_SAMPLES_BASIS,
)
NOT_COVERED = _wrong(
    "train.samples_left_out",
    "An epoch left samples out, though the data divides evenly over the ranks.",
    "Check the sampler's arguments (num_replicas, rank, drop_last), and whether batches are cut.",
    basis=_TRAIN_SAME_SAMPLES_BASIS,
)
ORDER_REPEATS = _wrong(
    "train.order_repeats",
    "Every epoch reads the samples in the same order.",
    "Call sampler.set_epoch(epoch) at the start of every epoch.",
    basis=_TRAIN_SAME_SAMPLES_BASIS,
)
UNEVEN = _wrong(
    "train.uneven_steps",
    "A rank runs out of data before the others, and these wait for it forever in the next step.",
    "Use drop_last or a padding sampler, or `with model.join():` around the loop.",
    basis=_TRAIN_SAME_SAMPLES_BASIS,
)
NOT_FINITE = _wrong(
    "train.not_finite",
    "A loss or a gradient is infinite or not a number; averaged, it reaches every rank.",
    "Look at that rank's samples of that step; if they are sound, test its GPU: gpudiag preflight.",
    basis=_TRAIN_NOT_FINITE_BASIS,
)
UNUSED = _wrong(
    "train.unused_parameters",
    "Parameters get no gradient: DDP waits for them, or leaves them unchanged.",
    "Remove them from the model, or set find_unused_parameters=True.",
    basis=_TRAIN_NOT_AVERAGED_BASIS,
)
CHECKPOINT = _wrong(
    "train.checkpoint",
    "A checkpoint did not restore what was saved, or the steps after it"
    " differ from those without a checkpoint.",
    "Save and load the optimizer, the loss scaler, the step and the random number generators too.",
    basis=Basis(
        reads="Parameters, buffers, optimizer, loss scaler, step and generators after a"
        " checkpoint was read back in a new process group (the same at level quick), and"
        " the three steps after it.",
        limit=(
            "The same bits; the steps after it within the error of another order of"
            " summation: 4e-4 of their movement."
        ),
        look_also=("gpudiag train --dtype float32", "gpudiag preflight"),
    ),
)
NOT_DETERMINISTIC = _note(
    "train.not_deterministic",
    "The same steps from the same start gave different bits when repeated.",
    "Set torch.use_deterministic_algorithms(True); if it happens on one GPU only, test that GPU.",
    Owner.SOFTWARE,
    basis=Basis(
        reads="The first three steps once more from the same start.",
        limit="None: the same bits. Horovod adds up what is ready first: within 4e-4 of their movement.",
        look_also=("gpudiag train --dtype float32", "gpudiag preflight"),
    ),
)
OUT_OF_MEMORY = _wrong(
    "train.out_of_memory",
    "A rank ran out of memory.",
    "Use a smaller batch, or shard: `gpudiag train --advise` names the strategies that fit.",
    basis=_TRAIN_NOT_FINITE_BASIS,
)
STRAGGLER = _note(
    "train.straggler",
    "The other ranks wait for one rank in most steps.",
    "Look for what else runs on that host's processors, at its data loading, and at its GPU's clocks.",
    Owner.HOST,
    basis=Basis(
        reads="How long each rank needs from the end of a step until it waits for the others"
        " in the next, by its own clock.",
        limit="Later than the other ranks' median by 20 % of the step and at least 3 ms, in"
        " the middle of at least four timed steps.",
        look_also=("gpudiag train --inject slow:1:50", "rank.late", "top -H", "gpudiag list --watch 1"),
    ),
)
TEARDOWN = _note(
    "train.teardown",
    "A rank failed after its results were complete, while the process group was being destroyed.",
    "The results are valid. If it happens again, report it with the versions of the framework.",
    Owner.SOFTWARE,
    basis=_TRAIN_TEARDOWN_BASIS,
)
INCOMPLETE = _unknown(
    "train.incomplete",
    "Fewer steps were verified than planned, and gpudiag found no reason.",
    "Run it again; if it happens again, report it with `--json` output.",
    basis=_TRAIN_TEARDOWN_BASIS,
)
TIMED_OUT = _unknown(
    "train.timed_out",
    "The time for the whole run ran out before it ended, with no rank to blame.",
    "Give it more time with `--timeout`, or fewer steps with `--steps`.",
    basis=_TRAIN_TEARDOWN_BASIS,
)
PARAMETERS_SUMMED = _wrong(
    "train.parameters_summed",
    "Parameters are added up over the ranks and not divided: they grow with"
    " every step, until the loss is infinite.",
    "Divide by the world size after the all_reduce, or use ReduceOp.AVG; better: average gradients with DDP.",
    basis=_TRAIN_PARAMETERS_SUMMED_BASIS,
)
GRADIENTS_LEFT_SUMMED = _note(
    "train.gradients_left_summed",
    "Gradients are added up over the ranks and not divided: right only where the"
    " loss is divided by the whole batch.",
    "Divide by the world size, or use ReduceOp.AVG, unless every rank's loss"
    " is a share of that of all samples.",
    basis=_TRAIN_PARAMETERS_SUMMED_BASIS,
)
NOTHING_CROSSED = _note(
    "train.no_gradient_crossed",
    "Ranks opened a process group, but gpudiag saw no gradient in its collectives:"
    " nothing is proved about their training.",
    "Wrap the model in DDP or fully_shard, or average the gradients;"
    " a script that does not train needs no change.",
    basis=_TRAIN_PARAMETERS_SUMMED_BASIS,
)
NOT_TRAINED = _note(
    "train.not_trained",
    "The script ended well, but no backward pass and no step of an optimizer of torch was seen:"
    " nothing is proved about a training.",
    "Give the script that trains, with its own arguments after `--`;"
    " one of another framework is not looked into.",
    basis=_TRAIN_NOT_TRAINED_BASIS,
)
SCRIPT_HUNG = _wrong(
    "train.script_hung",
    "No rank of the script moves: some wait for others, which are at another line.",
    "Compare the ranks' lines: the one at another line left the common path just before.",
    _ITS_OWN,
    basis=_TRAIN_SCRIPT_HUNG_BASIS,
)
SCRIPT_FAILED = _wrong(
    "train.script_failed",
    "The script ended with an exit status other than 0.",
    "Read its last output, above.",
    _ITS_OWN,
    basis=_TRAIN_SCRIPT_HUNG_BASIS,
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
    SCALED,
    LATE_GRADIENT,
    ACCUMULATED,
    IN_GROUPS,
    WEIGHED,
    TENSOR_NOT_STEPPED,
    OTHER_SAMPLES,
    RANK_CORRUPT,
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
    PARAMETERS_SUMMED,
    GRADIENTS_LEFT_SUMMED,
    NOTHING_CROSSED,
    NOT_TRAINED,
    SCRIPT_HUNG,
    SCRIPT_FAILED,
)


def verb(several: Sequence[object], one: str, many: str) -> str:
    """The singular or plural form of a verb, by how many ranks it goes with."""
    return one if len(several) == 1 else many


def name_tensors(names: Sequence[str]) -> str:
    """The first few names; `some tensors` where none is known."""
    more = f" and {len(names) - _NAMED_TENSORS} more" if len(names) > _NAMED_TENSORS else ""
    return ", ".join(names[:_NAMED_TENSORS]) + more or "some tensors"


def describe_factor(factor: float) -> str:
    """`3 times`, `1/4 of` or `0.37 times`."""
    if 0 < factor < 0.67 and abs(factor * round(1 / factor) - 1) < _NEAR:
        return f"1/{round(1 / factor)} of"
    short = f"{factor:.3g}"
    return f"{factor:.6g} times" if short == "1" else f"{short} times"


def is_few(off: int, elements: int) -> bool:
    """Whether so few elements are off that bits flipped, rather than a rule was broken."""
    return off <= max(1, min(_FEW_ELEMENTS, int(_FEW_SHARE * elements)))


def describe_elements(parts: GradientParts | StepParts) -> str:
    """How many elements are off, and of which tensors."""
    return f"{parts.elements_off} of {parts.elements} elements of {name_tensors(parts.tensors)}"
