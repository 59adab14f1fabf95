"""The recipe of `gpudiag compare`: read two documents, compare what both hold."""

import json
from dataclasses import dataclass
from pathlib import Path

from gpudiag.checks.comparison import Side, compare_sides
from gpudiag.errors import UsageError
from gpudiag.model.comparison import ComparedDocument, Comparison, Difference, Whose
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import from_document
from gpudiag.model.finding import Outcome, worst
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.receipt import Receipt
from gpudiag.model.report import Report
from gpudiag.model.untrusted_text import mask_text
from gpudiag.render.sealed import read_sealed
from gpudiag.runs.receipt import read_bytes, why_changed

_HINT = (
    "give receipts (.json or .html), reports of `gpudiag preflight --json`, or"
    " snapshots of `gpudiag list --json`"
)


@dataclass(frozen=True, slots=True)
class _Parsed:
    document: ComparedDocument
    side: Side
    problem: str | None  # of a receipt that was changed


@dataclass(frozen=True, slots=True)
class NamedDocument:
    """A document as it was written, and what it is called: its path, or its run."""

    name: str
    data: bytes


def compare_files(before: Path, now: Path) -> Comparison:
    """What differs between the documents of two files.

    Raises UsageError: one is unreadable, or none of ours.
    """
    first, second = (NamedDocument(str(path), read_bytes(path, _HINT)) for path in (before, now))
    return compare_documents(first, second)


def compare_documents(before: NamedDocument, now: NamedDocument) -> Comparison:
    """What differs between two documents. Raises UsageError: one is no receipt, report or snapshot."""
    first, second = _parse(before), _parse(now)
    compared = compare_sides(first.side, second.side)
    changed = tuple(
        Difference(
            Whose.DOCUMENT, one.document.path, "receipt", "as written", "changed", Outcome.FAIL, one.problem
        )
        for one in (first, second)
        if one.problem is not None
    )
    differences = (*changed, *compared.differences)
    compared_any = bool(compared.alike or compared.differences)
    return Comparison(
        worst(
            (Outcome.PASS if compared_any else Outcome.ERROR, *(one.outcome for one in differences)),
        ),
        first.document,
        second.document,
        compared.same_machine,
        differences,
        compared.alike,
        compared.not_compared,
    )


def _parse(named: NamedDocument) -> _Parsed:
    name, data = named.name, named.data
    problem: str | None = None
    whole: Reading[bool] = Missing(MissingReason.NOT_SUPPORTED, "only a receipt has a digest")
    try:
        if b"gpudiag.receipt/" in data[:400]:
            sealed = read_sealed(data)
            problem = why_changed(sealed)
            data, whole = sealed.document, problem is None
        noun = from_document(json.loads(data))
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", hint=_HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON, or cut short", hint=_HINT) from error
    side = _side_of(noun)
    if side is None:
        raise UsageError(f"{name} is a document of schema {noun.SCHEMA!r}, which is not compared", hint=_HINT)
    verdict: Reading[Outcome] = Missing(MissingReason.NOT_SUPPORTED, "a snapshot has no verdict")
    snapshot = side.snapshot
    document = ComparedDocument(
        mask_text(name),
        noun.SCHEMA,
        snapshot.host,
        snapshot.taken_at,
        snapshot.simulated,
        verdict if side.report is None else side.report.verdict,
        whole,
    )
    return _Parsed(document, side, problem)


def _side_of(noun: object) -> Side | None:
    if isinstance(noun, Receipt):
        return Side.of(noun.report, noun.speeds)
    if isinstance(noun, Report):
        return Side.of(noun)
    return Side(noun) if isinstance(noun, Snapshot) else None
