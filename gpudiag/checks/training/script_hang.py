"""Ranks of a user's script that do not move, judged as those of any running job; and which of them had fewer data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gpudiag.checks.job.groups import describe, group_alike
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.verdict import judge_positions
from gpudiag.checks.training.kinds import SCRIPT_HUNG, TIMED_OUT, verb
from gpudiag.checks.training.script_positions import OUTSIDE, OWN_REPORT, find_positions, waits
from gpudiag.model.evidence import Evidence, HostSubject, Subject, about_ranks, ranks_of
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job import Job
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.script import ScriptPlace
from gpudiag.reference.waits import FOR_OTHERS

_SHOWN_GROUPS = 4
_THE_END = "the script's end"


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """After how long without any movement a run is ended, and after how long of waiting for ranks that work."""

    hang_seconds: float
    patience_seconds: float


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks at one place; `at` is what the first of them reported, None at the script's end."""

    place: str
    ranks: tuple[int, ...]
    at: ScriptPlace | None

    @property
    def progress(self) -> tuple[int, int]:
        """How many batches these ranks have had, and how many steps they have begun."""
        return (self.at.batches, self.at.steps) if self.at else (0, 0)


def judge_hang(
    still: Mapping[int, ScriptPlace],
    working: Mapping[int, ScriptPlace],
    finished: Sequence[int],
    hosts: Mapping[int, str],
    limits: ScriptLimits,
    outside: Job | None = None,
) -> Finding:
    """The finding for ranks that wait without end; `still`, `working` and `hosts` are by rank, `outside` is a look at them by py-spy."""
    facts = _describe_groups(_group(still, working, finished))
    end = f"nothing has moved for {limits.hang_seconds:.0f} s (--hang-after)"
    short = _find_short(still) if not (working or finished) else None
    if short is not None:
        ranks, message = short
        return SCRIPT_HUNG.finding(_subject(ranks, hosts), f"{message}; {end}", *facts, remedy=_SHORT_REMEDY)
    since = limits.patience_seconds if working else limits.hang_seconds
    positions = find_positions(still, working, finished, hosts, since, outside)
    seen = tuple(one.seen for one in positions)
    job = Job("script", hosts[min(hosts)], "gpudiag", None, len(seen), None, seen)
    found = judge_positions(job, positions, _limits_of_job(limits))
    blamed = [one for one in found if one.outcome is Outcome.FAIL] or found
    message = "; ".join(one.message for one in blamed[:2]) or "; ".join(map(describe, group_alike(positions)))
    named = [ranks_of(one.subject) for one in blamed]
    ranks = tuple(rank for some in named for rank in some) if all(named) else ()
    is_seen = all(one.seen.last.stacks != OWN_REPORT for one in positions)
    for one in blamed[:2]:
        facts.append(Evidence("kind", one.code, source=OUTSIDE if is_seen else OWN_REPORT))
        facts += one.evidence if is_seen else ()
    remedy = f"If this work is expected, allow more time: `--hang-after SECONDS`. {SCRIPT_HUNG.remedy}"
    return SCRIPT_HUNG.finding(
        _subject(ranks, hosts),
        message if working else f"{message}; {end}",
        *facts,
        remedy=remedy if working else "",
    )


def _subject(ranks: Sequence[int], hosts: Mapping[int, str]) -> Subject:
    theirs = {hosts[rank] for rank in ranks}
    return about_ranks(ranks, theirs.pop() if len(theirs) == 1 else hosts[min(hosts)])


def _limits_of_job(limits: ScriptLimits) -> HangLimits:
    """The judge's limits: what has not moved for --hang-after has stood still for long enough, whatever it does."""
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
    seconds: float, still: Mapping[int, ScriptPlace], finished: Sequence[int], host: str
) -> Finding:
    """The finding for a script that ran out of time; `still` are the ranks that stood still then."""
    ended = Evidence("ranks_ended", len(finished), source="ranks")
    message = f"the script had not ended after {seconds:.1f} s, when its time ran out"
    return TIMED_OUT.finding(
        HostSubject(host), message, ended, *_describe_groups(_group(still, {}, finished))
    )


