"""How a job went that gpudiag ran, judged: which rank failed first, where it stood still, who is slow."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpudiag.checks.job import run_kinds as kinds
from gpudiag.checks.job.kinds import GONE
from gpudiag.checks.job.run_causes import find_absent, find_first_failure, find_leaver, is_echo
from gpudiag.checks.job.shares import SlowRank
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject, Subject, about_ranks
from gpudiag.model.explanation import Verdict as LogVerdict
from gpudiag.model.explanation import VerdictKind
from gpudiag.model.finding import Finding, Outcome, outcome_of_findings, worst_first
from gpudiag.model.job import JobVerdict
from gpudiag.model.job_run import RankEnd, RankRecord, SignalSeen, Stall, StepTime
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing, Reading
from gpudiag.units import format_seconds

_ENDING = frozenset(("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGXCPU", "SIGALRM"))
_NAMES_CAUSE = (VerdictKind.RANK_FAILED, VerdictKind.ALL_FAILED, VerdictKind.MACHINE_FAILED)
# A signal and the ends that follow it are reported by two processes.
_SAME_MOMENT = timedelta(seconds=0.5)
# What moves so soon before a rank fails, or after a signal or gpudiag ended the job, is its end: an exception
# at a timeout.
_LAST_MOVES = timedelta(seconds=30)
_UNWATCHED_SECONDS = 60.0  # a command that ends sooner may well have no ranks
# What starts ranks on other machines, or lets another service start them: they are not below the command.
_STARTS_ELSEWHERE = frozenset(
    """
    srun sbatch salloc mpirun mpiexec mpiexec.hydra prterun orterun jsrun flux pdsh ssh kubectl docker
    podman ray apptainer singularity enroot nerdctl bsub qsub aprun
    """.split()
)
_EXCEPTION = re.compile(r"\w(Error|Exception|Interrupt|Failure)\b")
_NAN_REMEDY = (
    "Look for the step in which this rank's loss or gradients turn NaN: its data first,"
    " then its GPU (`gpudiag preflight`)."
)
_CAUSES = {
    "runs": "it computes longer",
    "queues": "it waits for a processor",
    "sleeps": "it waits for something that no other rank waits for: a file, its loader, a sleep",
}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run once its command has ended."""

    host: str
    started: datetime
    seconds: float
    exit_status: int
    ranks: tuple[RankRecord, ...]
    signals: tuple[SignalSeen, ...]
    stalls: tuple[Stall, ...]
    slow: tuple[SlowRank, ...]
    step: Reading[StepTime]
    kernel: Reading[tuple[KernelEvent, ...]]
    glances: int  # that saw something
    unseen: tuple[str, ...]
    command: tuple[str, ...] = ()
    has_ended: bool = True  # the command
    expected: int | None = None  # how many ranks are on this machine, by the launcher
    world_size: int | None = None
    last_look: JobVerdict | None = None  # at ranks that stood still at the end, and were not reported
    log: LogVerdict | None = None  # what the job's output shows, where that is a file
    nan_check: bool = False  # torch looked for NaN in what ranks put into collectives
    found_nan: bool = False  # and its output shows that it found some
    # By rank: the collective that its dump ends with, in words.
    last_calls: Mapping[int, str] = field(default_factory=dict)


def without_last_moves(
    stalls: Sequence[Stall],
    ranks: Sequence[RankRecord],
    signals: Sequence[SignalSeen],
    killed: datetime | None,
) -> tuple[Stall, ...]:
    """The stalls; one that only ended because the job did so, as after a signal, did not end."""
    ended_by = [
        *(one.at for one in signals if one.name in _ENDING),
        *([killed] if killed is not None else []),
    ]
    ends = [*ended_by, *(one.ended for one in ranks if one.order is not None and one.ended is not None)]

    return tuple(
        replace(one, ended=False, over=None)
        if one.over is not None and any(one.began < end <= one.over + _LAST_MOVES for end in ends)
        else one
        for one in stalls
        if not any(end <= one.began for end in ended_by)
    )


