"""The cause of a wrong gradient or optimizer step: a rule that was broken, or one rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudiag.checks.registry import FindingKind
from gpudiag.checks.training import kinds
from gpudiag.checks.training.kinds import describe_elements, describe_factor, is_few, name_tensors, verb
from gpudiag.model.finding import Owner
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import Missing
from gpudiag.model.training import GradientParts, RankStep

# The part of an error that a rule leaves unexplained is rounding: at most this share.
_LEFT = 0.05
# Two numbers whose relative difference is below this are equal.
_NEAR = 0.02
# A clean multiple is met this closely: what is left is rounding, in half precision too.
_CLEAN = 0.002
_SOME = 0.75
# At most this many elements are off where bits flipped; a rule affects more.
_FLIPS_AT_MOST = 4
# Of accumulation.
_PASSES_AT_MOST = 16

Together = Mapping[int, RankStep]  # one step, by rank


@dataclass(frozen=True, slots=True)
class Blame:
    """What a wrong number comes from: kind of fault, ranks, words, and who else must act."""

    kind: FindingKind
    ranks: tuple[int, ...]
    message: str
    owner: Owner | None = None
    remedy: str = ""  # where the kind's own does not fit


@dataclass(frozen=True, slots=True)
class WrongGradients:
    """A step with gradients beyond the limit on the `wrong` ranks; the `odd` ones differ from most.

    `following` is the next step, where there is one: a gradient that is a step late begins as zero.
    """

    together: Together
    following: Together
    wrong: tuple[int, ...]
    odd: tuple[int, ...]
    limit: float

    @property
    def number(self) -> int:
        """The step's number."""
        return next(iter(self.together.values())).step

    @property
    def workers(self) -> int:
        """How many ranks there are."""
        return len(self.together)

    @property
    def guilty(self) -> tuple[int, ...]:
        """The ranks that are wrong where others are right, or else those that differ."""
        return self.wrong if 0 < len(self.wrong) < self.workers else self.odd or self.wrong

    @property
    def parts(self) -> dict[int, GradientParts]:
        """What the gradients are made of, by each rank that measured it."""
        return _parts(self.together)

    @property
    def first(self) -> GradientParts:
        """The parts on the first rank that measured them."""
        return next(iter(self.parts.values()))

    @property
    def is_of_some(self) -> bool:
        """Whether clearly not all tensors are off; a small one may stay within the limit."""
        return len(self.first.tensors) <= _SOME * len(next(iter(self.together.values())).gradients)

    @property
    def what(self) -> str:
        """The gradients that are off, with the verb: the beginning of a sentence."""
        some = self.is_of_some
        return f"the gradient of {name_tensors(self.first.tensors)} is" if some else "gradients are"


def blame_before_averaging(wrong: WrongGradients) -> Blame | None:
    """The blame for what ranks did before any averaging: old gradients, random numbers."""
    number = wrong.number
    left = tuple(rank for rank, step in wrong.together.items() if step.gradients_left)
    if left and number > 0:
        who = "" if len(left) == wrong.workers else f" on {name_ranks(left)}"
        words = (
            f"the gradients of step {number - 1} are still in those of step {number}:"
            f" zero_grad() was not called{who}"
        )
        return Blame(kinds.ACCUMULATED, left, words)
    noisy = tuple(rank for rank in _are_off_before(wrong) if wrong.together[rank].noise is not None)
    if not noisy or len(noisy) < len(_are_off_before(wrong)):
        return None
    alike = len({wrong.together[rank].noise for rank in noisy}) == 1
    seeds = "" if len(noisy) == 1 else f" ({'the same on all of them' if alike else 'other ones on each'})"
    words = (
        f"the forward pass of {name_ranks(noisy)} draws random numbers in step {number}, as dropout"
        f" does{seeds}: the gradients are not those that the samples give"
    )
    return Blame(kinds.GRADIENT, noisy, words, remedy=_NOISE_REMEDY)


_NOISE_REMEDY = (
    "Set dropout to p=0 where numbers are compared. In training, give each rank a seed of its own after the"
    " model is built: torch.manual_seed(seed + rank)."
)


