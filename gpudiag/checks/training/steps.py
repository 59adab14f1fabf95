"""Judge the verified steps: what went wrong first, and on which rank?

Wrong gradients make wrong parameters, and wrong parameters wrong losses: only what nothing before
it explains becomes a finding.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpudiag.checks.training import kinds
from gpudiag.checks.training.blame import (
    Blame,
    Together,
    WrongGradients,
    blame_before_averaging,
    blame_gradient,
)
from gpudiag.checks.training.blame_step import WrongStep, blame_step
from gpudiag.checks.training.kinds import name_tensors, verb
from gpudiag.model.evidence import Evidence, HostSubject, Subject, about_ranks
from gpudiag.model.finding import Finding
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.training import RankProof, RankStep, StrategyMeasurement, TensorFact

SOURCE = "single-process run"
BIT_FOR_BIT = "bit for bit, over ranks"

# A projection this close to a whole multiple of the gradient is one.
_MULTIPLE_ERROR = 0.02
# Rounding adds up over steps: the limit for parameters holds for this many.
_STEPS_OF_LIMIT = 10


def by_step(measurement: StrategyMeasurement) -> Iterator[Together]:
    """The steps that every rank reported, in order."""
    steps: dict[int, dict[int, RankStep]] = {}
    for step in measurement.steps:
        steps.setdefault(step.step, {})[step.rank] = step
    workers = len({start.rank for start in measurement.starts})
    return (steps[number] for number in sorted(steps) if len(steps[number]) == workers)


def gradient_limit(measurement: StrategyMeasurement, step: int) -> float:
    """The largest relative error of a gradient in that step that rounding explains."""
    start = measurement.starts[0]
    if step == 0 or measurement.dtype != "float32":
        return start.tolerance_gradient
    return max(start.tolerance_gradient, start.tolerance_parameter) * steps_factor(step)


def parameter_limit(measurement: StrategyMeasurement, step: int) -> float:
    """The largest relative error of the parameters after that step that rounding explains."""
    tolerance = measurement.starts[0].tolerance_parameter
    return tolerance if measurement.dtype != "float32" else tolerance * steps_factor(step)


def steps_factor(step: int) -> float:
    """The factor on the limit of the first steps that rounding allows after `step` steps."""
    return max(1.0, (step + 1) / _STEPS_OF_LIMIT)


def goes_on_alike(proof: RankProof) -> bool:
    """Whether the steps after a reload are those that would have followed, but for the order of a sum."""
    return proof.checkpoint_error is not None and proof.checkpoint_error <= proof.tolerance_order


def judge_steps(measurement: StrategyMeasurement, epochs: int | None = None) -> Finding | None:
    """The first thing wrong with the numbers of a step, with its cause where it shows.

    With `epochs`, later epochs are not judged: their samples are known to differ.
    """
    steps = list(by_step(measurement))
    for place, together in enumerate(steps):
        if epochs is not None and next(iter(together.values())).epoch >= epochs:
            return None
        following = steps[place + 1] if place + 1 < len(steps) else {}
        found = (
            _judge_finite(measurement, together)
            or _judge_unused(measurement, together)
            or _judge_gradients(measurement, together, following)
            or _judge_parameters(measurement, together, following)
            or _judge_loss(measurement, together)
        )
        if found is not None:
            return found
    return None


def where(measurement: StrategyMeasurement, ranks: Sequence[int]) -> Subject:
    """The ranks and their host; the machine for none, rank 0's for several hosts."""
    hosts = {report.host for report in measurement.ranks if report.rank in ranks}
    return about_ranks(ranks, hosts.pop() if len(hosts) == 1 else measurement.host)


def differing(facts: Mapping[int, Sequence[TensorFact]]) -> tuple[list[int], list[str]]:
    """The ranks whose tensors differ from those of most ranks, and the names of these tensors.

    Without a majority all ranks differ.
    """
    digests: dict[str, dict[int, str]] = {}
    for rank, tensors in facts.items():
        for tensor in tensors:
            digests.setdefault(tensor.name, {})[rank] = tensor.digest
    odd: set[int] = set()
    names = []
    for name, of_ranks in digests.items():
        usual, count = Counter(of_ranks.values()).most_common(1)[0]
        if count == len(facts):
            continue
        names.append(name)
        majority = count > len(facts) / 2
        odd |= {rank for rank in facts if not majority or of_ranks.get(rank) != usual}
    return sorted(odd), names


def evidence_of(together: Together) -> tuple[Evidence, ...]:
    """The step and its epoch, as evidence."""
    step = next(iter(together.values()))
    return (
        Evidence("step", step.step, source="verified steps"),
        Evidence("epoch", step.epoch, source="verified steps"),
    )