def judge_run(facts: RunFacts) -> tuple[Finding, ...]:
    """The findings, worst first; none for a job that ended well and was seen to step."""
    return worst_first(
        (
            *(_judge_stall(stall, facts) for stall in facts.stalls if stall.reported),
            *_judge_end(facts),
            *(_judge_slow(one, facts) for one in facts.slow),
            *_judge_watching(facts),
        )
    )


def describe_rank(record: RankRecord) -> str:
    """`rank 2`, or its pid where its rank is unknown."""
    return f"the process {record.pid}" if isinstance(record.rank, Missing) else f"rank {record.rank}"


def describe_end(record: RankRecord) -> str:
    """`was killed by SIGKILL`, `ended with exit code 3`."""
    if record.end is RankEnd.KILLED:
        return f"was killed by {record.signal}"
    if record.end is RankEnd.FAILED:
        return f"ended with exit code {record.exit_code}"
    if record.end is RankEnd.RUNS:
        return "still runs"
    return "ended well" if record.end is RankEnd.FINISHED else "ended, and the kernel did not report how"


def _subject(record: RankRecord, host: str) -> Subject:
    return HostSubject(host) if isinstance(record.rank, Missing) else RankSubject(record.rank, host)


def _judge_end(facts: RunFacts) -> tuple[Finding, ...]:
    root = find_first_failure(facts.ranks)
    if any(stall.reported and not stall.ended for stall in facts.stalls) and not _came_before(
        root, facts.stalls
    ):
        return ()  # whatever ended the ranks then, it is why that counts
    ended_by = _interruption(facts, root)
    if facts.exit_status and ended_by is not None:
        return (_interrupted(ended_by, facts),)
    if root is not None:
        return (_judge_failure(root, facts),)
    if facts.exit_status:
        seen = f"none of the {len(facts.ranks)} ranks seen here failed" if facts.ranks else "no rank was seen"
        log = (
            f"; its output: {facts.log.sentence}"
            if facts.log is not None and facts.log.kind in _NAMES_CAUSE
            else ""
        )
        message = f"the command ended with exit status {facts.exit_status}, and {seen}{log}"
        return (kinds.COMMAND_FAILED.finding(HostSubject(facts.host), message, *_kernel_facts(facts)),)
    return ()


def _interrupted(ended_by: SignalSeen, facts: RunFacts) -> Finding:
    who = "was passed on by gpudiag" if ended_by.passed_on else "reached its whole process group"
    after = format_seconds((ended_by.at - facts.started).total_seconds())
    message = f"the job was ended from outside: {ended_by.name} {who}, {after} after the start"
    seen = facts.last_look.findings[0].message if facts.last_look and facts.last_look.findings else ""
    evidence = [Evidence("last_look", seen, source="looks at all ranks")] if seen else []
    if seen:
        message += f"; when it was last looked at, {seen}"
    return kinds.INTERRUPTED.finding(HostSubject(facts.host), message, *evidence, *_kernel_facts(facts))


def _judge_failure(root: RankRecord, facts: RunFacts) -> Finding:
    """The finding for the rank that failed first, or for the one because of which it did."""
    leaver = find_leaver(root, facts.ranks) if facts.exit_status else None
    if leaver is not None:
        return _left(leaver, root, facts)
    absent = find_absent(root, facts.ranks)
    if absent and facts.exit_status:
        return _absent(absent, root, facts)
    return _failure(root, facts)


def _left(leaver: RankRecord, root: RankRecord, facts: RunFacts) -> Finding:
    after = format_seconds((leaver.ended - facts.started).total_seconds()) if leaver.ended else "a while"
    last = f"; it was last seen at {leaver.last_place}" if leaver.last_place else ""
    message = (
        f"{describe_rank(leaver)} left: it ended with exit status 0 after {after}, while"
        f" {describe_rank(root)} {_waited(root)}{last}"
    )
    return kinds.RANK_LEFT.finding(
        _subject(leaver, facts.host), message, *_echo_facts(root), *_kernel_facts(facts)
    )


