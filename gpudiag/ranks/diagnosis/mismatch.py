"""Whether ranks entered different collectives where they should have entered the same one."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis import evidence
from gpudiag.ranks.diagnosis.view import RankView
from gpudiag.ranks.stages import Operation

_Fingerprint = tuple[str, str, int]  # op, dtype, elements
# How long to wait for ranks that still move: soon they too wait in a collective for the others.
_PATIENCE_SECONDS = 1.0

_Groups = Mapping[_Fingerprint, list[RankView]]


def find_mismatch(views: Sequence[RankView]) -> tuple[Incident, ...]:
    """The ranks whose collective differs from the majority's, at the first sequence that differs.

    Only ranks that stand still or ended have a history. Of two equal groups that without the lowest rank.
    """
    sequence, groups = _first_difference(views)
    return () if not groups else _describe(sequence, groups, views)


def is_mismatch_pending(views: Sequence[RankView]) -> bool:
    """Whether ranks are known to differ, but some still move, so that the majority is not known yet."""
    _, groups = _first_difference(views)
    known = [view for members in groups.values() for view in members]
    if not known or min(view.waiting_seconds for view in known) > _PATIENCE_SECONDS:
        return False
    return any(view.running and view.position is not None and not view.position.history for view in views)


def _first_difference(views: Sequence[RankView]) -> tuple[int, _Groups]:
    """The first sequence at which ranks are known to differ, and who entered what; no groups if none do."""
    changes = {operation.sequence for view in views for operation in _history(view)}
    for sequence in sorted(changes):
        groups: dict[_Fingerprint, list[RankView]] = defaultdict(list)
        for view in views:
            operation = None if view.position is None else view.position.operation_at(sequence)
            if operation is not None:
                groups[operation.op, operation.dtype, operation.elements].append(view)
        if len(groups) > 1:
            return sequence, groups
    return 0, {}


def _describe(sequence: int, groups: _Groups, views: Sequence[RankView]) -> tuple[Incident, ...]:
    expected = max(
        groups,
        key=lambda fingerprint: (len(groups[fingerprint]), -min(view.rank for view in groups[fingerprint])),
    )
    return tuple(
        Incident(
            kind=IncidentKind.MISMATCHED,
            rank=view.rank,
            host=view.host,
            stage=_stage_of(view, sequence),
            at_seconds=_parted_at(view),
            evidence=(
                *evidence.of_mismatch(sequence, _text(fingerprint), _text(expected), groups[expected]),
                *evidence.of_consequences(views),
                *evidence.of_process(view),
                *evidence.of_place(view),
                *view.traces,
            ),
        )
        for fingerprint, members in groups.items()
        if fingerprint != expected
        for view in members
    )


def _stage_of(view: RankView, sequence: int) -> str:
    """The stage in which the rank entered that collective; it may have gone further since."""
    operation = None if view.position is None else view.position.operation_at(sequence)
    return view.stage if operation is None or operation.stage is None else operation.stage


def _history(view: RankView) -> tuple[Operation, ...]:
    return () if view.position is None else view.position.history


def _parted_at(view: RankView) -> float:
    """When the rank entered the collective that it is in, or was last in."""
    return max(0.0, view.changed_at if not view.running else view.seen_at - view.still_seconds)


def _text(fingerprint: _Fingerprint) -> str:
    op, dtype, elements = fingerprint
    return f"{op} {dtype}[{elements}]"
