"""The events of all logs of a job, each with rank, host and time, and whether it can have failed first."""

import re
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from gpudiag.explain.event import NUMBERS, Event, Standing
from gpudiag.explain.event_times import BEFORE_THE_JOB, on_calendar, on_one_calendar, set_clocks, span_of
from gpudiag.explain.identity import Identities, LogOfJob
from gpudiag.explain.lines import LogLine, Speaker, cut_around
from gpudiag.explain.log_facts import Found, LogFacts, Raised
from gpudiag.explain.progress import WENT_ON
from gpudiag.explain.rank_facts import Exit, short_host
from gpudiag.explain.unknown_lines import is_foreign
from gpudiag.model.explanation import Role
from gpudiag.model.untrusted_text import shorten_text
from gpudiag.reference.failures import ANY_CAUSE, Origin, failures

_OUTLIVED = timedelta(seconds=30)
_ENDED_LINES = 5  # from the end of a log, within which an error may be why it ends
_LAST_ERROR = 4  # lines after an exception of NCCL, in which its `Last error:` stands
_JUST_BEFORE = 20  # lines before a launcher's first report, within which an error may be what it reports
# Signals that end a rank, and what they are reported as.
_SIGNALS = {
    -4: ("SIGILL", "library.processor_too_old"),
    -6: ("SIGABRT", "rank.crashed"),
    -7: ("SIGBUS", "rank.bus_error"),
    -8: ("SIGFPE", "rank.crashed"),
    -9: ("SIGKILL", "rank.killed"),
    -11: ("SIGSEGV", "rank.crashed"),
}
# Exceptions that only report that another process has gone, or that a wait for it timed out.
_ECHO = re.compile(
    r"[Cc]onnection (?:was )?(?:closed|reset|aborted|refused)|Broken pipe|remote process exited|"
    r"communicator was aborted|Timed out waiting|ChildFailedError|SignalException|got signal: |"
    r"Rendezvous\w*Error|Failed to recv, got 0 bytes|DistNetworkError|DistStoreError|Socket Timeout|"
    r"wait timeout after|client socket has timed out|DistBackendError|Application timeout caused|"
    r"successfully reached monitoredBarrier|killed by signal: Terminated|[Gg]loo.*(?:connect|timeout|"
    r"timed out)|peer closed|Some NCCL operations|[Ww]atchdog|ProcessExitedException|ProcessRaisedException|"
    r"NCCL error|ncclRemoteError|RayTaskError|RayActorError|ActorDiedError|WorkerCrashedError|Aborting|"
    r"CalledProcessError|^KeyboardInterrupt|^SystemExit: ?\d*$|^Exception: ?(?:-- Process|$)|"
    r"ExceptionGroup: .*\(\d+ sub-exception|(?:exited|crashed) with (?:exit )?code -?\d+|worker died|"
    r"[Bb]roken[Pp]ipe|^EOFError|Engine core initialization failed|terminated with (?:signal|exit code)|"
    r"interrupted by signal|ConnectionResetError|ConnectionAbortedError|torch\.distributed\.elastic|"
    r"Node failure|unhandled system error|^_?queue\.(?:Empty|Full)\b|"
    r"[Ww]orker (?:returned (?:an )?error|failed to (?:start|initialize))|"
    r"(?:at|after) (?:interpreter )?shutdown$|Python is likely shutting down"
)
# These are a rank's own failure where its own code raised them, as when it reads a file or calls a program.
_ANYWHERE = re.compile(
    r"^(?:\w+\.)*(?:EOFError|Connection\w*Error|BrokenPipeError|TimeoutError|CalledProcessError|"
    r"\w*[Tt]imeout)\b"
)
# Reports of NCCL and the launchers that another process has gone.
_OF_OTHERS = re.compile(
    r"RemoteError|remote (?:process|peer)|[Cc]onnection (?:closed|reset|refused)|aborted|[Ww]atchdog|"
    r"[Tt]imed? ?out|Broken pipe|timeout|Socket recv failed"
)
# An assertion of torch's launcher itself, which met others that had gone.
_OF_LAUNCHER = re.compile(r"torch/distributed/elastic/.*: assert ")
_MISSING_FILE = re.compile(r"No such file or directory: '(/[^']+)'")
# An exception that only reports how a program ended, or that holds another: a cause that another line names
# counts before it.
_OF_ANOTHER = re.compile(
    r"\bTraceback:|EnforceNotMet: |NIXL_ERR_[A-Z_]+$|Py4JJavaError: |root error\(s\) found|"
    r"(?:exit(?:ed)?|failed|finished|returned|terminated|died)(?: with)? (?:an? |the )?(?:non-?zero )?"
    r"(?:exit |return |error )?(?:status|code)\b"
)
_OWN_WORDS = re.compile(r"NCCL error|NCCL Error|DistBackendError|unhandled (?:system|cuda) error")
_UNKNOWN_TOPICS = ("nccl.warning", "nccl.unhandled")
_WAITED_TOPICS = ("collective.timed_out", "collective.dispatch_timed_out", "engine.worker_silent")
# An error whose own text reports that the program does without, or tries again.
_GOES_ON = re.compile(
    r"\b(?:[Cc]ontinuing|[Rr]etrying|[Ww]ill (?:be )?retr(?:y|ied)|[Ff]alling back|[Nn]on-fatal|[Nn]ot fatal|"
    r"[Hh]armless|[Ii]gnoring)\b"
)
_KILLS_ALL = re.compile(r"usually means (?:the|one) child failed")  # SGLang, before it kills its processes
# Failures that only report that another process ended.
_REPORTS = frozenset(
    (
        "torchrun.child_failed",
        "torchrun.stopped_others",
        "launch.child_failed",
        "launch.mpi_ended",
        "slurm.task_failed",
    )
)


