"""How a finding about NCCL's lines is made."""

from collections.abc import Iterable

from gpudiag.checks.registry import FindingKind
from gpudiag.explain.nccl.job import Who
from gpudiag.model.nccl_log import LogPlace, NcclFinding
from gpudiag.model.untrusted_text import mask_text

MAX_EVIDENCE = 4  # lines of one finding


def make_finding(
    kind: FindingKind,
    message: str,
    who: Iterable[Who],
    evidence: Iterable[LogPlace | None],
    remedy: str = "",
) -> NcclFinding:
    """A finding of this kind; `remedy` replaces the catalogue's where the case is clearer."""
    blamed = [*who]
    places = [place for place in dict.fromkeys(evidence) if place is not None][:MAX_EVIDENCE]
    return NcclFinding(
        code=kind.code,
        outcome=kind.outcome,
        owner=kind.owner,
        message=message,
        ranks=tuple(sorted({one.rank for one in blamed if one.rank is not None})),
        hosts=tuple(sorted({one.host for one in blamed if one.host})),
        evidence=tuple(LogPlace(place.log, place.line, mask_text(place.text)) for place in places),
        meaning=kind.meaning,
        remedy=remedy or kind.remedy,
    )
