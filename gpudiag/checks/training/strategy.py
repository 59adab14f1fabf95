"""Judge a training run, also within a preflight: how did it begin, is it parallel, is the maths right?"""

from dataclasses import replace
from statistics import median

from gpudiag.checks.ranks.collective import INJECT_NOT_FIRED, judge_injection
from gpudiag.checks.ranks.incident_kinds import (
    RANK_LATE,
    RANK_OUT_OF_GPU_MEMORY,
    RANK_RAISED,
    RANK_SHORTAGE,
    RANK_TEARDOWN,
)
from gpudiag.checks.ranks.incidents import RANK_FINDINGS, judge_incidents
from gpudiag.checks.ranks.own_ranks import host_shortage_in, without_shortages
from gpudiag.checks.registry import BOTH_GPUS, Judgement, Level, check, does_not_apply, judged
from gpudiag.checks.training import kinds
from gpudiag.checks.training.blame import Together
from gpudiag.checks.training.blame_step import ROUNDED_REMEDY
from gpudiag.checks.training.data import judge_data
from gpudiag.checks.training.exceptions import find_meaning, join_alike, with_meaning
from gpudiag.checks.training.kinds import name_tensors, verb
from gpudiag.checks.training.steps import (
    BIT_FOR_BIT,
    by_step,
    differing,
    goes_on_alike,
    judge_last_step,
    judge_steps,
    where,
)
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject, Subject
from gpudiag.model.finding import Finding, Outcome, worst_first
from gpudiag.model.measure import IncidentKind
from gpudiag.model.number_ranges import count_of, name_ranks
from gpudiag.model.reading import Missing
from gpudiag.model.training import KeptTensor, RankProof, RankStart, StrategyMeasurement
from gpudiag.reference.training import strategy_facts

# --- how the training began

# No launcher starts a strategy whose one process drives all workers.
_ONE_PROCESS_REMEDY = (
    "Check which GPUs the process may use: CUDA_VISIBLE_DEVICES, and `gpudiag list --sources all`."
)
_COUNT = "the framework's own count"
OPTIMIZER_STATE = "optimizer_state"
_FOREIGN = "foreign_tensors"
_KEPT = "elements that ranks keep"
# Ends of a rank that show nothing of the training.
_NOT_TESTED = (RANK_OUT_OF_GPU_MEMORY.code, RANK_SHORTAGE.code)


