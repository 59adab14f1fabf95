"""How a finding about NCCL's lines is made."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpudiag.checks.registry import FindingKind
from gpudiag.explain.nccl.job import Who, name_ranks_and_hosts, sort_ranks
from gpudiag.model.finding import Owner
from gpudiag.model.nccl_log import LogPlace, NcclFinding
from gpudiag.model.untrusted_text import mask_text

MAX_EVIDENCE = 4  # lines of one finding
_MAX_PLACES = 3  # lines that are kept of one reason


@dataclass(frozen=True, slots=True)
class Why:
    """Why something is so: in words, the line that shows it, and what differs from the catalogue's entry."""

    reason: str
    place: LogPlace | None = None
    remedy: str = ""
    owner: Owner | None = None


@dataclass(slots=True)
class ByReason:
    """One finding for each reason, with all its ranks: a fault of a thousand ranks is one finding."""

    kind: FindingKind
    fact: str  # what is so: `no peer access between GPUs`
    _noted: dict[Why, tuple[list[Who], list[LogPlace | None]]] = field(default_factory=dict)

    def add(self, why: Why, who: Iterable[Who], first: LogPlace | None = None) -> None:
        """Note ranks; `first` is a line that shows the fact itself."""
        key = Why(why.reason, None, why.remedy, why.owner)
        ranks, places = self._noted.setdefault(key, ([], []))
        ranks += who
        if len(places) < _MAX_PLACES:
            places += [why.place, first]

    def findings(self) -> Iterator[NcclFinding]:
        """The findings, in the order of what was noted first."""
        for why, (who, places) in self._noted.items():
            ranks = sort_ranks(who)
            message = f"{name_ranks_and_hosts(ranks)}: {self.fact}: {why.reason}"
            yield make_finding(self.kind, message, ranks, places, why.remedy, why.owner)


def make_finding(
    kind: FindingKind,
    message: str,
    who: Iterable[Who],
    evidence: Iterable[LogPlace | None],
    remedy: str = "",
    owner: Owner | None = None,
) -> NcclFinding:
    """A finding of this kind; `remedy` and `owner` replace the catalogue's where the case is clearer."""
    blamed = [*who]
    places = [place for place in dict.fromkeys(evidence) if place is not None][:MAX_EVIDENCE]
    return NcclFinding(
        code=kind.code,
        outcome=kind.outcome,
        owner=owner or kind.owner,
        message=message,
        ranks=tuple(sorted({one.rank for one in blamed if one.rank is not None})),
        hosts=tuple(sorted({one.host for one in blamed if one.host})),
        evidence=tuple(LogPlace(place.log, place.line, mask_text(place.text)) for place in places),
        meaning=kind.meaning,
        remedy=remedy or kind.remedy,
    )
