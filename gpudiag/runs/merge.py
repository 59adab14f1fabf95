"""Merge many machines' reports: an unreadable one is ERROR, never left out and never a PASS."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpudiag.checks.fleet import VERSIONS_DIFFER, judge_versions
from gpudiag.errors import UsageError
from gpudiag.model.codec import decode
from gpudiag.model.device import TorchFacts
from gpudiag.model.evidence import FileSubject, LinkSubject, Subject
from gpudiag.model.finding import (
    WORST_FIRST,
    CheckResult,
    Finding,
    Outcome,
    Severity,
    worst,
)
from gpudiag.model.job import HangReport
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.remedy import gpu_in_commands, name_gpu_in
from gpudiag.model.report import CollectiveReport, FindingGroup, MachineVerdict, MergedReport, Report
from gpudiag.model.training import TrainingReport
from gpudiag.model.untrusted_text import mask_text

_MAX_REMEDIES = 3  # different ones of one code that are printed
_MAX_MACHINES = 6  # that a remedy names
MAX_REPORT_BYTES = 256 * 1024**2  # of one file; a report of 8 GPUs is about 0.1 MB


@dataclass(frozen=True, slots=True)
class _SnapshotHead:
    host: str
    taken_at: datetime
    simulated: str | None
    driver_version: Reading[str] = NOT_ASKED
    torch: Reading[TorchFacts] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class _ReportHead:
    """What merging needs of a report; the readings of every GPU are not decoded."""

    verdict: Outcome
    results: tuple[CheckResult, ...]
    snapshot: _SnapshotHead


@dataclass(frozen=True, slots=True)
class _RunHead:
    """What merging needs of a report of ranks: `host` is the machine whose process wrote it."""

    outcome: Outcome
    host: str
    findings: tuple[Finding, ...]
    simulated: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    """One machine and what its checks concluded; `of_ranks`: its copy of what all ranks did."""

    machine: MachineVerdict
    results: tuple[CheckResult, ...]
    of_ranks: tuple[Finding, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Found:
    """One fault of one machine, with INDEX for its GPU in the remedy; `subject`: what it is about."""

    group: FindingGroup
    subject: Subject | None = None


@dataclass(frozen=True, slots=True)
class ReportSource:
    """One report's document and where it came from; without a document, why there is none."""

    place: str
    document: Any
    reason: str = ""


def merge_reports(paths: Iterable[str]) -> MergedReport:
    """One report of the reports in those files; a file may hold several, one per line."""
    return merge_documents(source for path in paths for source in read_sources(path))


def merge_documents(sources: Iterable[ReportSource]) -> MergedReport:
    """One report of those documents; duplicates count once."""
    distinct, repeated = _without_repeats(sources)
    entries = _with_distinct_names([_entry(source) for source in distinct])
    groups = _sorted((*_group(entries), *_skewed(entries)))
    outcomes = (*(entry.machine.verdict for entry in entries), *(group.outcome for group in groups))
    machines = tuple(entry.machine for entry in entries)
    return MergedReport(worst(outcomes), machines, groups, repeated)


def _without_repeats(sources: Iterable[ReportSource]) -> tuple[list[ReportSource], tuple[str, ...]]:
    """Each document once, and the places of the duplicates.

    Only byte-identical documents are the same report: two machines may share a name.
    """
    seen: set[bytes] = set()
    distinct: list[ReportSource] = []
    repeated: list[str] = []
    for source in sources:
        digest = sha256(json.dumps(source.document, sort_keys=True).encode()).digest()
        if isinstance(source.document, dict) and digest in seen:
            repeated.append(source.place)
        else:
            seen.add(digest)
            distinct.append(source)
    return distinct, tuple(repeated)


def read_sources(path: str) -> Iterator[ReportSource]:
    """Each report in a file, or why there is none."""
    try:
        documents = _documents(path)
    except OSError as error:
        yield ReportSource(mask_text(path), None, error.strerror or mask_text(str(error)))
    except UsageError as error:
        yield ReportSource(mask_text(path), None, mask_text(error.message))
    else:
        yield from (ReportSource(place, document) for place, document in documents)


