"""Judge the training of a user's script: averaged, finite, each rank with its own samples, in new orders."""

from collections.abc import Iterator, Mapping
from itertools import combinations

from gpudiag.checks.training import kinds
from gpudiag.checks.training.kinds import verb
from gpudiag.model.evidence import Evidence, HostSubject, about_ranks
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.script import ScriptFacts
from gpudiag.model.training import ScriptResult, Verification

_SOURCE = "hooks in the script's ranks"
_BITS = "bit for bit, over ranks"
# How many equal samples two ranks may have by chance, where each rank's own samples all differ.
_SHARED_BY_CHANCE = 2
_SHARED_ON_PURPOSE = 0.5
_DISTINCT = 0.9
_MOST_SETTINGS = 4
_OVER_RANKS = frozenset(("gradients_crossed", "parameters_alike", "own_samples"))
_SAME_PART_REMEDY = (
    "Give the DistributedSampler this rank: num_replicas=dist.get_world_size(), rank=dist.get_rank(),"
    " and create it after init_process_group."
)
_SAMPLER_REMEDY = "Let the sampler that is there give each rank a part of its own, by dist.get_rank()."

Facts = Mapping[int, ScriptFacts]


def judge_proof(
    facts: Facts, script: ScriptResult, host: str, *, ended_well: bool
) -> tuple[tuple[Finding, ...], tuple[Verification, ...]]:
    """Everything wrong with the ranks' training, and the list of what was looked at.

    `facts` are each rank's latest. Both are empty for ranks that never joined, or did not report. One rank
    has nothing to average: its losses and orders are judged, and whether it trained at all.
    """
    is_alone = script.world_size == 1
    joined = is_alone or all(size == script.world_size for size in script.group_world_sizes)
    if not joined or set(facts) != set(range(script.world_size)):
        return (), ()
    found = [*_judge_losses(facts, script, host)]
    if not is_alone:
        found += [*_judge_sums(facts, host), *_judge_parameters(facts, host), *_judge_samples(facts, host)]
    found += _judge_orders(facts, host)
    if is_alone and not found and ended_well and not any(_trains(one) for one in facts.values()):
        evidence = Evidence("optimizer_steps", 0, source=_SOURCE)
        message = (
            "no backward pass ran, and no optimizer of torch made a step: nothing of a training was seen"
        )
        found.append(kinds.NOT_TRAINED.finding(HostSubject(host), message, evidence))
    elif not is_alone and not found and ended_well and not any(_crosses(one) for one in facts.values()):
        trained = max(one.steps for one in facts.values())
        evidence = Evidence("optimizer_steps", trained, source=_SOURCE)
        what = f"{trained} steps were made" if trained else "no optimizer of torch made a step"
        message = (
            "a process group was opened, but no gradient was averaged over it"
            f" ({what}): the training is not proved"
        )
        found.append(kinds.NOTHING_CROSSED.finding(HostSubject(host), message, evidence))
    found.sort(key=lambda finding: finding.outcome is not Outcome.FAIL)
    listed = _list(facts, {finding.code for finding in found})
    return tuple(found), tuple(one for one in listed if not (is_alone and one.name in _OVER_RANKS))


def _trains(one: ScriptFacts) -> bool:
    return one.steps > 0 or one.backwards > 0


def _crosses(one: ScriptFacts) -> bool:
    return one.forwards > 0 or one.crossed > 0 or one.sharded


def _judge_losses(facts: Facts, script: ScriptResult, host: str) -> Iterator[Finding]:
    bad = {rank: one.not_finite_backward for rank, one in facts.items() if one.not_finite_backward}
    if not bad:
        return
    first = min(bad.values())
    ranks = [rank for rank, number in bad.items() if number == first]
    hosts = {report.rank: report.host for report in script.ranks}
    theirs = {hosts.get(rank, host) for rank in ranks}
    subject = about_ranks(ranks, theirs.pop() if len(theirs) == 1 else host)
    message = f"the loss of {name_ranks(ranks)} is not finite in backward pass {first}"
    yield kinds.NOT_FINITE.finding(subject, message, Evidence("backward", first, source=_SOURCE))


def _judge_sums(facts: Facts, host: str) -> Iterator[Finding]:
    workers = len(facts)
    for what, kind in (("parameters", kinds.PARAMETERS_SUMMED), ("gradients", kinds.GRADIENTS_LEFT_SUMMED)):
        if all(one.summed == what for one in facts.values()):
            message = (
                f"{what} are added up over the {workers} ranks by all_reduce, and not divided by {workers}"
            )
            yield kind.finding(HostSubject(host), message, Evidence("summed", what, source=_SOURCE))


