"""The verdict on a running job: which ranks wait, for whom, who is to blame; or that it does not hang."""

from collections.abc import Sequence
from dataclasses import replace

from gpudiag.checks.job import kinds
from gpudiag.checks.job import position as at
from gpudiag.checks.job.apart import judge_waiters
from gpudiag.checks.job.bystanders import judge_bystanders
from gpudiag.checks.job.differences import Apart, Difference
from gpudiag.checks.job.facts import facts_of, remedy_of, subject_of
from gpudiag.checks.job.gpu_stalls import judge_gpu_stall
from gpudiag.checks.job.gpu_waits import uses_gpu
from gpudiag.checks.job.groups import (
    Group,
    describe,
    describe_seconds,
    group_alike,
    is_are,
    name_positions,
    place_of,
)
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.library_evidence import LibraryEvidence, add_library_evidence, judge_libraries
from gpudiag.checks.job.locks import follow_locks, with_holders
from gpudiag.checks.job.missing_ranks import (
    absent_ranks,
    describe_absence,
    expected_ranks,
    is_first_meeting,
    judge_missing,
)
from gpudiag.checks.job.movement import wakes_in
from gpudiag.checks.job.pollers import judge_pollers
from gpudiag.checks.job.position import Position, find_position, find_positions
from gpudiag.checks.job.rendezvous import judge_agent
from gpudiag.checks.job.served import judge_served, mark_work_waits, places_of_servers
from gpudiag.checks.job.shared_groups import judge_shared_groups
from gpudiag.checks.job.shorter_data import judge_shorter_data
from gpudiag.checks.job.subgroups import awaited_ranks
from gpudiag.checks.job.waiters import Waiters
from gpudiag.checks.job.ways import find_except
from gpudiag.checks.registry import FindingKind
from gpudiag.model.evidence import Evidence, HostSubject, about_ranks
from gpudiag.model.finding import Finding, Outcome, outcome_of_findings, worst_first
from gpudiag.model.job import REMOVABLE, Job, JobVerdict, RankSeen
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.reading_names import explain_missing
from gpudiag.reference.stacks import own_frames
from gpudiag.reference.waits import COMPILER, GPU, RANKS

# What a main thread does where it waits for no file, lock or server of its own: for other ranks, for its GPU,
# or for nothing.
_NO_WAIT_OF_ITS_OWN = frozenset((RANKS, GPU, at.PYTHON, at.EVALUATION, at.SLEEP))
_NEVER_TIMED = frozenset((at.STOPPED, at.DEBUGGER, at.TERMINAL))


def judge_job(job: Job, limits: HangLimits | None = None) -> JobVerdict:
    """What the looks at a job show; each rank has at least one look, and two where movement is to be seen."""
    limits = limits or HangLimits()
    positions = mark_work_waits(follow_locks(find_positions(job)), job)
    alive = tuple(one for one in positions if one.kind != at.GONE)
    libraries = judge_libraries(job)
    shared = judge_shared_groups(job, tuple(find_position(rank, job) for rank in job.ranks), limits)
    served = judge_served(job, positions, limits) if not (shared or absent_ranks(job)) else None
    used: tuple[Difference, ...] = ()
    if shared and libraries.moves is not True:
        findings = shared
    elif served is not None:
        findings = worst_first(served.findings)
    else:
        findings, used = _judge(job, positions, alive, limits, libraries)
    findings = findings or judge_agent(job, limits)
    unseen = _describe_unseen(positions)
    if served is None and not findings and not unseen and alive and not _anything_moves(positions, libraries):
        findings = _judge_nothing_moves(job, alive)
    if served is None and not findings and not unseen:
        findings = (
            _judge_long_waits(job, positions, limits, libraries)
            or _judge_slow_calls(job, positions)
            or judge_bystanders(job, positions, limits)
        )
    groups = group_alike(positions)
    outcome = outcome_of_findings(findings)
    if (unseen or (not alive and not findings)) and outcome in (Outcome.PASS, Outcome.WARN):
        outcome = Outcome.ERROR
    verdict = JobVerdict(
        job.name,
        outcome,
        served.headline
        if served is not None and outcome is Outcome.PASS
        else _headline(job, positions, findings, unseen, outcome, libraries),
        findings,
        (*(place_of(group) for group in groups), *places_of_servers(job)),
        _ruled_out(job, positions, findings),
        unseen,
        job,
    )
    return add_library_evidence(verdict, _without(libraries, used))


