"""Ranks, tensors, elements and factors in the words of a message."""

from collections.abc import Sequence

from gpudiag.model.training_parts import GradientParts, StepParts

_NAMED_TENSORS = 4
# A factor so near to a fraction, over it, is that fraction.
_NEAR = 0.001
# What flips is a bit, or a few: a handful of elements, and few of all.
_FEW_ELEMENTS = 4
_FEW_SHARE = 0.05


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 1`, or `ranks 0, 2 and 3`."""
    words = [str(rank) for rank in sorted(ranks)]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


def verb(several: Sequence[object], one: str, many: str) -> str:
    """The form of a verb that goes with so many."""
    return one if len(several) == 1 else many


def name_tensors(names: Sequence[str]) -> str:
    """The first few names; `some tensors` where none is known."""
    more = f" and {len(names) - _NAMED_TENSORS} more" if len(names) > _NAMED_TENSORS else ""
    return ", ".join(names[:_NAMED_TENSORS]) + more or "some tensors"


def say_factor(factor: float) -> str:
    """`3 times`, `1/4 of` or `0.37 times`."""
    if 0 < factor < 0.67 and abs(factor * round(1 / factor) - 1) < _NEAR:
        return f"1/{round(1 / factor)} of"
    return f"{factor:.3g} times"


def is_few(off: int, elements: int) -> bool:
    """Whether so few elements are off as flipped bits are, and no rule."""
    return off <= max(1, min(_FEW_ELEMENTS, int(_FEW_SHARE * elements)))


def say_elements(parts: GradientParts | StepParts) -> str:
    """How many elements are off, and of which tensors."""
    return f"{parts.elements_off} of {parts.elements} elements of {name_tensors(parts.tensors)}"
