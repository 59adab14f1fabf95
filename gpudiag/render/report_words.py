"""Words that all formats of a report share: subjects, evidence, faults, coverage.

Text from outside (messages, process names, lines of logs) goes through `one_line`, so that it is safe
in every format; formats still escape what is special to them.
"""

from dataclasses import dataclass

from gpudiag.checks.gpu.gone import GPU_GONE
from gpudiag.checks.runner import findings_worst_first
from gpudiag.checks.traces import gpu_traces
from gpudiag.model.evidence import (
    DeviceSubject,
    Evidence,
    FileSubject,
    HostSubject,
    LinkSubject,
    RankSubject,
    SourceSubject,
    Subject,
)
from gpudiag.model.finding import CheckResult, Finding, Outcome, Owner
from gpudiag.model.reading import Missing
from gpudiag.model.report import Report
from gpudiag.render.fact_words import describe_amount, describe_limit, describe_name
from gpudiag.render.style import one_line

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

    def sentence(self) -> str:
        """The counts in words: `41 looked, 3 skipped, 1 could not look`."""
        parts = [f"{self.looked} looked"]
        for word, reasons in (("skipped", self.skipped), ("could not look", self.errors)):
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
    """One fact: `recovery action gpu_reset (NVML field 230)`, `busbw 21.3 GB/s (limit 25.2; PCIe Gen4 x16)`."""
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
    return " and ".join(", ".join(owners).rsplit(", ", 1)) if owners else ""


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
    return Coverage(looked, _by_reason(skipped), _by_reason(errors))


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