def _without(libraries: LibraryEvidence, used: Sequence[Difference]) -> LibraryEvidence:
    return replace(libraries, differences=tuple(one for one in libraries.differences if one not in used))


def judge_positions(job: Job, positions: Sequence[Position], limits: HangLimits) -> tuple[Finding, ...]:
    """The findings by the positions that ranks report of themselves, and by flight records, worst first."""
    alive = tuple(one for one in positions if one.kind != at.GONE)
    libraries = judge_libraries(job)
    findings, used = _judge(job, positions, alive, limits, libraries)
    outcome = outcome_of_findings(findings)
    verdict = JobVerdict(job.name, outcome, "", findings, (), (), (), job)
    return add_library_evidence(verdict, _without(libraries, used)).findings


def is_decided(verdict: JobVerdict, limits: HangLimits | None = None) -> bool:
    """Whether another look in some seconds would change nothing: nothing stands still for too short a time.

    A job of which nothing was seen to move, and of which nothing is reported, is not decided: it may have
    hung a moment ago.
    """
    if verdict.outcome is Outcome.FAIL or not verdict.job.ranks:
        return True
    if any(one.code in (kinds.NOT_YET.code, kinds.UNKNOWN.code) for one in verdict.findings):
        return False
    if verdict.outcome is not Outcome.PASS:
        return True
    # That one rank moves does not show that those go on of which only processor time moves: only further
    # looks do.
    still = (limits or HangLimits()).still
    places = verdict.places_of_ranks
    spin = [one for one in places if one.busy and not one.moves]
    short = any(not isinstance(one.since_seconds, Missing) and one.since_seconds < still for one in spin)
    return any(place.moves for place in places) and not short


def needs_c_functions(rank: RankSeen, verdict: JobVerdict) -> bool:
    """Whether only the C functions of a rank show what it does: it has a GPU and takes processor time.

    Nothing else of it moves, and it is not known to work by the name of its function, or to wait in a
    collective by its frames.
    """
    main = rank.last.main
    if main is None or main.native or not uses_gpu(rank) or rank.last.frozen or rank.last.traced_by:
        return False
    if {thread.state for thread in rank.last.threads} & set("DTt"):
        return False  # py-spy would wait for it without end
    place = next(
        (one for one in verdict.places_of_ranks if rank.rank in one.ranks or rank.pid in one.pids), None
    )
    return place is not None and place.busy and not place.moves and place.kind in (GPU, at.PYTHON, COMPILER)


def _anything_moves(positions: Sequence[Position], libraries: LibraryEvidence) -> bool:
    """Whether anything of the job moved: line, counter, file, count of collectives; not processor time."""
    return libraries.moves is True or any(one.moves for one in positions)


def _judge_nothing_moves(job: Job, alive: Sequence[Position]) -> tuple[Finding, ...]:
    """The findings for a job of which nothing was seen to move, and of which nothing else is reported.

    Ranks that stand still in something of their own are named; else all of them take processor time, or wait
    for each other.
    """
    own = [one for one in alive if not (one.busy or one.waits_for_ranks or one.waits_for_gpu)]
    if own:
        return tuple(
            kinds.NOT_YET.finding(
                subject_of(group, job), f"{describe(group)}, and nothing of the job moves", *facts_of(group)
            )
            for group in group_alike(own)
        )
    groups = group_alike(alive)
    places = "; ".join(describe(group) for group in groups[::-1][:3])
    message = f"nothing of the job moved but processor time while it was looked at: {places}"
    subject = subject_of(groups[-1], job) if len(groups) == 1 else HostSubject(job.host)
    facts = tuple(fact for group in groups[:2] for fact in facts_of(group))
    return (kinds.UNKNOWN.finding(subject, message, *facts),)


def _judge_long_waits(
    job: Job, positions: Sequence[Position], limits: HangLimits, libraries: LibraryEvidence
) -> tuple[Finding, ...]:
    """The finding for ranks that wait for long while others move and nothing else is found: no hang yet."""
    waiting = [
        group
        for group in group_alike(positions)
        if group.head.waits_for_ranks and (group.since_seconds or 0.0) >= limits.alone
    ]
    others = [one for one in positions if not one.waits_for_ranks]
    if not waiting or not others or libraries.moves is True:
        return ()
    longest = waiting[-1]
    rest = "; ".join(describe(group) for group in group_alike(others)[:2])
    message = f"{describe(longest)}, {describe_seconds(longest.since_seconds)} so far, while {rest}"
    return (kinds.WORKS_ALONE.finding(subject_of(longest, job), message, *facts_of(longest)),)


