"""Where the ranks of a run are and which of them wait for which, while it goes on. No verdicts."""

from collections.abc import Sequence

from gpudiag.model.run import RankStanding
from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.stages import INIT, RENDEZVOUS

_MEETING_STAGES = (RENDEZVOUS, INIT)  # in these, too, a rank waits for those that come later


def list_standings(views: Sequence[RankView]) -> tuple[RankStanding, ...]:
    """Where each rank is, as its agent saw it last.

    A rank waits in a meeting stage or collective, if another one that has not ended well is behind.
    """
    unfinished = [view for view in views if not view.ended_well]
    least = min((view.progress for view in unfinished), default=(0, 0))
    waiting = {view.rank for view in unfinished if _may_wait(view) and view.progress > least}
    return tuple(
        RankStanding(
            rank=view.rank,
            host=view.host,
            life=view.life.value,
            stage=view.stage,
            operation=_operation(view),
            iteration=None if view.position is None else view.position.iteration,
            waits=view.rank in waiting,
            behind=bool(waiting) and not view.ended_well and view.progress == least,
            still_seconds=round(view.waiting_seconds, 1),
        )
        for view in views
    )


def _may_wait(view: RankView) -> bool:
    return view.life is Life.ALIVE and (view.stage in _MEETING_STAGES or (view.inside and not view.alone))


def _operation(view: RankView) -> str | None:
    if view.position is None or view.position.operation is None or not view.inside:
        return None
    return view.position.operation.describe()
