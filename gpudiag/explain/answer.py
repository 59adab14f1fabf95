"""One answer from what each log shows: the likeliest cause first, its consequences, then unknown errors."""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import BinaryIO

from gpudiag.explain.classifier import Classifier
from gpudiag.explain.events import does_without
from gpudiag.explain.files import LogLines, LogRefused, open_lines
from gpudiag.explain.log import is_cut, read_facts
from gpudiag.explain.log_facts import Found, LogFacts, Raised
from gpudiag.explain.meanings import meaning_of
from gpudiag.explain.nccl.reader import NcclReader
from gpudiag.explain.nccl.report import report_nccl
from gpudiag.explain.no_failure import NOTHING_WRONG
from gpudiag.explain.run_reports import RunReports, is_run_verdict, with_run_reports
from gpudiag.explain.verdict import judge
from gpudiag.model.explanation import (
    LogExplanation,
    LogRead,
    Role,
    Sighting,
    UnknownError,
    Verdict,
    VerdictKind,
)
from gpudiag.model.job_state import FlightRecord
from gpudiag.model.nccl_log import NcclFinding, NcclLog
from gpudiag.model.untrusted_text import mask_text, shorten_text
from gpudiag.probe.job.flight_recorder import DumpRefused, looks_like_dump, parse_dump, rank_in_name
from gpudiag.reference.failures import ANY_CAUSE, failures

MAX_UNKNOWN = 3
# What keeps ranks from finding one another, or lets them wait for one another without end; the other findings
# cost time alone.
_KEEPS_APART = {
    "nccl.interface_leads_nowhere": VerdictKind.LINK_FAILED,
    "nccl.nics_differ": VerdictKind.MACHINE_FAILED,
    "nccl.version_mismatch": VerdictKind.RANK_FAILED,
    "nccl.settings_differ": VerdictKind.RANK_FAILED,
}

_ORDER = (Role.HARDWARE, Role.CAUSE, Role.SYMPTOM)
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


Source = LogLines | FlightRecord | LogRefused | bytes  # the last: a verdict of `gpudiag run`


def explain_logs(sources: Iterable[tuple[str, Source]]) -> LogExplanation:
    """What is recognised in logs.

    Hardware comes before other causes, causes before symptoms, then the earliest.
    """
    logs: list[LogRead] = []
    facts: list[tuple[str, LogFacts]] = []
    nccl, words, classifier = NcclReader(), RunReports(), Classifier()
    for name, lines in sources:
        read, shown = _read(name, lines, nccl, words, classifier)
        logs.append(read)
        if shown is not None:
            facts.append((name, shown))
    sightings = _sightings(facts)
    unknown = _unknown(facts, any(sighting.role is not Role.SYMPTOM for sighting in sightings))
    of_nccl = report_nccl(nccl.facts)
    return LogExplanation(
        tuple(logs),
        tuple(_echoes_last(sightings, unknown)),
        tuple(unknown[:MAX_UNKNOWN]),
        verdict=_verdict(logs, facts, of_nccl, words),
        nccl=of_nccl,
    )


def _verdict(
    logs: list[LogRead], facts: list[tuple[str, LogFacts]], nccl: NcclLog | None, words: RunReports
) -> Verdict | None:
    """Who failed first; None where there was not a line to judge by."""
    if not any(log.lines_read for log in logs):
        return None
    verdict, refused = with_run_reports(judge(facts), words), sum(log.refused is not None for log in logs)
    findings = nccl.findings if nccl is not None else ()
    if verdict.kind is VerdictKind.ONLY_ECHOES and (
        apart := [one for one in findings if one.code in _KEEPS_APART]
    ):
        return _of_nccl(verdict, apart[0])
    if verdict.kind is not VerdictKind.NOTHING:
        return verdict
    if not any(shown.has_text for _, shown in facts):
        blank = (
            "These logs are blank: there is no line to judge by."
            if len(logs) > 1
            else "The log is blank: there is no line to judge by."
        )
        verdict = replace(verdict, sentence=blank)
    elif findings:
        first, more = findings[0], len(findings) - 1
        others = f", and {more} more" if more else ""
        sentence = (
            f"No failure found, but NCCL's lines show {len(findings)} thing{'s' * (more > 0)} to fix:"
            f" {first.message[:330]} ({first.code}){others}."
        )
        rest = verdict.sentence.removeprefix(NOTHING_WRONG).strip()
        verdict = replace(verdict, sentence=f"{sentence} {rest}".strip())
    elif any(shown.is_cut for _, shown in facts) and not any(shown.done_at for _, shown in facts):
        cut = next(name for name, shown in facts if shown.is_cut)
        verdict = replace(
            verdict,
            sentence=(
                f"{verdict.sentence} But {cut} ends in the middle of a line: what came after it is not known."
            ),
        )
    if refused:
        unread = "1 file was not read" if refused == 1 else f"{refused} files were not read"
        return replace(verdict, sentence=f"{verdict.sentence} But {unread}.")
    return verdict


