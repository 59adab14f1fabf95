"""The cause of a wrong step of the optimizer with right gradients: a broken rule, or one rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpudiag.checks.registry import FindingKind
from gpudiag.checks.training import kinds
from gpudiag.checks.training.blame import Blame, Together
from gpudiag.checks.training.kinds import describe_elements, describe_factor, is_few, name_tensors, verb
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.training import StepParts

# The part of an error that a rule leaves unexplained is rounding: at most this share.
_LEFT = 0.05
_NEAR = 0.02
# Gradients that nobody touches are the same bits; what is nearer than this is the rounding of a comparison.
_SAME = 1e-4
_LEAST_DECAY = 1e-6
# A decay is the cause where it leaves at most this share of what is unexplained without it.
_BY_DECAY = 0.25


@dataclass(frozen=True, slots=True)
class WrongStep:
    """A step with parameters beyond the limit on the `wrong` ranks; the `odd` ones differ from most."""

    together: Together
    following: Together
    wrong: tuple[int, ...]
    odd: tuple[int, ...]
    # Ranks that hold the parameters of an earlier step again.
    back_at: Mapping[int, int] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The step's number."""
        return next(iter(self.together.values())).step

    @property
    def guilty(self) -> tuple[int, ...]:
        """The ranks that are wrong where others are right, or that differ, or whose part is wrong."""
        if 0 < len(self.wrong) < len(self.together):
            return self.wrong
        return self.odd or tuple(self.parts) or self.wrong

    @property
    def parts(self) -> dict[int, StepParts]:
        """What the step is made of, by each rank that measured it."""
        return {rank: one.step_parts for rank, one in self.together.items() if one.step_parts is not None}

    @property
    def where(self) -> str:
        """` on rank 1`, or the ranks concerned; empty where it is all of them."""
        return "" if len(self.parts) == len(self.together) else f" on {name_ranks(tuple(self.parts))}"


def blame_step(wrong: WrongStep) -> Blame:
    """The blame for wrong parameters after a step whose gradients are right."""
    parts, guilty, number = wrong.parts, wrong.guilty, wrong.number
    if guilty and all(rank in wrong.back_at for rank in guilty):
        after = max(wrong.back_at[rank] for rank in guilty)
        when = f"after step {after}" if after >= 0 else "before the first step"
        words = (
            f"after step {number}, {name_ranks(guilty)} {verb(guilty, 'holds', 'hold')} the parameters of"
            f" {when} again: older weights were loaded"
        )
        kind = kinds.RANKS_DIFFER if wrong.odd and len(guilty) < len(wrong.together) else kinds.PARAMETERS
        return Blame(kind, guilty, words, remedy=_LOADED_REMEDY)
    if parts:
        found = _blame_movement(wrong)
        if found is not None:
            return found
    alone = len(guilty) == 1 < len(wrong.together)
    few = bool(parts) and all(is_few(one.elements_off, one.elements) for one in parts.values())
    if alone and few:
        off = f" ({describe_elements(next(iter(parts.values())))})"
        words = (
            f"rank {guilty[0]} alone holds parameters after step {number} that its gradients do not give{off}"
        )
        return Blame(kinds.RANK_CORRUPT, guilty, words)
    if wrong.odd:
        holds = verb(guilty, "holds", "hold")
        words = f"{name_ranks(guilty)} {holds} different parameters from the others after step {number}"
        return Blame(kinds.RANKS_DIFFER, guilty, words)
    return Blame(
        kinds.PARAMETERS,
        guilty,
        f"parameters are not those of a single process after step {number}{wrong.where if parts else ''}",
    )


