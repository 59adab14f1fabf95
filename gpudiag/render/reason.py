"""A report as one line: the reason of a drained Slurm node, a Kubernetes message, a line in a log."""

import re
from dataclasses import dataclass

from gpudiag.model.evidence import DeviceSubject, HostSubject, SourceSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.plan import PreflightPlan
from gpudiag.model.report import Report
from gpudiag.render.report_words import (
    coverage,
    describe_machine,
    describe_message,
    describe_reason,
    describe_remedy,
    describe_subject,
    describe_where_and_what,
    faults_worst_first,
)
from gpudiag.render.style import one_ascii_line

MAX_CHARACTERS = 199  # longer reasons are hard to read in `sinfo -R` and `kubectl describe`
_MAX_MACHINE_CHARACTERS = 40  # of a simulated machine's name
_MIN_FAULT_CHARACTERS = 70
_DO = ". Do: "
# Characters with a meaning to a shell, scontrol or a reader of `key=value`.
_UNSAFE = re.compile(r"""[\\'"`$;&|<>*?{}\[\]!~^]""")
_CLAUSE_END = re.compile(r"(?<=[\w`)])[.;](?= |$)")


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why the gate decides as it does: outcome, code or check, what is wrong with which part, what to do."""

    outcome: Outcome
    code: str
    more: int
    what: str
    subject: str = ""
    remedy: str = ""


def render_reason(report: Report, plan: PreflightPlan | None = None) -> str:
    """One line of ASCII without quotes: outcome, code, GPU, fault, remedy of the first that fails the gate.

    How many more do stands behind it.
    """
    cause = _cause(report, plan or PreflightPlan())
    machine = _plain(describe_machine(report), _MAX_MACHINE_CHARACTERS)
    head = f"gpudiag {cause.outcome.value.upper()} " + (f"{machine}: " if machine else "")
    if cause.code:
        head += _plain(cause.code) + (f" (+{cause.more} more)" if cause.more else "") + ": "
    return _plain(head + _fitted(cause, MAX_CHARACTERS - len(head)), MAX_CHARACTERS) + "\n"


def _cause(report: Report, plan: PreflightPlan) -> _Cause:
    faults = faults_worst_first(report)
    # Of equals one that names a GPU goes first: a person must find it.
    failing = sorted(
        (finding for finding in faults if plan.fails_on(finding)),
        key=lambda finding: not isinstance(finding.subject, DeviceSubject),
    )
    if failing:
        return _of_findings(failing)
    unclear = [result for result in report.results if result.outcome is Outcome.ERROR]
    # Where no FAIL fails this gate, an ERROR keeps it shut.
    spared = report.verdict is Outcome.FAIL and plan.fail_on != "any"
    outcome = Outcome.ERROR if spared and unclear else report.verdict
    alike = [finding for finding in faults if finding.outcome is outcome]
    if alike:
        return _of_findings(alike)
    if unclear and outcome is Outcome.ERROR:
        return _Cause(outcome, unclear[0].check, 0, describe_reason(unclear[0]))
    gaps = [result for result in report.results if result.is_gap] if plan.strict else []
    if gaps:
        skipped = f"--strict, and a check was skipped: {describe_reason(gaps[0])}"
        return _Cause(Outcome.ERROR, gaps[0].check, len(gaps) - 1, skipped)
    return _Cause(outcome, "", 0, coverage(report).sentence())


def _of_findings(findings: list[Finding]) -> _Cause:
    first = findings[0]
    # The machine itself needs no name: the drained node, or the pod, has it.
    on_a_part = not isinstance(first.subject, HostSubject | SourceSubject)
    return _Cause(
        first.outcome,
        first.code,
        len(findings) - 1,
        describe_where_and_what(first) if on_a_part else describe_message(first),
        describe_subject(first.subject) if on_a_part else "",
        describe_remedy(first),
    )


def _fitted(cause: _Cause, room: int) -> str:
    """What is wrong and what to do, within `room` characters: details are dropped before advice."""
    what, subject = _plain(cause.what), _plain(cause.subject)
    if not cause.remedy:
        return _plain(what, room)
    remedy = _shortened(cause.remedy, room - len(_DO) - min(len(what), _MIN_FAULT_CHARACTERS))
    kept = room - len(_DO) - len(remedy)
    fault = _plain(what, kept)
    if subject not in fault:
        fault = _plain(f"{subject}: {what}", kept)
    return f"{fault}{_DO.removeprefix('.') if fault.endswith('.') else _DO}{remedy}"


def _shortened(remedy: str, room: int) -> str:
    """As many of the text's clauses as fit; at least the first, shortened if necessary."""
    ends = [end.start() for end in _CLAUSE_END.finditer(remedy)]
    wholes = [remedy, *(remedy[:end] for end in reversed(ends))]
    fitting = (text for text in map(_plain, wholes) if len(text) <= room)
    return next(fitting, _plain(wholes[-1], room))


def _plain(text: str, max_characters: int | None = None) -> str:
    # Replacement marks go as well: a reason is read, not parsed.
    return one_ascii_line(_UNSAFE.sub("", one_ascii_line(text).replace(";", ",")), max_characters)