def judge_start(measurement: StrategyMeasurement) -> tuple[Finding, ...]:
    """Everything wrong before the first step."""
    if not measurement.starts:
        return ()
    found = (
        _judge_optimizer(measurement),
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
        finding = kinds.NOT_PARALLEL.finding(where(measurement, alone), message, evidence)
        if not strategy_facts()[measurement.strategy].one_process:
            return finding
        return finding.with_remedy(_ONE_PROCESS_REMEDY)
    if wanted.isdecimal() and stages and stages != {int(wanted)}:
        found = min(stage for stage in stages if stage is not None)
        evidence = Evidence("stage", found, limit=int(wanted), source=_COUNT)
        return kinds.SHARDING.finding(host, f"the engine runs ZeRO stage {found}, not {wanted}", evidence)
    if asked == 1:
        evidence = Evidence("workers", 1, source=_COUNT)
        return kinds.SINGLE_WORKER.finding(host, "it trained on one worker", evidence)
    return None


def _judge_optimizer(measurement: StrategyMeasurement) -> Finding | None:
    """The finding for optimizers that step other tensors than the model's parameters."""
    foreign = {
        start.rank: start.foreign_in_optimizer
        for start in measurement.starts
        if not isinstance(start.foreign_in_optimizer, Missing) and start.foreign_in_optimizer > 0
    }
    if not foreign:
        return None
    ranks, count = sorted(foreign), max(foreign.values())
    before = "fully_shard" if measurement.strategy == "fsdp2" else "the model was moved or wrapped"
    message = (
        f"the optimizer of {name_ranks(ranks)} steps {count_of(count, 'tensor')}"
        f" that {verb(range(count), 'is', 'are')} not the model's: it was created"
        f" before {before}, or for another model"
    )
    evidence = Evidence(_FOREIGN, count, limit=0, source="optimizer.param_groups")
    return kinds.UNMOVED.finding(where(measurement, ranks), message, evidence)


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
    rounded = {start.parameters_rounded_to for start in measurement.starts}
    if len(rounded) == 1 and None not in rounded:
        message = f"the model's parameters are rounded to {next(iter(rounded))} before the first step"
        step = Evidence("step", 0, source="before the first step")
        ranks = [start.rank for start in measurement.starts]
        return kinds.PARAMETERS.finding(where(measurement, ranks), message, step, remedy=ROUNDED_REMEDY)
    worst = max(fact.error or 0.0 for start in measurement.starts for fact in start.parameters)
    evidence = Evidence("difference", float(f"{worst:.3g}"), limit=0, source=BIT_FOR_BIT)
    message = f"{name_ranks(other)} {verb(other, 'does', 'do')} not begin with the parameters of rank 0"
    step = Evidence("step", 0, source="before the first step")
    return kinds.INITIAL_PARAMETERS.finding(where(measurement, other), message, evidence, step)


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
    message = (
        f"{name_ranks(odd)} {verb(odd, 'holds', 'hold')} different buffers from the"
        f" others {when}: {', '.join(names[:4])}"
    )
    evidence = Evidence("buffers", len(names), limit=0, source=BIT_FOR_BIT)
    return kinds.BUFFERS_DIFFER.finding(where(measurement, odd), message, evidence)


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
    return kinds.SHARDING.finding(HostSubject(measurement.host), message, evidence)


def _judge_optimizer_shards(measurement: StrategyMeasurement) -> Finding | None:
    if not measurement.proofs:
        return None
    here = {proof.rank: proof.optimizer_state_here for proof in measurement.proofs}
    if not any(here.values()):
        return None  # no optimizer has made a step: that is not for want of shards
    sharded = "optimizer" in strategy_facts()[measurement.strategy].shards
    whole = measurement.proofs[0].optimizer_state_whole
    return _judge_shards(measurement, OPTIMIZER_STATE, here, whole, sharded=sharded)


def _judge_gradient_shards(measurement: StrategyMeasurement) -> Finding | None:
    """The finding where every rank had all gradients at once, though each should keep only its part.

    One rank may have: ZeRO frees other ranks' gradients and keeps its own part until the last, large tensor
    of a small model is there too. Where nothing is split, every rank has.
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
    return kinds.SHARDING.finding(where(measurement, wrong), message, evidence)


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
    message = (
        f"{name_ranks(wrong)} {verb(wrong, 'keeps', 'keep')} {here[wrong[0]]} elements of {what}, of {whole}"
        f" in all{_describe_split(here[wrong[0]], whole, workers)}"
    )
    return kinds.SHARDING.finding(where(measurement, wrong), message, evidence)


def _describe_split(here: int, whole: int, workers: int) -> str:
    """How it is split, where not over all ranks: a clause for the message; else empty."""
    split = round(whole / here) if here else 0
    if here >= whole or split in (0, workers):
        return ": nothing is split" if here == whole else ""
    return f": split over groups of {split}, and not over all {workers}" if split > 1 else ""


def _first(measurement: StrategyMeasurement) -> RankStart:
    return min(measurement.starts, key=lambda start: start.rank)


# --- the whole run

# A straggler's median time until the collective is longer by this share of the median step.
STRAGGLER_SHARE = 0.2
STRAGGLER_FLOOR_SECONDS = 3e-3
_STRAGGLER_STEPS = 4

# These faults make every later number wrong.
_EXPLAINS_STEPS = (
    kinds.INITIAL_PARAMETERS.code,
    kinds.PARAMETERS.code,
    kinds.UNMOVED.code,
    kinds.BUFFERS_DIFFER.code,
    kinds.SAME_SAMPLES.code,
    kinds.NOT_COVERED.code,
    kinds.OTHER_SAMPLES.code,
)
_NAMED_PARTS = 3  # of a checkpoint
_MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError")

_ON_CPU_RANKS = "ranks on CPUs, with faults injected"

# No user's script runs here; one worker alone is no fault; ends in teardown and lateness have codes of
# their own in training.
_ELSEWHERE = (
    *(kinds.SINGLE_WORKER, kinds.SCRIPT_HUNG, kinds.SCRIPT_FAILED, RANK_TEARDOWN, RANK_LATE),
    *(kinds.PARAMETERS_SUMMED, kinds.GRADIENTS_LEFT_SUMMED, kinds.NOTHING_CROSSED, kinds.NOT_TRAINED),
)

__all__ = ["TRAINING_RUN_FINDINGS", "judge_training"]


# Of one strategy's run; a rank that is late to the steps is reported as a straggler.
TRAINING_RUN_FINDINGS = (
    *kinds.TRAINING_FINDINGS,
    *(kind for kind in RANK_FINDINGS if kind is not RANK_LATE),
    INJECT_NOT_FIRED,
)


def judge_training(measurement: StrategyMeasurement) -> tuple[Finding, ...]:
    """Everything wrong with one strategy's run, worst and most certain first: the first is the cause.

    No finding means that all planned steps were verified on every rank.
    """
    start, data = judge_start(measurement), judge_data(measurement) if measurement.starts else ()
    ends = _judge_ends(measurement)
    short = [found for found in map(host_shortage_in, ends) if found is not None]
    findings = [*ends, *start, *data] if not short else []
    if not any(finding.code in _EXPLAINS_STEPS for finding in (*start, *data)) and measurement.starts:
        repeats = any(finding.code == kinds.ORDER_REPEATS.code for finding in data)
        steps = judge_steps(measurement, epochs=1 if repeats else None)
        findings += [] if steps is None else [steps]
    findings = _in_time(findings, ends)
    if ends and not short:
        findings = [*judge_last_step(measurement), *findings]
    if not any(finding.outcome is Outcome.FAIL for finding in findings):
        findings += _judge_late(measurement) or _judge_proofs(measurement)
    findings += _judge_stragglers(measurement)
    findings += judge_injection(measurement.injected, measurement.host)
    if not any(finding.outcome in (Outcome.FAIL, Outcome.ERROR) for finding in findings):
        findings += _judge_completeness(measurement)
    ordered = worst_first(short or _without_consequences(findings))
    # A report has the findings of several strategies.
    return tuple(
        replace(finding, message=f"{measurement.strategy}: {finding.message}") for finding in ordered
    )


def _in_time(findings: list[Finding], ends: list[Finding]) -> list[Finding]:
    """The findings, with exceptions that ended ranks after faults of steps verified before."""
    raised = [finding for finding in ends if finding.code == RANK_RAISED.code]
    if len(raised) < len(ends) or not raised:
        return findings
    return [finding for finding in findings if finding not in raised] + raised


def _without_consequences(findings: list[Finding]) -> list[Finding]:
    """The findings without consequences of others: of parameters not broadcast, of a number not finite."""
    codes = {finding.code for finding in findings}
    if kinds.NOT_FINITE.code in codes:
        return [
            finding for finding in findings if finding.code in (kinds.NOT_FINITE.code, kinds.STRAGGLER.code)
        ]
    if kinds.TENSOR_NOT_STEPPED.code in codes:  # parameters without a step have no state
        findings = [
            finding for finding in findings if all(fact.name != OPTIMIZER_STATE for fact in finding.evidence)
        ]
    if any(fact.name == _FOREIGN for finding in findings for fact in finding.evidence):
        # The optimizer then has no state of the model's parameters, and its checkpoint none of their names.
        kept = [
            finding for finding in findings if finding.code not in (kinds.SHARDING.code, RANK_RAISED.code)
        ]
        return sorted(kept, key=lambda finding: finding.code != kinds.UNMOVED.code)  # before what it ended in
    if kinds.INITIAL_PARAMETERS.code in codes:
        return [finding for finding in findings if finding.code != kinds.BUFFERS_DIFFER.code]
    return findings


def _judge_ends(measurement: StrategyMeasurement) -> list[Finding]:
    """Findings about how ranks ended; lateness is judged by step times, not here."""
    incidents = tuple(one for one in measurement.incidents if one.kind is not IncidentKind.LATE)
    complete = _is_complete(measurement)
    findings = judge_incidents(incidents, complete=complete)
    return join_alike([_renamed(finding) for finding in findings], measurement.world_size)


def _renamed(finding: Finding) -> Finding:
    """The finding under training's own code, or with its exception's known meaning."""
    if not isinstance(finding.subject, RankSubject):
        return finding
    if finding.code == RANK_TEARDOWN.code:
        return kinds.TEARDOWN.finding(finding.subject, finding.message, *finding.evidence)
    facts = {fact.name: fact.value for fact in finding.evidence}
    if facts.get("exception") in _MEMORY_ERRORS:
        return kinds.OUT_OF_MEMORY.finding(finding.subject, finding.message, *finding.evidence)
    exception, text = str(facts.get("exception", "")), str(facts.get("message", ""))
    meaning = find_meaning(exception, text) if exception else None
    return finding if meaning is None else with_meaning(finding, meaning)


def _judge_late(measurement: StrategyMeasurement) -> list[Finding]:
    """Findings about the steps after the verified ones: they explain what follows from them."""
    late = judge_steps(replace(measurement, steps=measurement.late_steps))
    return [] if late is None else [late]


def _judge_proofs(measurement: StrategyMeasurement) -> list[Finding]:
    host = HostSubject(measurement.host)
    proofs = measurement.proofs
    findings = []
    if any(not proof.moved for proof in proofs):
        evidence = Evidence("moved", value=False, source="parameters before and after")
        findings.append(kinds.UNMOVED.finding(host, "the parameters are unchanged since the start", evidence))
    elif stuck := [proof for proof in proofs if not _falls(proof)]:
        before, after = stuck[0].loss_before, stuck[0].loss_after
        message = f"the loss over all samples went from {before} to {after}"
        evidence = Evidence("loss_after", str(after), limit=str(before), source="all samples")
        findings.append(kinds.LOSS_NOT_FALLING.finding(host, message, evidence))
    for proof in proofs:
        subject = next(
            (RankSubject(one.rank, one.host) for one in measurement.ranks if one.rank == proof.rank), host
        )
        checkpoint = _judge_checkpoint(proof, subject)
        findings += [] if checkpoint is None else [checkpoint]
        if proof.repeat_identical is False:
            evidence = Evidence("identical", value=False, source="the first steps once more, bit for bit")
            message = f"rank {proof.rank} got different bits when the first steps were repeated"
            findings.append(kinds.NOT_DETERMINISTIC.finding(subject, message, evidence))
    return join_alike(findings, measurement.world_size)


def _judge_checkpoint(proof: RankProof, subject: Subject) -> Finding | None:
    if proof.checkpoint_identical is False:
        lost = proof.checkpoint_lost
        named = ", ".join(lost[:_NAMED_PARTS]) or "its state"
        more = f" and {len(lost) - _NAMED_PARTS} more" if len(lost) > _NAMED_PARTS else ""
        evidence = Evidence("lost", len(lost), limit=0, source="what was written, and what was read back")
        message = f"rank {proof.rank} loaded different bits from a checkpoint: {named}{more}"
        return kinds.CHECKPOINT.finding(subject, message, evidence)
    if not goes_on_alike(proof):
        error: float | str = (
            "not finite" if proof.checkpoint_error is None else float(f"{proof.checkpoint_error:.3g}")
        )
        limit = float(f"{proof.tolerance_order:.3g}")
        evidence = Evidence(
            "error", error, limit=limit, source="the steps after a reload, over their movement"
        )
        message = f"rank {proof.rank} continued differently after reloading a checkpoint"
        return kinds.CHECKPOINT.finding(subject, message, evidence)
    return None


def _falls(proof: RankProof) -> bool:
    return (
        proof.loss_before is not None
        and proof.loss_after is not None
        and proof.loss_after < proof.loss_before
    )


def _judge_stragglers(measurement: StrategyMeasurement) -> list[Finding]:
    """Findings for ranks that reach the step's collectives later than the others, each by its own clock."""
    speeds = [speed for speed in measurement.speeds if speed.steps >= _STRAGGLER_STEPS]
    if len(speeds) < 2:
        return []
    findings = []
    step = median(time for speed in speeds for time in speed.step_seconds)
    limit = max(STRAGGLER_SHARE * step, STRAGGLER_FLOOR_SECONDS)
    for speed in speeds:
        others = median(one.own_seconds_p50 for one in speeds if one.rank != speed.rank)
        late = speed.own_seconds_p50 - others
        if late <= limit:
            continue
        host = next((one.host for one in measurement.ranks if one.rank == speed.rank), measurement.host)
        slow_data = speed.data_seconds > late / 2
        slow_work = speed.plain_seconds - median(one.plain_seconds for one in speeds) > late / 2
        cause = "data late" if slow_data else "compute late" if slow_work else "host late"
        evidence = (
            Evidence("late_by", round(late, 4), unit="s", limit=round(limit, 4), source="timed steps"),
            Evidence("step", round(step, 4), unit="s", source="timed steps"),
            Evidence("cause", cause, source="the rank's own data, step and plain step times"),
        )
        message = f"rank {speed.rank} keeps the others waiting {late * 1e3:.0f} ms per step ({cause})"
        findings.append(kinds.STRAGGLER.finding(RankSubject(speed.rank, host), message, *evidence))
    return findings


def _judge_completeness(measurement: StrategyMeasurement) -> list[Finding]:
    if _is_complete(measurement):
        return []
    verified = min((_steps_of(measurement, start.rank) for start in measurement.starts), default=0)
    evidence = Evidence("steps_verified", verified, limit=measurement.steps_planned, source="ranks")
    host = HostSubject(measurement.host)
    if measurement.timed_out:
        message = f"time ran out after {verified} of {measurement.steps_planned} steps"
        return [kinds.TIMED_OUT.finding(host, message, evidence)]
    message = f"{verified} of {measurement.steps_planned} steps were verified, and gpudiag found no reason"
    return [kinds.INCOMPLETE.finding(host, message, evidence)]


def _is_complete(measurement: StrategyMeasurement) -> bool:
    one_voice = strategy_facts()[measurement.strategy].one_voice
    workers = range(1 if one_voice else measurement.world_size)
    proved = {proof.rank for proof in measurement.proofs}
    return all(
        _steps_of(measurement, rank) == measurement.steps_planned and rank in proved for rank in workers
    )


def _steps_of(measurement: StrategyMeasurement, rank: int) -> int:
    return sum(step.rank == rank for step in measurement.steps)


_REPORTS = tuple(kind for kind in (*kinds.TRAINING_FINDINGS, *RANK_FINDINGS) if kind not in _ELSEWHERE)


@check(
    "train.ddp",
    title="a few steps of DDP give the results of a single process",
    needs=("training",),
    level=Level.QUICK,
    reports=_REPORTS,
    readings=("training",),
    confirmed=f"{_ON_CPU_RANKS}; {BOTH_GPUS}",
)
def train_ddp(context: Context) -> Judgement:
    """What is wrong with the training under DDP."""
    measured = [one for one in _measured(context) if one.strategy == "ddp"]
    return _judge(measured, "no training under DDP was run")


@check(
    "train.strategies",
    title="a few steps under every installed strategy give the results of a single process",
    needs=("training",),
    level=Level.STANDARD,
    reports=_REPORTS,
    readings=("training",),
    confirmed=f"{_ON_CPU_RANKS}; {BOTH_GPUS}",
)
def train_strategies(context: Context) -> Judgement:
    """What is wrong with the training under all strategies but DDP."""
    measured = [one for one in _measured(context) if one.strategy != "ddp"]
    return _judge(measured, "no other strategy is installed")


def _judge(measured: list[StrategyMeasurement], nothing: str) -> Judgement:
    if not measured:
        return does_not_apply(nothing)
    findings: list[Finding] = []
    for one in measured:
        # A machine with one GPU is healthy, and has nothing to average.
        found = [finding for finding in judge_training(one) if finding.code != kinds.SINGLE_WORKER.code]
        ends = without_shortages(judge_incidents(one.incidents, complete=_is_complete(one)))
        # A GPU that others hold is not tested, and not at fault.
        findings += [end for end in ends if end.code in _NOT_TESTED] or found
    return judged(*findings)


def _measured(context: Context) -> tuple[StrategyMeasurement, ...]:
    measured = context.measures.training
    assert not isinstance(measured, Missing)  # noqa: S101 - the need saw to it
    return measured