def _judge_slow_calls(job: Job, positions: Sequence[Position]) -> tuple[Finding, ...]:
    """The findings for ranks whose collective goes on, and whose control group throttles it."""
    slow = [one for one in positions if one.throttle is not None and one.kind == RANKS]
    return tuple(
        kinds.THROTTLED.finding(
            subject_of(group, job),
            f"{describe(group)}; {group.head.throttle.words}",
            *facts_of(group),
            remedy=group.head.throttle.remedy,
        )
        for group in group_alike(slow)
        if group.head.throttle is not None
    )


def _judge(
    job: Job,
    positions: Sequence[Position],
    alive: Sequence[Position],
    limits: HangLimits,
    libraries: LibraryEvidence,
) -> tuple[tuple[Finding, ...], tuple[Difference, ...]]:
    """The findings, and those of the job's own differences that are in them already."""
    waiting = tuple(one for one in alive if one.waits_for_ranks or one.waits_for_gpu)
    waiters = Waiters(job, waiting)
    others = tuple(one for one in positions if one not in waiting and one.kind != at.UNSEEN)
    used: tuple[Difference, ...] = ()
    missing = judge_missing(job, alive, waiters, limits)
    if missing:
        return worst_first(missing), used
    shorter = judge_shorter_data(job, positions)
    if shorter is not None:
        return (shorter,), used
    absent = absent_ranks(job)
    found = _judge_absent(job, absent, alive, waiters, limits)
    if waiters.positions:
        awaited = awaited_ranks(waiters)
        concerned = with_holders(
            [one for one in others if awaited is None or one.rank is None or one.rank in awaited], others
        )
        blamed = _judge_others(job, concerned, waiters, limits)
        found += blamed
        unconcerned = [one for one in others if one not in concerned]
        found += _judge_held(job, unconcerned)
        found += _judge_gone(job, unconcerned, waiters.since_seconds, limits)
        unknown = any(one.kind == at.UNSEEN for one in positions) or _has_ranks_elsewhere(job)
        if not blamed and not absent and not [one for one in concerned if one.kind != at.GONE]:
            if _needs_gpus(waiters):
                if libraries.moves is not True:  # counts that moved show that the job goes on
                    found += judge_gpu_stall(waiters, libraries, limits)
                    used = tuple(
                        one for one in libraries.differences if one.apart in (Apart.BEHIND, Apart.ELSEWHERE)
                    )
            else:
                found += judge_waiters(waiters, limits, is_whole=not unknown)
    else:
        found += _judge_without_waiters(job, positions, alive, limits)
    return worst_first(found), used


def _needs_gpus(waiters: Waiters) -> bool:
    """Whether ranks wait for GPUs, or spin in one collective that fits: the network, or an earlier kernel."""
    if any(one.waits_for_gpu for one in waiters.positions):
        return True
    return len(waiters.groups) == 1 and any(one.busy for one in waiters.positions)


def _has_ranks_elsewhere(job: Job) -> bool:
    if isinstance(job.world_size, Missing):
        return True
    expected = expected_ranks(job)
    return job.world_size > len(job.ranks) and (expected is None or job.world_size > len(expected))


def _judge_absent(
    job: Job, absent: Sequence[int], alive: Sequence[Position], waiters: Waiters, limits: HangLimits
) -> list[Finding]:
    """The finding for ranks without a process, where those that are there wait, or stand still for as long.

    A job that ends loses rank after rank within a second or so.
    """
    if not absent or not alive or any(one.moves for one in alive if not one.waits_for_ranks):
        return []
    kind = _kind_of_gone(waiters.since_seconds if waiters.positions else _stood_seconds(alive), limits)
    if kind is None:
        return []
    host = job.host_of(absent[0])
    absence = describe_absence(job, absent, waiters.positions)
    where = f"{'; ' if ': ' in absence else ': '}{waiters.describe()}" if waiters.positions else ""
    there = Evidence("ranks_here", len(job.ranks), limit=len(expected_ranks(job) or ()), source="/proc")
    return [kind.finding(about_ranks(absent, host), f"{absence}{where}", there, *waiters.facts())]


def _stood_seconds(alive: Sequence[Position]) -> float:
    """For how long none of them has moved; 0.0 where that is unknown."""
    return min((one.since_seconds or 0.0 for one in alive), default=0.0)


