"""The training of a preflight: a few verified steps, under DDP or under every strategy that is installed."""

from gpudiag.model.training import STRATEGIES, StrategyMeasurement, TrainingPlan
from gpudiag.runs.placement import Placement
from gpudiag.runs.train import DEFAULT_CPU_RANKS, measure_strategies
from gpudiag.runs.workplace import Workplace

_QUICK = "quick"
_STEPS = 4
_CPU_QUICK_SECONDS = 15.0  # of the 30 that level quick has
_SECONDS = 60.0  # for each strategy; the first import of DeepSpeed or TensorFlow is the slow part
_GPU_SECONDS = 5.0  # for each GPU: a context, and three times NCCL's start, 2.3 to 3.8 s each on 8 ranks


def say_training_cost(place: Workplace, level: str) -> str:
    """What the training costs, in one sentence for the user before it starts."""
    where = f"{place.world_size} GPUs" if place.device_kind == "cuda" else f"{DEFAULT_CPU_RANKS} CPU ranks"
    if level == _QUICK:
        seconds = 10 if place.device_kind == "cuda" else 5  # with contexts, and NCCL's start
        return f"{_STEPS} verified steps of DDP on {where}: about {seconds} s"
    return f"{_STEPS} verified steps on {where} under each strategy that is installed: about 5 s each"


def training_limit(place: Workplace, level: str) -> float:
    """How many seconds one strategy may take: with GPUs, by how many there are, at every level."""
    if place.device_kind == "cuda":
        return _SECONDS + _GPU_SECONDS * place.world_size
    return _CPU_QUICK_SECONDS if level == _QUICK else _SECONDS


def measure_training(place: Workplace, level: str, python: str | None) -> tuple[StrategyMeasurement, ...]:
    """What the ranks of each strategy told; of DDP alone at level quick.

    Raises:
        UsageError: torch is not installed for that interpreter.
        LaunchError: the ranks could not be started.
    """
    quick = level == _QUICK
    on_gpu = place.device_kind == "cuda"
    plan = TrainingPlan(
        strategy=("ddp",) if quick else STRATEGIES,
        steps=_STEPS,
        timeout_seconds=training_limit(place, level),
        rendezvous_timeout_seconds=training_limit(place, level),
    )
    here = Placement(
        "nccl" if on_gpu else "gloo",
        place.world_size if on_gpu else min(place.world_size, DEFAULT_CPU_RANKS),
        0,
        variables=place.variables,
        devices=place.devices,
    )
    return measure_strategies(plan, here, python=python, fresh_groups=not quick)