def _blame_movement(wrong: WrongStep) -> Blame | None:
    """The blame for a movement that a rule explains: none, that of the step before, or another multiple."""
    parts, number = wrong.parts, wrong.number
    everything = {fact.name for step in wrong.together.values() for fact in step.parameters}
    unmoved = [set(one.unmoved) for one in parts.values()]
    if all(
        names == everything or one.all_unmoved for names, one in zip(unmoved, parts.values(), strict=True)
    ):
        return _blame_no_step(wrong)
    if all(names and names == set(one.tensors) for names, one in zip(unmoved, parts.values(), strict=True)):
        names = next(iter(parts.values())).unmoved
        words = (
            f"the optimizer leaves {name_tensors(names)} as {verb(names, 'it is', 'they are')} in step"
            f" {number}{wrong.where}, though there is a gradient"
        )
        return Blame(kinds.TENSOR_NOT_STEPPED, tuple(parts), words)
    rounded = next(iter(parts.values())).rounded_to
    if rounded is not None and all(one.rounded_to == rounded for one in parts.values()):
        words = f"the parameters are rounded to {rounded} in step {number}{wrong.where}"
        return Blame(_kind(wrong), tuple(parts), words, remedy=ROUNDED_REMEDY)
    if all(_takes_gradient_before(one) for one in parts.values()):
        words = f"the optimizer uses the gradients of step {number - 1} in step {number}{wrong.where}"
        return Blame(kinds.LATE_GRADIENT, tuple(parts), words)
    if all(one.step_before is not None and one.step_before < _LEFT for one in parts.values()):
        words = (
            f"step {number} moves the parameters as the gradients of step {number - 1} ask for{wrong.where}"
        )
        return Blame(kinds.LATE_GRADIENT, tuple(parts), words)
    return (
        _blame_changed_gradients(wrong)
        or _blame_multiple(wrong)
        or _blame_settings(wrong)
        or _blame_momentum(wrong)
    )


def _blame_changed_gradients(wrong: WrongStep) -> Blame | None:
    """The blame for gradients that are right after the backward pass, and others when the optimizer steps."""
    parts = wrong.parts.values()
    if any(one.gradient_scale is None or one.gradient_rest is None for one in parts):
        return None
    scales = [one.gradient_scale or 0.0 for one in parts]
    rests = [one.gradient_rest or 0.0 for one in parts]
    if all(abs(scale - 1) < _SAME and rest < _SAME for scale, rest in zip(scales, rests, strict=True)):
        return None
    when = f"between the backward pass and the optimizer's step, in step {wrong.number}{wrong.where}"
    if max(rests) >= _SAME:
        return Blame(
            kinds.GRADIENT,
            tuple(wrong.parts),
            f"gradients are changed {when}, as clipping each value does",
            remedy=_CHANGED_REMEDY,
        )
    factors = dict.fromkeys(describe_factor(scale) for scale in scales)
    words = f"gradients become {' or '.join(factors)} what they were {when}: clipping, or a factor"
    return Blame(kinds.SCALED, tuple(wrong.parts), words, remedy=_CHANGED_REMEDY)


def _blame_multiple(wrong: WrongStep) -> Blame | None:
    """The blame for a movement that is a multiple of the right one, or has a decay beside it."""
    parts, number = wrong.parts, wrong.number
    if any(one.rest is None or one.rest > _LEFT for one in parts.values()):
        return None
    first = next(iter(parts.values()))
    if _decays(first):
        words = (
            f"step {number} also takes {first.decay:.2g} of the parameters away{wrong.where}:"
            " a weight decay that was not configured"
        )
        return Blame(_kind(wrong), tuple(parts), words, remedy=_SETTINGS_REMEDY)
    if abs(first.scale - 1) <= (first.rest or 0.0):
        return None
    why, remedy = "another learning rate, or more steps than one", _SETTINGS_REMEDY
    if first.settings:
        why = f"the optimizer's {' and '.join(first.settings)}"
    elif first.settings is not None:
        why, remedy = (
            "the optimizer's settings are right, and more than one step, or other code, moves them",
            _MOVED_REMEDY,
        )
    words = (
        f"step {number} moves the parameters {describe_factor(first.scale)}"
        f" what it should{wrong.where}: {why}"
    )
    return Blame(_kind(wrong), tuple(parts), words, remedy=remedy)