def _kind_of_gone(stood: float | None, limits: HangLimits) -> FindingKind | None:
    """The kind of finding for a rank that has ended, by how long the others have stood still since.

    It is None where that is no news: ranks of a job that ends go one after the other.
    """
    if stood is None or stood >= limits.still:
        return kinds.GONE
    return kinds.NOT_YET if stood >= limits.news else None


def _judge_others(
    job: Job, others: Sequence[Position], waiters: Waiters, limits: HangLimits
) -> list[Finding]:
    """Findings for the ranks that others wait for: each group of them by what it does."""
    found = []
    for group in group_alike(others):
        judged = _kind_of(group, waiters, limits)
        if judged is None:
            continue
        kind, why = judged
        message, facts = f"{_not_in(group, waiters)}{why}", (*facts_of(group), *waiters.facts())
        found.append(kind.finding(subject_of(group, job), message, *facts, remedy=remedy_of(group)))
    return found


def _not_in(group: Group, waiters: Waiters) -> str:
    """`rank 2 is not in the all_reduce (a.py:10) that rank 1 waits in, 41 s so far: it sleeps at b.py:6`."""
    head = group.head
    pronoun = "it" if len(group.positions) == 1 else "they"
    line = f" at {head.where}" if head.where else ""
    inner = f": {head.inner}" if head.inner else ""
    if caught := find_except(own_frames(head.frames)):
        inner += f"; an exception took {'it' if pronoun == 'it' else 'them'} there: `{caught}`"
    loop = f", in the loop {head.in_loop}" if head.in_loop else ""
    if all(one.waits_for_gpu for one in waiters.positions):
        return (
            f"{group.name} {is_are(group.positions, head.words)}{line}{loop}{inner}, while"
            f" {waiters.describe_for_gpu()}{waiters.since}"
        )
    return (
        f"{group.name} {is_are(group.positions, 'is')} not in {waiters.describe_call()} that {waiters.name}"
        f" {is_are(waiters.positions, 'waits')} in{waiters.since}: {pronoun}"
        f" {is_are(group.positions, head.words)}{line}{loop}{inner}"
    )


def _kind_of(group: Group, waiters: Waiters, limits: HangLimits) -> tuple[FindingKind, str] | None:
    """The kind of finding for ranks that others wait for, and the limit that is passed.

    It is None where it is no news.
    """
    head, since = group.head, waiters.since_seconds
    waited = since or 0.0
    if head.kind == at.GONE:
        gone = _kind_of_gone(since, limits)
        return None if gone is None else (gone, "")
    if head.kind in _NEVER_TIMED:
        return kinds.OF_POSITION[head.kind], ""
    works = all(one.moves or one.busy for one in group.positions)
    spin = any(one.busy for one in waiters.positions)  # since when, only looks show
    if not works and head.kind in kinds.OF_POSITION and head.kind != GPU:
        # That they wait now, and stood still between the looks, is seen; a thread of backward passes shows
        # how long.
        still = _longest(group, waiters.at_most_seconds if waited >= limits.news else since)
        if (head.on_disk or head.inner_kind in at.MAY_BE_SLOW) and still < limits.disk:
            who = "a disk may be busy" if head.on_disk else "a loader may be slow"
            if head.kind == COMPILER:
                who = "its processes may wait for a server"
            limit = f"; {who}: after {limits.disk:g} s it is called a hang"
            return None if waited < limits.alone else (kinds.NOT_YET, limit)
        if head.kind == at.SLEEP and is_first_meeting(waiters) and still < limits.absent:
            limit = f"; ranks may still be starting: after {limits.absent:g} s it is called a hang"
            return None if still < limits.still else (kinds.NOT_YET, limit)
        tries = head.kind == at.SLEEP and bool(find_except(own_frames(head.frames)))
        # Of one that sleeps in a loop the end of this sleep shows nothing.
        wakes = _wakes_in(group) if head.kind == at.SLEEP and not head.in_loop else None
        wakes_soon = wakes is not None and wakes <= limits.nap
        patience = limits.idle if wakes_soon else limits.alone
        if tries and waited < patience and not spin:
            soon = f" in {describe_seconds(wakes)}" if wakes_soon else ""
            limit = f"; it may try again{soon}: once the others have waited for"
            limit += f" {patience:g} s it is called a hang"
            return None if still < limits.still else (kinds.NOT_YET, limit)
        if wakes is not None and wakes_soon and since is not None and since < limits.idle:
            limit = (
                f"; it wakes up in {describe_seconds(wakes)}: once the others have waited for"
                f" {limits.idle:g} s it is called a hang"
            )
            return None if still < limits.still else (kinds.NOT_YET, limit)
        if still >= limits.still:
            ends = "" if wakes is None else f"; it wakes up in {describe_seconds(wakes)}"
            return kinds.OF_POSITION[head.kind], ends
        if still < limits.news and waited < limits.still:
            return None
        return (
            kinds.NOT_YET,
            f"; it has not moved for {still:.1f} s, which is less than {limits.still:g} s",
        )
    throttle = head.throttle
    if throttle is not None and works and ((head.moves and not head.in_loop) or waited < limits.work):
        return None if waited < limits.news and not spin else (kinds.THROTTLED, f"; {throttle.words}")
    is_endless = head.in_loop and not (head.polls and head.moves)
    if is_endless and waited >= limits.loop:
        return kinds.LOOP, ""
    if is_endless:
        return kinds.NOT_YET, f"; the others have waited for less than {limits.loop:g} s"
    sign = "it moves" if head.moves else "it takes processor time, and nothing else of it moves"
    if waited >= limits.work:
        return (
            kinds.WORKS_LONG,
            f"; {sign}, and the others have waited for more than {limits.work:g} s ({limits.work_flag})",
        )
    # One of which only processor time moves may hang, and is reported at once.
    reported_after = limits.still if spin else limits.alone
    if waited >= reported_after or not head.moves:
        return (
            kinds.WORKS_ALONE,
            f"; {sign}, and after {limits.work:g} s ({limits.work_flag}) it is called a hang",
        )
    return None