def events_of(job: Identities) -> list[Event]:
    """Every event of all logs, with times that can be compared."""
    found: list[Event] = []
    for number, log in enumerate(job.logs):
        found += _known(job, log, number)
        found += _raised(job, log, number)
        found += _last_error(job, log, number)
    exits = _exits(job, found)
    tables = {log.name for log in job.logs if log.facts.of_ranks.exits}
    found = [  # the launcher's table has more than a line that only reports that some rank was ended
        event
        for event in found
        if event.standing is not Standing.ENDED
        or event.rank is not None
        or event.pod
        or event.log not in tables
    ]
    dated = on_one_calendar(job, [*_dated(job, found), *exits])
    return _weigh(job, _after_waiting(set_clocks(job, dated)))


def _dated(job: Identities, found: list[Event]) -> list[Event]:
    """The events, with the time at which the launcher saw their rank end where their logs have no time."""
    ended: dict[tuple[int, bool], datetime] = {}
    for log in job.logs:
        for gone in log.facts.of_ranks.exits:
            rank = _rank_of_exit(job, log, gone)
            if rank is not None and gone.at is not None:
                for is_last in (True, False):
                    pick = max if is_last else min
                    ended[rank, is_last] = pick(ended.get((rank, is_last), gone.at), gone.at)
    return [
        replace(event, at=ended[event.rank, event.attempt > 0])
        if event.at is None and event.rank is not None and (event.rank, event.attempt > 0) in ended
        else event
        for event in found
    ]


