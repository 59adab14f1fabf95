"""What a wrong gradient and a wrong step of the optimizer are made of, and what a rank keeps of a parameter."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GradientParts:
    """What a gradient that is not the expected one is made of, on one rank.

    Only `tensors`, those that are off, are looked at. Errors are over the norm of the whole expected gradient; None
    where they are not finite, or there is nothing to compare with.
    """

    tensors: tuple[str, ...]
    shares: tuple[
        float, ...
    ]  # of the gradient of each rank's own samples, by rank: one over their number each if right
    rest: float | None  # what those shares leave unexplained
    step_before: float | None  # against the gradient that the step before should have had
    accumulated: float | None  # against this gradient and the one found in the step before together
    elements_off: int  # that make up nearly all of the error
    elements: int
    rounded_to: str | None = None  # a shorter dtype, all of whose bits the numbers fit in
    # Where a few elements are off: the ranks of whose own gradients one flipped bit in each explains them, and whether
    # one of the average does.
    flipped_ranks: tuple[int, ...] = ()
    flipped_average: bool = False


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a step of the optimizer that is not the expected one is made of, on one rank; of `tensors`, which are off."""

    tensors: tuple[str, ...]
    unmoved: tuple[str, ...]  # those of them that are where they were before the step
    scale: float  # how many times the expected movement is in it
    decay: float  # the part of the parameters before the step that it takes away
    rest: float | None  # what the two leave unexplained, over the expected movement
    step_before: float | None  # against the movement that the step before should have made
    elements_off: int
    elements: int


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """How many elements of a parameter a rank keeps between steps, and how many there are."""

    name: str
    elements: int
    whole: int
