"""The list of what was proved about one strategy, by name, each with its number and limit."""

from collections.abc import Iterable
from dataclasses import replace

from gpudiag.checks.training import kinds
from gpudiag.checks.training.steps import by_step, gradient_limit, parameter_limit
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.training import RankProof, StrategyMeasurement, Verification

_NOT_REACHED = Missing(MissingReason.ERROR, "the run ended before it")
_ONE_BUCKET = Missing(MissingReason.NOT_ASKED, "all gradients were averaged in one bucket")
_ONE_EPOCH = Missing(MissingReason.NOT_ASKED, "there was one epoch")

# The findings that disprove each thing without a number.
_BY_FINDING = (
    ("workers", (kinds.NOT_PARALLEL,)),
    ("sharding", (kinds.SHARDING,)),
    ("initial_parameters", (kinds.INITIAL_PARAMETERS,)),
    ("buffers", (kinds.BUFFERS_DIFFER, kinds.INITIAL_PARAMETERS)),
    ("shards_disjoint", (kinds.SAME_SAMPLES,)),
    ("shards_cover", (kinds.NOT_COVERED, kinds.SAME_SAMPLES)),
    ("steps_even", (kinds.UNEVEN,)),
    ("all_parameters_used", (kinds.UNUSED,)),
)


def list_verifications(
    measurement: StrategyMeasurement, findings: Iterable[Finding]
) -> tuple[Verification, ...]:
    """Everything to be proved; what the run did not reach is missing."""
    if not measurement.starts:
        return ()
    codes = {finding.code for finding in findings}
    named = [
        Verification(name, not any(kind.code in codes for kind in disproof)) for name, disproof in _BY_FINDING
    ]
    return (*named, *_numbers(measurement), *_epochs(measurement, codes), *_proofs(measurement))


def is_verified(verifications: Iterable[Verification]) -> Reading[bool]:
    """Whether everything was proved; False where the run did not reach the proof."""
    asked = [
        one.passed
        for one in verifications
        if not (isinstance(one.passed, Missing) and one.passed.reason is MissingReason.NOT_ASKED)
    ]
    return bool(asked) and all(passed is True for passed in asked)


def _numbers(measurement: StrategyMeasurement) -> list[Verification]:
    steps = list(by_step(measurement))
    names = ("gradient_of_first_step", "parameters_at_end", "loss", "ranks_identical")
    if not steps or len(steps) < measurement.steps_planned:
        return [Verification(name, _NOT_REACHED) for name in names]
    first, last = steps[0], steps[-1]
    final = measurement.steps_planned - 1
    identical = all(
        len({tuple(fact.digest for fact in step.parameters) for step in together.values()}) == 1
        for together in steps
    )
    return [
        _number(names[0], [step.gradient_error for step in first.values()], gradient_limit(measurement, 0)),
        _number(
            names[1], [step.parameter_error for step in last.values()], parameter_limit(measurement, final)
        ),
        _number(names[2], [_loss_error(measurement)], gradient_limit(measurement, final)),
        Verification(names[3], identical),
        *_late(measurement),
    ]


def _late(measurement: StrategyMeasurement) -> list[Verification]:
    """The proof of the gradient after the timed steps; empty where no such step was run."""
    late = list(by_step(replace(measurement, steps=measurement.late_steps)))
    if not late:
        return []
    errors = [step.gradient_error for step in late[-1].values() if not step.skipped]
    return [_number("after_timed_steps", errors, gradient_limit(measurement, 0))] if errors else []


def _number(name: str, values: list[float | None], limit: float) -> Verification:
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return Verification(name, passed=False, value=Missing(MissingReason.ERROR, "not finite"), limit=limit)
    return Verification(name, max(finite) <= limit, float(f"{max(finite):.3g}"), float(f"{limit:.3g}"))


def _loss_error(measurement: StrategyMeasurement) -> float | None:
    """The largest difference of a step's mean loss from that of the single process."""
    errors = []
    for together in by_step(measurement):
        losses = [step.loss for step in together.values()]
        expected = next(iter(together.values())).reference_loss
        if expected is None or any(loss is None for loss in losses):
            return None
        mean = sum(loss for loss in losses if loss is not None) / len(losses)
        errors.append(abs(mean - expected) / max(1.0, abs(expected)))
    return max(errors)


def _epochs(measurement: StrategyMeasurement, codes: set[str]) -> list[Verification]:
    second = any(step.epoch > 0 for step in measurement.steps)
    passed: Reading[bool] = kinds.ORDER_REPEATS.code not in codes if second else _ONE_EPOCH
    return [Verification("order_changes", passed)]


def _proofs(measurement: StrategyMeasurement) -> list[Verification]:
    proofs = measurement.proofs
    names = ("parameters_moved", "loss_falls", "checkpoint", "repeat_identical")
    if len(proofs) < len(measurement.starts):
        return [Verification(name, _NOT_REACHED) for name in names]
    falls = all(
        proof.loss_before is not None
        and proof.loss_after is not None
        and proof.loss_after < proof.loss_before
        for proof in proofs
    )
    return [
        Verification(names[0], all(proof.moved for proof in proofs)),
        Verification(names[1], falls),
        _checkpoint(names[2], proofs),
        Verification(names[3], _all([proof.repeat_identical for proof in proofs])),
        *_buckets(proofs),
    ]


def _buckets(proofs: tuple[RankProof, ...]) -> list[Verification]:
    """The proof that gradients were averaged in several parts; empty if not reported."""
    counts = [proof.buckets for proof in proofs if not isinstance(proof.buckets, Missing)]
    if not counts:
        return []
    passed: Reading[bool] = True if min(counts) > 1 else _ONE_BUCKET
    return [Verification("several_buckets", passed, float(min(counts)), 2.0)]


def _checkpoint(name: str, proofs: tuple[RankProof, ...]) -> Verification:
    """The proof that all came back bit for bit, and by how much the steps after it differ."""
    passed = _all([proof.checkpoint_identical for proof in proofs])
    errors, limit = [proof.checkpoint_error for proof in proofs], proofs[0].tolerance_order
    if passed is not True:
        return Verification(name, passed)
    return _number(name, errors, limit)


def _all(readings: list[Reading[bool]]) -> Reading[bool]:
    return next((one for one in readings if isinstance(one, Missing)), all(one is True for one in readings))