def _wakes_in(group: Group) -> float | None:
    """Seconds until the last of these ranks wakes up.

    It is None where one sleeps again and again, or without a known end.
    """
    ends = [wakes_in(one.seen.looks) for one in group.positions]
    return None if None in ends else max(end for end in ends if end is not None)


def _longest(group: Group, waited: float | None) -> float:
    """For how long ranks have stood still at least while others waited for them.

    A rank that waits for a worker or a queue wakes up now and then to look: then what it waits for shows it.
    """
    head = group.head
    known = [one for one in (group.since_seconds, head.inner_since_seconds) if one is not None]
    own = max(known) if known else None
    if own is None or waited is None:
        return own or waited or 0.0
    return min(own, waited)


def _judge_without_waiters(
    job: Job, positions: Sequence[Position], alive: Sequence[Position], limits: HangLimits
) -> list[Finding]:
    """Findings where no rank waits for another: those that are held, and ranks that all stand still."""
    still = bool(alive) and not any(one.moves or one.kind == at.UNSEEN for one in alive)
    found = _judge_held(job, positions)
    if still:
        found += _judge_gone(job, positions, _stood_seconds(alive), limits)
    if found or not still or any(one.busy for one in alive):
        return found
    if found := judge_pollers(job, alive, limits):
        return found
    for group in group_alike(one for one in alive if one.kind != at.WORK and one.behind is None):
        known = kinds.OF_POSITION.get(group.head.kind, kinds.WAITS)
        since = group.since_seconds
        idle = min(limits.idle, max(_idle_limit(one, limits) for one in group.positions))
        long = since is not None and since >= idle
        word = f" for {describe_seconds(since)}" if since is not None else ""
        kind = known if long else kinds.NOT_YET
        limit = "" if long else f"; it is called a hang after {idle:g} s"
        message = f"{describe(group)}{word}, and nothing moves{limit}"
        found.append(kind.finding(subject_of(group, job), message, *facts_of(group), remedy=remedy_of(group)))
    return found


def _idle_limit(one: Position, limits: HangLimits) -> float:
    """After how long a rank is blamed that stands still while nobody waits.

    What cannot end by itself is blamed soon.
    """
    main = one.seen.last.main
    awaited = main.awaited if main is not None else None
    if awaited is not None and awaited.kind == "lock file" and REMOVABLE in awaited.detail:
        return limits.still
    return limits.locked if one.kind == at.LOADER and one.inner_kind == at.LOCK else limits.idle


def _judge_held(job: Job, positions: Sequence[Position]) -> list[Finding]:
    """Findings for ranks that do not go on by themselves, whoever waits for them."""
    return [
        kinds.OF_POSITION[group.head.kind].finding(subject_of(group, job), describe(group), *facts_of(group))
        for group in group_alike(positions)
        if group.head.kind in _NEVER_TIMED
    ]


