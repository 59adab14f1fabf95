"""What `gpudiag train` is asked to do, what its ranks emit step by step, and the report. No verdicts."""

from dataclasses import dataclass, field
from typing import ClassVar

from gpudiag.model.codec import noun
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.measure import Incident, InjectedFault, LatenessSeries, RankReport, RanksOfRun
from gpudiag.model.option import Plan, Preset, option
from gpudiag.model.plan import (
    BACKENDS,
    BEFORE_TRAINING,
    LOOK_SECONDS,
    QUICK,
    STANDARD,
    deadline_option,
    nproc_option,
    rendezvous_option,
    timeout_option,
)
from gpudiag.model.reading import NOT_ASKED, Reading

STRATEGIES = (
    *("data-parallel", "ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3"),
    *("horovod", "accelerate", "mirrored"),
)
WORKLOADS = ("regression", "classification", "transformer", "convolution")
TRAINING_DTYPES = ("float32", "bfloat16", "float16")
OPTIMIZERS = ("sgd", "adam")
MAX_STEPS = 10_000
MAX_BATCH_SIZE = 4096
MAX_SEED = 2**31 - 1


@noun
class GradientParts:
    """What a gradient that is not the expected one is made of, on one rank.

    Only `tensors`, those that are off, are looked at. Errors are over the norm of the whole expected
    gradient; None where they are not finite, or there is nothing to compare with.
    """

    tensors: tuple[str, ...]
    # Of the gradient of each rank's own samples, by rank: one over their number each if right.
    shares: tuple[float, ...]
    rest: float | None  # what those shares leave unexplained
    step_before: float | None  # against the gradient that the step before should have had
    accumulated: float | None  # against this gradient and the one found in the step before together
    elements_off: int  # that make up nearly all of the error
    elements: int
    rounded_to: str | None = None  # a shorter dtype, all of whose bits the numbers fit in
    # Where a few elements are off: the ranks of whose own gradients one flipped bit in each explains them,
    # and whether one of the average does.
    flipped_ranks: tuple[int, ...] = ()
    flipped_average: bool = False
    # Where the shares explain nothing: those of what each rank computed in the step before, and what both
    # leave.
    shares_before: tuple[float, ...] = ()
    rest_with_before: float | None = None
    # How many times what it should be the part is that this rank keeps, and what that leaves, over its size.
    own_scale: float | None = None
    own_rest: float | None = None


@noun
class StepParts:
    """What a step of the optimizer that is not the expected one is made of, on one rank.

    `tensors` are those that are off.
    """

    tensors: tuple[str, ...]
    unmoved: tuple[str, ...]  # those of them that are where they were before the step
    scale: float  # how many times the expected movement is in it
    decay: float  # the part of the parameters before the step that it takes away
    rest: float | None  # what the two leave unexplained, over the expected movement
    step_before: float | None  # against the movement that the step before should have made
    elements_off: int
    elements: int
    rest_without_decay: float | None = None  # what the multiple alone leaves unexplained
    rest_of_gradient_before: float | None = (
        None  # what the gradients of the step before, for this one's, leave of it
    )
    rounded_to: str | None = None  # a shorter dtype, all of whose bits the parameters fit in
    settings: tuple[str, ...] | None = None  # of the optimizer, that are not the plan's; None where not read
    gradient_scale: float | None = (
        None  # how many times those after the backward pass the gradients of the step are
    )
    gradient_rest: float | None = None  # what that leaves unexplained, over their size
    momentum_kept: float | None = None  # how much of SGD's momentum is in the movement; 1 where it is right
    momentum_rest: float | None = None  # what that leaves unexplained, over the expected movement
    all_unmoved: bool = False  # whether all that this rank keeps of any tensor is where it was


@noun
class KeptTensor:
    """How many elements of a parameter a rank keeps between steps, and how many there are."""

    name: str
    elements: int
    whole: int


