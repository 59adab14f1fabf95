"""Which samples the ranks read, judged: each its own, all of them, in a new order every epoch, equally many."""

from collections.abc import Iterator

from gpudiag.checks.training_kinds import NOT_COVERED, ORDER_REPEATS, SAME_SAMPLES, UNEVEN
from gpudiag.checks.training_steps import name_ranks, verb, where
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.training import StrategyMeasurement

_SOURCE = "indices that each rank read"
# So few samples may come in the same order twice by chance, 1 in 24 times.
_FEW_SAMPLES = 5

Order = dict[int, dict[int, tuple[int, ...]]]  # epoch -> rank -> samples, as they were read


def judge_data(measurement: StrategyMeasurement) -> tuple[Finding, ...]:
    """What is wrong with the shards."""
    order = _order(measurement)
    shared = _judge_disjoint(measurement, order)
    found = (
        shared,
        _judge_covering(measurement, order)
        if shared is None
        else None,  # what is read twice leaves others out
        _judge_shuffled(measurement, order),
        _judge_even(measurement),
    )
    return tuple(finding for finding in found if finding is not None)


def _order(measurement: StrategyMeasurement) -> Order:
    order: Order = {}
    for step in sorted(measurement.steps, key=lambda step: step.step):
        ranks = order.setdefault(step.epoch, {})
        ranks[step.rank] = ranks.get(step.rank, ()) + step.samples
    return order


def _judge_disjoint(measurement: StrategyMeasurement, order: Order) -> Finding | None:
    for epoch, ranks in order.items():
        for first, second in _pairs(sorted(ranks)):
            shared = set(ranks[first]) & set(ranks[second])
            if not shared:
                continue
            sharing = [rank for rank in ranks if set(ranks[rank]) & shared]
            step = min(
                one.step for one in measurement.steps if one.epoch == epoch and set(one.samples) & shared
            )
            evidence = (
                Evidence("shared_samples", len(shared), limit=0, source=_SOURCE),
                Evidence("epoch", epoch, source=_SOURCE),
                Evidence("step", step, source=_SOURCE),
            )
            message = f"{name_ranks(sharing)} read the same {len(shared)} samples in epoch {epoch}"
            return SAME_SAMPLES.finding(HostSubject(measurement.host), message, *evidence)
    return None


def _pairs(ranks: list[int]) -> Iterator[tuple[int, int]]:
    return ((first, second) for place, first in enumerate(ranks) for second in ranks[place + 1 :])


def _judge_covering(measurement: StrategyMeasurement, order: Order) -> Finding | None:
    whole = {(end.epoch, end.rank) for end in measurement.epoch_ends if end.agreed}
    per_epoch = measurement.starts[0].steps_per_epoch
    for epoch, ranks in order.items():
        steps = {step.step for step in measurement.steps if step.epoch == epoch}
        if len(steps) < per_epoch or any((epoch, rank) not in whole for rank in ranks):
            continue
        read = [sample for samples in ranks.values() for sample in samples]
        missing = len(read) - len(set(read))
        if missing == 0:
            continue
        message = f"{missing} of {len(read)} samples were read by nobody in epoch {epoch}"
        evidence = Evidence("samples_left_out", missing, limit=0, source=_SOURCE)
        return NOT_COVERED.finding(HostSubject(measurement.host), message, evidence)
    return None


def _judge_shuffled(measurement: StrategyMeasurement, order: Order) -> Finding | None:
    for epoch in sorted(order)[1:]:
        before, now = order[epoch - 1], order[epoch]
        same = [
            rank
            for rank in now
            if len(now[rank]) >= _FEW_SAMPLES and now[rank] == before[rank][: len(now[rank])]
        ]
        if same and len(same) == len(now):
            message = f"epoch {epoch} reads the samples in the order of epoch {epoch - 1} on every rank"
            step = min(one.step for one in measurement.steps if one.epoch == epoch)
            evidence = (
                Evidence("epoch", epoch, source=_SOURCE),
                Evidence("step", step, source=_SOURCE),
            )
            return ORDER_REPEATS.finding(HostSubject(measurement.host), message, *evidence)
    return None


def _judge_even(measurement: StrategyMeasurement) -> Finding | None:
    for epoch in sorted({end.epoch for end in measurement.epoch_ends}):
        steps = {end.rank: end.steps for end in measurement.epoch_ends if end.epoch == epoch}
        if len(set(steps.values())) < 2:
            continue
        fewest, most = min(steps.values()), max(steps.values())
        short = [rank for rank, count in steps.items() if count == fewest]
        message = (
            f"{name_ranks(short)} {verb(short, 'has', 'have')} {fewest} step{'s' * (fewest != 1)} "
            f"in epoch {epoch}, and others have {most}"
        )
        evidence = (
            Evidence("steps", fewest, limit=most, source=_SOURCE),
            Evidence("epoch", epoch, source=_SOURCE),
        )
        return UNEVEN.finding(where(measurement, short), message, *evidence)
    return None