def _known(job: Identities, log: LogOfJob, number: int) -> list[Event]:
    """The known failures of one log, by who shows them."""
    events = []
    for topic, found in log.facts.found.items():
        for speaker, shown in found.speakers.items():
            went_on = log.facts.went_on(shown.last, shown.at, speaker)
            if shown.weak and went_on and found.count == shown.count:
                continue
            standing = _standing(topic, found, log.facts, shown.last, shown.at, speaker)
            if does_without(found, log.facts):
                standing = Standing.OUTLIVED
            if topic == "rank.killed" and _was_killed_by_its_server(log.facts, shown.number):
                standing = Standing.ECHO
            # A line that names a host is about that one, and not about the one that printed it.
            named = found.failure.values_in(shown.excerpt) if found.failure is not None else {}
            rank = job.rank_of(log, speaker)
            unnamed = rank is None and not speaker.pod and "node" not in named
            if unnamed and found.failure is not None and standing in (Standing.CAUSE, Standing.UNKNOWN):
                rank = _rank_of_table(job, log, aborted=shown.where == "")
            host = short_host(named.get("node", "")) or job.host_of(log, speaker, rank)
            if "node" in named and rank is not None and job.hosts.get(rank, host) != host:
                rank = None
            pod = speaker.pod or log.place.pod or named.get("pod", "")
            events.append(
                Event(
                    standing, topic, shown.excerpt, log.name, number, shown.number, rank,
                    host, pod, shown.at or shown.before_at, shown.at is not None,
                    log.attempt_at(shown.number), shown.where, shown.count, _quality_of(topic, found),
                    found.failure is None, last_line=shown.last,
                )
            )  # fmt: skip
    return events


def does_without(found: Found, facts: LogFacts) -> bool:
    """Whether a failure's lines show that its program does without, and its log goes on after them.

    It goes on where it has progress, or, for half a minute, neither progress nor a failure.
    """
    if not (found.weak and found.failure is not None and found.failure.continues):
        return False
    if facts.moved_after(found.last):
        return True
    at, end = found.last_at, facts.last_at
    is_quiet = not facts.raised and all(other.last <= found.last for other in facts.found.values())
    return is_quiet and at is not None and end is not None and on_calendar(end, at, at) - at >= _OUTLIVED


def _was_killed_by_its_server(facts: LogFacts, number: int) -> bool:
    ended = facts.found.get("launch.child_failed")
    return ended is not None and any(
        shown.number < number and _KILLS_ALL.search(shown.excerpt) for shown in ended.speakers.values()
    )


def _quality_of(topic: str, found: Found) -> int:
    if found.failure is None:
        return 0 if found.role is Role.HARDWARE else 1
    if topic == "launch.interrupted":
        return 3  # a scheduler's report of the same moment has more
    if topic in ("launch.ended_from_outside", "slurm.cancelled"):
        return 2
    return 1 if found.failure.generic or found.failure.weak or ANY_CAUSE in found.failure.follows else 0


def _standing(
    topic: str, found: Found, facts: LogFacts, last: int, at: datetime | None, speaker: Speaker
) -> Standing:
    failure = found.failure
    if failure is not None and failure.harmless:
        return Standing.OUTLIVED
    is_reported_late = failure is not None and failure.at_info and not failure.weak
    if facts.done_at > last or (facts.went_on(last, at, speaker) and not is_reported_late):
        return Standing.OUTLIVED
    if topic in _UNKNOWN_TOPICS:
        is_refused = topic == "nccl.unhandled" and "network.connection_refused" in facts.found
        lost = any(0 < number - last <= _LAST_ERROR for number, _, _ in facts.of_ranks.lost)
        is_echo = is_refused or lost or _OF_OTHERS.search(found.excerpt)
        return Standing.ECHO if is_echo else Standing.UNKNOWN
    if failure is not None and failure.origin is not None:
        return {
            Origin.OUTSIDE: Standing.OUTSIDE,
            Origin.ABSENCE: Standing.ABSENT,
            Origin.LINK: Standing.LINK,
            Origin.END: Standing.ENDED,
        }[failure.origin]
    if found.role is Role.SYMPTOM:
        return Standing.ECHO
    return Standing.MACHINE if found.role is Role.HARDWARE else Standing.CAUSE