@dataclass(frozen=True, slots=True)
class TrainingPlan(Plan):
    """One training run: which strategies, on what, for how many verified steps.

    `batch_size` is per rank. After the verified steps as many timed ones follow. None for `nproc`
    leaves the ranks to gpudiag: the usable GPUs, or four on the CPU.

    Raises:
        UsageError: a field is out of its bounds.
    """

    PRESETS: ClassVar[tuple[Preset, ...]] = (
        Preset(QUICK, "three steps of DDP: is every step the same as in one process?", {"steps": 3}),
        Preset(STANDARD, "ten steps of DDP, and as many timed ones", {}),
        Preset(
            BEFORE_TRAINING,
            "a transformer in bfloat16 under DDP and FSDP2, twenty steps",
            {"strategy": ("ddp", "fsdp2"), "workload": "transformer", "dtype": "bfloat16", "steps": 20},
        ),
    )

    strategy: tuple[str, ...] = option(
        ("ddp",),
        "--strategy",
        f"{', '.join(STRATEGIES)} or all.",
        "NAME,...",
        choices=STRATEGIES,
        what="a strategy",
        all_means=STRATEGIES,
    )
    workload: str = option(
        "regression",
        "--workload",
        f"{', '.join(WORKLOADS)}.",
        "NAME",
        choices=WORKLOADS,
        what="a workload",
    )
    nproc: int | None = nproc_option()
    backend: str = option(
        "auto", "--backend", f"{', '.join(BACKENDS)}.", "NAME", choices=BACKENDS, what="a backend"
    )
    steps: int = option(
        10,
        "--steps",
        "Steps that are verified; the same number is timed after them.",
        "N",
        between=(1, MAX_STEPS),
    )
    batch_size: int = option(
        8, "--batch-size", "Samples per rank and step.", "N", between=(1, MAX_BATCH_SIZE)
    )
    dtype: str = option(
        "float32",
        "--dtype",
        f"{', '.join(TRAINING_DTYPES)}.",
        "NAME",
        choices=TRAINING_DTYPES,
        what="a dtype",
    )
    optimizer: str = option(
        "sgd",
        "--optimizer",
        f"{', '.join(OPTIMIZERS)}; adam hardly notices a wrong gradient scale.",
        "NAME",
        choices=OPTIMIZERS,
        what="an optimizer",
    )
    seed: int = option(1, "--seed", "Seed of models and data.", "N", between=(0, MAX_SEED))
    inject: tuple[str, ...] = option(
        (),
        "--inject",
        "Inject a fault and see it found: nosync:3, sumgrad, samedata, noset_epoch, badinit, onebias,"
        " nan:1@3, uneven, slow:1:50, kill:1@3, stop:1@3, oom:1.",
        "FAULT",
        is_repeated=True,
    )
    timeout_seconds: float | None = timeout_option("For each strategy.")
    rendezvous_timeout_seconds: float = rendezvous_option()
    deadline_seconds: float = deadline_option(LOOK_SECONDS)

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run, in one sentence."""
        self.require_options()


@noun
class TensorFact:
    """One tensor of the model as one rank holds it, whole.

    `digest` is the same exactly where the bits are the same. `error` is the L2 norm of its
    difference from the single-process run, over the norm of all tensors of that run; None where it
    is not finite.
    """

    name: str
    digest: str
    error: float | None = None


@noun
class RankStart:
    """What one rank holds before its first step, and how its framework sees the run."""

    rank: int
    world_size: int  # as the framework counts it
    workers: int  # of them, those that this rank saw compute
    framework: str  # name and version
    device: str  # cpu, or the GPU's name
    device_uuid: Reading[str]
    parameters: tuple[TensorFact, ...]
    buffers: tuple[TensorFact, ...]
    parameters_total: int  # elements of the whole model
    parameters_here: int  # elements that this rank keeps between steps
    steps_per_epoch: int
    sample_count: int  # of the data set, all of which an epoch reads
    stage: int | None = None  # of ZeRO, as the engine reports it
    tolerance_gradient: float = 0.0
    tolerance_parameter: float = 0.0
    parameters_kept: tuple[KeptTensor, ...] = ()  # by name, where they are sharded
    parameters_rounded_to: str | None = (
        None  # a shorter dtype that they fit in, where they are not those of the model
    )
    foreign_in_optimizer: Reading[int] = NOT_ASKED  # tensors that it steps and that are not the model's


@noun
class RankStep:
    """One verified step on one rank. A number that is not finite is None.

    In half precision the single-process run begins every step with the parameters of the strategy, and steps
    with its gradients: `gradient_error` is then that of one step alone, and `parameter_error` that of the
    optimizer's update.
    """

    rank: int
    step: int
    epoch: int
    samples: tuple[int, ...]  # indices into the data set
    loss: float | None  # of this rank's own samples
    reference_loss: float | None  # of the single-process run, over the samples of all ranks
    gradients: tuple[TensorFact, ...]  # after synchronisation
    gradient_error: float | None
    gradient_scale: float | None  # 1 if right: the projection on the single-process gradient
    own_gradient_error: float | None  # against the gradient of this rank's own samples alone
    parameters: tuple[TensorFact, ...]  # after the step
    parameter_error: float | None
    buffers: tuple[TensorFact, ...]
    unused: tuple[str, ...] = ()  # parameters that got no gradient
    skipped: bool = False  # the loss scaler skipped the step, on this rank or in the reference
    own_reference_loss: float | None = None  # of the single-process model, over this rank's own samples
    changed: tuple[str, ...] = ()  # inputs, targets: not those that the data set has for these samples
    computed_error: Reading[float | None] = (
        NOT_ASKED  # of what this rank computed before averaging, None: not finite
    )
    held_error: float | None = None  # of this rank's own part, where gradients are sharded
    gradient_parts: GradientParts | None = None  # where the gradient is off
    step_parts: StepParts | None = None  # where the parameters are off
    gradients_left: int = 0  # parameters that still had a gradient, not zero, as the forward pass began
    noise: str | None = None  # digest of torch's random numbers after the forward pass, where it drew some


@noun
class RankEpochEnd:
    """Where a rank's epoch ended: it has no more data after that many steps, or it saw others have none."""

    rank: int
    epoch: int
    steps: int  # that its own data gave
    agreed: bool  # every rank ended here


