"""Paths between hosts on which segments are lost, by what each sender's kernel had to send again; pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.stages import MEASURE

# On a sound network in a data centre less than one segment in a thousand is sent again; where TCP halves its
# window at each loss, one in two hundred costs most of the speed (Mathis et al. 1997: rate ~ 1 / sqrt(loss)).
LOST_SHARE = 0.005
# Below these a few losses at the start, or of one burst, would count.
SEGMENTS_AT_LEAST = 500
LOST_AT_LEAST = 10

_SOURCE = "the sender's kernel (tcp_info), connections of its ranks"


@dataclass(frozen=True, slots=True)
class PathSegments:
    """Data segments that went from one host to another, and how many were sent again."""

    rank: int  # the first of the sender's
    sender: str
    receiver: str
    segments: int
    retransmitted: int

    @property
    def share(self) -> float:
        """The share that was sent again."""
        return self.retransmitted / self.segments if self.segments else 0.0


def find_lossy_paths(
    paths: Mapping[tuple[str, str], PathSegments], at_seconds: float
) -> tuple[Incident, ...]:
    """One incident for each way from one host to another on which segments are lost; the worst first."""
    lossy = [
        path
        for path in paths.values()
        if path.segments >= SEGMENTS_AT_LEAST
        and path.retransmitted >= LOST_AT_LEAST
        and path.share >= LOST_SHARE
    ]
    clean = sum(path.segments >= SEGMENTS_AT_LEAST for path in paths.values()) - len(lossy)
    return tuple(
        Incident(
            IncidentKind.LOSSY,
            path.rank,
            path.sender,
            MEASURE,
            at_seconds,
            (
                Evidence("one_side", path.sender, source=_SOURCE),
                Evidence("other_side", path.receiver, source=_SOURCE),
                Evidence("sent_again", round(path.share, 4), limit=LOST_SHARE, source=_SOURCE),
                Evidence("segments_sent_again", path.retransmitted, source=_SOURCE),
                Evidence("segments", path.segments, source=_SOURCE),
                Evidence("paths_without_loss", clean, source=_SOURCE),
            ),
        )
        for path in sorted(lossy, key=lambda path: -path.share)
    )
