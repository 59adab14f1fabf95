"""Words that all formats of a report share: facts, subjects, evidence, faults, coverage.

Text from outside goes through `one_line`; each format escapes what is special to it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from gpudiag.checks.gpu.gone import GPU_GONE
from gpudiag.checks.needs import HISTORY_UNREAD
from gpudiag.checks.runner import findings_worst_first
from gpudiag.checks.traces import gpu_traces
from gpudiag.model.evidence import (
    DeviceSubject,
    Evidence,
    FileSubject,
    HostSubject,
    LinkSubject,
    RanksSubject,
    RankSubject,
    Scalar,
    SourceSubject,
    Subject,
)
from gpudiag.model.finding import CheckResult, Finding, Outcome, Owner
from gpudiag.model.number_ranges import join_words, name_ranks
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.report import Report
from gpudiag.render.style import one_line, wrapped
from gpudiag.units import format_seconds, format_size, significant

# --- facts

_RULED_OUT = "ruled_out"
_STACK = "stack"  # left out: `stuck_at` has the line that matters
# The amount names the unit: `size 64 KiB` and not `size bytes 64 KiB`.
_UNITS_IN_NAMES = (" bytes", " seconds", " celsius", " watts", " percent", " mhz")
_TIME = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z)$")
# The name is left out where the source already gives it.
_OTHER_NAMES = {"stderr": "standard error"}

# The names in documents are those of `gpudiag.ranks.environment.Launcher`.
_WORDS = {
    "spawn": "gpudiag",
    "variables": "whoever set RANK",
    "explicit": "--rank",
}

# How C++ reports what ended the process, and the lines of its stack.
_THROWN, _FRAME = "what():", "frame #"


def describe_name(fact: Evidence) -> str:
    """What the fact is about: `recovery action`."""
    name = fact.name.replace("_", " ")
    for unit in _UNITS_IN_NAMES if fact.unit else ():
        name = name.removesuffix(unit)
    return name


def describe_amount(value: Scalar, unit: str | None) -> str:
    """A value with its unit, as people read it: `20.1 ms`, `64 KiB`, `512 W`, `yes`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"{value} {unit}" if unit else _TIME.sub(r"\1 \2 UTC", value)
    if unit == "s" and isfinite(value):
        return format_seconds(value)
    if unit == "B" and isfinite(value):
        return format_size(value)
    return f"{_number(value)} {unit}" if unit else _number(value)


def describe_limit(fact: Evidence) -> str:
    """`limit 1.06 ms`, `limit 16` beside `8 lanes`; empty where the fact has no limit."""
    unit = fact.unit if fact.unit in ("B", "s") else None
    return "" if fact.limit is None else f"limit {describe_amount(fact.limit, unit)}"


def finding_lines(finding: Finding, *, has_message: bool) -> list[str]:
    """The lines of one finding; `has_message`: the verdict above already shows its message."""
    lines = wrapped(f"{finding.code}: {describe_subject_and_host(finding.subject)}", indent="  ")
    if not has_message:
        lines += wrapped(finding.message, first="  ", indent="  ")
    return (
        lines + _evidence_lines(finding.evidence) + wrapped(finding.remedy, first="  Do: ", indent="      ")
    )


def _evidence_lines(evidence: Sequence[Evidence]) -> list[str]:
    """The facts of a finding, a line per source, then what was ruled out; whole stacks are only in --json."""
    by_source: dict[str, list[str]] = {}
    for fact in evidence:
        if fact.name not in (_RULED_OUT, _STACK):
            by_source.setdefault(fact.source, []).append(describe_after_source(fact))
    lines: list[str] = []
    for source, facts in by_source.items():
        lines += wrapped((f"{source}: " if source else "") + ", ".join(facts), first="  ", indent="    ")
    for fact in evidence:
        if fact.name == _RULED_OUT:
            lines += wrapped(f"{fact.value}.", first="  Ruled out: ", indent="    ")
    return lines


def describe_after_source(fact: Evidence) -> str:
    """The fact as it stands after its source; of a long text, such as a stack, the most useful line."""
    value = _useful_line(fact.value) if isinstance(fact.value, str) else fact.value
    name, limit = describe_name(fact), describe_limit(fact)
    named = fact.source.endswith(_OTHER_NAMES.get(name, name))
    words = describe_amount(value, fact.unit) if named else f"{name} {describe_amount(value, fact.unit)}"
    return f"{words} ({limit})" if limit else words