def _judge_parameters(facts: Facts, host: str) -> Iterator[Finding]:
    """The finding for the first look at which ranks hold different parameters and should not."""
    step = _first_difference(facts)
    if step is None or any(one.sharded for one in facts.values()):
        return
    evidence = (
        Evidence("step", step, source=_SOURCE),
        Evidence("digests", len({_look_at(one, step) for one in facts.values()}), limit=1, source=_BITS),
    )
    when = f"after step {step}" if step else "before the first step"
    apart = f"the ranks hold different parameters {when} of their optimizer"
    if all(one.wrapped and not one.forwards for one in facts.values()):
        message = f"{apart}: a model was wrapped in DDP, and the wrapped one was never called"
        yield kinds.NOT_AVERAGED.finding(HostSubject(host), message, *evidence)
    elif not any(_crosses(one) for one in facts.values()):
        message = f"{apart}: no gradient was averaged over the process group: each rank trains by itself"
        yield kinds.NOT_AVERAGED.finding(HostSubject(host), message, *evidence)
    elif all(one.forwards for one in facts.values()):
        yield _judge_wrapped(facts, host, apart, step, evidence)


_LOADED_REMEDY = (
    "Load a checkpoint on every rank, and before DDP wraps the model: DDP broadcasts rank 0's"
    " parameters when it wraps, and never again."
)
_SYNC_REMEDY = "Let the last forward and backward pass before each step be outside of no_sync()."


def _judge_wrapped(facts: Facts, host: str, apart: str, step: int, evidence: tuple[Evidence, ...]) -> Finding:
    """The finding for ranks with different parameters though DDP's model is called, by signs beside it."""
    subject = HostSubject(host)
    if all(one.steps and one.unsynchronized >= one.steps for one in facts.values()):
        message = (
            f"{apart}: the last pass before every step is inside no_sync(),"
            " and its gradients are not averaged"
        )
        return kinds.NOT_AVERAGED.finding(subject, message, *evidence, remedy=_SYNC_REMEDY)
    if step == 0:
        message = (
            f"{apart}: they were changed on some ranks after DDP had wrapped the model,"
            " as by a checkpoint that one rank loads"
        )
        return kinds.INITIAL_PARAMETERS.finding(subject, message, *evidence, remedy=_LOADED_REMEDY)
    others = _other_settings(facts)
    why = f", and their optimizers differ: {others}" if others else ""
    return kinds.RANKS_DIFFER.finding(subject, f"{apart}, though DDP averages the gradients{why}", *evidence)


def _other_settings(facts: Facts) -> str:
    """The optimizers' settings that not all ranks have, with the ranks that have each."""
    shared = set.intersection(*(set(one.settings) for one in facts.values()))
    holders: dict[str, list[int]] = {}
    for rank, one in sorted(facts.items()):
        for setting in one.settings:
            if setting not in shared:
                holders.setdefault(setting, []).append(rank)
    return "; ".join(
        f"{setting} on {name_ranks(ranks)}" for setting, ranks in [*holders.items()][:_MOST_SETTINGS]
    )


def _first_difference(facts: Facts) -> int | None:
    """The step of the first look that shows other bits in parameters of the same shapes."""
    looks = [
        {name: (step, shapes, bits) for name, step, shapes, bits in one.parameters} for one in facts.values()
    ]
    shared = [name for name in looks[0] if all(name in one for one in looks)]
    for name in shared:
        alike_in_shape = len({one[name][1] for one in looks}) == 1
        if alike_in_shape and len({one[name][2] for one in looks}) > 1:
            return looks[0][name][0]
    return None


def _look_at(one: ScriptFacts, step: int) -> str:
    return next((bits for _, number, _, bits in one.parameters if number == step), "")


def _is_replicated(facts: Facts) -> bool:
    """Whether every rank trains the same model, so that it should have samples of its own."""
    return all(one.forwards or (one.parameters and not one.sharded) for one in facts.values()) and (
        all(one.forwards for one in facts.values()) or _first_difference(facts) is None
    )


