"""Checks of active tests as such: did every rank finish, was every GPU tested, was all data right?"""

from collections.abc import Collection
from functools import partial

from gpudiag.checks.gpu.holders import describe_holders, own_pids
from gpudiag.checks.ranks.collective import PLANNED_FINDINGS, judge_collective
from gpudiag.checks.ranks.incidents import RANK_FINDINGS, judge_incidents
from gpudiag.checks.ranks.measured_speeds import device_of
from gpudiag.checks.ranks.own_ranks import without_shortages
from gpudiag.checks.registry import (
    BOTH_GPUS,
    ONE_H100,
    Basis,
    FindingKind,
    Judgement,
    Level,
    check,
    could_not_look,
    in_use,
    judged,
)
from gpudiag.checks.subjects import name_device
from gpudiag.model.active import COPIES, NOT_TESTED, ActiveMeasurement
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, RankSubject
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import Missing, MissingReason

ON_CPU_RANKS = "ranks on CPUs, with faults injected"
_kind = partial(
    FindingKind,
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
)
COPY_CORRUPTED = _kind(
    code="bandwidth.corrupted",
    category=Category.HW_MEMORY,
    meaning="A copy holds different data from its source, and nothing reported an error.",
    remedy=(
        "[hardware] Keep this GPU out of jobs; look for ECC and PCIe errors"
        " (`gpudiag list --wide`), then have it replaced."
    ),
    basis=Basis(
        reads="Every byte of a copy, compared with its source on the device.",
        limit="No byte may differ.",
        look_also=(
            "gpudiag list --wide",
            "gpudiag preflight --level long",
            "ecc.uncorrected_volatile",
            "dmesg -T | grep -i -e xid -e aer",
        ),
    ),
)


@check(
    "collective.all_reduce",
    title="an all-reduce over all ranks gives exactly the right data",
    needs=("collective",),
    level=Level.QUICK,
    reports=PLANNED_FINDINGS,
    readings=("collective",),
    confirmed=f"{ON_CPU_RANKS}; NCCL with one rank, and two of one GPU, on {ONE_H100}",
)
def collective_all_reduce(context: Context) -> Judgement:
    """Everything wrong with the all-reduce; PASS only where every planned size was verified."""
    measured = context.measures.collective
    assert not isinstance(measured, Missing)  # noqa: S101 - the need saw to it
    return judged(*judge_collective(measured))


@check(
    "active.ranks",
    title="every rank completes the active tests",
    needs=("active",),
    level=Level.QUICK,
    reports=RANK_FINDINGS,
    readings=("active",),
    confirmed=f"{ON_CPU_RANKS}; {BOTH_GPUS}",
)
def active_ranks(context: Context) -> Judgement:
    """A finding for each rank that failed; ERROR for tests not done that no failed rank explains."""
    measured = active_of(context)
    if not measured.tests:
        return could_not_look("no active test was planned")
    not_done = [test for test in measured.tests if test not in measured.done]
    findings = without_shortages(judge_incidents(measured.incidents, complete=not not_done))
    explained = any(finding.outcome in (Outcome.FAIL, Outcome.ERROR) for finding in findings)
    if explained or not not_done:
        return judged(*findings)
    late = ", because time ran out" if measured.timed_out else ""
    return Judgement(Outcome.ERROR, findings, f"not done{late}: {', '.join(not_done)}")