def _useful_line(text: str) -> str:
    """The most useful line: a crash's own words, else the last line that is no quoted code."""
    lines = text.rstrip().split("\n")
    for line in lines:
        if line.startswith("Fatal Python error"):
            return line
        if line.lstrip().startswith(_THROWN):
            return line.partition(_THROWN)[2].strip()
    candidates = (line for line in reversed(lines) if line[:1].strip() and not line.startswith(_FRAME))
    return next(candidates, lines[-1].strip())


def _number(value: float) -> str:
    if isinstance(value, int) or not isfinite(value):
        return str(value)
    return f"{value:.0f}" if value == int(value) else significant(value)


def describe_launcher(launcher: Reading[str]) -> str:
    """`ranks by gpudiag`, `ranks by torchrun`; `no ranks` where none were started."""
    return "no ranks" if isinstance(launcher, Missing) else f"ranks by {_WORDS.get(launcher, launcher)}"


# --- the rest

_MAX_SECONDS = 1e9  # no check takes thirty years
MAX_TEXT_CHARACTERS = 400  # of one message, fact or remedy; a document has them whole

_OWNERS = {
    Owner.HARDWARE: "hardware",
    Owner.HOST: "the host's administrator",
    Owner.SOFTWARE: "whoever installs the software",
    Owner.JOB: "the job's owner",
}


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was looked at, and why the rest was not: the checks by each reason."""

    looked: int
    skipped: dict[str, tuple[str, ...]]
    errors: dict[str, tuple[str, ...]]
    forbidden: dict[str, tuple[str, ...]]  # of the skipped ones, those that this user may not run
    unread: dict[str, tuple[str, ...]]  # those that the history could not be read for
    in_use: dict[str, tuple[str, ...]]  # those of what others use
    of_nvml: dict[str, tuple[str, ...]]  # of the errors, those of a NVML that gave nothing to look at

    def sentence(self) -> str:
        """The counts in words: `41 judged, 3 skipped, 1 without a result`."""
        parts = [f"{self.looked} judged"]
        for word, reasons in (("skipped", self.skipped), ("without a result", self.errors)):
            count = sum(len(checks) for checks in reasons.values())
            if count:
                parts.append(f"{count} {word}")
        return ", ".join(parts)


def describe_subject(subject: Subject) -> str:
    """What a finding is about: `GPU 5 (5d:00.0)`, `rank 2 on a1`, `a1`, `train.py:12`."""
    return one_line(_subject_words(subject), MAX_TEXT_CHARACTERS)


def describe_subject_and_host(subject: Subject) -> str:
    """The subject with its host, for several machines: `GPU 5 (5d:00.0) on a1`."""
    words = describe_subject(subject)
    return f"{words} on {one_line(subject.host)}" if isinstance(subject, DeviceSubject) else words


def _subject_words(subject: Subject) -> str:
    if isinstance(subject, DeviceSubject):
        return _device(subject)
    if isinstance(subject, RankSubject):
        return f"rank {subject.rank} on {subject.host}"
    if isinstance(subject, RanksSubject):
        return f"{name_ranks(subject.ranks)} on {subject.host}"
    if isinstance(subject, LinkSubject):
        return f"{subject.ends[0]} to {subject.ends[1]} on {subject.host}"
    if isinstance(subject, SourceSubject):
        return f"{subject.source} on {subject.host}"
    if isinstance(subject, FileSubject):
        return f"{subject.path}:{subject.line}"
    assert isinstance(subject, HostSubject)  # noqa: S101 - the last of the union
    return subject.host


def _device(subject: DeviceSubject) -> str:
    bus_id = None if isinstance(subject.bus_id, Missing) else subject.bus_id.removeprefix("00000000:")
    if not isinstance(subject.nvml_index, Missing):
        return f"GPU {subject.nvml_index}" + (f" ({bus_id})" if bus_id else "")
    if bus_id:
        return f"the GPU at {bus_id}"
    return "a GPU" if isinstance(subject.uuid, Missing) else subject.uuid


def describe_fact(fact: Evidence) -> str:
    """One fact: `recovery action gpu_reset (NVML field 230)`, `busbw 21.3 GB/s (limit 25.2; PCIe Gen4)`."""
    notes = "; ".join(note for note in (describe_limit(fact), fact.source) if note)
    words = f"{describe_name(fact)} {describe_amount(fact.value, fact.unit)}" + (
        f" ({notes})" if notes else ""
    )
    return one_line(words, MAX_TEXT_CHARACTERS)


def describe_message(finding: Finding) -> str:
    """The finding's sentence, on one line."""
    return one_line(finding.message, MAX_TEXT_CHARACTERS)