def _raised(job: Identities, log: LogOfJob, number: int) -> list[Event]:
    """The exceptions of one log that no failure explains.

    They are the last of each rank, and the first where that is no echo.
    """
    events, counts = [], dict[tuple[Speaker, str], int]()
    same = Counter((raised.speaker, NUMBERS.sub("#", raised.text)[:200]) for raised in log.facts.raised)
    for raised in [*log.facts.raised, *_origins(log.facts)]:
        key = (raised.speaker, NUMBERS.sub("#", raised.text)[:200])
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > 1:
            continue
        standing = _standing_of_raised(raised)
        if log.facts.went_on(raised.number, raised.at, raised.speaker):
            standing = Standing.OUTLIVED
        rank = job.rank_of(log, raised.speaker)
        if rank is None and not raised.speaker.pod and standing is Standing.CAUSE:
            rank = _rank_of_table(job, log)
            silent = _silent_in_table(job, log)
            if 1 < len(silent) <= same[key]:
                events += [
                    _of_raised(job, log, number, raised, other, standing)
                    for other in sorted(silent)
                    if other != rank
                ]
        events.append(_of_raised(job, log, number, raised, rank, standing))
    return events


def _standing_of_raised(raised: Raised) -> Standing:
    """What an exception that no failure explains can be."""
    if raised.follows_known:
        return Standing.ECHO
    if _ANYWHERE.match(raised.text) and not raised.is_of_peers:
        return Standing.CAUSE
    if _ECHO.search(raised.text) or _OF_LAUNCHER.search(raised.where):
        has_own_words = _OWN_WORDS.search(raised.text) and not _OF_OTHERS.search(raised.text)
        return Standing.UNKNOWN if has_own_words else Standing.ECHO
    if raised.is_cut or _OF_ANOTHER.search(raised.text):
        return Standing.UNKNOWN
    of_inner = _ECHO.search(raised.inner_text) and "CalledProcessError" not in raised.inner_text
    return Standing.ECHO if of_inner else Standing.CAUSE


def _origins(facts: LogFacts) -> list[Raised]:
    """The exceptions that only an echo was raised from, as that of a process group that is taken down."""
    reported = {raised.inner_text for raised in facts.raised if not _ECHO.search(raised.text)}
    return [raised for raised in facts.inner if raised.text not in reported and not _ECHO.search(raised.text)]


def _of_raised(
    job: Identities, log: LogOfJob, number: int, raised: Raised, rank: int | None, standing: Standing
) -> Event:
    host = job.host_of(log, raised.speaker, rank)
    return Event(
        standing, _topic_of_missing_file(job, raised.text, host), raised.text, log.name, number,
        raised.number, rank, host, raised.speaker.pod or log.place.pod, raised.at or raised.before_at,
        raised.at is not None, log.attempt_at(raised.number), raised.where,
        quality=2 if raised.is_cut else 0 if raised.where else 1, quote=raised.quote,
        origin=raised.inner_text,
    )  # fmt: skip


def _topic_of_missing_file(job: Identities, text: str, host: str) -> str:
    """The failure of a file that a rank of another host has written, and that is not on this one."""
    match = _MISSING_FILE.search(text)
    if match is None or not host:
        return ""
    for log in job.logs:
        if match[1] in log.facts.of_ranks.saved:
            _, speaker = log.facts.of_ranks.saved[match[1]]
            writer = job.host_of(log, speaker, job.rank_of(log, speaker))
            return "filesystem.not_shared" if writer and writer != host else ""
    return ""


def _silent_in_table(job: Identities, log: LogOfJob, aborted: bool = False) -> set[int]:
    """The ranks that the launcher saw fail, or abort, by themselves, and that no line names."""
    failed = {
        rank
        for gone in log.facts.of_ranks.exits
        if (rank := _rank_of_exit(job, log, gone)) is not None
        and gone.code is not None
        and (gone.code > 0 or (aborted and gone.code == -6))
    }
    named = {job.rank_of(log, raised.speaker) for raised in log.facts.raised} | {
        job.rank_of(log, who) for found in log.facts.found.values() for who in found.speakers
    }
    return failed - named


def _rank_of_table(job: Identities, log: LogOfJob, aborted: bool = False) -> int | None:
    """The rank of a line without a prefix: the one that the launcher saw fail, or abort, by itself."""
    silent = _silent_in_table(job, log, aborted)
    first = next(
        (gone.rank for gone in log.facts.of_ranks.exits if gone.is_first and gone.rank in silent), None
    )
    return first if first is not None else next(iter(silent)) if len(silent) == 1 else None


