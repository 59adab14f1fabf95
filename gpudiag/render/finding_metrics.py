"""Present findings as Prometheus series of value 1, each of which goes when its finding goes.

Labels are identity and constant words; numbers that move are in `/api/v1/findings`. The scrape and a report's
file have the same series (docs/metrics.md).
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.gpu.state import findings_about
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.evidence import ENVIRONMENT, DeviceSubject, FileSubject, HostSubject, Subject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, value_or
from gpudiag.model.remedy import name_gpu_in
from gpudiag.reference.xid import action_text, sxids, xids
from gpudiag.render.report_words import describe_subject

FINDING = (
    "gpudiag_finding",
    "1 for a fault that is present, as the checks found it; the number of those that look alike.",
)

Labels = dict[str, str]

MAX_WORDS = 200  # characters of a title or a remedy
_SENTENCE_ENDS = re.compile(r"(?<=[.!?]) (?=[A-Z`])")
_PHRASE_ENDS = re.compile(rf"{_SENTENCE_ENDS.pattern}|(?<=;) ")
# Whose remedy is the Xid's own; the others name what to do for their own reason.
_REMEDY_OF_XID = ("xid.hardware", "xid.wear", "xid.application", "xid.driver")
# Evidence that names the part, where the finding is about a GPU or the machine.
_PARTS = {"pid": "process {}", "port": "port {}"}


def count_findings(
    findings: Iterable[Finding],
    snapshot: Snapshot,
    last_indices: Mapping[str, int] | None = None,
    of_runs: Iterable[tuple[str, Finding]] = (),
) -> list[tuple[Labels, float]]:
    """The labels of each fault, and how many findings have them; observations without a fault are left out.

    `last_indices` are the NVML indices that GPUs had last, by UUID: of one that is missing, people know that.
    `of_runs` are those that a run found, behind the run's kind, which repeats the look.
    """
    counts: dict[tuple[tuple[str, str], ...], float] = {}
    for kind, finding in (*(("", finding) for finding in findings), *of_runs):
        if finding.outcome not in (Outcome.PASS, Outcome.SKIP):
            found = finding_labels(finding, snapshot, last_indices or {}) | ({"run": kind} if kind else {})
            labels = tuple(found.items())
            counts[labels] = counts.get(labels, 0.0) + 1.0
    return [(dict(labels), count) for labels, count in counts.items()]


def finding_labels(finding: Finding, snapshot: Snapshot, last_indices: Mapping[str, int]) -> Labels:
    """What the finding is, whom it is about, and what to do, in words that stay the same while it lasts."""
    device = next((one for one in snapshot.devices if findings_about(one, (finding,))), None)
    xid = _xid_of(finding)
    subject = finding.subject
    labels = {
        "host": snapshot.host if isinstance(subject, FileSubject) else subject.host,
        "code": finding.code,
        "outcome": finding.outcome.value,
        "severity": finding.severity.value,
        "owner": finding.owner.value,
        "blocks_jobs": "true" if finding.blocks_jobs else "false",
        **_gpu_labels(finding, device, last_indices),
        "subject": _part_of(finding),
        "xid": "" if xid is None else str(xid),
        "title": describe_cause(finding.code, xid),
        "remedy": _fitting(name_gpu_in(describe_remedy(finding.code, xid), _named(subject, device))),
    }
    return {name: word for name, word in labels.items() if word}


@cache
def describe_cause(code: str, xid: int | None = None) -> str:
    """The cause in one sentence that is the same for every finding of that code, or Xid.

    It is empty for an unknown code.
    """
    if xid is not None:
        catalogue = sxids() if code.startswith("sxid.") else xids()
        entry = catalogue.get(xid)
        name = "SXid" if code.startswith("sxid.") else "Xid"
        return _fitting(
            f"{name} {xid}: {'not in the catalogue' if entry is None else entry.meaning}".rstrip(".")
        )
    return _fitting(_SENTENCE_ENDS.split(_meaning_and_remedy(code)[0])[0].rstrip("."))


@cache
def describe_remedy(code: str, xid: int | None = None) -> str:
    """What to do for that code, or Xid, in general; INDEX stands for the GPU. Empty for an unknown code."""
    entry = xids().get(xid) if xid is not None and code in _REMEDY_OF_XID else None
    return _meaning_and_remedy(code)[1] if entry is None else action_text(entry.immediate)


@cache
def _meaning_and_remedy(code: str) -> tuple[str, str]:
    kind = next((kind for kind in finding_kinds() if kind.code == code), None)
    return ("", "") if kind is None else (kind.meaning, kind.remedy)


def _gpu_labels(finding: Finding, device: Device | None, last_indices: Mapping[str, int]) -> Labels:
    """Which GPU it is: by the row that the machine shows of it, else by what the finding knows."""
    subject = finding.subject
    if not isinstance(subject, DeviceSubject):
        return {}
    named = subject if device is None else device.id
    bus_id, uuid = value_or(named.bus_id, ""), value_or(named.uuid, "")
    facts = {fact.name: fact.value for fact in finding.evidence}
    had = last_indices.get(uuid, facts.get("nvml_index"))
    index = had if isinstance(named.nvml_index, Missing) else named.nvml_index
    return {
        "gpu": bus_id if index is None else str(index),
        "uuid": uuid,
        "bus_id": bus_id,
        "serial": str(facts.get("serial", "")) if device is None else value_or(device.serial, ""),
    }


def _named(subject: Subject, device: Device | None) -> Subject:
    if device is None or not isinstance(subject, DeviceSubject):
        return subject
    return DeviceSubject(device.id.uuid, device.id.bus_id, device.id.nvml_index, subject.host)


def _part_of(finding: Finding) -> str:
    """The process, link, port, file or variable that it is about; empty for a GPU or machine as a whole."""
    subject = finding.subject
    if isinstance(subject, FileSubject):
        return subject.path
    if not isinstance(subject, DeviceSubject | HostSubject):
        return describe_subject(subject).removesuffix(f" on {subject.host}")
    for fact in finding.evidence:
        if fact.origin == ENVIRONMENT:
            return fact.name  # of the variable
        if fact.name in _PARTS:
            return _PARTS[fact.name].format(fact.value)
    return ""


def _xid_of(finding: Finding) -> int | None:
    """The Xid, or SXid, of a finding that is about one: another finding may gain and lose one as evidence."""
    name = finding.code.partition(".")[0]
    if name not in ("xid", "sxid"):
        return None
    return next((int(str(fact.value)) for fact in finding.evidence if fact.name == name), None)


def _fitting(words: str) -> str:
    """As many whole phrases as fit into a label."""
    kept = ""
    for phrase in _PHRASE_ENDS.split(words):
        longer = f"{kept} {phrase}".strip()
        if len(longer) > MAX_WORDS:
            break
        kept = longer
    return f"{kept[:-1]}." if kept.endswith(";") else kept