def blame_gradient(wrong: WrongGradients) -> Blame:
    """The blame for wrong gradients in a step."""
    if wrong.parts:
        found = (
            _blame_flip(wrong)
            or _blame_other_step(wrong)
            or _blame_shares(wrong)
            or _blame_scaled_parts(wrong)
            or _blame_ranks_before(wrong)
            or _blame_shards(wrong)
            or _blame_rank(wrong)
            or _blame_averaging(wrong)
        )
        if found is not None:
            return found
    return Blame(
        kinds.GRADIENT,
        wrong.guilty,
        f"gradients of {name_ranks(wrong.guilty)} are wrong in step {wrong.number}",
    )


def _parts(together: Together) -> dict[int, GradientParts]:
    return {rank: step.gradient_parts for rank, step in together.items() if step.gradient_parts is not None}


def _blame_flip(wrong: WrongGradients) -> Blame | None:
    """The blame for one rank that sent other bits than it computed: all averages have the flip."""
    parts = wrong.parts
    if len(parts) < wrong.workers or any(one.flipped_average for one in parts.values()):
        return None
    ranks = set.intersection(*(set(one.flipped_ranks) for one in parts.values()))
    if len(ranks) != 1 or _are_off_before(wrong):
        return None
    words = (
        f"the gradient that rank {min(ranks)} gave to the averaging in step {wrong.number} has a flipped bit"
    )
    return Blame(kinds.RANK_CORRUPT, tuple(ranks), f"{words} ({describe_elements(wrong.first)})")


def _are_off_before(wrong: WrongGradients) -> list[int]:
    """The ranks that computed a gradient other than their samples give, before any averaging."""
    return [rank for rank, step in wrong.together.items() if _is_off(step.computed_error, wrong.limit)]


def _blame_other_step(wrong: WrongGradients) -> Blame | None:
    """The blame for gradients of the step before, instead of these or added to them."""
    parts, number, ranks = wrong.parts, wrong.number, tuple(wrong.parts)
    holders = [rank for rank in ranks if (wrong.together[rank].held_error or 0.0) > wrong.limit]
    late = tuple(holders or ranks)
    if _are_near(wrong.together, {rank: parts[rank].step_before for rank in late}, wrong.limit):
        some = "" if len(late) == wrong.workers else f" on {name_ranks(late)}"
        return Blame(
            kinds.LATE_GRADIENT, late, f"step {number} uses the gradients of step {number - 1}{some}"
        )
    if _are_near(wrong.together, {rank: one.accumulated for rank, one in parts.items()}, wrong.limit):
        words = (
            f"the gradients of step {number - 1} are still in those of step"
            f" {number}: zero_grad() was not called"
        )
        return Blame(kinds.ACCUMULATED, ranks, words)
    shares = [share for one in parts.values() for share in one.shares]
    if any(abs(share) * wrong.workers > _NEAR for share in shares) or not _are_explained(wrong):
        return None
    later = {rank: one.step_before for rank, one in _parts(wrong.following).items()}
    if later and _are_near(wrong.following, later, wrong.limit):
        words = f"step {number + 1} uses the gradients of step {number}, which had none"
        return Blame(kinds.LATE_GRADIENT, ranks, words)
    return Blame(kinds.SCALED, ranks, f"{wrong.what} zero in step {number} on {name_ranks(ranks)}")


def _are_near(together: Together, errors: Mapping[int, float | None], limit: float) -> bool:
    """Whether those errors are only rounding, though the gradient's own error is more."""
    return all(
        error is not None and error <= min(limit, _LEFT * (together[rank].gradient_error or 0.0))
        for rank, error in errors.items()
    )


def _are_explained(wrong: WrongGradients) -> bool:
    """Whether the wrong gradients consist only of shares of the ranks' own gradients."""
    return _are_near(wrong.together, {rank: one.rest for rank, one in wrong.parts.items()}, wrong.limit)


