"""Ranks of a user's script that do not move, judged: which ranks wait, for which ranks, and which had fewer data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpudiag.checks.job import position as at
from gpudiag.checks.training.kinds import SCRIPT_HUNG, TIMED_OUT, verb
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job import JobVerdict, Place
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.script import ScriptPlace
from gpudiag.reference.waits import FOR_OTHERS

_STACKS = "Python stacks"
_SHOWN_GROUPS = 4
_OUTSIDE = "py-spy and /proc"
# Kinds of a place that say what a rank waits for, and that this is no other rank.
_TELLING = frozenset(
    (
        *(at.LOADER, at.FILE, at.LOCK, at.DATABASE, at.NETWORK, at.PROGRAM, at.QUEUE, at.SLEEP),
        *(at.CHECKPOINT, at.DEBUGGER, at.TERMINAL, at.STOPPED, at.EXITING),
    )
)
_THE_END = "the script's end"


@dataclass(frozen=True, slots=True)
class HangLimits:
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
    def waits(self) -> bool:
        """Whether these ranks wait for others."""
        return self.at is not None and self.at.work is None and self.at.awaited in FOR_OTHERS

    @property
    def progress(self) -> tuple[int, int]:
        """How many batches these ranks have had, and how many steps they have begun."""
        return (self.at.batches, self.at.steps) if self.at else (0, 0)


def judge_hang(
    still: Mapping[int, ScriptPlace],
    working: Mapping[int, ScriptPlace],
    finished: Sequence[int],
    hosts: Mapping[int, str],
    limits: HangLimits,
) -> Finding:
    """The finding for ranks that wait without end; `still`, `working` and `hosts` are by rank."""
    groups = _group(still, working, finished)
    facts = _describe_groups(groups)
    host = HostSubject(hosts[min(hosts)])
    odd, *others = groups
    end = _describe_limit(groups, limits)
    if not others:
        waits = _describe_wait(odd)
        message = f"all ranks {'wait' if odd.waits else 'are'} at {odd.place}{waits}, and {end}"
        return SCRIPT_HUNG.finding(host, message, *facts)
    most = max(others, key=lambda group: len(group.ranks))
    short = _short_of(odd, others)
    message = short or (
        f"{name_ranks(odd.ranks)} {_describe_is(odd)} {odd.place}{_describe_wait(odd)}, while {name_ranks(most.ranks)} "
        f"{verb(most.ranks, 'waits', 'wait')} at {most.place}{_describe_wait(most)}"
    )
    equal = len(odd.ranks) == len(most.ranks) and odd.waits == most.waits and not short
    blamed = len(odd.ranks) == 1 and not equal
    subject = RankSubject(odd.ranks[0], hosts[odd.ranks[0]]) if blamed else host
    return SCRIPT_HUNG.finding(subject, f"{message}; {end}", *facts, remedy=_remedy(odd, short=bool(short)))


def add_look(finding: Finding, verdict: JobVerdict, world_size: int) -> Finding:
    """The finding for a hang with what a look from outside shows of it: what a rank waits for that waits for no other.

    Where the finding blames nobody, and all ranks were looked at, the one that the look blames is named.
    """
    telling = [one for one in verdict.places if one.kind in _TELLING and not one.moves and one.ranks]
    facts = tuple(
        Evidence(
            f"what {name_ranks(one.ranks)} {verb(one.ranks, 'does', 'do')}",
            _describe_place(one),
            source=_OUTSIDE,
        )
        for one in telling[:_SHOWN_GROUPS]
    )
    subject, said = finding.subject, ""
    blamed = [
        one
        for one in verdict.findings
        if one.outcome is Outcome.FAIL and isinstance(one.subject, RankSubject)
    ]
    ranks = {one.subject for one in blamed}
    if isinstance(subject, HostSubject) and len(ranks) == 1 and len(verdict.job.ranks) == world_size:
        subject, said = blamed[0].subject, blamed[0].message
    shown = [one for one in telling if not isinstance(subject, RankSubject) or subject.rank in one.ranks]
    if shown:
        said = f"{name_ranks(shown[0].ranks)} {_describe_place(shown[0])}"
    message = f"{finding.message}; seen from outside: {said}" if said else finding.message
    return replace(finding, subject=subject, message=message, evidence=(*finding.evidence, *facts))


def _describe_place(place: Place) -> str:
    return f"{place.words} at {place.where}" if place.where else place.words


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
    groups = _group(still, working, ())
    waiting = [_describe_group(group) for group in groups if group.waits]
    others = [_describe_group(group) for group in groups if not group.waits]
    return f"{'; '.join(waiting)}, while {'; '.join(others)}"


def _group(
    still: Mapping[int, ScriptPlace], working: Mapping[int, ScriptPlace], finished: Sequence[int]
) -> list[_Group]:
    """The places, with the ranks at each.

    First ranks that wait for no other, then those with the fewest batches, then the smallest groups.
    """
    at = {**working, **still}
    ranks: dict[str, list[int]] = {}
    for rank in sorted(at):
        ranks.setdefault(at[rank].place, []).append(rank)
    groups = [_Group(place, tuple(here), at[here[0]]) for place, here in ranks.items()]
    if finished:
        groups.append(_Group(_THE_END, tuple(sorted(finished)), None))
    return sorted(
        groups,
        key=lambda group: (
            group.waits,
            group.progress if group.waits else (0, 0),
            len(group.ranks),
            group.ranks,
        ),
    )


def _short_of(odd: _Group, others: Sequence[_Group]) -> str | None:
    """A sentence that some ranks had fewer batches, where all wait and only that differs; else None."""
    most = max(others, key=lambda group: group.progress)
    if not odd.waits or not all(group.waits for group in others) or odd.progress >= most.progress:
        return None
    had, more = odd.progress[0], most.progress[0]
    one, several = ("batch", "batches") if had != more else ("step", "steps")
    if had == more:
        had, more = odd.progress[1], most.progress[1]
    return (
        f"{name_ranks(odd.ranks)} had {had} {one if had == 1 else several} and {verb(odd.ranks, 'waits', 'wait')} at "
        f"{odd.place}{_describe_wait(odd)}, while {name_ranks(most.ranks)} {verb(most.ranks, 'is', 'are')} in {one} {more}, at "
        f"{most.place}{_describe_wait(most)}: the data of {name_ranks(odd.ranks)} is shorter"
    )


def _remedy(odd: _Group, *, short: bool) -> str:
    if short:
        return (
            "Give every rank the same number of batches: drop_last=True in its sampler and its loader, or a fixed number of steps, "
            "or wrap the loop in `torch.distributed.algorithms.join.Join`."
        )
    if odd.at is not None and odd.at.work is not None:
        return f"If this work is expected, allow more time: `--hang-after SECONDS`. {SCRIPT_HUNG.remedy}"
    return SCRIPT_HUNG.remedy


def _describe_is(group: _Group) -> str:
    if group.at is not None and group.at.work is not None:
        return verb(group.ranks, "works at", "work at")
    if group.waits:
        return verb(group.ranks, "waits at", "wait at")
    return verb(group.ranks, "is at", "are at")


def _describe_group(group: _Group) -> str:
    return f"{name_ranks(group.ranks)} {_describe_is(group)} {group.place}{_describe_wait(group)}"


def _describe_wait(group: _Group) -> str:
    """What the ranks wait for or do there, in brackets."""
    if group.at is None:
        return ""
    words = group.at.work or group.at.awaited_words
    return f" ({words})" if words else ""


def _describe_limit(groups: Sequence[_Group], limits: HangLimits) -> str:
    if any(group.at is not None and group.at.work is not None for group in groups):
        return (
            f"the others have waited for {limits.patience_seconds:.0f} s, which is "
            f"{limits.patience_seconds / limits.hang_seconds:.0f} times --hang-after"
        )
    return f"nothing has moved for {limits.hang_seconds:.0f} s (--hang-after)"


def _describe_groups(groups: Sequence[_Group]) -> list[Evidence]:
    shown = groups[:_SHOWN_GROUPS]
    facts = [Evidence(name_ranks(group.ranks), group.place, source=_STACKS) for group in shown]
    counts = {group.progress for group in shown if group.at is not None}
    for group in shown:
        named, at = name_ranks(group.ranks), group.at
        if at is None:
            continue
        if at.stack and at.stack[0] != group.place:
            facts.append(Evidence(f"innermost frame of {named}", at.stack[0], source=_STACKS))
        if at.call:
            facts.append(Evidence(f"call of {named}", at.call, source=_STACKS))
        if at.in_kernel:
            facts.append(Evidence(f"kernel wait of {named}", at.in_kernel, source="/proc/PID/wchan"))
        if len(counts) > 1 and any(batches for batches, _ in counts):
            facts.append(Evidence(f"batches of {named}", at.batches, source="data loader"))
        if len(counts) > 1:
            facts.append(Evidence(f"steps of {named}", at.steps, source="torch.autograd"))
    return facts
