"""One fault on many GPUs, reported once: `GPUs 0-3, 5`, what all have in common, and one command for all.

A document has each finding for itself; this is for people, who read the same sentence once: on a terminal,
and on the page, where `gpudiag.findings/1` has it beside them.
"""

from collections.abc import Iterable

from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding, JoinedFinding
from gpudiag.model.number_ranges import number_ranges
from gpudiag.model.reading import Missing
from gpudiag.model.remedy import name_gpu_in
from gpudiag.render.report_words import (
    MAX_TEXT_CHARACTERS,
    describe_fact,
    describe_message,
    describe_remedy,
    describe_subject,
)
from gpudiag.render.style import one_line

_MANY = 3  # this many GPUs with one code share a fault; fewer only if their messages are equal
_MAX_DIFFERENT = 3  # different sentences or facts that are printed; the rest are counted


def join_findings(findings: Iterable[Finding]) -> tuple[JoinedFinding, ...]:
    """The findings in their order, those that several GPUs share as one."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for place, finding in enumerate(findings):
        groups.setdefault(_key(finding, place), []).append(finding)
    joined: list[JoinedFinding] = []
    for group in groups.values():
        joined += [_share(group)] if _is_shared(group) else map(_single, group)
    return tuple(joined)


def _key(finding: Finding, place: int) -> tuple[object, ...]:
    subject = finding.subject
    if not isinstance(subject, DeviceSubject) or isinstance(subject.nvml_index, Missing):
        return (place,)  # only findings about GPUs with an index are grouped
    return (finding.code, finding.outcome, subject.host)


def _index(finding: Finding) -> int | None:
    subject = finding.subject
    if not isinstance(subject, DeviceSubject) or isinstance(subject.nvml_index, Missing):
        return None
    return subject.nvml_index


def _indices(findings: Iterable[Finding]) -> list[int]:
    return [index for finding in findings if (index := _index(finding)) is not None]


def _is_shared(group: list[Finding]) -> bool:
    gpus = len(set(_indices(group)))
    alike = len({_own_words(finding) for finding in group}) == 1
    return gpus == len(group) > 1 and (gpus >= _MANY or alike)


def _single(finding: Finding) -> JoinedFinding:
    subject = describe_subject(finding.subject)
    message = describe_message(finding).removeprefix(f"{subject}: ")
    return JoinedFinding(
        finding, subject, message, tuple(map(describe_fact, finding.evidence)), describe_remedy(finding)
    )


def _share(group: list[Finding]) -> JoinedFinding:
    return JoinedFinding(
        group[0],
        f"GPUs {number_ranges(_indices(group))}",
        _messages(group),
        _facts(group),
        _remedy(group),
        len(group),
    )


def _own_words(finding: Finding) -> str:
    """The sentence without the GPU at its beginning: `: it is hot`, ` is off the bus`; else all of it."""
    return describe_message(finding).removeprefix(describe_subject(finding.subject))


def _messages(group: list[Finding]) -> str:
    by_words: dict[str, list[Finding]] = {}
    for finding in group:
        by_words.setdefault(_own_words(finding), []).append(finding)
    if len(by_words) == 1:
        words = next(iter(by_words))
        return f"each{words}" if words[:1] in (":", " ") else words
    words_of_each = [
        f"GPU{_plural(some)} {number_ranges(_indices(some))}{words}" for words, some in by_words.items()
    ]
    return "; ".join(words_of_each[:_MAX_DIFFERENT]) + _more(len(words_of_each) - _MAX_DIFFERENT)


def _facts(group: list[Finding]) -> tuple[str, ...]:
    """The facts: once where all GPUs have them, else with the GPUs that do."""
    by_fact: dict[str, list[Finding]] = {}
    for finding in group:
        for fact in dict.fromkeys(map(describe_fact, finding.evidence)):
            by_fact.setdefault(fact, []).append(finding)
    common = [fact for fact, some in by_fact.items() if len(some) == len(group)]
    own = [
        f"GPU{_plural(some)} {number_ranges(_indices(some))}: {fact}"
        for fact, some in by_fact.items()
        if len(some) < len(group)
    ]
    left = len(own) - _MAX_DIFFERENT
    return (*common, *own[:_MAX_DIFFERENT], *([f"{left} more of the kind"] if left > 0 else ()))


def _remedy(group: list[Finding]) -> str:
    """The remedy with every GPU in its commands, where only the GPU differs; else the first one."""
    if len({finding.remedy_of_any for finding in group}) != 1:
        return describe_remedy(group[0])
    subjects = (finding.subject for finding in sorted(group, key=lambda finding: _index(finding) or 0))
    return one_line(name_gpu_in(group[0].remedy_of_any, *subjects), MAX_TEXT_CHARACTERS)


def _plural(findings: list[Finding]) -> str:
    return "s" if len(findings) > 1 else ""


def _more(count: int) -> str:
    return f"; and {count} more of the same kind" if count > 0 else ""