def _documents(path: str) -> list[tuple[str, Any]]:
    """Each JSON document of a file, with its place.

    Raises:
        OSError: the file cannot be read.
        UsageError: it is not JSON, or too large.
    """
    with Path(path).open("rb") as file:
        data = file.read(MAX_REPORT_BYTES + 1)
    if len(data) > MAX_REPORT_BYTES:
        raise UsageError(f"larger than {MAX_REPORT_BYTES // 1024**2} MiB: not a report")
    if not data.strip():
        raise UsageError("empty: the report was never written")
    try:
        return [(path, json.loads(data))]
    except (ValueError, RecursionError) as error:
        lines = [(number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
        if len(lines) == 1 or _line(lines[0][1]) is None:
            raise UsageError(f"not JSON, or cut short: {error}") from error
    return [(f"{path}:{number}", _line(line)) for number, line in lines]


def _line(line: bytes) -> Any:
    """One line's document; None, which is not a report, if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _entry(source: ReportSource) -> _Entry:
    if source.reason:
        return _unreadable(source.place, source.reason)
    try:
        return _judge(source.place, source.document)
    except UsageError as error:
        return _unreadable(source.place, error.message)


def _judge(place: str, document: Any) -> _Entry:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema in (CollectiveReport.SCHEMA, TrainingReport.SCHEMA):
        return _judge_run(place, decode(_RunHead, document))
    if schema == HangReport.SCHEMA:
        raise UsageError("a document of `gpudiag hang`: merge these separately")
    if schema != Report.SCHEMA:
        what = f"a document of schema {schema!r}" if schema else "not a gpudiag document"
        raise UsageError(f"{what}, expected {Report.SCHEMA}")
    head = decode(_ReportHead, document)
    verdict, reason = _verdict(head)
    outcomes = [result.outcome for result in head.results]
    machine = MachineVerdict(
        name=head.snapshot.host,
        path=place,
        verdict=verdict,
        reason=reason,
        taken_at=head.snapshot.taken_at,
        simulated=head.snapshot.simulated,
        looked=sum(outcome in (Outcome.PASS, Outcome.WARN, Outcome.FAIL) for outcome in outcomes),
        skipped=outcomes.count(Outcome.SKIP),
    )
    return _Entry(machine, head.results, versions=_versions(head.snapshot))


def _judge_run(place: str, head: _RunHead) -> _Entry:
    counted = worst((head.outcome, *(finding.outcome for finding in head.findings)))
    stated = Outcome.ERROR if head.outcome is Outcome.SKIP else head.outcome
    differs = f"the report has {stated.value}, its findings have {counted.value}"
    machine = MachineVerdict(
        name=head.host,
        path=place,
        verdict=worst((stated, counted)),
        reason=None if stated is counted else differs,
        taken_at=Missing(MissingReason.NOT_SUPPORTED, "a report of ranks has no date"),
        simulated=head.simulated,
        looked=1,
        skipped=0,
    )
    return _Entry(machine, (), head.findings)


def _versions(snapshot: _SnapshotHead) -> dict[str, str]:
    """The versions, by name, that all ranks of a job must share, as far as the report has them."""
    read: dict[str, Reading[str]] = {"driver": snapshot.driver_version}
    if not isinstance(snapshot.torch, Missing):
        read |= {
            "torch": snapshot.torch.version,
            "CUDA runtime": snapshot.torch.cuda_runtime_version,
            "NCCL": snapshot.torch.nccl_version,
        }
    return {name: version for name, version in read.items() if not isinstance(version, Missing)}


def _verdict(head: _ReportHead) -> tuple[Outcome, str | None]:
    """The worse of the report's verdict and that of its results; ERROR without results."""
    if not head.results:
        return worst((head.verdict, Outcome.ERROR)), "the report has no results"
    findings = tuple(finding.outcome for result in head.results for finding in result.findings)
    counted = worst((*(result.outcome for result in head.results), *findings))
    stated = Outcome.ERROR if head.verdict is Outcome.SKIP else head.verdict
    if stated is counted:
        return stated, None
    reason = f"the report has {stated.value}, its results have {counted.value}"
    return worst((stated, counted)), reason


def _unreadable(place: str, reason: str) -> _Entry:
    missing = Missing(MissingReason.ERROR, "the report could not be read")
    machine = MachineVerdict(place, place, Outcome.ERROR, reason, missing, None, 0, 0)
    return _Entry(machine, ())


def _with_distinct_names(entries: list[_Entry]) -> list[_Entry]:
    """The entries, a host of several reports named with each report's path."""
    names = [entry.machine.name for entry in entries]
    return [
        entry
        if names.count(entry.machine.name) == 1
        else replace(
            entry, machine=replace(entry.machine, name=f"{entry.machine.name} ({entry.machine.path})")
        )
        for entry in entries
    ]


def _group(entries: list[_Entry]) -> tuple[FindingGroup, ...]:
    """Each finding once, with the machines that have it."""
    groups: dict[tuple[str, Outcome, Any], list[_Found]] = {}
    reported: set[tuple[str, Subject]] = set()
    for entry in entries:
        for one in _found(entry, reported):
            groups.setdefault((one.group.code, one.group.outcome, one.group.owner), []).append(one)
    return tuple(map(_joined, groups.values()))


def _sorted(groups: Iterable[FindingGroup]) -> tuple[FindingGroup, ...]:
    """Worst first, then the widest spread."""
    order = {outcome: place for place, outcome in enumerate(WORST_FIRST)}
    return tuple(sorted(groups, key=lambda group: (order[group.outcome], -len(group.machines), group.code)))


def _skewed(entries: list[_Entry]) -> Iterator[FindingGroup]:
    """What has different versions, with the machines in the minority, or all without a majority."""
    kind = VERSIONS_DIFFER
    for skew in judge_versions({entry.machine.name: entry.versions for entry in entries}):
        yield FindingGroup(
            kind.code,
            kind.outcome,
            kind.severity,
            kind.owner,
            skew.named,
            len(skew.named),
            skew.message,
            kind.remedy,
        )


def _found(entry: _Entry, reported: set[tuple[str, Subject]]) -> Iterator[_Found]:
    """Each fault of one machine as a group; what another has `reported` of the same ranks, once."""
    machines = (entry.machine.name,)
    for finding in entry.of_ranks:
        known = (finding.code, finding.subject)
        if known not in reported and finding.outcome in (Outcome.FAIL, Outcome.WARN, Outcome.ERROR):
            reported.add(known)
            yield _from_finding(finding, _hosts_of(finding.subject))
    for result in entry.results:
        for finding in result.findings:
            if finding.outcome in (Outcome.FAIL, Outcome.WARN, Outcome.ERROR):
                yield _from_finding(finding, machines)
        if result.outcome is Outcome.ERROR and not result.findings:
            reason = result.reason or "no reason given"
            words = f"no result: {reason}"
            yield _Found(
                FindingGroup(result.check, Outcome.ERROR, Severity.UNKNOWN, None, machines, 1, words, "")
            )


def _hosts_of(subject: Subject) -> tuple[str, ...]:
    """The machines that a finding of ranks is about; for a cut, both sides of it."""
    if isinstance(subject, FileSubject):
        return ()
    return subject.ends if isinstance(subject, LinkSubject) else (subject.host,)


def _from_finding(finding: Finding, machines: tuple[str, ...]) -> _Found:
    group = FindingGroup(
        code=finding.code,
        outcome=finding.outcome,
        severity=finding.severity,
        owner=finding.owner,
        machines=machines,
        count=1,
        message=finding.message,
        remedy=finding.remedy_of_any,
    )
    return _Found(group, finding.subject)


def _joined(found: Sequence[_Found]) -> FindingGroup:
    """The group of all of these; where their remedies differ, each with its machines."""
    by_remedy: dict[str, list[_Found]] = {}
    for one in found:
        by_remedy.setdefault(one.group.remedy, []).append(one)
    remedies = [
        _with_gpus(remedy, some) if len(by_remedy) == 1 else f"On {_name(some)}: {_with_gpus(remedy, some)}"
        for remedy, some in by_remedy.items()
    ]
    left = len(remedies) - _MAX_REMEDIES
    more = [f"The reports of the other machines have {left} more."] if left > 0 else []
    return replace(
        found[0].group,
        machines=_machines(found),
        count=len(found),
        remedy=" ".join((*remedies[:_MAX_REMEDIES], *more)),
    )


def _with_gpus(remedy: str, found: Sequence[_Found]) -> str:
    """The remedy with the GPUs for INDEX if alike on every machine; else followed by which."""
    if "INDEX" not in remedy:
        return remedy
    gpus: dict[tuple[str, ...], list[Subject]] = {}
    for one in found:
        if one.subject is not None:
            gpus.setdefault(one.group.machines, []).append(one.subject)
    if len({tuple(map(gpu_in_commands, subjects)) for subjects in gpus.values()}) == 1:
        return name_gpu_in(remedy, *next(iter(gpus.values())))
    which = [name_gpu_in(f"INDEX on {machine}", *subjects) for (machine,), subjects in gpus.items()]
    more = f", and {len(which) - _MAX_MACHINES} more machines" if len(which) > _MAX_MACHINES else ""
    return f"{remedy} INDEX is {'; '.join(which[:_MAX_MACHINES])}{more}."


def _machines(found: Iterable[_Found]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in found for name in one.group.machines))


def _name(found: Iterable[_Found]) -> str:
    machines = _machines(found)
    more = f" and {len(machines) - _MAX_MACHINES} more" if len(machines) > _MAX_MACHINES else ""
    return f"{', '.join(machines[:_MAX_MACHINES])}{more}"