def describe_wait(still: Mapping[int, ScriptPlace], working: Mapping[int, ScriptPlace]) -> str:
    """Which ranks wait where, and which work where meanwhile: a sentence without its full stop."""
    groups = group_alike(find_positions(still, working, (), dict.fromkeys((*still, *working), ""), 0.0))
    waiting = [describe(group) for group in groups if waits(group.head)]
    others = [describe(group) for group in groups if not waits(group.head)]
    return f"{'; '.join(waiting)}, while {'; '.join(others)}"


def _group(
    still: Mapping[int, ScriptPlace], working: Mapping[int, ScriptPlace], finished: Sequence[int]
) -> list[_Group]:
    """The places with the ranks at each, the smallest groups first."""
    reports = {**working, **still}
    ranks: dict[str, list[int]] = {}
    for rank in sorted(reports):
        ranks.setdefault(reports[rank].place, []).append(rank)
    groups = [_Group(place, tuple(here), reports[here[0]]) for place, here in ranks.items()]
    if finished:
        groups.append(_Group(_THE_END, tuple(sorted(finished)), None))
    return sorted(groups, key=lambda group: (len(group.ranks), group.ranks))


def _find_short(still: Mapping[int, ScriptPlace]) -> tuple[tuple[int, ...], str] | None:
    """The ranks that had fewer batches, and a sentence, where all wait for others and only that differs."""
    if not all(place.awaited in FOR_OTHERS for place in still.values()):
        return None
    groups = _group(still, {}, ())
    odd, most = min(groups, key=lambda group: group.progress), max(groups, key=lambda group: group.progress)
    if odd.progress >= most.progress or odd.at is None or most.at is None:
        return None
    had, more = odd.progress[0], most.progress[0]
    one, several = ("batch", "batches") if had != more else ("step", "steps")
    if had == more:
        had, more = odd.progress[1], most.progress[1]
    return odd.ranks, (
        f"{name_ranks(odd.ranks)} had {had} {one if had == 1 else several} and {verb(odd.ranks, 'waits', 'wait')} at "
        f"{odd.place} ({odd.at.awaited_words}), while {name_ranks(most.ranks)} {verb(most.ranks, 'is', 'are')} in {one} {more}, at "
        f"{most.place} ({most.at.awaited_words}): the data of {name_ranks(odd.ranks)} is shorter"
    )


_SHORT_REMEDY = (
    "Give every rank the same number of batches: drop_last=True in its sampler and its loader, or a fixed number of steps, "
    "or wrap the loop in `torch.distributed.algorithms.join.Join`."
)


def _describe_groups(groups: Sequence[_Group]) -> list[Evidence]:
    shown = groups[:_SHOWN_GROUPS]
    facts = [Evidence(name_ranks(group.ranks), group.place, source=OWN_REPORT) for group in shown]
    counts = {group.progress for group in shown if group.at is not None}
    for group in shown:
        named, at = name_ranks(group.ranks), group.at
        if at is None:
            continue
        if at.stack and at.stack[0] != group.place:
            facts.append(Evidence(f"innermost frame of {named}", at.stack[0], source=OWN_REPORT))
        if at.call:
            facts.append(Evidence(f"call of {named}", at.call, source=OWN_REPORT))
        if at.in_kernel:
            facts.append(Evidence(f"kernel wait of {named}", at.in_kernel, source="/proc/PID/wchan"))
        if len(counts) > 1 and any(batches for batches, _ in counts):
            facts.append(Evidence(f"batches of {named}", at.batches, source="data loader"))
        if len(counts) > 1:
            facts.append(Evidence(f"steps of {named}", at.steps, source="torch.autograd"))
    return facts