def _of_nccl(verdict: Verdict, finding: NcclFinding) -> Verdict:
    """A verdict on ranks that only waited for one another, where NCCL's lines show what keeps them apart."""
    place = finding.evidence[0] if finding.evidence else None
    return replace(
        verdict,
        kind=_KEEPS_APART[finding.code],
        sentence=f"NCCL's lines show what the ranks failed of: {finding.message[:240]} ({finding.code}).",
        ranks=finding.ranks,
        hosts=finding.hosts,
        topic=finding.code,
        log=place.log if place else verdict.log,
        line=place.line if place else verdict.line,
        excerpt=place.text if place else verdict.excerpt,
        where="",
        cause=finding.meaning,
        remedy=finding.remedy,
        evidence=(
            *verdict.evidence,
            f"all that failed waited for others: {verdict.excerpt[:120]} ({verdict.log}:{verdict.line})",
        ),
    )


def _read(
    name: str, lines: Source, nccl: NcclReader, words: RunReports, classifier: Classifier
) -> tuple[LogRead, LogFacts | None]:
    if isinstance(lines, LogRefused):
        return LogRead(name, 0, refused=str(lines)), None
    if isinstance(lines, bytes):
        known = words.read_document(name, lines)
        return LogRead(name, 1, refused=None if known else "it is a damaged verdict of gpudiag run"), None
    if isinstance(lines, FlightRecord):
        return LogRead(name, len(lines.calls)), LogFacts(record=lines)
    try:
        shown = read_facts(words.watch(name, nccl.watch(name, lines)), classifier)
    except LogRefused as refused:
        return LogRead(name, 0, refused=str(refused)), None
    shown.is_cut = lines.is_damaged or (
        lines.ends_within_line and is_cut(shown.last_words, classifier.shapes)
    )
    return LogRead(name, lines.lines_read, lines.bytes_left_out), shown


def open_log(name: str, stream: BinaryIO) -> tuple[str, Source]:
    """The lines of a stream under a name, or the flight recorder's dump in it, or why it cannot be read."""
    try:
        lines = open_lines(stream, is_dump=lambda head: looks_like_dump(head) or is_run_verdict(head))
        if isinstance(lines, bytes) and is_run_verdict(lines):
            return name, lines
        if isinstance(lines, bytes):
            return name, parse_dump(lines, source=name, rank=rank_in_name(name))
    except (LogRefused, DumpRefused) as refused:
        return name, LogRefused(str(refused).removesuffix("."))
    else:
        return name, lines


def _sightings(facts: list[tuple[str, LogFacts]]) -> list[Sighting]:
    """One sighting of each failure, in the order of role and time."""
    seen: dict[str, list[tuple[str, Found, bool]]] = {}
    for name, shown in facts:
        for topic, found in shown.found.items():
            went_on = shown.went_on(found.last, found.last_at)
            if found.failure and found.failure.at_info and not found.failure.weak:
                went_on = (
                    False  # launchers and kernels print it about what has ended, whatever others print then
                )
            went_on = went_on or does_without(found, shown)
            if not (found.weak and went_on):
                seen.setdefault(topic, []).append((name, found, went_on))
    ordered = sorted(seen.values(), key=_in_time)
    sightings = [_sighting(shows) for shows in ordered]
    if all(_time(shows) for shows in ordered):
        times = dict(
            zip((id(sighting) for sighting in sightings), (_time(shows) for shows in ordered), strict=True)
        )
        sightings.sort(key=lambda sighting: times[id(sighting)] or datetime.min)
    return sightings


