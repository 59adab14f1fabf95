"""How a training began, judged: as many workers as asked for, one start for all, shards of the right size."""

from gpudiag.checks.training_kinds import (
    BUFFERS_DIFFER,
    INITIAL_PARAMETERS,
    NOT_PARALLEL,
    SHARDING,
    SINGLE_WORKER,
)
from gpudiag.checks.training_steps import BIT_FOR_BIT, by_step, differing, name_ranks, verb, where
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.training import RankStart, StrategyMeasurement
from gpudiag.reference.training import strategy_facts

_COUNT = "the framework's own count"
_KEPT = "elements that ranks keep"


def judge_start(measurement: StrategyMeasurement) -> tuple[Finding, ...]:
    """What was wrong before the first step."""
    if not measurement.starts:
        return ()
    found = (
        _judge_parallel(measurement),
        _judge_initial(measurement),
        _judge_buffers(measurement),
        _judge_parameter_shards(measurement),
        _judge_optimizer_shards(measurement),
    )
    return tuple(finding for finding in found if finding is not None)


def _judge_parallel(measurement: StrategyMeasurement) -> Finding | None:
    asked = measurement.world_size
    counts = {start.rank: min(start.world_size, start.workers) for start in measurement.starts}
    alone = [rank for rank, count in counts.items() if count != asked]
    stages = {start.stage for start in measurement.starts} - {None}
    wanted = measurement.strategy.removeprefix("zero")
    host = HostSubject(measurement.host)
    if alone:
        count = counts[alone[0]]
        message = f"{count} worker{'s train' if count != 1 else ' trains'}, and not {asked}"
        evidence = Evidence("workers", count, limit=asked, source=_COUNT)
        return NOT_PARALLEL.finding(where(measurement, alone), message, evidence)
    if wanted.isdecimal() and stages and stages != {int(wanted)}:
        found = min(stage for stage in stages if stage is not None)
        evidence = Evidence("stage", found, limit=int(wanted), source=_COUNT)
        return SHARDING.finding(host, f"the engine runs ZeRO stage {found}, not {wanted}", evidence)
    if asked == 1:
        evidence = Evidence("workers", 1, source=_COUNT)
        return SINGLE_WORKER.finding(host, "it trained on one worker", evidence)
    return None


def _judge_initial(measurement: StrategyMeasurement) -> Finding | None:
    first = _first(measurement)
    right = {fact.name: fact.digest for fact in first.parameters}
    other = [
        start.rank
        for start in measurement.starts
        if any(fact.error != 0.0 or fact.digest != right[fact.name] for fact in start.parameters)
    ]
    if not other:
        return None
    worst = max(fact.error or 0.0 for start in measurement.starts for fact in start.parameters)
    evidence = Evidence("difference", float(f"{worst:.3g}"), limit=0, source=BIT_FOR_BIT)
    message = f"{name_ranks(other)} {verb(other, 'does', 'do')} not begin with the parameters of rank 0"
    step = Evidence("step", 0, source="before the first step")
    return INITIAL_PARAMETERS.finding(where(measurement, other), message, evidence, step)


def _judge_buffers(measurement: StrategyMeasurement) -> Finding | None:
    odd, names = differing({start.rank: start.buffers for start in measurement.starts})
    when = "before the first step"
    for together in by_step(measurement):
        if odd:
            break
        odd, names = differing({rank: step.buffers for rank, step in together.items()})
        when = f"after step {next(iter(together.values())).step}"
    if not odd:
        return None
    message = f"{name_ranks(odd)} {verb(odd, 'holds', 'hold')} other buffers than the others {when}: {', '.join(names[:4])}"
    evidence = Evidence("buffers", len(names), limit=0, source=BIT_FOR_BIT)
    return BUFFERS_DIFFER.finding(where(measurement, odd), message, evidence)


def _judge_parameter_shards(measurement: StrategyMeasurement) -> Finding | None:
    here = {start.rank: start.parameters_here for start in measurement.starts}
    sharded = "parameters" in strategy_facts()[measurement.strategy].shards
    return _judge_shards(
        measurement, "parameters", here, _first(measurement).parameters_total, sharded=sharded
    )


def _judge_optimizer_shards(measurement: StrategyMeasurement) -> Finding | None:
    if not measurement.proofs:
        return None
    here = {proof.rank: proof.optimizer_state_here for proof in measurement.proofs}
    sharded = "optimizer" in strategy_facts()[measurement.strategy].shards
    whole = measurement.proofs[0].optimizer_state_whole
    return _judge_shards(measurement, "optimizer state", here, whole, sharded=sharded)


def _judge_shards(
    measurement: StrategyMeasurement, what: str, here: dict[int, int], whole: int, *, sharded: bool
) -> Finding | None:
    """Whole on every rank, or split: together all of it, with at most one element of padding per tensor and rank."""
    workers = len(measurement.starts)
    padding = 2 * workers * len(_first(measurement).parameters)
    if not sharded or workers == 1:
        wrong = [rank for rank, count in here.items() if count != whole]
    elif whole <= sum(here.values()) <= whole + padding and len(here) == workers:
        wrong = [rank for rank, count in here.items() if count >= whole]
    else:
        wrong = list(here)
    if not wrong:
        return None
    limit = -(-whole // workers) if sharded else whole
    evidence = Evidence(what.replace(" ", "_"), here[wrong[0]], unit="elements", limit=limit, source=_KEPT)
    message = f"{name_ranks(wrong)} {verb(wrong, 'keeps', 'keep')} {here[wrong[0]]} elements of {what}, of {whole} in all"
    return SHARDING.finding(where(measurement, wrong), message, evidence)


def _first(measurement: StrategyMeasurement) -> RankStart:
    return min(measurement.starts, key=lambda start: start.rank)