def _judge_finite(measurement: StrategyMeasurement, together: Together) -> Finding | None:
    bad = [rank for rank, step in together.items() if step.loss is None]
    what = "the loss"
    if not bad:  # after averaging, one rank's bad number is on all
        what = "the local gradient"
        bad = [rank for rank, step in together.items() if step.computed_error is None]
        bad = bad if len(bad) < len(together) else []
    if not bad:
        what = "the gradient"
        bad = [rank for rank, step in together.items() if step.gradient_error is None and not step.skipped]
    if not bad:
        return None
    step = together[bad[0]]
    message = f"{what} of {name_ranks(bad)} is not finite in step {step.step}"
    return kinds.NOT_FINITE.finding(where(measurement, bad), message, *evidence_of(together))


_FROZEN_REMEDY = "Freeze the same parameters on every rank (requires_grad_), before the model is wrapped."
_NOT_HANDED_OVER_REMEDY = (
    "Let the last backward pass before each step average: set_requires_gradient_sync(True) with"
    " FSDP2, outside of no_sync() otherwise."
)


def _judge_unused(measurement: StrategyMeasurement, together: Together) -> Finding | None:
    unused = sorted({name for step in together.values() for name in step.unused})
    if not unused:
        return None
    number = next(iter(together.values())).step
    computed = all(isinstance(step.computed_error, float) for step in together.values())
    if computed and all(len(step.unused) == len(step.parameters) for step in together.values()):
        message = (
            f"every rank computed gradients in step {number}, and none reached the parameters:"
            " the backward pass does not average them"
        )
        return kinds.NOT_AVERAGED.finding(
            HostSubject(measurement.host), message, *evidence_of(together), remedy=_NOT_HANDED_OVER_REMEDY
        )
    ranks = [rank for rank, step in together.items() if step.unused]
    alone = len(ranks) < len(together)
    where_to = f" on {name_ranks(ranks)}, and one on the others: frozen there, or not used" if alone else ""
    message = f"{name_tensors(unused)} got no gradient in step {number}{where_to}"
    evidence = Evidence("unused_parameters", len(unused), limit=0, source="verified steps")
    remedy = _FROZEN_REMEDY if alone else ""
    return kinds.UNUSED.finding(
        where(measurement, ranks), message, evidence, *evidence_of(together), remedy=remedy
    )


def judge_last_step(measurement: StrategyMeasurement) -> tuple[Finding, ...]:
    """What only some ranks reported of the run's last step: a parameter without a gradient on them.

    The others wait for that gradient in the averaging.
    """
    known = [next(iter(together.values())).step for together in by_step(measurement)]
    last = max(known, default=-1) + 1
    together = {step.rank: step for step in measurement.steps if step.step == last and step.unused}
    if not together or len(together) == len({start.rank for start in measurement.starts}):
        return ()
    ranks, names = sorted(together), sorted({name for step in together.values() for name in step.unused})
    message = (
        f"{name_tensors(names)} got no gradient in step {last} on {name_ranks(ranks)}, and the other ranks"
        " did not end that step: they wait for it in the averaging"
    )
    evidence = Evidence("unused_parameters", len(names), limit=0, source="verified steps")
    return (kinds.UNUSED.finding(where(measurement, ranks), message, evidence, remedy=_FROZEN_REMEDY),)


def _judge_gradients(
    measurement: StrategyMeasurement, together: Together, following: Together
) -> Finding | None:
    if any(step.skipped for step in together.values()):
        return None  # infinite gradients, which the loss scaler saw and left out
    number = next(iter(together.values())).step
    limit = gradient_limit(measurement, number)
    wrong = [rank for rank, step in together.items() if _exceeds(step.gradient_error, limit)]
    odd, names = differing({rank: step.gradients for rank, step in together.items()})
    if not wrong and not odd:
        return None
    worst = max(together.values(), key=lambda step: step.gradient_error or 0.0)
    gradients = WrongGradients(together, following, tuple(wrong), tuple(odd), limit)
    blame = blame_before_averaging(gradients)
    if blame is None and worst.gradient_parts is None:
        return _judge_by_scale(measurement, together, wrong, odd, names)
    blame = blame or blame_gradient(gradients)
    return _finding(measurement, blame, *_gradient_facts(together, worst, limit))