def _last_error(job: Identities, log: LogOfJob, number: int) -> list[Event]:
    """The last line that calls itself an error, if the log ends with it or a launcher saw a rank fail."""
    line = log.facts.last_error
    if line is None or log.facts.went_on(line.number):
        return []
    if any(_standing_of_raised(one) is not Standing.ECHO for one in log.facts.raised):
        return []
    if any(topic not in _REPORTS and not _is_abort_after(log, topic, line) for topic in log.facts.found):
        return []
    reported = min((found.numbers[0] for found in log.facts.found.values()), default=None)
    if reported is not None and not 0 < reported - line.number <= _JUST_BEFORE:
        return []
    if log.facts.moved_after(line.number) or (_GOES_ON.search(line.body) and log.facts.lines > line.number):
        return []
    raised = min((one.number for one in log.facts.raised), default=None)
    if raised is not None and raised < line.number:
        return []
    failed = (
        reported is not None
        or raised is not None
        or any(gone.code for other in job.logs for gone in other.facts.of_ranks.exits)
    )
    if not failed and (log.facts.lines - line.number > _ENDED_LINES or is_foreign(line)):
        return []
    rank = job.rank_of(log, line.speaker)
    standing = Standing.ECHO if _ECHO.search(line.body) else Standing.CAUSE
    if standing is Standing.ECHO and not failed:
        return []
    return [
        Event(
            standing, "", shorten_text(line.body.strip(), 300), log.name, number, line.number, rank,
            job.host_of(log, line.speaker, rank), line.speaker.pod or log.place.pod,
            line.at, line.at is not None, log.attempt_at(line.number), quality=2,
            quote=cut_around(line.body.strip(), ""),
        )
    ]  # fmt: skip


def _is_abort_after(log: LogOfJob, topic: str, line: LogLine) -> bool:
    """Whether a crash is the abort that follows an assertion of C, which is the line before it."""
    found = log.facts.found[topic]
    return topic == "rank.crashed" and "Assertion " in line.body and 0 < found.numbers[0] - line.number <= 2


def _exits(job: Identities, found: list[Event]) -> list[Event]:
    """Ranks whose end a launcher reports, and that print no error themselves."""
    with_error = {
        event.rank
        for event in found
        if event.rank is not None and event.standing <= Standing.ECHO and not event.is_driver
    }
    exits: dict[int | tuple[str, int | None], Event] = {}
    for number, log in enumerate(job.logs):
        shown = log.facts.of_ranks
        for gone in map(_by_signal, shown.exits):
            if gone.code in (None, 0, -15, 143, -2) or (gone.pid in shown.stopped_pids and gone.code == -9):
                continue
            rank = _rank_of_exit(job, log, gone)
            is_nobodys = rank is None and not gone.pod
            if rank in with_error or (gone.code is not None and gone.code > 0 and is_nobodys):
                continue
            place = gone.pod or gone.host or log.host
            key = (
                rank
                if rank is not None
                else (place, gone.local_rank if gone.local_rank is not None else gone.task)
            )
            exits.setdefault(key, _exit(job, log, number, gone, rank))
            if gone.is_first and gone.rank is not None:
                exits[key] = _exit(job, log, number, gone, rank)
    return list(exits.values())


def _by_signal(gone: Exit) -> Exit:
    """The end with its signal below 0, also where a shell or a container reports it as 128 and its number."""
    signalled = gone.code is not None and 128 - gone.code in _SIGNALS
    return replace(gone, code=128 - (gone.code or 0)) if signalled else gone