def _judge_gone(
    job: Job, positions: Sequence[Position], stood: float | None, limits: HangLimits
) -> list[Finding]:
    """Findings for the ranks among them that have ended, while the others stood still for that long."""
    kind = _kind_of_gone(stood, limits)
    if kind is None:
        return []
    return [
        kind.finding(subject_of(group, job), describe(group), *facts_of(group))
        for group in group_alike([one for one in positions if one.kind == at.GONE])
    ]


def _describe_unseen(positions: Sequence[Position]) -> tuple[str, ...]:
    """Why ranks could not be looked at, and what to do, each reason once."""
    reasons: dict[str, list[Position]] = {}
    for one in positions:
        stacks = one.seen.last.stacks
        if one.kind == at.UNSEEN and isinstance(stacks, Missing):
            reasons.setdefault(_remedy_of(stacks), []).append(one)
        elif one.kind == at.UNSEEN:
            reasons.setdefault("none of it could be read", []).append(one)
    return tuple(f"{name_positions(members)}: {reason}" for reason, members in reasons.items())


def _remedy_of(missing: Missing) -> str:
    if missing.reason is MissingReason.NO_PERMISSION:
        return missing.detail
    return f"the Python stack could not be read ({explain_missing(missing)})"


def _headline(
    job: Job,
    positions: Sequence[Position],
    findings: Sequence[Finding],
    unseen: Sequence[str],
    outcome: Outcome,
    libraries: LibraryEvidence,
) -> str:
    if findings and outcome in (Outcome.FAIL, Outcome.WARN):
        return findings[0].message
    if outcome is Outcome.ERROR:
        if not unseen and findings:
            return f"unknown whether it hangs: {findings[0].message}"
        if not unseen:
            return (
                "all of its ranks have ended"
                if positions
                else "it has no rank now: its ranks have not started, or have ended"
            )
        first = f"unknown: {unseen[0]}"
        return f"{first}; what was seen: {findings[0].message}" if findings else first
    return f"not hanging: {_progress(positions, libraries)}"


def _progress(positions: Sequence[Position], libraries: LibraryEvidence) -> str:
    """`lines, counters or files of 4 of 4 ranks move, step 41 -> 43`.

    Where nothing moves, it is who waits, and for how long.
    """
    moving = [one for one in positions if one.moves]
    if not moving:
        if libraries.moves is True:
            return "NCCL's counts of collectives move"
        waiting = [group for group in group_alike(positions) if group.head.waits_for_ranks]
        longest = max(waiting, key=lambda group: group.since_seconds or 0.0, default=None)
        if longest is None or (longest.since_seconds or 0.0) < 1.0:
            return "no rank waits long"
        return f"{describe(longest)}, {describe_seconds(longest.since_seconds)} so far"
    counters = list(dict.fromkeys(counter for one in moving for counter in one.counters))[:2]
    steps = f", {', '.join(counters)}" if counters else ""
    return f"lines, counters or files of {len(moving)} of {len(positions)} ranks move{steps}"


def _here(job: Job) -> str:
    return f"these {len(job.machines)} machines" if len(job.machines) > 1 else "this machine"


def _ruled_out(job: Job, positions: Sequence[Position], findings: Sequence[Finding]) -> tuple[str, ...]:
    """What was looked for and is not so; nothing of what could not be read."""
    codes = {finding.code for finding in findings}
    alive = [one for one in positions if one.kind != at.GONE and one.seen.last.main is not None]
    mains = [main for one in alive if (main := one.seen.last.main) is not None]
    if not mains:
        return ()
    seen = "" if len(alive) == len(job.ranks) else " that was seen"
    out = []
    if kinds.STOPPED.code not in codes:
        out.append("no rank that was seen is stopped, frozen or held by a debugger")
    expected = expected_ranks(job)
    if kinds.GONE.code not in codes and expected is not None and not absent_ranks(job):
        out.append(f"all {len(expected)} ranks of {_here(job)} are there")
    # A thread that sleeps shows what it waits for by its system call alone, which may not be read of
    # everybody's processes.
    is_known = all(main.state == "R" or main.syscall for main in mains)
    if is_known and all(one.kind in _NO_WAIT_OF_ITS_OWN for one in alive):
        out.append(f"no main thread{seen} waits for a file, a lock or a server")
    if not any(main.state == "D" for main in mains):
        out.append(f"no main thread{seen} is in uninterruptible sleep")
    return tuple(out)
