"""Judge how a training began: the number of workers asked for, one start for all, shards of the right size."""

from dataclasses import replace

from gpudiag.checks.training.blame import Together
from gpudiag.checks.training.kinds import (
    BUFFERS_DIFFER,
    INITIAL_PARAMETERS,
    NOT_PARALLEL,
    SHARDING,
    SINGLE_WORKER,
    name_ranks,
    name_tensors,
    verb,
)
from gpudiag.checks.training.steps import BIT_FOR_BIT, by_step, differing, where
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.reading import Missing
from gpudiag.model.training import KeptTensor, RankStart, StrategyMeasurement
from gpudiag.reference.training import strategy_facts

# No launcher starts a strategy whose one process drives all workers.
_ONE_PROCESS_REMEDY = (
    "See which GPUs the process may use: CUDA_VISIBLE_DEVICES, and `gpudiag list --sources all`."
)
_COUNT = "the framework's own count"
OPTIMIZER_STATE = "optimizer_state"
_KEPT = "elements that ranks keep"


def judge_start(measurement: StrategyMeasurement) -> tuple[Finding, ...]:
    """Everything wrong before the first step."""
    if not measurement.starts:
        return ()
    found = (
        _judge_parallel(measurement),
        _judge_initial(measurement),
        _judge_buffers(measurement),
        _judge_parameter_shards(measurement),
        _judge_optimizer_shards(measurement),
        _judge_gradient_shards(measurement),
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
        finding = NOT_PARALLEL.finding(where(measurement, alone), message, evidence)
        if not strategy_facts()[measurement.strategy].one_process:
            return finding
        return replace(finding, remedy=_ONE_PROCESS_REMEDY)
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
        odd = _changed(measurement, together, odd)
        when = f"after step {next(iter(together.values())).step}"
    if not odd:
        return None
    message = f"{name_ranks(odd)} {verb(odd, 'holds', 'hold')} different buffers from the others {when}: {', '.join(names[:4])}"
    evidence = Evidence("buffers", len(names), limit=0, source=BIT_FOR_BIT)
    return BUFFERS_DIFFER.finding(where(measurement, odd), message, evidence)


def _changed(measurement: StrategyMeasurement, together: Together, odd: list[int]) -> list[int]:
    """Where no ranks are a majority: those whose buffers are no longer what they began with."""
    if len(odd) < len(together):
        return odd
    began = {start.rank: start.buffers for start in measurement.starts}
    digests = {rank: {fact.name: fact.digest for fact in facts} for rank, facts in began.items()}
    return [
        rank for rank in odd if {fact.name: fact.digest for fact in together[rank].buffers} != digests[rank]
    ] or odd


def _judge_parameter_shards(measurement: StrategyMeasurement) -> Finding | None:
    here = {start.rank: start.parameters_here for start in measurement.starts}
    sharded = "parameters" in strategy_facts()[measurement.strategy].shards
    whole = _judge_whole_tensors(measurement) if sharded else None
    return whole or _judge_shards(
        measurement, "parameters", here, _first(measurement).parameters_total, sharded=sharded
    )


def _judge_whole_tensors(measurement: StrategyMeasurement) -> Finding | None:
    """The finding for parameters that every rank keeps whole, though others are sharded."""
    kept: dict[str, list[KeptTensor]] = {}
    for start in measurement.starts:
        for tensor in start.parameters_kept:
            kept.setdefault(tensor.name, []).append(tensor)
    whole = [name for name, here in kept.items() if all(1 < one.whole <= one.elements for one in here)]
    if not whole or len(whole) == len(kept) or len(measurement.starts) == 1:
        return None  # none, or all: judged by how much is kept
    message = f"every rank keeps {name_tensors(whole)} whole; the other parameters are sharded"
    evidence = Evidence("whole_tensors", len(whole), limit=0, source=_KEPT)
    return SHARDING.finding(HostSubject(measurement.host), message, evidence)


def _judge_optimizer_shards(measurement: StrategyMeasurement) -> Finding | None:
    if not measurement.proofs:
        return None
    here = {proof.rank: proof.optimizer_state_here for proof in measurement.proofs}
    sharded = "optimizer" in strategy_facts()[measurement.strategy].shards
    whole = measurement.proofs[0].optimizer_state_whole
    return _judge_shards(measurement, OPTIMIZER_STATE, here, whole, sharded=sharded)


def _judge_gradient_shards(measurement: StrategyMeasurement) -> Finding | None:
    """The finding where every rank had all gradients at once, though each should keep only its part.

    One rank may have: ZeRO frees other ranks' gradients and keeps its own part until the last, large tensor of a
    small model is there too. Where nothing is split, every rank has.
    """
    whole = _first(measurement).parameters_total
    here = {
        proof.rank: proof.gradients_here
        for proof in measurement.proofs
        if not isinstance(proof.gradients_here, Missing)
    }
    wrong = [rank for rank, count in here.items() if count >= whole]
    sharded = "gradients" in strategy_facts()[measurement.strategy].shards
    workers = len(measurement.starts)
    if not sharded or workers == 1 or len(wrong) < workers:
        return None
    message = f"{name_ranks(wrong)} {verb(wrong, 'has', 'have')} all {whole} elements of gradients at once"
    evidence = Evidence("gradients", here[wrong[0]], unit="elements", limit=whole - 1, source=_KEPT)
    return SHARDING.finding(where(measurement, wrong), message, evidence)


def _judge_shards(
    measurement: StrategyMeasurement, name: str, here: dict[int, int], whole: int, *, sharded: bool
) -> Finding | None:
    """The finding for ranks that keep another amount than all, or than a share with little padding."""
    workers = len(measurement.starts)
    padding = 2 * workers * len(_first(measurement).parameters)
    if not sharded:
        wrong = [rank for rank, count in here.items() if count != whole]
    elif workers == 1:  # one shard alone is padded too
        wrong = [rank for rank, count in here.items() if not whole <= count <= whole + padding]
    elif whole <= sum(here.values()) <= whole + padding and len(here) == workers:
        wrong = [rank for rank, count in here.items() if count >= whole]
    else:
        wrong = list(here)
    if not wrong:
        return None
    limit = -(-whole // workers) if sharded else whole
    what = name.replace("_", " ")
    evidence = Evidence(name, here[wrong[0]], unit="elements", limit=limit, source=_KEPT)
    message = f"{name_ranks(wrong)} {verb(wrong, 'keeps', 'keep')} {here[wrong[0]]} elements of {what}, of {whole} in all{_describe_split(here[wrong[0]], whole, workers)}"
    return SHARDING.finding(where(measurement, wrong), message, evidence)


def _describe_split(here: int, whole: int, workers: int) -> str:
    """How it is split, where not over all ranks: a clause for the message; else empty."""
    split = round(whole / here) if here else 0
    if here >= whole or split in (0, workers):
        return ": nothing is split" if here == whole else ""
    return f": split over groups of {split}, and not over all {workers}" if split > 1 else ""


def _first(measurement: StrategyMeasurement) -> RankStart:
    return min(measurement.starts, key=lambda start: start.rank)