def _exit(job: Identities, log: LogOfJob, number: int, gone: Exit, rank: int | None) -> Event:
    code = gone.code or 0
    signal, topic = _SIGNALS.get(code, (f"signal {-code}" if code < 0 else "", ""))
    words = f"ended by {signal}" if signal else f"ended with exit status {code}"
    host = gone.host or (job.hosts.get(rank, "") if rank is not None else "") or log.host
    return Event(
        Standing.ENDED, topic, gone.text or words, log.name, number, gone.line, rank, host, gone.pod,
        gone.at, True, log.attempt_at(gone.line), quality=0 if code < 0 else 2, code=code,
        quote="" if gone.text else gone.quote,
    )  # fmt: skip


def _rank_of_exit(job: Identities, log: LogOfJob, gone: Exit) -> int | None:
    if gone.rank is not None:
        return gone.rank
    if gone.local_rank is not None:
        return log.ranks_of_local.get(gone.local_rank)
    return gone.task if gone.task is not None and job.tasks_are_ranks else None


def _after_waiting(found: list[Event]) -> list[Event]:
    """The events, with those set aside that a rank shows after its wait for another rank timed out.

    What a rank meets while it is taken down after a timeout is no reason for that timeout.
    """
    waited: dict[tuple[int, int | None], int] = {}
    absent: dict[tuple[int, str], int] = {}  # the first line of a wait, by log and topic
    for event in found:
        if event.standing is Standing.ABSENT:
            key = (event.log_number, event.topic)
            absent[key] = min(absent.get(key, event.line), event.line)
    for event in found:
        if event.rank is not None and event.topic in _WAITED_TOPICS and event.standing is Standing.ABSENT:
            of_rank = (event.log_number, event.rank)
            waited[of_rank] = min(waited.get(of_rank, event.line), event.line)
    return [
        replace(event, standing=Standing.ECHO)
        if event.standing in (Standing.CAUSE, Standing.UNKNOWN)
        and not event.is_driver
        and (
            waited.get((event.log_number, event.rank), event.line) < event.line
            or _follows_from_wait(event, absent)
        )
        else event
        for event in found
    ]


def _follows_from_wait(event: Event, absent: dict[tuple[int, str], int]) -> bool:
    """Whether an event is a consequence of a wait that its log reports before it."""
    follows = failures()[event.topic].follows if event.topic in failures() else ()
    return any(absent.get((event.log_number, topic), event.line) < event.line for topic in follows)


def _weigh(job: Identities, found: list[Event]) -> list[Event]:
    """The events, with those set aside that the job outlived or that belong to another time or machine."""
    started, moved = span_of(job)
    hosts = {event.host for event in found if event.host and not event.is_driver and event.rank is not None}
    hosts |= set(job.hosts.values())
    done = max(
        [
            log.attempt_at(log.facts.done_at)
            for number, log in enumerate(job.logs)
            if log.facts.done_at or _runs_again(log, number, found)
        ],
        default=0,
    )
    notes = {
        topic
        for log in job.logs
        for topic in log.facts.found
        if topic in failures() and failures()[topic].harmless
    }
    weighed = []
    for event in found:
        standing = Standing.OUTLIVED if event.attempt < done or _follows(event, notes) else event.standing
        if event.is_driver or standing is Standing.MACHINE:
            elsewhere = bool(event.host and hosts and event.host not in hosts)
            early = event.is_exact and event.at and started and event.at < started - BEFORE_THE_JOB
            outlived = event.is_exact and event.at and moved and moved > event.at + _OUTLIVED
            if standing < Standing.OUTLIVED and (elsewhere or early or outlived):
                standing = Standing.OUTLIVED
        weighed.append(replace(event, standing=standing) if standing is not event.standing else event)
    return weighed


def _runs_again(log: LogOfJob, number: int, found: list[Event]) -> bool:
    """Whether a container that was restarted now makes steps, and shows no error."""
    return (
        log.is_restart
        and len(log.facts.progress) >= WENT_ON
        and not any(event.log_number == number and event.standing < Standing.OUTLIVED for event in found)
    )


def _follows(event: Event, topics: set[str]) -> bool:
    """Whether an event is a consequence of one of these failures."""
    return event.topic in failures() and any(topic in topics for topic in failures()[event.topic].follows)
