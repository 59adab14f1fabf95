"""Ranks that ended alike, told once."""

import re
from collections.abc import Sequence
from dataclasses import replace

from gpudiag.checks.training_words import name_ranks
from gpudiag.model.evidence import Evidence, HostSubject, RankSubject
from gpudiag.model.finding import Finding

# What differs between ranks that end alike: pids, addresses, ports, names of shared memory.
_VARYING = re.compile(r"\bpid(\(s\))? [\d, ]+|0x[0-9a-f]+|/torch_[\d_]+|\]:\d+")


def join_alike(findings: Sequence[Finding], world_size: int) -> list[Finding]:
    """The findings, with one for all ranks that ended in the same way at the same place."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        rank = finding.subject.rank if isinstance(finding.subject, RankSubject) else None
        alike = _VARYING.sub("", finding.message.removeprefix(f"rank {rank} "))
        groups.setdefault((finding.code, alike), []).append(finding)
    return [_join(group, world_size) for group in groups.values()]


def _join(group: Sequence[Finding], world_size: int) -> Finding:
    first = group[0]
    subjects = [one.subject for one in group if isinstance(one.subject, RankSubject)]
    if len(subjects) < 2:
        return first
    ranks = [subject.rank for subject in subjects]
    named = f"all {world_size} ranks" if len(ranks) == world_size else name_ranks(ranks)
    alike = re.sub(r"^was ", "were ", first.message.removeprefix(f"rank {ranks[0]} "))
    facts = tuple(fact for fact in first.evidence if fact.name != "pid")
    return replace(
        first,
        subject=HostSubject(subjects[0].host),
        message=f"{named} {alike}",
        evidence=(*facts, Evidence("ranks", name_ranks(ranks), source="ranks")),
    )