def describe_where_and_what(finding: Finding) -> str:
    """The finding's sentence, after its subject where the sentence does not name that."""
    subject, message = describe_subject(finding.subject), describe_message(finding)
    return message if subject in message else f"{subject}: {message}"


def describe_remedy(finding: Finding) -> str:
    """What to do about it, on one line."""
    return one_line(finding.remedy, MAX_TEXT_CHARACTERS)


def describe_owners(findings: tuple[Finding, ...]) -> str:
    """Who must act on these findings: `hardware`, `hardware and the job's owner`."""
    owners = list(dict.fromkeys(_OWNERS[finding.owner] for finding in findings))
    return join_words(owners)


def faults_worst_first(report: Report) -> tuple[Finding, ...]:
    """Every finding that is not a plain observation, worst first."""
    return tuple(
        finding for finding in findings_worst_first(report.results) if finding.outcome is not Outcome.PASS
    )


def coverage(report: Report) -> Coverage:
    """How much was looked at, and why the rest was not."""
    looked = sum(_looked(result) for result in report.results)
    skipped = [result for result in report.results if result.outcome is Outcome.SKIP]
    errors = [
        result for result in report.results if not _looked(result) and result.outcome is not Outcome.SKIP
    ]

    def because(results: list[CheckResult], *reasons: MissingReason) -> dict[str, tuple[str, ...]]:
        return _by_reason([result for result in results if result.missing_reason in reasons])

    return Coverage(
        looked,
        _by_reason(skipped),
        _by_reason(errors),
        forbidden=because(skipped, MissingReason.NO_PERMISSION),
        unread=because(skipped, *HISTORY_UNREAD),
        in_use=because(skipped, MissingReason.IN_USE),
        of_nvml=because(errors, MissingReason.SOURCE_ABSENT),
    )


def _looked(result: CheckResult) -> bool:
    """Whether the check looked; an ERROR with a finding did, and found what it could not read."""
    return result.outcome in (Outcome.PASS, Outcome.WARN, Outcome.FAIL) or (
        result.outcome is Outcome.ERROR and bool(result.findings)
    )


def _by_reason(results: list[CheckResult]) -> dict[str, tuple[str, ...]]:
    reasons: dict[str, tuple[str, ...]] = {}
    for result in results:
        reason = describe_reason(result)
        reasons[reason] = (*reasons.get(reason, ()), one_line(result.check))
    return reasons


def describe_reason(result: CheckResult) -> str:
    """Why a check was skipped or could not look, on one line."""
    return one_line(result.reason or "no reason given", MAX_TEXT_CHARACTERS) or "no reason given"


def is_cpu_only(report: Report) -> bool:
    """Whether there is no GPU here and no trace of one, so that only the CPU was judged."""
    if report.snapshot.devices or gpu_traces(report.snapshot):
        return False
    return not any(finding.code == GPU_GONE.code for finding in report.findings())


def describe_machine(report: Report) -> str:
    """The kind of machine that was judged: simulated, or without a GPU; else empty."""
    simulated = report.snapshot.simulated
    words = [f"SIMULATED {one_line(simulated, 100)}"] if simulated else []
    if is_cpu_only(report):
        words.append("NO GPU" if report.verdict is Outcome.ERROR else "CPU ONLY")
    return ", ".join(words)


def finite_seconds(seconds: float) -> float:
    """The duration, or 0 where it is not finite or not positive: a format must not break on it."""
    return seconds if 0 < seconds < _MAX_SECONDS else 0.0