def _in_time(shows: list[tuple[str, Found, bool]]) -> int:
    return shows[0][1].numbers[0]


def _time(shows: list[tuple[str, Found, bool]]) -> datetime | None:
    return min((found.at for _, found, _ in shows if found.at), default=None)


def _sighting(shows: list[tuple[str, Found, bool]]) -> Sighting:
    with_time = sorted(shows, key=lambda show: (show[1].at is None, show[1].at or datetime.min))
    name, first, _ = with_time[0]
    role = min((found.role for _, found, _ in shows), key=_ORDER.index)
    went_on = all(went_on for _, _, went_on in shows)
    return Sighting(
        explanation=first.explanation,
        role=Role.SYMPTOM if went_on and role is Role.CAUSE else role,
        lines=tuple(first.numbers),
        count=sum(found.count for _, found, _ in shows),
        excerpt=mask_text(first.excerpt),
        log=name,
        other_logs=tuple(other for other, _, _ in shows if other != name),
        program=first.failure.program if first.failure else "the NVIDIA driver",
        owner=first.failure.owner if first.failure else None,
        where=mask_text(next((found.where for _, found, _ in with_time if found.where), "")),
        went_on=went_on,
    )


def _echoes_last(sightings: list[Sighting], unknown: list[UnknownError]) -> list[Sighting]:
    """The sightings, each with the failure that it follows from; causes first."""
    topics = {sighting.explanation.topic for sighting in sightings}
    follows = {topic: failures()[topic].follows if topic in failures() else () for topic in topics}
    roots = [
        sighting.explanation.topic
        for sighting in sightings
        if sighting.role is not Role.SYMPTOM and ANY_CAUSE not in follows[sighting.explanation.topic]
    ]
    ordered: list[Sighting] = []
    for sighting in sightings:
        topic = sighting.explanation.topic
        origin = next((other for other in follows[topic] if other in topics), None)
        if origin is None and ANY_CAUSE in follows[topic]:
            origin = next((root for root in roots if root != topic), None)
            if origin is None and unknown and unknown[0].where:
                origin = "the unknown error"
        ordered.append(sighting if origin is None else replace(sighting, role=Role.SYMPTOM, follows=origin))
    return sorted(ordered, key=lambda sighting: (_ORDER.index(sighting.role), sighting.follows is not None))


def _unknown(facts: list[tuple[str, LogFacts]], has_cause: bool) -> list[UnknownError]:
    """Unexplained exceptions: each stream's last one, equal ones once; else the last line with an error."""
    last: dict[tuple[str, str], Raised] = {}
    counts: dict[str, int] = {}
    for name, shown in facts:
        for raised in shown.raised:
            if shown.went_on(raised.number):
                continue
            last[name, raised.stream] = raised
            counts[_shape(raised.text)] = counts.get(_shape(raised.text), 0) + 1
    errors: dict[str, UnknownError] = {}
    for (name, stream), raised in last.items():
        error = UnknownError(
            text=shorten_text(mask_text(raised.text), 500),
            log=name,
            line=raised.number,
            count=counts[_shape(raised.text)],
            where=shorten_text(mask_text(raised.where), 300),
            rank=stream,
            meaning=meaning_of(raised.text),
        )
        errors.setdefault(_shape(raised.text), error)
    if errors or has_cause:
        return sorted(errors.values(), key=lambda error: error.line)
    for name, shown in facts:
        line = shown.last_error
        if line is not None and not shown.found and not shown.went_on(line.number):
            text = shorten_text(mask_text(line.body.strip()), 500)
            return [UnknownError(text, name, line.number, 1, rank=line.stream, meaning=meaning_of(text))]
    return []


def _shape(text: str) -> str:
    return _NUMBERS.sub("#", text)[:200]