def _absent(absent: Sequence[RankRecord], root: RankRecord, facts: RunFacts) -> Finding:
    names = ", ".join(describe_rank(one) for one in absent[:8])
    were = "was" if len(absent) == 1 else "were"
    where = absent[0].last_place if len({one.last_place for one in absent}) == 1 else ""
    seen = (
        f"it was last seen at {where}"
        if where and len(absent) == 1
        else f"last seen at {where}"
        if where
        else ""
    )
    message = (
        f"{names} {were} not in the collective that {describe_rank(root)} waited in until it gave up: "
        f"{describe_rank(root)} {_waited(root)}{'; ' + seen if seen else ''}"
    )
    known = [one.rank for one in absent if not isinstance(one.rank, Missing)]
    subject = about_ranks(known if len(known) == len(absent) else (), facts.host)
    return kinds.RANK_LEFT.finding(subject, message, *_echo_facts(root), *_kernel_facts(facts))


def _waited(root: RankRecord) -> str:
    """`waited in all_reduce (train.py:9 in main) for 54 s`."""
    where = root.last_wait or (f"a collective ({root.error_place})" if root.error_place else "a collective")
    long = root.still_seconds is not None and root.still_seconds >= 1.0
    return f"waited in {where}" + (f" for {format_seconds(root.still_seconds or 0.0)}" if long else "")


def _echo_facts(root: RankRecord) -> tuple[Evidence, ...]:
    return (Evidence("error_of_the_other", root.error, source="its exception"),) if root.error else ()


def _came_before(root: RankRecord | None, stalls: Sequence[Stall]) -> bool:
    """Whether a rank failed before the job stood still."""
    if root is None or root.ended is None:
        return False
    return all(root.ended <= stall.began for stall in stalls if stall.reported and not stall.ended)


def _interruption(facts: RunFacts, root: RankRecord | None) -> SignalSeen | None:
    """The signal that ended the job, if one came before any rank failed."""
    first = next((one for one in facts.signals if one.name in _ENDING), None)
    if first is None or root is None or root.ended is None:
        return first
    return first if first.at <= root.ended + _SAME_MOMENT else None


def _failure(root: RankRecord, facts: RunFacts) -> Finding:
    kind = kinds.RANK_FAILED if facts.exit_status else kinds.RESTARTED
    after = (
        format_seconds((root.ended - facts.started).total_seconds()) if root.ended else "at an unknown time"
    )
    error, error_place, source = _error_of(root, facts.log)
    why = f": {error}" if error else ""
    at = f" at {error_place}" if error_place else ""
    place = f", last seen at {root.last_place}" if root.last_place and not error_place else ""
    out_of_memory = _memory_kill(root, facts)
    killer = "; the kernel killed it because memory ran out" if out_of_memory else ""
    nan = _describe_nan(root, error, facts)
    if is_echo(root) and root.signal != "SIGTERM":
        message = (
            f"{describe_rank(root)} only lost another rank, after {after}{why}{at}{place}; the rank that"
            f" failed first is {_where_else(facts)}"
        )
    else:
        message = (
            f"{describe_rank(root)} failed first: it {describe_end(root)} after"
            f" {after}{why}{at}{place}{killer}{nan}"
        )
    followers = _describe_followers(root, facts.ranks)
    evidence = [
        Evidence("exit_code", code, source="wait status")
        for code in (root.exit_code,)
        if not isinstance(code, Missing)
    ]
    if followers:
        evidence.append(Evidence("then_ranks", followers, source="pidfd"))
    if error:
        evidence.append(Evidence("error", error, source=source))
    remedy = (
        "Give the job more memory, or use fewer DataLoader workers and a smaller prefetch."
        if out_of_memory
        else _NAN_REMEDY
        if nan
        else ""
    )
    return kind.finding(_subject(root, facts.host), message, *evidence, *_kernel_facts(facts), remedy=remedy)