@check(
    "active.coverage",
    title="every GPU was free and was tested",
    needs=("active",),
    level=Level.QUICK,
    reports=(),
    readings=("active",),
    confirmed=f"{ON_CPU_RANKS}; {BOTH_GPUS}",
)
def active_coverage(context: Context) -> Judgement:
    """SKIP that names each GPU left untested, or tested beside others, and why.

    It is ERROR where no test was finished.
    """
    measured = active_of(context)
    hint = " (--force tests GPUs in use)"
    left_out = [
        f"{one.name}: {one.reason}{hint if one.in_use else ''}"
        for one in measured.untested
        if one.in_use or one.full
    ]
    tests = list(dict.fromkeys(one.test for one in measured.not_tested))
    left_out += filter(None, (why_not_tested(context, tests),))
    others = [f"{one.name}: {one.reason}" for one in measured.untested if not (one.in_use or one.full)]
    if left_out:
        return in_use(f"{NOT_TESTED}: {'; '.join((*left_out, *others))}")
    if measured.shared:
        beside = "; ".join(f"{one.name}: {one.reason}" for one in measured.shared)
        return in_use(f"{NOT_TESTED} for speed, because others use it: {beside}")
    if others:
        words = f"left out: {'; '.join(others)}"
        return Judgement(Outcome.SKIP, reason=words, missing_reason=MissingReason.NOT_ASKED)
    return judged() if measured.done else could_not_look("no active test was completed on every rank")


@check(
    "bandwidth.data",
    title="every copy holds the data that was copied",
    needs=("active",),
    level=Level.QUICK,
    reports=(COPY_CORRUPTED,),
    readings=("active.bandwidth",),
    confirmed=f"{ON_CPU_RANKS}; {BOTH_GPUS}",
)
def bandwidth_data(context: Context) -> Judgement:
    """FAIL for each rank whose copies differ from what was copied; ERROR where a rank's were not compared."""
    measured = active_of(context)
    worst: dict[int, tuple[str, int]] = {}
    for result in measured.bandwidth:
        if result.wrong_bytes:
            worst.setdefault(result.rank, (result.test, result.wrong_bytes))
    compared = {(result.test, result.rank) for result in measured.bandwidth}
    compared |= {(one.test, one.rank) for one in measured.not_tested if one.test in COPIES}
    planned = sum(test in COPIES for test in measured.tests) * measured.world_size
    if not worst and (not compared or len(compared) < planned):
        return could_not_look("not every rank's copies were compared")
    if not worst and not measured.bandwidth:
        return in_use(f"{NOT_TESTED}: {why_not_tested(context, COPIES)}")
    findings = (
        COPY_CORRUPTED.finding(
            RankSubject(rank, measured.host),
            f"rank {rank}: {wrong} bytes differ after {test.replace('_', ' ')}",
            Evidence("wrong_bytes", wrong, "bytes", 0, "comparison with the source"),
        )
        for rank, (test, wrong) in sorted(worst.items())
    )
    return judged(*findings)


def why_not_tested(context: Context, tests: Collection[str]) -> str | None:
    """Why some GPUs were left out of these tests: the test, the GPU, its memory, and who holds the rest.

    It is None where all of these tests ran on all GPUs.
    """
    left_out = [one for one in active_of(context).not_tested if one.test in tests]
    if not left_out:
        return None
    first = left_out[0]
    device = device_of(context.snapshot, first.device_uuid)
    name = f"rank {first.rank}" if device is None else name_device(device)
    who = (
        ""
        if device is None
        else describe_holders(device, context.snapshot.taken_at, own_pids(context.measures))
    )
    named = dict.fromkeys(one.test.replace("_", " ") for one in left_out)
    more = len({one.rank for one in left_out}) - 1
    others = f", and {count_of(more, 'GPU')} more" if more else ""
    return f"{name}{others}: {', '.join(named)}: {first.reason}{'; ' if who else ''}{who}"


def has_all(context: Context, test: str, ranks: Collection[int]) -> bool:
    """Whether that test has a result, or a reason for none, of every rank.

    `ranks` are those with a result.
    """
    measured = active_of(context)
    without = {one.rank for one in measured.not_tested if one.test == test}
    return len({*ranks, *without}) >= measured.world_size


def active_of(context: Context) -> ActiveMeasurement:
    """What the active tests measured; the need `active` makes sure that it is there."""
    measured = context.measures.active
    assert not isinstance(measured, Missing)  # noqa: S101 - the runner answers for the need
    return measured
