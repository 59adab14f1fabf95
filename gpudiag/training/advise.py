"""Which strategy suits a machine and a model: by memory, and by what is in the machine. Nothing is run."""

from collections.abc import Sequence

from gpudiag.model.device import Device
from gpudiag.model.reading import Missing
from gpudiag.model.training import Advice
from gpudiag.units import format_size

# Bytes per parameter of mixed-precision training with Adam: weights 2, gradients 2, and 12 for the
# float32 copy and two moments (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1).
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 2, 12
# What is left of a GPU's memory for these: activations, buffers and fragments take the rest.
USABLE_SHARE = 0.7

# The model that is meant where nobody says how large it is.
DEFAULT_PARAMETERS = 10**9


def advise_for_devices(parameters: int, devices: Sequence[Device], hosts: int = 1) -> tuple[Advice, ...]:
    """The advice for the GPUs of one host; `hosts` are all alike."""
    memory = [device.memory_total_bytes for device in devices]
    known = [one for one in memory if not isinstance(one, Missing)]
    return advise(parameters, known, hosts, unified=any(one.memory_kind == "unified" for one in devices))


def advise(
    parameters: int, gpu_memory_bytes: Sequence[int], hosts: int = 1, *, unified: bool = False
) -> tuple[Advice, ...]:
    """Strategies that fit, the best first, each with its reasons; at least one.

    `gpu_memory_bytes` has the memory of each GPU of one host; `hosts` are all alike. `unified`: the host's
    memory is the same one.
    """
    gpus = len(gpu_memory_bytes) * hosts
    if not gpus:
        return (_on_cpu(),)
    usable = int(min(gpu_memory_bytes) * USABLE_SHARE)
    offload = "NVMe (GPU and host share their memory)" if unified else "the host's memory"
    if gpus == 1:
        return (_on_one_gpu(parameters, usable, offload),)
    fitting = [
        Advice(strategy, (_fits(parameters, held, usable, gpus), why))
        for strategy, held, why in _candidates(parameters, gpus)
        if held <= usable
    ]
    if fitting:
        return tuple(fitting)
    needed = -(-parameters * (WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES) // usable)
    reason = f"even whole shards need {format_size(parameters * 16 / gpus)} per GPU, and {format_size(usable)} are usable"
    return (Advice("zero3", (reason, f"about {needed} such GPUs would do; or offload to {offload}")),)


def _candidates(parameters: int, gpus: int) -> list[tuple[str, float, str]]:
    """Strategies from the simplest on: name, bytes per GPU, and what speaks for it."""
    weights, gradients, optimizer = (
        parameters * size for size in (WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES)
    )
    return [
        (
            "ddp",
            weights + gradients + optimizer,
            "least communication: one all-reduce, hidden behind backward",
        ),
        (
            "zero1",
            weights + gradients + optimizer / gpus,
            "the optimizer's state is split, the traffic that of ddp",
        ),
        (
            "zero2",
            weights + (gradients + optimizer) / gpus,
            "gradients are split too, the traffic that of ddp",
        ),
        (
            "fsdp2",
            (weights + gradients + optimizer) / gpus,
            "everything is split, in torch itself; half as much traffic again as ddp",
        ),
    ]


def _fits(parameters: int, held: float, usable: int, gpus: int) -> str:
    return (
        f"{_say_parameters(parameters)} parameters take {format_size(held)} on "
        f"{'the one GPU' if gpus == 1 else f'each of {gpus} GPUs'}, of {format_size(usable)} usable"
    )


def _say_parameters(parameters: int) -> str:
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


def _on_one_gpu(parameters: int, usable: int, offload: str) -> Advice:
    held = parameters * (WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES)
    if held <= usable:
        return Advice(
            "ddp", (_fits(parameters, held, usable, 1), "one GPU needs no strategy: a plain loop is enough")
        )
    return Advice(
        "zero3",
        (
            f"{format_size(held)} do not fit into {format_size(usable)} of one GPU",
            f"ZeRO 3 can offload parameters and optimizer to {offload}",
        ),
    )