@noun
class RankProof:
    """What one rank found after the verified steps."""

    rank: int
    loss_before: float | None  # over the same samples, with the parameters at the start and at the end
    loss_after: float | None
    moved: bool  # the parameters are not those of the start
    optimizer_state_here: int  # elements of the optimizer's state that this rank keeps
    optimizer_state_whole: int  # of a single-process run
    checkpoint_identical: Reading[bool]  # all that it must give back came back, bit for bit
    repeat_identical: Reading[bool]
    checkpoint_lost: tuple[str, ...] = ()  # names of what did not
    checkpoint_error: float | None = 0.0  # of the steps after it, over their movement; None: not finite
    tolerance_order: float = 0.0  # the largest such error that another order of summing explains
    gradients_here: Reading[int] = NOT_ASKED  # the most elements that this rank was seen to have at once
    buckets: Reading[int] = NOT_ASKED  # in which gradients are averaged, where the framework has any


@noun
class RankSpeed:
    """What one rank measured over the timed steps, in seconds per step.

    The plain step is the same work without the strategy, on every rank at once; what a step takes
    longer than that is communication, with what the framework costs.
    """

    rank: int
    steps: int
    samples: int  # of this rank, per step
    step_seconds: tuple[float, ...]
    data_seconds: float  # mean, as the next three
    forward_seconds: float | None  # None where one call does all of it
    backward_seconds: float | None
    optimizer_seconds: float | None
    own_seconds_p50: float  # from the end of a step until this rank waits for others in the next one
    plain_seconds: float
    alone_samples_per_second: float | None  # rank 0 while the others wait; None on the others
    host_memory_bytes: int
    device_memory_bytes: Reading[int]


