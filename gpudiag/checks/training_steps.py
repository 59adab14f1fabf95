"""Verified steps, judged: what is the first thing that went wrong, and on which rank?

Wrong gradients make wrong parameters, and wrong parameters wrong losses: only what nothing before
it explains becomes a finding.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpudiag.checks.training_kinds import (
    GRADIENT,
    LOSS,
    NOT_AVERAGED,
    NOT_FINITE,
    PARAMETERS,
    RANKS_DIFFER,
    SUMMED,
    TENSOR_NOT_AVERAGED,
    UNUSED,
)
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject, Subject
from gpudiag.model.finding import Finding
from gpudiag.model.training import RankStep, StrategyMeasurement, TensorFact

SOURCE = "single-process run"
BIT_FOR_BIT = "bit for bit, over ranks"

# After the first step a trajectory in half precision is one's own: rounding alone then moves a small
# gradient far. What a fault does to it is of the size of the gradient itself.
LATER_GRADIENT_LIMIT = 0.25
# A projection so near to a whole multiple of the gradient is one: the others are in between.
_MULTIPLE_ERROR = 0.02
# Rounding adds up over steps: the limit for parameters holds for so many.
_STEPS_OF_LIMIT = 10
_NAMED_TENSORS = 4

Together = Mapping[int, RankStep]  # one step, by rank


def by_step(measurement: StrategyMeasurement) -> Iterator[Together]:
    """The steps that every rank told about, in order."""
    steps: dict[int, dict[int, RankStep]] = {}
    for step in measurement.steps:
        steps.setdefault(step.step, {})[step.rank] = step
    workers = len({start.rank for start in measurement.starts})
    return (steps[number] for number in sorted(steps) if len(steps[number]) == workers)


def gradient_limit(measurement: StrategyMeasurement, step: int) -> float:
    """The largest relative error of a gradient in that step that rounding explains."""
    start = measurement.starts[0]
    if step == 0:
        return start.tolerance_gradient
    if measurement.dtype != "float32":
        return max(start.tolerance_gradient, LATER_GRADIENT_LIMIT)
    return max(start.tolerance_gradient, start.tolerance_parameter) * steps_factor(step)


def parameter_limit(measurement: StrategyMeasurement, step: int) -> float:
    """The largest relative error of the parameters after that step that rounding explains."""
    return measurement.starts[0].tolerance_parameter * steps_factor(step)


def steps_factor(step: int) -> float:
    """How often the limit of the first steps is allowed after so many."""
    return max(1.0, (step + 1) / _STEPS_OF_LIMIT)


def judge_steps(measurement: StrategyMeasurement, epochs: int | None = None) -> Finding | None:
    """The first thing wrong with the numbers of a step, with its cause where it shows.

    Only so many `epochs` are looked at, where the samples of the later ones are known to be others.
    """
    for together in by_step(measurement):
        if epochs is not None and next(iter(together.values())).epoch >= epochs:
            return None
        found = (
            _judge_finite(measurement, together)
            or _judge_unused(measurement, together)
            or _judge_gradients(measurement, together)
            or _judge_parameters(measurement, together)
            or _judge_loss(measurement, together)
        )
        if found is not None:
            return found
    return None


def where(measurement: StrategyMeasurement, ranks: Sequence[int]) -> Subject:
    """The rank, if it is one; else the host."""
    if len(ranks) != 1:
        return HostSubject(measurement.host)
    host = next((report.host for report in measurement.ranks if report.rank == ranks[0]), measurement.host)
    return RankSubject(ranks[0], host)


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 1`, or `ranks 0, 2 and 3`."""
    words = [str(rank) for rank in sorted(ranks)]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The form of a verb that goes with so many ranks."""
    return one if len(ranks) == 1 else many


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
    """When it was: the step and its epoch."""
    step = next(iter(together.values()))
    return (
        Evidence("step", step.step, source="verified steps"),
        Evidence("epoch", step.epoch, source="verified steps"),
    )


def _judge_finite(measurement: StrategyMeasurement, together: Together) -> Finding | None:
    bad = [rank for rank, step in together.items() if step.loss is None]
    what = "the loss"
    if not bad:
        what = "the gradient"
        bad = [rank for rank, step in together.items() if step.gradient_error is None and not step.skipped]
    if not bad:
        return None
    step = together[bad[0]]
    message = f"{what} of {name_ranks(bad)} is not finite in step {step.step}"
    return NOT_FINITE.finding(where(measurement, bad), message, *evidence_of(together))


def _judge_unused(measurement: StrategyMeasurement, together: Together) -> Finding | None:
    unused = sorted({name for step in together.values() for name in step.unused})
    if not unused:
        return None
    message = f"{_named(unused)} got no gradient in step {next(iter(together.values())).step}"
    evidence = Evidence("unused_parameters", len(unused), limit=0, source="verified steps")
    return UNUSED.finding(HostSubject(measurement.host), message, evidence, *evidence_of(together))


def _judge_gradients(measurement: StrategyMeasurement, together: Together) -> Finding | None:
    if any(step.skipped for step in together.values()):
        return None  # infinite gradients, which the loss scaler saw and left out
    number = next(iter(together.values())).step
    limit = gradient_limit(measurement, number)
    wrong = [rank for rank, step in together.items() if _exceeds(step.gradient_error, limit)]
    odd, names = differing({rank: step.gradients for rank, step in together.items()})
    if not wrong and not odd:
        return None
    worst = max(together.values(), key=lambda step: step.gradient_error or 0.0)
    facts = (
        Evidence("gradient_error", _rounded(worst.gradient_error), limit=_rounded(limit), source=SOURCE),
        Evidence("gradient_scale", _rounded(worst.gradient_scale), limit=1, source=SOURCE),
        *evidence_of(together),
    )
    total = len(worst.gradients)
    names = sorted({*names, *_wrong_tensors(together, limit)})
    alone = [
        rank
        for rank in wrong
        if together[rank].own_gradient_error is not None
        and not _exceeds(together[rank].own_gradient_error, limit)
    ]
    if alone and len(together) > 1:
        message = f"gradients are not averaged in step {number}: {name_ranks(alone)} {verb(alone, 'steps by its', 'step by their')} own samples"
        return NOT_AVERAGED.finding(where(measurement, alone), message, *facts)
    if len(names) * 2 < total:
        message = f"the gradient of {_named(names)} is not averaged over the ranks (step {number})"
        tensors = Evidence("tensors", len(names), limit=0, source=BIT_FOR_BIT)
        return TENSOR_NOT_AVERAGED.finding(HostSubject(measurement.host), message, tensors, *facts)
    multiple = worst.gradient_scale or 0.0
    workers = len(together)
    if workers > 1 and abs(multiple / workers - 1) < _MULTIPLE_ERROR:
        message = (
            f"gradients are {workers} times what they should be, from step {number} on: summed, not averaged"
        )
        return SUMMED.finding(HostSubject(measurement.host), message, *facts)
    guilty = wrong if 0 < len(wrong) < len(together) else odd or wrong
    message = f"gradients of {name_ranks(guilty)} are wrong in step {number}"
    return GRADIENT.finding(where(measurement, guilty), message, *facts)


def _judge_parameters(measurement: StrategyMeasurement, together: Together) -> Finding | None:
    number = next(iter(together.values())).step
    odd, _ = differing({rank: step.parameters for rank, step in together.items()})
    limit = parameter_limit(measurement, number)
    wrong = [rank for rank, step in together.items() if _exceeds(step.parameter_error, limit)]
    worst = max(together.values(), key=lambda step: step.parameter_error or 0.0)
    facts = (
        Evidence("parameter_error", _rounded(worst.parameter_error), limit=_rounded(limit), source=SOURCE),
        *evidence_of(together),
    )
    if odd:
        guilty = wrong if 0 < len(wrong) < len(together) else odd
        message = f"{name_ranks(guilty)} {verb(guilty, 'holds', 'hold')} other parameters than the others after step {number}"
        return RANKS_DIFFER.finding(where(measurement, guilty), message, *facts)
    if wrong:
        message = f"parameters are not those of a single process after step {number}"
        return PARAMETERS.finding(HostSubject(measurement.host), message, *facts)
    return None


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
    return LOSS.finding(HostSubject(measurement.host), message, evidence, *evidence_of(together))


def _wrong_tensors(together: Together, limit: float) -> set[str]:
    return {
        tensor.name
        for step in together.values()
        for tensor in step.gradients
        if _exceeds(tensor.error, limit)
    }


def _exceeds(error: float | None, limit: float) -> bool:
    return error is None or error > limit


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_TENSORS} more" if len(names) > _NAMED_TENSORS else ""
    return ", ".join(names[:_NAMED_TENSORS]) + more


def _rounded(value: float | None) -> float | str:
    return "not finite" if value is None else float(f"{value:.3g}")