def _error_of(root: RankRecord, log: LogVerdict | None) -> tuple[str, str, str]:
    """A rank's exception, the user's line in it, and what shows it: the rank itself, or the job's output."""
    if root.error:
        return root.error, root.error_place or "", "its exception"
    if log is None or log.kind is not VerdictKind.RANK_FAILED or root.rank not in log.ranks:
        return "", "", ""
    if _EXCEPTION.search(log.excerpt) is None:  # else it shows how the rank ended, which is known
        return "", "", ""
    return log.excerpt, "", "the job's output"


def _where_else(facts: RunFacts) -> str:
    here = len({str(one.rank) for one in facts.ranks})
    if facts.world_size is not None and facts.world_size > here:
        return f"likely on another machine: {here} of {facts.world_size} ranks are on this one"
    return "not known: none of those seen here failed before it"


def _describe_nan(root: RankRecord, error: str, facts: RunFacts) -> str:
    """That torch's look for NaN ended the rank, where it was on; certain if the output shows it."""
    stopped = "device-side assert" in error or "NaN" in error or root.signal == "SIGABRT"
    if not facts.nan_check or not (stopped or facts.found_nan):
        return ""
    call = facts.last_calls.get(root.rank, "") if isinstance(root.rank, int) else ""
    where = f", {call or root.last_wait}" if call or root.last_wait else ""
    sure = (
        "put NaN into a collective"
        if facts.found_nan or "NaN" in error
        else "likely put NaN into a collective"
    )
    return f"; it {sure}{where}: TORCH_NCCL_NAN_CHECK ended it before the others had it"


def _describe_followers(root: RankRecord, ranks: Sequence[RankRecord]) -> str:
    """`0, 1, 3 ended with exit code 1; 4 was killed by SIGTERM`."""
    ways: dict[str, list[str]] = {}
    for record in sorted(
        (one for one in ranks if one is not root and one.order is not None), key=lambda one: one.order or 0
    ):
        name = str(record.pid) if isinstance(record.rank, Missing) else str(record.rank)
        ways.setdefault(describe_end(record).removeprefix("was "), []).append(name)
    return "; ".join(f"{', '.join(names)} {way}" for way, names in ways.items())


def _memory_kill(root: RankRecord, facts: RunFacts) -> KernelEvent | None:
    if isinstance(facts.kernel, Missing) or root.signal != "SIGKILL":
        return None
    kills = [one for one in facts.kernel if one.kind is KernelEventKind.OUT_OF_MEMORY_KILL]
    return next((one for one in kills if one.pid == root.pid), None)


def _kernel_facts(facts: RunFacts) -> tuple[Evidence, ...]:
    """What the kernel log has of the time of the run, the first lines."""
    if isinstance(facts.kernel, Missing):
        return ()
    return tuple(Evidence("kernel_log", one.text, source="kernel log") for one in facts.kernel[:4])


def _judge_stall(stall: Stall, facts: RunFacts) -> Finding:
    kind = kinds.PAUSED if stall.ended else kinds.STALLED
    how_long = format_seconds(stall.stood_seconds)
    steps = (
        ""
        if isinstance(facts.step, Missing)
        else f", {stall.stood_seconds / facts.step.seconds:.0f} of its steps"
    )
    went_on = ", and then continued" if stall.ended else ""
    blamed = next(iter(stall.look.findings), None) if stall.look is not None else None
    if blamed is None:
        message = f"nothing moved for {how_long}{steps}{went_on}: {stall.unseen or 'the looks named nobody'}"
        return kind.finding(HostSubject(facts.host), message)
    evidence = (
        Evidence(
            "stood_still",
            stall.stood_seconds,
            unit="s",
            limit=stall.limit_seconds,
            source="/proc of the ranks",
        ),
        Evidence("kind", blamed.code, source="two looks at all ranks"),
        *blamed.evidence,
    )
    message = (
        f"the job stood still for {how_long}{steps}{went_on}: {blamed.message}{_how_it_ended(blamed, facts)}"
    )
    return kind.finding(blamed.subject, message, *evidence, remedy=blamed.remedy, owner=blamed.owner)