def _judge_samples(facts: Facts, host: str) -> Iterator[Finding]:
    workers = len(facts)
    shares = {rank: one.share for rank, one in facts.items() if one.share is not None}
    if len(shares) == workers and len(set(shares.values())) < workers:
        part = next(iter(shares.values()))
        message = (
            f"the samplers of {name_ranks(list(shares))} do not split the data: part"
            f" {part[0]} of {part[1]} is read twice"
        )
        evidence = Evidence("parts", len(set(shares.values())), limit=workers, source=_SOURCE)
        yield kinds.SAME_SAMPLES.finding(HostSubject(host), message, evidence, remedy=_SAME_PART_REMEDY)
        return
    shared = 0 if len(shares) == workers or not _is_replicated(facts) else _shared_samples(facts)
    if shared:
        ranks = sorted(facts)
        message = (
            f"{name_ranks(ranks)} {verb(ranks, 'reads', 'read')} the same samples: {shared} of"
            " the first are on several of them"
        )
        facts_of_it = (
            Evidence("shared_samples", shared, limit=0, source=_SOURCE),
            Evidence(
                "sampler", ", ".join(sorted({str(one.sampler) for one in facts.values()})), source=_SOURCE
            ),
        )
        placed = all(one.sampler != "whole" for one in facts.values())
        yield kinds.SAME_SAMPLES.finding(
            HostSubject(host), message, *facts_of_it, remedy=_SAMPLER_REMEDY if placed else ""
        )


def _shared_samples(facts: Facts) -> int:
    """How many samples two ranks have in common, of those that had most; 0 where chance explains them."""
    most = 0
    for first, second in combinations(facts.values(), 2):
        own, others = set(first.samples), set(second.samples)
        few = min(len(own), len(others))
        if few == 0 or len(own) < _DISTINCT * len(first.samples):
            continue  # its own samples repeat, so equal ones prove nothing
        common = len(own & others)
        whole = first.sampler == second.sampler == "whole"
        if (whole and common > _SHARED_BY_CHANCE) or common >= max(
            _SHARED_BY_CHANCE, _SHARED_ON_PURPOSE * few
        ):
            most = max(most, common)
    return most


def _judge_orders(facts: Facts, host: str) -> Iterator[Finding]:
    repeated = max(one.repeated_epochs for one in facts.values())
    if repeated:
        epochs = max(one.epochs for one in facts.values())
        message = f"{repeated + 1} of {epochs} epochs read the samples in one and the same order"
        evidence = Evidence("repeated_epochs", repeated, limit=0, source=_SOURCE)
        yield kinds.ORDER_REPEATS.finding(HostSubject(host), message, evidence)


def _list(facts: Facts, codes: set[str]) -> Iterator[Verification]:
    """Everything that is looked at in a script, with the reason where it could not be."""
    looked = sorted(set.intersection(*({step for _, step, _, _ in one.parameters} for one in facts.values())))
    backwards = min(one.backwards for one in facts.values())
    crosses = all(_crosses(one) for one in facts.values())
    yield Verification("gradients_crossed", crosses)
    differ = _first_difference(facts) is not None
    wrong = bool({kinds.NOT_AVERAGED.code, kinds.RANKS_DIFFER.code, kinds.INITIAL_PARAMETERS.code} & codes)
    same: Reading[bool] = not wrong
    if any(one.sharded for one in facts.values()):
        same = _not_seen("every rank keeps its part of them")
    elif not looked:
        same = _not_seen("no optimizer of torch made a step")
    elif differ and not wrong:
        same = _not_seen("they differ on every rank, and the script averages gradients in its own way")
    yield Verification(
        "parameters_alike",
        same,
        float(len(looked)) if looked else Missing(MissingReason.NOT_ASKED, "they were not compared"),
    )
    yield Verification(
        "losses_finite", kinds.NOT_FINITE.code not in codes if backwards else _not_seen("no backward pass")
    )
    samples: Reading[bool] = kinds.SAME_SAMPLES.code not in codes
    if any(one.sampler is None for one in facts.values()):
        samples = _not_seen("no loader of torch fed the training")
    elif samples and not all(one.samples or one.share for one in facts.values()):
        samples = _not_seen("batches hold no tensors")
    elif samples and not _is_replicated(facts):
        samples = _not_seen("ranks do not train one and the same model")
    yield Verification("own_samples", samples)
    epochs = min(one.epochs for one in facts.values())
    orders: Reading[bool] = kinds.ORDER_REPEATS.code not in codes
    yield Verification(
        "order_changes",
        orders if epochs > 1 else _not_seen("fewer than two epochs of a sampler that shuffles"),
    )


def _not_seen(detail: str) -> Missing:
    return Missing(MissingReason.NOT_ASKED, detail)