@noun
class StrategyMeasurement(RanksOfRun):
    """One strategy on its ranks: all that they reported, and what happened to them."""

    strategy: str
    workload: str
    dtype: str
    optimizer: str
    backend: str
    device_kind: str
    steps_planned: int
    starts: tuple[RankStart, ...]
    steps: tuple[RankStep, ...]
    epoch_ends: tuple[RankEpochEnd, ...]
    proofs: tuple[RankProof, ...]
    speeds: tuple[RankSpeed, ...]
    timed_out: bool = False
    late_steps: tuple[RankStep, ...] = ()  # one more on every rank after the timed ones
    lateness: Reading[LatenessSeries] = NOT_ASKED


@noun
class Verification:
    """One thing that was proved or disproved: what was found, and the limit it was held against."""

    name: str
    passed: Reading[bool]
    value: Reading[float] = NOT_ASKED
    limit: Reading[float] = NOT_ASKED


@noun
class StepShares:
    """Where the time of a step goes; the shares add up to 1."""

    data: float
    forward: float
    backward: float
    optimizer: float
    communication: float  # exposed, with what the framework costs


@noun
class RankPace:
    """One rank's step times and peak memory."""

    rank: int
    step_p50_seconds: float
    step_p99_seconds: float
    own_p50_seconds: float
    host_memory_bytes: int
    device_memory_bytes: Reading[int]


@noun
class StrategyResult:
    """One strategy: its verdict, what was verified, what was measured.

    `outcome` is skip with a `reason`, and a `hint` where a command helps, where it could not run.
    """

    strategy: str
    kind: str  # data, sharded or mirrored
    framework: str
    outcome: Outcome
    world_size: int
    workload: str
    dtype: str
    optimizer: str
    reason: str | None = None
    hint: str | None = None
    launcher: Reading[str] = NOT_ASKED
    backend: Reading[str] = NOT_ASKED
    device_kind: Reading[str] = NOT_ASKED
    parameters: Reading[int] = NOT_ASKED
    steps: int = 0  # verified
    verified: Reading[bool] = NOT_ASKED
    verifications: tuple[Verification, ...] = ()
    samples_per_second: Reading[float] = NOT_ASKED
    step_p50_seconds: Reading[float] = NOT_ASKED
    step_p99_seconds: Reading[float] = NOT_ASKED
    shares: Reading[StepShares] = NOT_ASKED
    scaling_efficiency: Reading[float] = NOT_ASKED  # against one rank alone
    host_memory_bytes: Reading[int] = NOT_ASKED  # peak of the largest rank
    device_memory_bytes: Reading[int] = NOT_ASKED
    code_needed: str = ""
    paces: tuple[RankPace, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    incidents: tuple[Incident, ...] = ()
    injected: tuple[InjectedFault, ...] = ()
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    lateness: Reading[LatenessSeries] = NOT_ASKED

    @property
    def ran(self) -> bool:
        """Whether ranks were started."""
        return self.reason is None


@noun
class ScriptResult:
    """What the ranks of a user's own script did."""

    script: str
    world_size: int
    launcher: str
    ranks: tuple[RankReport, ...]
    incidents: tuple[Incident, ...]
    group_world_sizes: tuple[int, ...]  # of the process group that each rank opened, by rank; 0: none
    seconds: float
    verifications: tuple[Verification, ...] = ()  # what was seen of its training, and what was not


@noun
class Advice:
    """Which strategy suits this machine and model size, and why."""

    strategy: str
    reasons: tuple[str, ...]


@noun
class TrainingReport:
    """`gpudiag.training/1`: the verdict, each strategy's result, and the findings of all.

    Findings come worst and most certain first.
    """

    SCHEMA: ClassVar[str] = "gpudiag.training/1"

    outcome: Outcome
    host: str
    strategies: tuple[StrategyResult, ...]
    findings: tuple[Finding, ...]
    advice: tuple[Advice, ...] = ()
    script: ScriptResult | None = None
    simulated: str | None = None
    machine: tuple[str, ...] = field(default=())  # cores, GPUs and versions, in words