def _blame_settings(wrong: WrongStep) -> Blame | None:
    """The blame for an optimizer with other settings than the plan's, whatever they do to a step."""
    others = {rank: one.settings for rank, one in wrong.parts.items() if one.settings}
    if not others:
        return None
    settings = " and ".join(next(iter(others.values())))
    who = wrong.where if len(others) == len(wrong.parts) else f" on {name_ranks(tuple(others))}"
    words = (
        f"step {wrong.number} follows other settings than those configured{who}: the optimizer's {settings}"
    )
    return Blame(_kind(wrong), tuple(others), words, remedy=_SETTINGS_REMEDY)


def _blame_momentum(wrong: WrongStep) -> Blame | None:
    """The blame for a step without the momentum of the steps before: the optimizer's state is not theirs."""
    parts = wrong.parts.values()
    if any(one.momentum_rest is None or one.momentum_rest > _LEFT * (one.rest or 0.0) for one in parts):
        return None
    if any(one.momentum_kept is None or abs(one.momentum_kept) > _NEAR for one in parts):
        return None
    words = (
        f"step {wrong.number} moves the parameters without the momentum of the steps before{wrong.where}: "
        "the optimizer's state was lost, or not restored"
    )
    return Blame(_kind(wrong), tuple(wrong.parts), words, remedy=_STATE_REMEDY)


ROUNDED_REMEDY = (
    "Keep the weights and the optimizer's state in float32, and compute in the shorter dtype:"
    " torch.autocast, or FSDP2's MixedPrecisionPolicy."
)
_CHANGED_REMEDY = (
    "Clip gradients only where it is wanted, once, after the averaging and by one norm for all ranks;"
    " look for other code that multiplies or replaces them."
)
_MOVED_REMEDY = (
    "Look for what changes parameters beside the optimizer: a second call of step(), an average of weights"
    " (EMA) that is copied back, weights that are clipped or normalised."
)
_STATE_REMEDY = (
    "Load the optimizer's state on every rank (optimizer.load_state_dict), and do not create"
    " the optimizer again during training."
)
_LOADED_REMEDY = (
    "Load a checkpoint on every rank, before the first step, or broadcast what one rank has loaded."
)
_SETTINGS_REMEDY = (
    "Print optimizer.param_groups on every rank, and compare the learning rate,"
    " its schedule and the weight decay."
)


def _takes_gradient_before(parts: StepParts) -> bool:
    """Whether the gradients of the step before, in the place of this one's, explain what no multiple does."""
    rest, unexplained = parts.rest_of_gradient_before, parts.rest_without_decay
    return rest is not None and unexplained is not None and rest < _LEFT * unexplained


def _decays(parts: StepParts) -> bool:
    """Whether a decay of the parameters explains what the expected movement does not."""
    if abs(parts.decay) <= _LEAST_DECAY or abs(parts.scale - 1) >= _LEFT or parts.rest is None:
        return False
    return parts.rest_without_decay is None or parts.rest < _BY_DECAY * parts.rest_without_decay


def _blame_no_step(wrong: WrongStep) -> Blame:
    """The blame for a step in which no parameter moved."""
    number = wrong.number
    later = [step.step_parts for step in wrong.following.values() if step.step_parts is not None]
    if later and all(one.step_before is not None and one.step_before < _LEFT for one in later):
        words = (
            f"step {number + 1} moves the parameters as the gradients of step {number} ask for{wrong.where}"
        )
        return Blame(kinds.LATE_GRADIENT, tuple(wrong.parts), words)
    return Blame(
        _kind(wrong), tuple(wrong.parts), f"the optimizer changes no parameter in step {number}{wrong.where}"
    )


def _kind(wrong: WrongStep) -> FindingKind:
    return kinds.RANKS_DIFFER if wrong.odd and len(wrong.parts) < len(wrong.together) else kinds.PARAMETERS
