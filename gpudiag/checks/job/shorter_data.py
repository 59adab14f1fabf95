"""Which ranks had fewer data than the others that now wait for them, where the ranks count their batches."""

from collections.abc import Sequence

from gpudiag.checks.job import kinds
from gpudiag.checks.job.facts import facts_of, subject_of
from gpudiag.checks.job.groups import Group, group_alike, is_are
from gpudiag.checks.job.position import Position
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Finding
from gpudiag.model.job import Job


def judge_shorter_data(job: Job, positions: Sequence[Position]) -> Finding | None:
    """The finding for ranks that had fewer batches, or began fewer steps, where all wait for others.

    None where one does anything else, where the counts are equal, and where ranks do not count.
    """
    if any(one.counts is None or not (one.waits_for_ranks or one.waits_for_gpu) for one in positions):
        return None
    groups = sorted(group_alike(positions), key=_counts)
    if not groups or _counts(groups[0]) >= _counts(groups[-1]):
        return None
    odd, most = groups[0], groups[-1]
    (had, steps), (more, further) = _counts(odd), _counts(most)
    one, several = ("batch", "batches") if had != more else ("step", "steps")
    if had == more:
        had, more = steps, further
    message = (
        f"{odd.name} had {had} {one if had == 1 else several} and {is_are(odd.positions, odd.head.words)} at"
        f" {odd.head.where}, while {most.name} {is_are(most.positions, 'is')} in {one} {more}, and"
        f" {is_are(most.positions, most.head.words)} at {most.head.where}: the data of {odd.name} is shorter"
    )
    return kinds.SHORTER_DATA.finding(subject_of(odd, job), message, *facts_of(odd), *facts_of(most))


def describe_counts(groups: Sequence[Group]) -> list[Evidence]:
    """How many batches and steps each group had, where that differs; the ranks that do not count left out."""
    counted = [group for group in groups if group.head.counts is not None]
    if len({_counts(group) for group in counted}) < 2:
        return []
    facts = []
    for group in counted:
        batches, steps = _counts(group)
        if any(_counts(one)[0] for one in counted):
            facts.append(Evidence(f"batches of {group.name}", batches, source="data loader"))
        facts.append(Evidence(f"steps of {group.name}", steps, source="torch.autograd"))
    return facts


def _counts(group: Group) -> tuple[int, int]:
    return group.head.counts or (0, 0)
