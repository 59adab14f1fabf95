"""What logs show of a run that ended well: that nothing is wrong, or what failed after its end."""

from dataclasses import replace

from gpudiag.explain.absence import last_steps
from gpudiag.explain.event import Event, Standing
from gpudiag.explain.event_times import on_calendar
from gpudiag.explain.first_failure import REPORTS, order_of
from gpudiag.explain.identity import Identities, LogOfJob
from gpudiag.explain.lines import parse_lines
from gpudiag.explain.unknown_lines import MOST_UNKNOWN_LINES, is_foreign
from gpudiag.model.explanation import Verdict, VerdictKind
from gpudiag.model.number_ranges import count_of
from gpudiag.model.untrusted_text import mask_text
from gpudiag.reference.failures import failures

NOTHING_WRONG = "Nothing wrong found."
_MOST_UNKNOWN = 4
_NOTHING_KNOWN = "Nothing known found"


def _is_harmless(event: Event) -> bool:
    failure = failures().get(event.topic)
    return failure is not None and (
        failure.harmless
        or any(other in failures() and failures()[other].harmless for other in failure.follows)
    )


def _last_attempt(job: Identities) -> int:
    return max((log.attempt_at(log.facts.lines + 1) for log in job.logs), default=0)


def failure_before(events: list[Event], attempt: int) -> tuple[str, ...]:
    """What failed first in an attempt before that one, and was outlived by a restart."""
    earlier = [
        event
        for event in events
        if event.standing is Standing.OUTLIVED and event.attempt < attempt and event.topic not in REPORTS
    ]
    if not earlier:
        return ()
    event = min(earlier, key=order_of)
    return (f"an earlier attempt failed: {mask_text(event.excerpt)[:160]} ({event.log}:{event.line})",)


def _harmless(events: list[Event]) -> tuple[str, ...]:
    """What is worth a note although nothing is wrong: each with what it means and what may be done."""
    topics = dict.fromkeys(
        event.topic for event in events if event.topic in failures() and failures()[event.topic].harmless
    )
    return tuple(
        f"{failures()[topic].title}. {failures()[topic].cause} {failures()[topic].remedy}" for topic in topics
    )


def _first_unknown(job: Identities) -> tuple[str, ...]:
    """The first line of each log with a word for a failure that nothing known explains."""
    return tuple(
        f"not known: `{mask_text(raw.decode(errors='replace').strip())[:160]}` ({log.name}:{number})"
        for log in job.logs
        if (first := log.facts.not_known[1]) is not None
        for number, raw in (first,)
    )[:_MOST_UNKNOWN]


def judge_no_failure(job: Identities, events: list[Event]) -> Verdict:
    """The verdict that nothing is wrong, with what was worth a note."""
    last = max((log.facts.done_at for log in job.logs), default=0)
    done = next((log for log in job.logs if log.facts.done_at == last and last), None)
    ended = f" The job reports that it is complete ({done.name}:{last})." if done else ""
    outlived = sorted(
        {
            event.shape[:80]
            for event in events
            if event.standing is Standing.OUTLIVED
            and not event.is_driver
            and not _is_harmless(event)
            and event.attempt >= _last_attempt(job)
        }
    )
    evidence: tuple[str, ...] = _harmless(events)
    evidence += failure_before(events, _last_attempt(job))
    if outlived:
        evidence += (f"the run continued after: {mask_text('; '.join(outlived[:4]))}",)
    foreign = next((line for log in job.logs if (line := log.facts.last_error) and is_foreign(line)), None)
    if foreign is not None:
        evidence += (f"an error of another program than a rank: `{mask_text(foreign.whole.strip())[:160]}`",)
    steps = [
        f"the last step reported is {step} ({name}:{line})"
        for step, name, line, _ in last_steps(job).values()
        if step is not None
    ]
    unknown = sum(log.facts.not_known[0] for log in job.logs)
    if unknown:
        evidence += _first_unknown(job)[1:]
    count = f"{count_of(unknown, 'line')}{' or more' * (unknown >= MOST_UNKNOWN_LINES)}"
    number, raw = next((first for log in job.logs if (first := log.facts.not_known[1])), (0, b""))
    log_name = next((log.name for log in job.logs if log.facts.not_known[1]), "")
    summary = f"{_NOTHING_KNOWN}, {count} not known." if unknown else NOTHING_WRONG
    return Verdict(
        VerdictKind.NOTHING,
        f"{summary}{ended}",
        log=log_name,
        line=number,
        excerpt=mask_text(raw.decode(errors="replace").strip())[:500],
        evidence=(*evidence, *steps[:1]),
        driver_errors=tuple(
            f"{event.topic} ({event.log}:{event.line})" for event in events if event.is_driver
        )[:8],
    )


def after_the_end(job: Identities, events: list[Event], verdict: Verdict) -> Verdict:
    """The verdict, with the line that shows that the training had ended before what it reports."""
    if verdict.kind is VerdictKind.NOTHING:
        return verdict
    event = next((one for one in events if (one.log, one.line) == (verdict.log, verdict.line)), None)
    for log in job.logs:
        done = log.facts.done_at
        if not done or log.facts.moved_after(done):
            continue
        is_before = (
            done < verdict.line and log.attempt_at(done) == log.attempt_at(verdict.line)
            if log.name == verdict.log
            else event is not None and _is_done_before(log, event)
        )
        if is_before:
            ended = f"The training had ended ({log.name}:{done}), and what failed came after it."
            return replace(verdict, sentence=f"{ended} {verdict.sentence}")
    return verdict


def _is_done_before(log: LogOfJob, event: Event) -> bool:
    """Whether another log reports the end of the run at an earlier time than that of the event."""
    raw = next(raw for number, raw in log.facts.lately if number == log.facts.done_at)
    ended = next((line.at for line in parse_lines(log.facts.done_at, raw) if line.at), None)
    if ended is None or event.at is None or not event.is_exact:
        return False
    return on_calendar(ended, event.at, event.at) < event.at
