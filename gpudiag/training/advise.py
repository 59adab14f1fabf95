"""Which strategy suits a machine and a model: by memory, and by what is in the machine. Nothing is run."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpudiag.errors import UsageError
from gpudiag.model.device import Device
from gpudiag.model.reading import Missing
from gpudiag.model.training import Advice
from gpudiag.units import format_size

# Numbers per parameter that the optimizer keeps beside the weights, of the same size: two moments, or one.
_MOMENTS = {"adam": 2, "sgd": 1}
_FLOAT32, _HALF = 4, 2
# The share of a GPU's memory for these; activations, buffers and fragmentation take the rest.
USABLE_SHARE = 0.7

# How large models are mostly trained.
DEFAULT_DTYPE, DEFAULT_OPTIMIZER = "bfloat16", "adam"
# The model's size if none is given.
DEFAULT_PARAMETERS = 10**9


# Of a host's memory, for what is offloaded to it; data loading and the system take the rest.
USABLE_SHARE_OF_HOST = 0.8
_LEFT_OUT = "activations are not counted: they come on top, and grow with batch and sequence length"
# What speaks for each strategy, the simplest first.
_FOR_ONE = MappingProxyType({"ddp": "one GPU needs no strategy: a plain loop is enough"})
_FOR_SEVERAL = MappingProxyType(
    {
        "ddp": "least communication: one all-reduce, hidden behind backward",
        "zero1": "the optimizer's state is split, with the same traffic as ddp",
        "zero2": "gradients are split too, with the same traffic as ddp",
        "fsdp2": "everything is split, in torch itself; 1.5 times the traffic of ddp",
    }
)


@dataclass(frozen=True, slots=True)
class Kept:
    """The bytes that a framework keeps of a model in training: weights, gradients and optimizer state.

    `step` is needed on top during the optimizer's step, and is split over the GPUs.
    """

    weights: int
    gradients: int
    state: int
    step: int = 0

    @property
    def whole(self) -> int:
        """Bytes of all of them."""
        return self.weights + self.gradients + self.state + self.step


@dataclass(frozen=True, slots=True)
class Model:
    """What is to be trained; `master_weights`: float32 beside 16-bit. Raises UsageError: none does so."""

    parameters: int
    dtype: str = DEFAULT_DTYPE
    optimizer: str = DEFAULT_OPTIMIZER
    master_weights: bool = True

    def __post_init__(self) -> None:
        """Raise UsageError for what no framework does."""
        if self.master_weights or self.dtype == "bfloat16":
            return
        if self.dtype == "float32":
            raise UsageError("the float32 weights are the only copy", hint="--dtype bfloat16")
        raise UsageError(
            "float16 gradients alone underflow, and torch's GradScaler refuses them", hint="--dtype bfloat16"
        )

    @property
    def in_torch(self) -> Kept:
        """Bytes in torch: autocast computes in 16 bits; weights, gradients and optimizer stay float32."""
        size = _FLOAT32 if self.master_weights else _HALF
        return self._kept(size, size, size * _MOMENTS[self.optimizer])

    @property
    def in_deepspeed(self) -> Kept:
        """Bytes in DeepSpeed: weights and gradients in the dtype, the optimizer with its copy of the weights.

        In the step also the gradients at that size: 18 bytes per parameter with Adam, 16 of them split
        (`estimate_zero2_model_states_mem_needs`, DeepSpeed 0.19.8).
        """
        size = _FLOAT32 if self.dtype == "float32" else _HALF
        own = _FLOAT32 if self.master_weights else _HALF
        return self._kept(size, size, own * (1 + _MOMENTS[self.optimizer]), own)

    def _kept(self, *per_parameter: int) -> Kept:
        return Kept(*(self.parameters * size for size in per_parameter))


@dataclass(frozen=True, slots=True)
class Place:
    """What it is trained on: the memory of each GPU of a host, the number of such hosts, a host's memory.

    `unified`: both share one; `mig`: the GPUs are instances.
    """

    gpu_memory_bytes: Sequence[int]
    hosts: int = 1
    host_memory_bytes: int | None = None
    unified: bool = False
    mig: bool = False

    @property
    def gpus(self) -> int:
        """The number of GPUs of all hosts."""
        return len(self.gpu_memory_bytes) * self.hosts

    @property
    def usable(self) -> int:
        """Usable bytes of the smallest GPU."""
        return int(min(self.gpu_memory_bytes) * USABLE_SHARE)


def advise_for_devices(parameters: int, devices: Sequence[Device], hosts: int = 1) -> tuple[Advice, ...]:
    """The advice for whole GPUs; `devices` are those of one host, and all `hosts` are alike."""
    memory = [device.memory_total_bytes for device in devices]
    known = [one for one in memory if not isinstance(one, Missing)]
    unified = any(one.memory_kind == "unified" for one in devices)
    return advise(Model(parameters), Place(known, hosts, unified=unified))


def advise(model: Model, place: Place) -> tuple[Advice, ...]:
    """Strategies that fit, the best first, each with its reasons; at least one."""
    if not place.gpus:
        return (_on_cpu(),)
    reasons = _FOR_ONE if place.gpus == 1 else _FOR_SEVERAL
    held = bytes_per_gpu(model, place.gpus)
    fitting = [
        Advice(strategy, (_fits(model, held[strategy], place), why, _LEFT_OUT))
        for strategy, why in reasons.items()
        if held[strategy] <= place.usable
    ]
    return tuple(fitting) or (_with_offload(model, place),)


def _with_offload(model: Model, place: Place) -> Advice:
    """ZeRO 3 with the smallest offload that is enough."""
    gpus, usable, kept = place.gpus, place.usable, model.in_deepspeed
    if gpus == 1:
        start = f"{format_size(model.in_torch.whole)} do not fit into {format_size(usable)} of one GPU"
    else:
        share = format_size(model.in_torch.whole / gpus)
        start = f"even whole shards need {share} per GPU, and {format_size(usable)} are usable"
    optimizer = kept.state + kept.step
    stays = (kept.weights + kept.gradients) / gpus
    what, moved = (
        ("the optimizer", optimizer)
        if stays <= usable
        else ("parameters and optimizer", kept.weights + optimizer)
    )
    needed = moved / place.hosts
    room = None if place.host_memory_bytes is None else place.host_memory_bytes * USABLE_SHARE_OF_HOST
    if place.unified:
        where = f"offload {what} to NVMe (GPU and host share their memory)"
    elif room is not None and needed > room:
        where = (
            f"offload {what} to NVMe: {format_size(needed)} per host are more than"
            f" {format_size(room)} of its memory"
        )
    else:
        known = "" if room is None else f", of {format_size(room)} usable"
        where = f"offload {what} to the host's memory: {format_size(needed)} per host{known}"
    without = f"about {-(-model.in_torch.whole // usable)} such GPUs would need no offload"
    return Advice("zero3", (start, where, without, _LEFT_OUT))


def bytes_per_gpu(model: Model, gpus: int) -> dict[str, float]:
    """Peak bytes of weights, gradients and optimizer on each of that many GPUs, by strategy."""
    torch, deepspeed = model.in_torch, model.in_deepspeed
    buckets = torch.gradients if gpus > 1 else 0  # DDP's, a second copy of all gradients
    zero2 = deepspeed.weights + (deepspeed.whole - deepspeed.weights) / gpus  # in its step
    return {
        "ddp": torch.whole + buckets,
        # has whole gradients before its step
        "zero1": max(zero2, deepspeed.weights + deepspeed.gradients + deepspeed.state / gpus),
        "zero2": zero2,
        "fsdp2": torch.whole / gpus,
    }


def _fits(model: Model, held: float, place: Place) -> str:
    gpu = "MIG instance" if place.mig else "GPU"
    where = f"the one {gpu}" if place.gpus == 1 else f"each of {place.gpus} {gpu}s"
    alone = "" if model.master_weights else " alone"
    how = f"in {model.dtype}{alone} with {model.optimizer}"
    return (
        f"{_describe_parameters(model.parameters)} parameters {how} take {format_size(held)} on {where},"
        f" of {format_size(place.usable)} usable"
    )


def _describe_parameters(parameters: int) -> str:
    """The size as people write it, and as --parameters takes it: 7.5B, 350M."""
    for letter, factor in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= factor:
            return f"{parameters / factor:.4g}{letter}"
    return str(parameters)


def _on_cpu() -> Advice:
    return Advice(
        "ddp",
        (
            "there is no GPU here: ranks share the processor's cores, and more ranks are no faster",
            "ddp on gloo proves a script's logic before it goes to GPUs",
        ),
    )
