"""A wrong step of the optimizer, blamed: its gradients were right, and the parameters are not."""

from dataclasses import dataclass

from gpudiag.checks.registry import FindingKind
from gpudiag.checks.training_blame import Blame, Together
from gpudiag.checks.training_kinds import (
    LATE_GRADIENT,
    PARAMETERS,
    RANK_CORRUPT,
    RANKS_DIFFER,
    TENSOR_NOT_STEPPED,
)
from gpudiag.checks.training_words import is_few, name_ranks, name_tensors, say_elements, say_factor, verb
from gpudiag.model.finding import Owner
from gpudiag.model.training_parts import StepParts

# What is left of a movement that a rule explains: at most this share of it.
_LEFT = 0.05
_LEAST_DECAY = 1e-6


@dataclass(frozen=True, slots=True)
class WrongStep:
    """A step with parameters beyond the limit on the `wrong` ranks; the `odd` ones differ from most."""

    together: Together
    following: Together
    wrong: tuple[int, ...]
    odd: tuple[int, ...]

    @property
    def number(self) -> int:
        """The step."""
        return next(iter(self.together.values())).step

    @property
    def guilty(self) -> tuple[int, ...]:
        """The ranks that are wrong where others are right, or else those that differ."""
        return self.wrong if 0 < len(self.wrong) < len(self.together) else self.odd or self.wrong

    @property
    def parts(self) -> dict[int, StepParts]:
        """What the step is made of, of the ranks that measured it."""
        return {rank: one.step_parts for rank, one in self.together.items() if one.step_parts is not None}

    @property
    def where(self) -> str:
        """On which ranks, where it is not all of them."""
        return "" if len(self.parts) == len(self.together) else f" on {name_ranks(tuple(self.parts))}"


def blame_step(wrong: WrongStep) -> Blame:
    """What makes the parameters after a step wrong, though its gradients are right."""
    parts, guilty, number = wrong.parts, wrong.guilty, wrong.number
    if parts:
        found = _blame_movement(wrong)
        if found is not None:
            return found
    alone = len(guilty) == 1 < len(wrong.together)
    few = bool(parts) and all(is_few(one.elements_off, one.elements) for one in parts.values())
    if alone and few:
        off = f" ({say_elements(next(iter(parts.values())))})"
        words = (
            f"rank {guilty[0]} alone holds other parameters than its gradients give after step {number}{off}"
        )
        return Blame(RANK_CORRUPT, guilty, words)
    if wrong.odd:
        holds = verb(guilty, "holds", "hold")
        words = f"{name_ranks(guilty)} {holds} other parameters than the others after step {number}"
        return Blame(RANKS_DIFFER, guilty, words, Owner.HARDWARE if alone else None)
    return Blame(
        PARAMETERS,
        tuple(wrong.together),
        f"parameters are not those of a single process after step {number}",
    )


def _blame_movement(wrong: WrongStep) -> Blame | None:
    """A movement that a rule explains: none, that of the step before, or another multiple."""
    parts, number = wrong.parts, wrong.number
    everything = {fact.name for step in wrong.together.values() for fact in step.parameters}
    unmoved = [set(one.unmoved) for one in parts.values()]
    if all(names == everything for names in unmoved):
        return _blame_no_step(wrong)
    if all(names and names == set(one.tensors) for names, one in zip(unmoved, parts.values(), strict=True)):
        names = next(iter(parts.values())).unmoved
        words = f"the optimizer leaves {name_tensors(names)} as {verb(names, 'it is', 'they are')} in step {number}{wrong.where}, though there is a gradient"
        return Blame(TENSOR_NOT_STEPPED, tuple(parts), words)
    if all(one.step_before is not None and one.step_before < _LEFT for one in parts.values()):
        words = (
            f"step {number} moves the parameters as the gradients of step {number - 1} ask for{wrong.where}"
        )
        return Blame(LATE_GRADIENT, tuple(parts), words)
    if any(one.rest is None or one.rest > _LEFT for one in parts.values()):
        return None
    first = next(iter(parts.values()))
    if abs(first.decay) > _LEAST_DECAY and abs(first.scale - 1) < _LEFT:
        words = f"step {number} also takes {first.decay:.2g} of the parameters away{wrong.where}: a weight decay that nobody asked for"
    else:
        words = f"step {number} moves the parameters {say_factor(first.scale)} what it should{wrong.where}: another learning rate, or more steps than one"
    return Blame(_kind(wrong), tuple(parts), words)


def _blame_no_step(wrong: WrongStep) -> Blame:
    """Nothing moved in a step."""
    number = wrong.number
    later = [step.step_parts for step in wrong.following.values() if step.step_parts is not None]
    if later and all(one.step_before is not None and one.step_before < _LEFT for one in later):
        words = (
            f"step {number + 1} moves the parameters as the gradients of step {number} ask for{wrong.where}"
        )
        return Blame(LATE_GRADIENT, tuple(wrong.parts), words)
    return Blame(
        _kind(wrong), tuple(wrong.parts), f"the optimizer moves nothing in step {number}{wrong.where}"
    )


def _kind(wrong: WrongStep) -> FindingKind:
    return PARAMETERS if len(wrong.parts) == len(wrong.together) else RANKS_DIFFER
