"""Ranks of a user's script that were in different collectives when a library noticed it, judged: who is alone?

gloo ends the process that receives more bytes than it waits for, and that is any neighbour of the rank whose call
differs. So what the other ranks were in, by torch's own record of their collectives, decides.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudiag.checks.ranks import COLLECTIVE_MISMATCHED
from gpudiag.checks.training_words import name_ranks, verb
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject
from gpudiag.model.finding import Finding
from gpudiag.model.script import RecordedCollective, ScriptPlace

_TOLD_BY_A_LIBRARY = re.compile(r"Received data size doesn't match|Detected mismatch between collectives")
_RECORDER = "flight recorder"


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks that were in the same collective."""

    collective: RecordedCollective | None  # None: nobody can tell, for the process is gone
    place: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        """Who was in what, and where."""
        said = "a smaller collective" if self.collective is None else str(self.collective)
        at = f" at {self.place}" if self.place else ""
        return f"{name_ranks(self.ranks)} {verb(self.ranks, 'was', 'were')} in {said}{at}"


def judge_mismatch(
    findings: Sequence[Finding], raised: Mapping[int, ScriptPlace], words: Sequence[str]
) -> Finding | None:
    """The finding for a rank that was in another collective than the others; None where nothing tells of one.

    `findings` are of the ranks that ended badly, `raised` where an exception came to the user's code, by rank,
    `words` what libraries printed.
    """
    if not any(_TOLD_BY_A_LIBRARY.search(line) for line in words):
        return None
    died = {
        finding.subject.rank: finding.subject.host
        for finding in findings
        if isinstance(finding.subject, RankSubject)
    }
    groups = _group(raised, tuple(rank for rank in sorted(died) if rank not in raised))
    if len(groups) < 2:
        return None
    odd, *others = groups
    most = max(others, key=lambda group: len(group.ranks))
    alone = len(odd.ranks) < len(most.ranks)
    host = next(iter(died.values()))
    subject = (
        RankSubject(odd.ranks[0], died.get(odd.ranks[0], host)) if alone and len(odd.ranks) == 1 else None
    )
    ended = [rank for rank in sorted(died) if rank not in raised]
    by = f"; {name_ranks(ended)} {verb(ended, 'was', 'were')} ended for it" if ended else ""
    facts = [Evidence("in_collective", str(group), source=_RECORDER) for group in groups]
    return COLLECTIVE_MISMATCHED.finding(
        subject or HostSubject(host), f"{odd}, while {'; '.join(map(str, others))}{by}", *facts
    )


def _group(raised: Mapping[int, ScriptPlace], gone: tuple[int, ...]) -> list[_Group]:
    """Collectives with the ranks that were in them, the fewest ranks first.

    A process that was ended had waited for fewer bytes than came, so it was in the smallest of them; where all
    others were in one, in a smaller one.
    """
    ranks: dict[RecordedCollective, list[int]] = {}
    for rank, place in sorted(raised.items()):
        if place.collective is not None:
            ranks.setdefault(place.collective, []).append(rank)
    groups = [_Group(call, raised[here[0]].place, tuple(here)) for call, here in ranks.items()]
    if len(groups) > 1 and gone:
        smallest = min(groups, key=lambda group: group.collective.elements if group.collective else 0)
        joined = _Group(smallest.collective, smallest.place, tuple(sorted((*smallest.ranks, *gone))))
        groups = [joined if group is smallest else group for group in groups]
    elif gone and groups:
        groups.append(_Group(None, "", gone))
    return sorted(groups, key=lambda group: (len(group.ranks), group.ranks))
