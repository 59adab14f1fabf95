"""Which samples the ranks read, judged: each its own, all, in a new order every epoch, equally many."""

from collections.abc import Iterator

from gpudiag.checks.training import kinds
from gpudiag.checks.training.kinds import verb
from gpudiag.checks.training.steps import where
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.number_ranges import count_of, name_ranks
from gpudiag.model.training import RankStep, StrategyMeasurement

_SOURCE = "indices that each rank read"
# Fewer samples may come in the same order twice by chance: 4 of them, 1 in 24 times.
_FEW_SAMPLES = 5
# Ranks that share at most this part of their samples have a sampler that splits them.
_PADDED = 0.5
_PADDED_REMEDY = (
    "The sampler splits the data, but gives some samples to two ranks, as it does where they do not divide"
    " evenly: use drop_last=True, or a number of samples that the ranks divide."
)
_SHORT_REMEDY = (
    "Use drop_last=True in the loader, or weigh each rank's loss by its samples: a mean over ranks"
    " counts those of a short batch more."
)

Order = dict[int, dict[int, tuple[int, ...]]]  # epoch -> rank -> samples, as they were read


def judge_data(measurement: StrategyMeasurement) -> tuple[Finding, ...]:
    """Everything wrong with the ranks' samples."""
    order = _order(measurement)
    shared = _judge_disjoint(measurement, order)
    found = (
        shared,
        _judge_rows(measurement),
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
            samples = count_of(len(shared), "sample")
            message = f"{name_ranks(sharing)} read the same {samples} in epoch {epoch}"
            few = len(shared) <= _PADDED * min(len(ranks[rank]) for rank in sharing)
            remedy = _PADDED_REMEDY if few else ""
            return kinds.SAME_SAMPLES.finding(
                HostSubject(measurement.host), message, *evidence, remedy=remedy
            )
    return None


def _judge_rows(measurement: StrategyMeasurement) -> Finding | None:
    """The finding for ranks whose batches differ from the data set at the indices that they read."""
    changed = [step for step in measurement.steps if step.changed]
    if not changed:
        return None
    first = min(step.step for step in changed)
    ranks = sorted({step.rank for step in changed if step.step == first})
    what = " and ".join(sorted({name for step in changed for name in step.changed}))
    message = (
        f"{name_ranks(ranks)} {verb(ranks, 'trains', 'train')} on {what} that are not those of"
        f" its samples, from step {first} on"
    )
    evidence = (
        Evidence("steps", len({step.step for step in changed}), limit=0, source="data set"),
        Evidence("step", first, source="data set"),
    )
    return kinds.OTHER_SAMPLES.finding(where(measurement, ranks), message, *evidence)


def _pairs(ranks: list[int]) -> Iterator[tuple[int, int]]:
    return ((first, second) for place, first in enumerate(ranks) for second in ranks[place + 1 :])


def _judge_covering(measurement: StrategyMeasurement, order: Order) -> Finding | None:
    """The finding for samples left out of an epoch that was trained to the end of the data."""
    total = measurement.starts[0].sample_count
    for epoch in sorted({end.epoch for end in measurement.epoch_ends}):
        if not _came_to_its_end(measurement, epoch):
            continue
        missing = total - len({sample for samples in order.get(epoch, {}).values() for sample in samples})
        if missing <= 0:
            continue
        message = f"{missing} of {total} samples were read by no rank in epoch {epoch}"
        short = _describe_short(measurement, epoch)
        message += f": {short}" if short else ""
        evidence = (
            Evidence("samples_left_out", missing, limit=0, source=_SOURCE),
            Evidence("samples", total, source="the data set"),
            Evidence("epoch", epoch, source=_SOURCE),
        )
        return kinds.NOT_COVERED.finding(
            where(measurement, sorted({step.rank for step in _short_batches(measurement, epoch)})),
            message,
            *evidence,
            remedy=_SHORT_REMEDY if short else "",
        )
    return None


def _short_batches(measurement: StrategyMeasurement, epoch: int) -> list[RankStep]:
    """The batches of an epoch with fewer samples than the others; empty where all have as many."""
    steps = [step for step in measurement.steps if step.epoch == epoch]
    most = max((len(step.samples) for step in steps), default=0)
    return [step for step in steps if len(step.samples) < most]


def _describe_short(measurement: StrategyMeasurement, epoch: int) -> str:
    """Which rank's batch of which step is shorter than the others, in words; empty where none is."""
    short = _short_batches(measurement, epoch)
    if not short:
        return ""
    first = min(short, key=lambda step: (step.step, step.rank))
    ranks = sorted({step.rank for step in short if step.step == first.step})
    most = max(len(step.samples) for step in measurement.steps if step.epoch == epoch)
    had = f"{verb(ranks, 'has', 'have')} {len(first.samples)} samples in step {first.step}"
    return f"{name_ranks(ranks)} {had}, where other batches have {most}"


def _came_to_its_end(measurement: StrategyMeasurement, epoch: int) -> bool:
    """Whether every rank trained the whole epoch, or all of them ran out of data at the same step of it."""
    ends = [end for end in measurement.epoch_ends if end.epoch == epoch]
    if len(ends) < len(measurement.starts) or len({end.steps for end in ends}) > 1:
        return False
    if sum(step.epoch == epoch for step in measurement.steps) < sum(end.steps for end in ends):
        return False  # not all steps were reported
    whole = ends[0].steps >= measurement.starts[0].steps_per_epoch
    return (whole and all(end.agreed for end in ends)) or not any(end.agreed for end in ends)


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
            return kinds.ORDER_REPEATS.finding(HostSubject(measurement.host), message, *evidence)
    return None


def _judge_even(measurement: StrategyMeasurement) -> Finding | None:
    for epoch in sorted({end.epoch for end in measurement.epoch_ends}):
        steps = {end.rank: end.steps for end in measurement.epoch_ends if end.epoch == epoch}
        if len(set(steps.values())) < 2:
            continue
        fewest, most = min(steps.values()), max(steps.values())
        short = [rank for rank, count in steps.items() if count == fewest]
        message = (
            f"{name_ranks(short)} {verb(short, 'has', 'have')} {count_of(fewest, 'step')} "
            f"in epoch {epoch}, and others have {most}"
        )
        evidence = (
            Evidence("steps", fewest, limit=most, source=_SOURCE),
            Evidence("epoch", epoch, source=_SOURCE),
        )
        return kinds.UNEVEN.finding(where(measurement, short), message, *evidence)
    return None