def _blame_shares(wrong: WrongGradients) -> Blame | None:
    """The blame for ranks' own gradients summed with wrong shares: each should be one over their number."""
    workers, parts = wrong.workers, wrong.parts
    if workers < 2 or not _are_explained(wrong):
        return None
    taken = {rank: _taken(one.shares) for rank, one in parts.items()}
    if all(ranks == (rank,) for rank, ranks in taken.items()):
        return _blame_own(wrong)
    groups = {taken.get(rank, tuple(wrong.together)) for rank in wrong.together}
    if len(groups) > 1 and sorted(rank for group in groups for rank in group) == sorted(wrong.together):
        named = "; ".join(name_ranks(group) for group in sorted(groups))
        words = (
            f"{wrong.what} averaged within groups of ranks ({named}) and not over all"
            f" {workers}, in step {wrong.number}"
        )
        return Blame(kinds.IN_GROUPS, tuple(wrong.together), words)
    shares = wrong.first.shares
    if any(not _are_alike(one.shares, shares) for one in parts.values()):
        return None
    factors = [share * workers for share in shares]
    usual = sorted(factors)[workers // 2]
    most = max(abs(factor) for factor in factors)
    spread = max(factors) - min(factors)
    near = min(_NEAR * most, spread / 2) if spread > 2 * abs(usual - 1) and spread > _CLEAN else _NEAR * most
    uneven = [rank for rank in range(workers) if abs(factors[rank] - usual) > near]
    if not uneven:
        return _blame_factor(wrong, usual)
    # With as many shares as elements, shares explain any error, whatever its cause.
    return _blame_uneven(wrong, factors) if wrong.first.elements > workers else None


def _blame_own(wrong: WrongGradients) -> Blame:
    """The blame for ranks that each keep the gradient of their own samples."""
    ranks, number = tuple(wrong.parts), wrong.number
    if wrong.is_of_some:
        return Blame(
            kinds.TENSOR_NOT_AVERAGED, ranks, f"{wrong.what} not averaged over the ranks (step {number})"
        )
    factor = wrong.first.shares[ranks[0]]
    times = "" if abs(factor - 1) < _NEAR else f", {describe_factor(factor)} its gradient"
    who = f"{name_ranks(ranks)} {verb(ranks, 'steps on its', 'step on their')} own samples"
    return Blame(kinds.NOT_AVERAGED, ranks, f"gradients are not averaged in step {number}: {who}{times}")


def _blame_factor(wrong: WrongGradients, factor: float) -> Blame:
    """The blame for an average that is wrong by one factor."""
    workers, ranks = wrong.workers, tuple(wrong.parts)
    should = "it should be" if wrong.is_of_some else "they should be"
    where = "" if len(ranks) == workers else f" on {name_ranks(ranks)}"
    start = f"{wrong.what} {describe_factor(factor)} what {should}{where}, from step {wrong.number} on"
    if abs(factor / workers - 1) < _NEAR:
        return Blame(kinds.SUMMED, ranks, f"{start}: summed, not averaged")
    return Blame(kinds.SCALED, ranks, f"{start}{_meaning(factor, workers)}")


def _meaning(factor: float, workers: int) -> str:
    """The known cause of a factor, to follow the message; empty where none is known."""
    if _is_clean(factor * workers):
        return ": divided by the number of ranks twice"
    if workers > 2 and _is_clean(factor * (workers - 1) / workers):
        return f": divided by {workers - 1} and not by {workers} ranks"
    for passes in range(2, _PASSES_AT_MOST + 1):
        if _is_clean(factor / passes):
            return f": as {passes} passes give that are accumulated and not divided"
        if _is_clean(factor * passes):
            return f": as a division by {passes} passes gives that are not accumulated"
    if 0 < factor < 1:
        return ": as clipping does, or a factor on the loss"
    return ": as a factor on the loss or on the gradients gives"


def _is_clean(factor: float) -> bool:
    return abs(factor - 1) < _CLEAN


def _blame_ranks_before(wrong: WrongGradients) -> Blame | None:
    """The blame for ranks that gave to the averaging what they had computed in the step before."""
    parts, number = wrong.parts, wrong.number
    if not _are_near(
        wrong.together, {rank: one.rest_with_before for rank, one in parts.items()}, wrong.limit
    ):
        return None
    shares = wrong.first.shares_before
    late = tuple(rank for rank, share in enumerate(shares) if abs(share * wrong.workers - 1) < _NEAR)
    if not late or any(not _are_alike(one.shares_before, shares) for one in parts.values()):
        return None
    words = f"{name_ranks(late)} gave the gradients of step {number - 1} to the averaging of step {number}"
    return Blame(kinds.LATE_GRADIENT, late, words)


def _blame_uneven(wrong: WrongGradients, factors: Sequence[float]) -> Blame:
    """The blame for an average in which some ranks count more or less than others."""
    number, workers = wrong.number, wrong.workers
    most = max(abs(factor) for factor in factors)
    missing = tuple(rank for rank, factor in enumerate(factors) if abs(factor) < _NEAR * most)
    if missing:
        rest = next(factor for rank, factor in enumerate(factors) if rank not in missing)
        words = (
            f"{wrong.what} an average without {name_ranks(missing)}, divided by"
            f" {workers / rest:.3g}, in step {number}"
        )
        return Blame(kinds.WEIGHED, missing, words)
    near = min(_NEAR, (max(factors) - min(factors)) / 2)
    right = [rank for rank, factor in enumerate(factors) if abs(factor - 1) < near]
    odd = tuple(rank for rank in range(workers) if rank not in right)
    times = ", ".join(f"{factors[rank]:.3g}" for rank in odd)
    words = (
        f"the {verb(odd, 'gradient', 'gradients')} of {name_ranks(odd)} {verb(odd, 'counts', 'count')}"
        f" {times} times in the average of step {number}"
    )
    scales = "" if right else ": each rank scales its own, as clipping before the averaging does"
    return Blame(kinds.WEIGHED, odd, f"{words}{scales}")


def _taken(shares: Sequence[float]) -> tuple[int, ...]:
    """The ranks whose gradients are in the sum."""
    most = max(abs(share) for share in shares)
    return tuple(rank for rank, share in enumerate(shares) if abs(share) > _NEAR * most)


def _are_alike(shares: Sequence[float], others: Sequence[float]) -> bool:
    most = max(abs(share) for share in shares)
    return all(abs(one - other) <= _NEAR * most for one, other in zip(shares, others, strict=True))


def _blame_scaled_parts(wrong: WrongGradients) -> Blame | None:
    """The blame for ranks that keep a part of the average times a factor of their own."""
    parts = wrong.parts
    if len(parts) < wrong.workers or any(step.held_error is None for step in wrong.together.values()):
        return None
    scales: dict[int, float] = {}
    for rank, one in parts.items():
        if one.own_scale is None or one.own_rest is None:
            continue  # it keeps no part
        if one.own_rest > max(wrong.limit, _CLEAN * abs(one.own_scale - 1)):
            return None
        scales[rank] = one.own_scale
    off = tuple(rank for rank, scale in scales.items() if abs(scale - 1) > _CLEAN)
    if not off:
        return None
    factors = ", ".join(f"{describe_factor(scales[rank])} on rank {rank}" for rank in off)
    words = (
        "the parts of the average that ranks keep are not what they should"
        f" be in step {wrong.number}: {factors}"
    )
    if len(off) > 1:
        words += "; each rank scales its own part, as clipping by the norm of that part alone does"
    return Blame(kinds.SCALED, off, words, remedy=_PARTS_REMEDY)


_PARTS_REMEDY = (
    "Clip by one norm over all ranks: call torch.nn.utils.clip_grad_norm_ with the sharded parameters"
    " themselves, not with local tensors, and multiply gradients nowhere else."
)


def _blame_shards(wrong: WrongGradients) -> Blame | None:
    """The blame for own gradients in shards: put together they mix ranks, which no shares explain."""
    off = {
        rank: step
        for rank, step in wrong.together.items()
        if step.held_error is not None and step.held_error > wrong.limit
    }
    own = tuple(
        rank
        for rank, step in off.items()
        if step.own_gradient_error is not None and step.own_gradient_error <= wrong.limit
    )
    if own and wrong.workers > 1:
        who = f"{name_ranks(own)} {verb(own, 'steps on its', 'step on their')} own samples"
        return Blame(kinds.NOT_AVERAGED, own, f"gradients are not averaged in step {wrong.number}: {who}")
    if len(off) > 1 and wrong.is_of_some:
        words = f"{wrong.what} not averaged over the ranks (step {wrong.number})"
        return Blame(kinds.TENSOR_NOT_AVERAGED, tuple(off), words)
    return None


def _blame_rank(wrong: WrongGradients) -> Blame | None:
    """The blame for one rank that computes, or holds, other numbers than its samples give."""
    number, together = wrong.number, wrong.together
    computed = _are_off_before(wrong)
    if len(computed) == 1 < wrong.workers:
        rank = computed[0]
        loss = ", and so is its loss" if _loss_is_off(together[rank], wrong.limit) else ""
        words = f"rank {rank} alone computes a gradient in step {number} that its samples do not give{loss}"
        return Blame(kinds.RANK_CORRUPT, (rank,), words)
    held = [rank for rank, step in together.items() if step.held_error and step.held_error > wrong.limit]
    off = held or list(wrong.guilty)
    if len(off) != 1 or computed or wrong.workers == 1:
        return None
    if held and not all(one.flipped_average and not one.flipped_ranks for one in wrong.parts.values()):
        return _blame_on_the_way(wrong, off[0])
    part = "part of the average" if held else "average"
    words = (
        f"rank {off[0]} alone holds a different {part} of the gradients from what it should in step {number}"
    )
    return Blame(kinds.RANK_CORRUPT, tuple(off), f"{words} ({describe_elements(wrong.first)})")


def _blame_on_the_way(wrong: WrongGradients, holder: int) -> Blame:
    """The blame on no rank: what is wrong in one rank's part of the average may come from any other."""
    words = (
        f"the part of the average that rank {holder} keeps is wrong in step {wrong.number}"
        f" ({describe_elements(wrong.first)}): one rank among {name_ranks(tuple(wrong.together))} has"
        " different bits, and the measurements do not show which"
    )
    few = all(one.elements_off <= _FLIPS_AT_MOST for one in wrong.parts.values())
    return Blame(kinds.GRADIENT, (), words, Owner.HARDWARE if few else None)


def _blame_averaging(wrong: WrongGradients) -> Blame | None:
    """The blame on the averaging: every rank computed the right gradient, and the average is wrong."""
    known = [step.computed_error for step in wrong.together.values()]
    if any(isinstance(error, Missing) or _is_off(error, wrong.limit) for error in known):
        return None
    names = name_tensors(wrong.first.tensors)
    words = (
        f"every rank computed the right gradients in step {wrong.number}, and"
        f" their average is wrong in {names}"
    )
    parts = wrong.parts.values()
    if all(one.rounded_to for one in parts):
        return Blame(kinds.GRADIENT, wrong.guilty, f"{words}: rounded to {wrong.first.rounded_to} on the way")
    if all(is_few(one.elements_off, one.elements) for one in parts):
        among = f"one rank among {name_ranks(tuple(wrong.together))} has different bits"
        return Blame(
            kinds.GRADIENT, (), f"{words}: {describe_elements(wrong.first)}; {among}", Owner.HARDWARE
        )
    return Blame(
        kinds.GRADIENT,
        wrong.guilty,
        f"{words}: look at the communication hook, and at other code that changes gradients",
    )


def _is_off(error: object, limit: float) -> bool:
    return not isinstance(error, Missing) and (error is None or (isinstance(error, float) and error > limit))


def _loss_is_off(step: RankStep, limit: float) -> bool:
    if step.loss is None or step.own_reference_loss is None:
        return False
    return abs(step.loss - step.own_reference_loss) > limit * max(1.0, abs(step.own_reference_loss))
