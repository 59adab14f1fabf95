"""What the checks of measured speeds share: whose speed it is, what else it is compared with, the history."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from gpudiag.checks.measured_limits import Opinion, SpeedVerdict, history_opinion, judge_speed
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import Evidence, RankSubject, Subject
from gpudiag.model.finding import Outcome
from gpudiag.model.history import Baseline
from gpudiag.model.reading import Missing, Reading

NOT_ON_CPU = "speed is not judged on the CPU"
HISTORY_RUNS = 3  # own choice: a baseline of fewer runs is chance


class OfRank(Protocol):
    """A result that one rank measured."""

    @property
    def rank(self) -> int:
        """The rank that measured it."""


_Result = TypeVar("_Result", bound=OfRank)


def device_of(snapshot: Snapshot, uuid: object) -> Device | None:
    """The GPU of that UUID in the snapshot."""
    return next((device for device in snapshot.devices if device.id.uuid == uuid), None)


def subject_of(context: Context, rank: int, uuid: Reading[str]) -> tuple[Subject, str]:
    """What a finding about one rank's device is about, and its name: the GPU, or the rank on a CPU."""
    device = device_of(context.snapshot, uuid)
    if device is None:
        return RankSubject(rank, context.snapshot.host), f"rank {rank}"
    return device_subject(context.snapshot, device), name_device(device)


def same_product(snapshot: Snapshot, uuid: object, other_uuid: object) -> bool:
    """Whether two GPUs of the snapshot are of the same product."""
    device, other = device_of(snapshot, uuid), device_of(snapshot, other_uuid)
    return device is not None and other is not None and device.name == other.name


def find_baseline(context: Context, metric: str, device_uuid: str | None) -> Baseline | None:
    """The stored baseline of that metric, where it rests on enough runs."""
    if isinstance(context.history, Missing):
        return None
    for baseline in context.history.baselines:
        if (baseline.metric, baseline.device_uuid) == (metric, device_uuid):
            return baseline if baseline.count >= HISTORY_RUNS else None
    return None


def judge_against(
    context: Context, metric: str, uuid: object, measured: float, unit: str, opinions: Iterable[Opinion]
) -> SpeedVerdict:
    """What the opinions and the GPU's own history say of a measured speed."""
    baseline = find_baseline(context, metric, str(uuid))
    past = () if baseline is None else history_opinion([baseline.median])
    return judge_speed(unit_name(unit), measured, unit, (*opinions, *past))


def is_slow(verdict: SpeedVerdict) -> bool:
    """Whether anything speaks against the speed."""
    return verdict.outcome in (Outcome.WARN, Outcome.FAIL)


def slow_by_rank(
    results: Iterable[_Result], verdicts: Iterable[SpeedVerdict]
) -> list[list[tuple[_Result, SpeedVerdict]]]:
    """The slow results, those of one rank together: a slow device is one fault, however it was measured."""
    slow: dict[int, list[tuple[_Result, SpeedVerdict]]] = defaultdict(list)
    for result, verdict in zip(results, verdicts, strict=True):
        if is_slow(verdict):
            slow[result.rank].append((result, verdict))
    return list(slow.values())


def tell_apart(
    slow: Sequence[tuple[_Result, SpeedVerdict]], name: Callable[[_Result], str]
) -> list[Evidence]:
    """The evidence of all of them; of several, each fact carries the name of its result."""
    return [
        replace(fact, name=f"{name(result)}_{fact.name}") if len(slow) > 1 else fact
        for result, verdict in slow
        for fact in verdict.evidence
    ]


def any_opinion(verdicts: Sequence[SpeedVerdict]) -> bool:
    """Whether there was anything to hold a speed against."""
    return any(verdict.outcome is not None for verdict in verdicts)


def unit_name(unit: str) -> str:
    """The evidence's name of a rate in that unit."""
    return {"B/s": "bytes_per_second", "FLOP/s": "flops_per_second"}[unit]
