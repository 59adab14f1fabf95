"""How often to repeat an operation, by the time that one takes."""

from dataclasses import dataclass

# Per size, so that a whole sweep of 24 sizes stays within seconds on two cores and still has
# enough iterations for a p50; nccl-tests repeats 20 times by default.
_MEASURE_SECONDS = 0.15
_WARMUP_SECONDS = 0.05
MIN_ITERATIONS, MAX_ITERATIONS = 5, 100
MIN_WARMUP, MAX_WARMUP = 1, 5
# Single operations after a barrier, on GPUs, after the bursts.
ISOLATED_ITERATIONS = 5


@dataclass(frozen=True, slots=True)
class Repeats:
    """Warm-ups, not timed, and then iterations, timed."""

    warmup: int
    iterations: int


def choose_repeats(operation_seconds: float) -> Repeats:
    """What fits into 0.05 s of warm-up and 0.15 s of measuring, within bounds: 1 to 5, and 5 to 100."""
    return Repeats(
        warmup=_fit(_WARMUP_SECONDS, operation_seconds, MIN_WARMUP, MAX_WARMUP),
        iterations=_fit(_MEASURE_SECONDS, operation_seconds, MIN_ITERATIONS, MAX_ITERATIONS),
    )


def _fit(budget_seconds: float, operation_seconds: float, low: int, high: int) -> int:
    if operation_seconds <= 0:
        return high
    return max(low, min(high, int(budget_seconds / operation_seconds)))