def _judge_by_scale(
    measurement: StrategyMeasurement,
    together: Together,
    wrong: Sequence[int],
    odd: Sequence[int],
    names: Sequence[str],
) -> Finding:
    """The finding by the gradients' norm and scale, where no rank took them apart."""
    number, workers = next(iter(together.values())).step, len(together)
    limit = gradient_limit(measurement, number)
    worst = max(together.values(), key=lambda step: step.gradient_error or 0.0)
    facts = _gradient_facts(together, worst, limit)
    names = sorted({*names, *_wrong_tensors(together, limit)})
    alone = tuple(
        rank
        for rank in wrong
        if together[rank].own_gradient_error is not None
        and not _exceeds(together[rank].own_gradient_error, limit)
    )
    guilty = tuple(wrong if 0 < len(wrong) < workers else odd or wrong)
    multiple = worst.gradient_scale or 0.0
    if alone and workers > 1:
        words = (
            f"gradients are not averaged in step {number}: {name_ranks(alone)}"
            f" {verb(alone, 'steps on its', 'step on their')} own samples"
        )
        blame = Blame(kinds.NOT_AVERAGED, alone, words)
    elif 0 < len(names) * 2 < len(worst.gradients) and len(guilty) > 1:
        words = f"the gradient of {name_tensors(names)} is not averaged over the ranks (step {number})"
        blame = Blame(kinds.TENSOR_NOT_AVERAGED, guilty, words)
    elif workers > 1 and abs(multiple / workers - 1) < _MULTIPLE_ERROR:
        words = (
            f"gradients are {workers} times what they should be, from step {number} on: summed, not averaged"
        )
        blame = Blame(kinds.SUMMED, tuple(together), words)
    elif len(guilty) == 1 < workers:
        words = f"rank {guilty[0]} alone has different gradients from the others in step {number}"
        blame = Blame(kinds.RANK_CORRUPT, guilty, words)
    else:
        blame = Blame(kinds.GRADIENT, guilty, f"gradients of {name_ranks(guilty)} are wrong in step {number}")
    return _finding(measurement, blame, *facts)


def _gradient_facts(together: Together, worst: RankStep, limit: float) -> tuple[Evidence, ...]:
    return (
        Evidence("gradient_error", _rounded(worst.gradient_error), limit=_rounded(limit), source=SOURCE),
        Evidence("gradient_scale", _rounded(worst.gradient_scale), limit=1, source=SOURCE),
        *evidence_of(together),
    )


def _finding(measurement: StrategyMeasurement, blame: Blame, *facts: Evidence) -> Finding:
    return blame.kind.finding(
        where(measurement, blame.ranks), blame.message, *facts, owner=blame.owner, remedy=blame.remedy
    )


def _judge_parameters(
    measurement: StrategyMeasurement, together: Together, following: Together
) -> Finding | None:
    number = next(iter(together.values())).step
    odd, _ = differing({rank: step.parameters for rank, step in together.items()})
    limit = parameter_limit(measurement, number)
    wrong = [rank for rank, step in together.items() if _exceeds(step.parameter_error, limit)]
    if not odd and not wrong:
        return None
    worst = max(together.values(), key=lambda step: step.parameter_error or 0.0)
    facts = (
        Evidence("parameter_error", _rounded(worst.parameter_error), limit=_rounded(limit), source=SOURCE),
        *evidence_of(together),
    )
    back_at = _back_at(measurement, together)
    blame = blame_step(WrongStep(together, following, tuple(wrong), tuple(odd), back_at))
    return _finding(measurement, blame, *facts)


def _back_at(measurement: StrategyMeasurement, together: Together) -> dict[int, int]:
    """The ranks with exactly an earlier step's parameters, and its number; -1: before the first."""
    number = next(iter(together.values())).step
    now = {rank: [fact.digest for fact in step.parameters] for rank, step in together.items()}
    found = {}
    earlier = [(start.rank, -1, start.parameters) for start in measurement.starts]
    earlier += [
        (step.rank, step.step, step.parameters)
        for looked in by_step(measurement)
        for step in looked.values()
        if step.step < number - 1  # after the step before they are the same where no step was made
    ]
    for rank, step_number, facts in earlier:
        if number > 0 and step_number < number - 1 and [fact.digest for fact in facts] == now.get(rank):
            found[rank] = step_number
    return found


def _judge_loss(measurement: StrategyMeasurement, together: Together) -> Finding | None:
    losses = [step.loss for step in together.values() if step.loss is not None]
    expected = next(iter(together.values())).reference_loss
    number = next(iter(together.values())).step
    if expected is None or len(losses) < len(together):
        return None
    mean, limit = sum(losses) / len(losses), gradient_limit(measurement, number)
    error = abs(mean - expected) / max(1.0, abs(expected))
    if error <= limit:
        return None
    message = f"the mean loss of step {number} is {mean:.6g}, and that of a single process {expected:.6g}"
    evidence = Evidence("loss_error", _rounded(error), limit=_rounded(limit), source=SOURCE)
    return kinds.LOSS.finding(HostSubject(measurement.host), message, evidence, *evidence_of(together))


def _wrong_tensors(together: Together, limit: float) -> set[str]:
    return {
        tensor.name
        for step in together.values()
        for tensor in step.gradients
        if _exceeds(tensor.error, limit)
    }


def _exceeds(error: float | None, limit: float) -> bool:
    return error is None or error > limit


def _rounded(value: float | None) -> float | str:
    return "not finite" if value is None else float(f"{value:.3g}")
