"""Ranks that wait for others, and the words for the calls that they wait in."""

import re
from dataclasses import dataclass

from gpudiag.checks.job import activity as at
from gpudiag.checks.job.groups import (
    Group,
    describe_seconds,
    group_alike,
    is_are,
    name_positions,
    peer_of,
)
from gpudiag.checks.job.movement import backward_seconds_ago
from gpudiag.checks.job.position import Position
from gpudiag.model.evidence import Evidence
from gpudiag.model.job import Job
from gpudiag.model.number_ranges import name_ranks
from gpudiag.reference.waits import GPU

OTHER_MACHINES = (
    "Look at all machines of the job at once: `srun --overlap --jobid JOB --ntasks-per-node 1 gpudiag hang`;"
    " or `gpudiag hang --json` on each, and `gpudiag merge` of the files."
)

# A key that stands in the line as a text, and not in a variable.
_KEY = re.compile(r"store\w*\.(?:wait|get)\(\[?(\"[^\"{}]+\"|'[^'{}]+')[\])]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Waiters:
    """The ranks of a job that wait for others."""

    job: Job
    positions: tuple[Position, ...]

    @property
    def name(self) -> str:
        """`ranks 0, 1 and 3`."""
        return name_positions(self.positions)

    @property
    def groups(self) -> list[Group]:
        """Those in equal calls, the smallest groups first."""
        return group_alike(self.positions)

    @property
    def since_seconds(self) -> float | None:
        """For how long all of them have waited."""
        known = [one.since_seconds for one in self.positions if one.since_seconds is not None]
        return min(known) if known else None

    @property
    def at_most_seconds(self) -> float | None:
        """For how long all may have waited: of one that spins, since its last backward pass."""
        known = [
            max(one.since_seconds, backward_seconds_ago(one.seen.looks) or 0.0)
            if one.busy
            else one.since_seconds
            for one in self.positions
            if one.since_seconds is not None
        ]
        return min(known) if known else None

    @property
    def since(self) -> str:
        """`, 41 s so far`, or nothing."""
        seconds = self.since_seconds
        return f", {describe_seconds(seconds)} so far" if seconds is not None and seconds >= 1 else ""

    def describe_call(self) -> str:
        """`the all_reduce (train.py:10)`."""
        return " and ".join(list(dict.fromkeys(describe_call(group) for group in self.groups[::-1]))[:2])

    def describe_for_gpu(self) -> str:
        """`ranks 0 and 2 wait for their GPUs at train.py:90 in main`."""
        lines = list(dict.fromkeys(one.where for one in self.positions if one.where))[:2]
        what = "waits for its GPU" if len(self.positions) == 1 else "wait for their GPUs"
        return f"{self.name} {what}" + (f" at {' and '.join(lines)}" if lines else "")

    def describe(self) -> str:
        """`ranks 0 and 1 wait in the all_reduce (train.py:10), 41 s so far`."""
        return f"{self.name} {is_are(self.positions, 'waits')} in {self.describe_call()}{self.since}"

    def facts(self) -> tuple[Evidence, ...]:
        """The lines of those that wait, for evidence."""
        return tuple(
            Evidence(
                f"line of {group.name}",
                f"{group.head.where}: {group.head.call.own.text}",
                source=group.head.read_by,
            )
            for group in self.groups[::-1][:2]
            if group.head.call.own is not None
        )


def describe_call(group: Group) -> str:
    """`the all_reduce (train.py:10 in main)`, `the store (train.py:10)`."""
    head = group.head
    what = (
        f"the store's wait for {_key_of(head)}"
        if head.kind == at.STORE
        else "the work of its GPU"
        if head.kind == GPU
        else f"the {head.call.operation or 'collective'}"
    )
    if head.kind == GPU:
        return f"{what} ({head.where})" if head.where else what
    if not head.call.operation and head.kind != at.STORE:
        what = "the operation"
    of = _of_group(group)
    if (peer := peer_of(head)) is not None:
        of = f" {'to' if head.call.operation == 'send' else 'from'} rank {peer}{of}"
    return f"{what}{of} ({head.where})" if head.where else f"{what}{of}"


def _key_of(head: Position) -> str:
    """`the key 'shard_map'`, as it stands in the line that asks the store; else `a key`."""
    found = _KEY.search(head.call.own.text) if head.call.own is not None else None
    return f"the key {found[1]}" if found else "a key"


def _of_group(group: Group) -> str:
    """` of ranks 0 and 1`, ` of a group of 2`; empty for the default group, and where it is not known."""
    seen = group.head.call.frame.group if group.head.call.frame is not None else None
    if seen is None or seen.name in ("", "0"):
        return ""
    return f" of {name_ranks(seen.ranks)}" if seen.ranks else f" of a group of {seen.size}"