def _how_it_ended(blamed: Finding, facts: RunFacts) -> str:
    """`; it then ended with exit status 0`, of a rank that is blamed and has no process any more."""
    if not isinstance(blamed.subject, RankSubject) or not facts.has_ended:
        return ""
    gone = [one for one in facts.ranks if one.rank == blamed.subject.rank]
    if gone and gone[-1].end is RankEnd.FINISHED:
        return "; it then ended with exit status 0"
    if not gone or blamed.code != GONE.code or gone[-1].end is RankEnd.RUNS:
        return ""
    return f"; it {describe_end(gone[-1])}" + (f": {gone[-1].error}" if gone[-1].error else "")


def _judge_slow(slow: SlowRank, facts: RunFacts) -> Finding:
    at = f", mostly at {slow.at}" if slow.at else ""
    how = f"it waits for others {slow.waits:.0%} of the time, they wait {slow.others_wait:.0%}"
    late: tuple[Evidence, ...] = ()
    if slow.collectives:
        by = format_seconds(slow.late_seconds)
        how = f"it comes last to {slow.last} of {slow.collectives} collectives, {by} after all others"
        late = (
            Evidence("comes_last", slow.last, limit=slow.collectives, source="flight recorder"),
            Evidence("late", round(slow.late_seconds, 4), unit="s", source="flight recorder"),
        )
    message = f"rank {slow.rank} is slow: {how}; {_CAUSES[slow.cause]}{at}"
    return kinds.RANK_SLOW.finding(
        RankSubject(slow.rank, facts.host),
        message,
        Evidence(
            "waits", round(slow.waits, 3), limit=round(slow.others_wait, 3), source="/proc/PID/schedstat"
        ),
        Evidence("cause", slow.cause, source="/proc/PID/schedstat and glances at its stack"),
        Evidence(
            "more_of_it", round(slow.more, 3), source="share of the time, against the median of the others"
        ),
        Evidence("blocks", slow.blocks, source="of 5 s or ten steps each"),
        *late,
    )


def outcome_of_run(facts: RunFacts, findings: Sequence[Finding]) -> Outcome:
    """The worst of the findings; SKIP for a command that ended well and had no rank that was seen."""
    return Outcome.SKIP if not facts.ranks and not findings else outcome_of_findings(findings)


def starts_elsewhere(command: Iterable[str]) -> str:
    """The command's word that starts ranks on other machines, in containers, by a service; or empty."""
    names = (word.rpartition("/")[2] for word in command)
    return next((name for name in names if name in _STARTS_ELSEWHERE), "")


def describe_unseen_ranks(facts: RunFacts) -> str:
    """Why no rank was seen, as far as it is known."""
    if facts.unseen:
        return "; ".join(facts.unseen)
    starter = starts_elsewhere(facts.command)
    if starter:
        return (
            f"{starter} may have started ranks elsewhere; to have them watched,"
            " let it start `gpudiag run` there"
        )
    if facts.seconds < _UNWATCHED_SECONDS:
        return "it started none, or they ended too soon"
    return "no process of the command has a rank, or is a Python's"


def _judge_watching(facts: RunFacts) -> tuple[Finding, ...]:
    left = [one for one in facts.ranks if one.end is RankEnd.RUNS]
    why = ""
    if not facts.ranks and facts.seconds >= _UNWATCHED_SECONDS:
        why = describe_unseen_ranks(facts)
    elif facts.ranks and not facts.glances and facts.unseen:
        why = facts.unseen[0]
    if why:
        message = f"the ranks were not watched: {why}"
    elif left and facts.has_ended:
        names = ", ".join(describe_rank(one) for one in left[:8])
        message = f"the command ended, and {names} continued: how that ends was not watched"
    else:
        return ()
    return (kinds.NOT_WATCHED.finding(HostSubject(facts.host), message),)
