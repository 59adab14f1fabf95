"""Ranks of a user's script that do not move, judged as any running job's; and who had fewer data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gpudiag.checks.job.groups import describe, group_alike
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.shorter_data import describe_counts
from gpudiag.checks.job.verdict import judge_positions
from gpudiag.checks.training.kinds import SCRIPT_HUNG, TIMED_OUT
from gpudiag.checks.training.script_positions import OUTSIDE, positions_by_reports, waits
from gpudiag.model.evidence import Evidence, HostSubject, Subject, about_ranks, ranks_of
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job import Job
from gpudiag.model.job_state import JobState
from gpudiag.model.script import OWN_STACKS, OwnLook

_SHOWN_GROUPS = 4


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """After how long without movement a run is ended, and after how long of waiting for a worker."""

    hang_seconds: float
    patience_seconds: float


def judge_hang(
    still: Mapping[int, OwnLook],
    working: Mapping[int, OwnLook],
    finished: Mapping[int, int],
    hosts: Mapping[int, str],
    limits: ScriptLimits,
    outside: Job | None = None,
) -> Finding:
    """The finding for ranks that wait without end, by rank; `finished`: pids; `outside`: py-spy's look."""
    since = limits.patience_seconds if working else limits.hang_seconds
    positions = positions_by_reports(still, working, finished, hosts, since, outside)
    facts = _describe_groups(positions)
    end = f"nothing has moved for {limits.hang_seconds:.0f} s (--hang-after)"
    seen = tuple(one.seen for one in positions)
    records = tuple(
        replace(one.record, rank=rank) for rank, one in sorted(still.items()) if one.record is not None
    )
    state = JobState(records=records) if records else None
    job = Job("script", hosts[min(hosts)], "gpudiag", None, len(seen), None, seen, state=state)
    found = judge_positions(job, positions, _limits_of_job(limits))
    blamed = [one for one in found if one.outcome is Outcome.FAIL] or found
    message = "; ".join(one.message for one in blamed[:2]) or "; ".join(map(describe, group_alike(positions)))
    named = [ranks_of(one.subject) for one in blamed]
    ranks = tuple(rank for some in named for rank in some) if all(named) else ()
    is_seen = all(one.seen.last.stacks != OWN_STACKS for one in positions)
    for one in blamed[:2]:
        facts.append(Evidence("kind", one.code, source=OUTSIDE if is_seen else OWN_STACKS))
        facts += one.evidence
    remedy = next((one.remedy for one in blamed if one.outcome is Outcome.FAIL), "") or SCRIPT_HUNG.remedy
    if working:
        remedy = f"If this work is expected, allow more time: `--hang-after SECONDS`. {remedy}"
    return SCRIPT_HUNG.finding(
        _subject(ranks, hosts),
        message if working else f"{message}; {end}",
        *facts,
        remedy=remedy,
    )


def _subject(ranks: Sequence[int], hosts: Mapping[int, str]) -> Subject:
    theirs = {hosts[rank] for rank in ranks}
    return about_ranks(ranks, theirs.pop() if len(theirs) == 1 else hosts[min(hosts)])


def _limits_of_job(limits: ScriptLimits) -> HangLimits:
    """The judge's limits: what has not moved for --hang-after has stood still long enough."""
    usual = HangLimits()
    seconds = {
        one.name: min(getattr(usual, one.name), limits.hang_seconds)
        for one in fields(usual)
        if isinstance(one.default, float)
    }
    times = limits.patience_seconds / limits.hang_seconds
    return replace(
        usual, **{**seconds, "work": limits.patience_seconds}, work_flag=f"{times:.0f} times --hang-after"
    )


def judge_late(
    seconds: float, still: Mapping[int, OwnLook], finished: Mapping[int, int], host: str
) -> Finding:
    """The finding for a script that ran out of time; `still` are the ranks that stood still then."""
    ended = Evidence("ranks_ended", len(finished), source="ranks")
    message = f"the script had not ended after {seconds:.1f} s, when its time ran out"
    positions = positions_by_reports(still, {}, finished, dict.fromkeys((*still, *finished), host), 0.0)
    return TIMED_OUT.finding(HostSubject(host), message, ended, *_describe_groups(positions))


def describe_wait(positions: Sequence[Position]) -> str:
    """Which ranks wait where, and which work where meanwhile: a sentence without its full stop."""
    groups = group_alike(positions)
    waiting = [describe(group) for group in groups if waits(group.head)]
    others = [describe(group) for group in groups if not waits(group.head)]
    return f"{'; '.join(waiting)}, while {'; '.join(others)}"


def _describe_groups(positions: Sequence[Position]) -> list[Evidence]:
    """Where the ranks are, the smallest groups first, and how far those came that count."""
    facts: list[Evidence] = []
    groups = group_alike(positions)[:_SHOWN_GROUPS]
    for group in groups:
        own = group.head.call.own
        place = f"{own.file}:{own.line} in {own.function}" if own is not None else group.head.words
        facts.append(Evidence(group.name, place, source=group.head.read_by))
    return facts + describe_counts(groups)
