"""What `gpudiag run` reported on a job: its lines among the job's own in a log, or its verdict as JSON.

It watched the job while it ran, so its report is the answer where the logs alone name no cause; a cause that
they name is reported beside it.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpudiag.model.explanation import Verdict, VerdictKind
from gpudiag.model.job_run import OWN_PREFIX
from gpudiag.model.untrusted_text import mask_text

_MARK = OWN_PREFIX.encode()
# Version 1 has another key in its stalls, which is not read here.
_SCHEMA = re.compile(rb'^\s*\{\s*"schema":\s*"gpudiag\.job_run/[12]"')
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_BEFORE = 80  # bytes before it in a line: times and ranks that launchers print
_HEAD = re.compile(r"(STALL|FAIL|WARN|ERROR|PASS|SKIP) (.*)")
# Lines below a sentence that do not belong to it (render/job_run_text.py).
_DETAIL = re.compile(
    r"do: |then ranks: |kernel log: |not read: |its output: |verdict: |dumps and error files: |"
    r"dumps of the flight recorder: |the job continues|it is ended now"
)
_CODE = re.compile(r" \[(job\.\w+)\]")
_RANK = re.compile(r"^(?:the job stood still for [^:]*: )?rank (\d+)\b")
_MOST_CHARACTERS = 2000
_FAILED = frozenset(("STALL", "FAIL"))
_OWN_CAUSE = frozenset((VerdictKind.MACHINE_FAILED, VerdictKind.LINK_FAILED, VerdictKind.ALL_FAILED))


@dataclass(slots=True)
class RunReport:
    """One sentence of `gpudiag run`: STALL while the job stood still, FAIL and the like at its end."""

    outcome: str
    sentence: str
    log: str
    line: int
    remedy: str = ""
    code: str = ""

    @property
    def rank(self) -> int | None:
        """The rank that it names as the cause."""
        found = _RANK.match(self.sentence)
        return int(found[1]) if found else None


class RunReports:
    """Collects the reports of `gpudiag run` in the logs that it watches."""

    def __init__(self) -> None:
        """No reports yet."""
        self.reports: list[RunReport] = []
        self._part = ""  # what the next indented line goes on with

    def watch(self, log: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """The lines, with those of `gpudiag run` kept and passed on as empty: they are not the job's."""
        for number, raw in lines:
            place = raw.find(_MARK)
            if place < 0 or place > _BEFORE:
                yield number, raw
                continue
            text = _COLOUR.sub(b"", raw[place + len(_MARK) :]).decode(errors="replace").rstrip()
            yield number, b"" if self._add(log, number, text) else raw

    def read_document(self, log: str, data: bytes) -> bool:
        """Whether the data are a verdict, which is then kept."""
        if not is_run_verdict(data):
            return False
        try:
            document = json.loads(data)
            findings = [one for one in document["findings"] if isinstance(one, dict)]
            first = (
                findings[0] if findings else {"message": document["headline"], "outcome": document["outcome"]}
            )
            word = RunReport(
                str(first["outcome"]).upper(),
                _shown(first["message"]),
                log,
                1,
                _shown(first.get("remedy", "")),
                str(first.get("code", "")),
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        self.reports.append(word)
        return True

    def _add(self, log: str, number: int, text: str) -> bool:
        head = _HEAD.match(text)
        if head is not None:
            self.reports.append(RunReport(head[1], head[2], log, number))
            self._part = "sentence"
        elif not self.reports or not text.startswith("  ") or self.reports[-1].log != log:
            return False
        elif _DETAIL.match(text[2:]):
            self._part = "remedy" if text.startswith("  do: ") else ""
            if self._part:
                self.reports[-1].remedy = text[6:]
        elif self._part == "sentence":
            self.reports[-1].sentence = f"{self.reports[-1].sentence} {text.strip()}"[:_MOST_CHARACTERS]
        elif self._part == "remedy":
            self.reports[-1].remedy = f"{self.reports[-1].remedy} {text.strip()}"[:_MOST_CHARACTERS]
        return True

    def last(self) -> RunReport | None:
        """The last word that names a fault, with its code taken off; None without one.

        The report at the end counts before the stalls, and of several findings the worst stands first.
        """
        ends = [place for place, one in enumerate(self.reports) if one.outcome != "STALL"]
        faults = [one for one in self.reports if one.outcome in _FAILED or one.outcome == "WARN"]
        if not faults:
            return None
        final = [one for one in self.reports[ends[0] :] if one.outcome != "PASS"] if ends else []
        failed = [one for one in (final or faults) if one.outcome in _FAILED]
        return _without_code(next(iter(failed or final), faults[-1]))


def is_run_verdict(head: bytes) -> bool:
    """Whether a file that begins so is a verdict of `gpudiag run`."""
    return _SCHEMA.match(head) is not None


def with_run_reports(verdict: Verdict, words: RunReports) -> Verdict:
    """The verdict by the logs, with the report of `gpudiag run`: as the answer, or as further evidence."""
    word = words.last()
    if word is None:
        return verdict
    report = f"`gpudiag run` watched the job: {word.sentence}"
    kind = _kind_of(word)
    alike = verdict.kind is VerdictKind.RANK_FAILED and (word.rank is None or word.rank in verdict.ranks)
    if verdict.kind in _OWN_CAUSE or (alike and kind is VerdictKind.RANK_FAILED):
        return replace(verdict, evidence=(*verdict.evidence, report))
    if word.outcome == "WARN" and verdict.kind not in (
        VerdictKind.NOTHING,
        VerdictKind.ONLY_ECHOES,
        VerdictKind.STOPPED,
    ):
        return replace(verdict, evidence=(*verdict.evidence, report))
    names_other = verdict.kind in (
        VerdictKind.RANK_FAILED,
        VerdictKind.RANK_MISSING,
        VerdictKind.RANKS_DIFFER,
    )
    return Verdict(
        kind=kind,
        sentence=f"{word.sentence[:1].upper()}{word.sentence[1:]}.",
        ranks=() if word.rank is None else (word.rank,),
        log=word.log,
        line=word.line,
        cause="`gpudiag run` watched the job and reported it.",
        remedy=word.remedy,
        evidence=(f"The logs alone: {verdict.sentence}",) if names_other else (),
        driver_errors=verdict.driver_errors,
        echoes=verdict.echoes,
    )


def _kind_of(word: RunReport) -> VerdictKind:
    if word.outcome == "STALL" or word.code in ("job.stalled", "job.rank_left", "job.paused"):
        return VerdictKind.RANK_MISSING
    if (
        "stood still" in word.sentence
        or " left: it ended" in word.sentence
        or "was not in the collective" in word.sentence
    ):
        return VerdictKind.RANK_MISSING
    if "ended from outside" in word.sentence:
        return VerdictKind.STOPPED
    return VerdictKind.RANK_FAILED if word.outcome == "FAIL" else VerdictKind.NOTHING


def _without_code(word: RunReport) -> RunReport:
    code = _CODE.search(f"{word.sentence}{word.remedy}")
    return replace(
        word,
        sentence=mask_text(_CODE.sub("", word.sentence)).rstrip("."),
        remedy=mask_text(_CODE.sub("", word.remedy)),
        code=word.code or (code[1] if code else ""),
    )


def _shown(value: object) -> str:
    return str(value).replace("\n", " ")[:_MOST_CHARACTERS]
