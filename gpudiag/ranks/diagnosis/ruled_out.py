"""What has been ruled out when the watchdog names a cause, and by what; pure, like the watchdog."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.number_ranges import name_ranks
from gpudiag.ranks.diagnosis.view import Life, RankView

_Views = Sequence[RankView]
_SOURCE = "side channel, process table"


def of_incident(incident: Incident, views: _Views) -> tuple[Evidence, ...]:
    """What else could have caused the incident, and why it did not; empty if nothing can be ruled out."""
    excluded = [words for exclude in _EXCLUSIONS[incident.kind] if (words := exclude(incident, views))]
    return (Evidence("ruled_out", "; ".join(excluded), source=_SOURCE),) if excluded else ()


def _different_collectives(_: Incident, views: _Views) -> str:
    """The ranks' announcements, as far as known, were compared before anything else."""
    announced = [view.rank for view in views if view.position is not None and view.position.history]
    agree = f"what {name_ranks(announced)} announced agrees"
    return f"different collectives ({agree})" if len(announced) > 1 else ""


def _death_or_stop(_: Incident, views: _Views) -> str:
    if any(view.life is not Life.ALIVE for view in views):
        return ""
    return f"a dead or stopped process (all {len(views)} run)"


def _earlier_failure(incident: Incident, views: _Views) -> str:
    """The first failure is the cause; what other ranks did after it is a consequence."""
    others = [view for view in views if view.rank != incident.rank]
    failed = [
        view.changed_at if view.raised is None else view.raised.at for view in others if _has_failed(view)
    ]
    if not others or any(at <= incident.at_seconds for at in failed):
        return ""
    return "another rank as the cause (none had died, raised or been stopped before)"


def _oom_killer(incident: Incident, views: _Views) -> str:
    traces = [trace for view in views if view.rank == incident.rank for trace in view.traces]
    counted = [trace.value for trace in traces if trace.name == "oom_kills"]
    is_logged = any(trace.name == "oom_killer" for trace in traces)
    return "the OOM killer (its counter did not rise)" if counted == [0] and not is_logged else ""


def _slowness(incident: Incident, views: _Views) -> str:
    (view,) = [view for view in views if view.rank == incident.rank]
    if view.busy or view.silent_seconds:
        return ""
    used = f"{view.cpu_seconds:.2f} s of CPU time in {view.still_seconds:.2f} s"
    return f"a rank that is only slow (it used {used})"


def _absence(incident: Incident, views: _Views) -> str:
    (view,) = [view for view in views if view.rank == incident.rank]
    everyone = all(other.inside and other.entered == view.entered for other in views)
    return f"a missing rank (all {len(views)} are inside)" if everyone else ""


def _has_failed(view: RankView) -> bool:
    ended_badly = view.life is Life.ENDED and not view.ended_well
    return ended_badly or view.life is Life.STOPPED or view.raised is not None


_EXCLUSIONS: Mapping[IncidentKind, tuple[Callable[[Incident, _Views], str], ...]] = MappingProxyType(
    {
        IncidentKind.DIED: (_oom_killer, _earlier_failure, _different_collectives),
        IncidentKind.STOPPED: (_earlier_failure, _different_collectives),
        IncidentKind.RAISED: (_earlier_failure, _different_collectives),
        IncidentKind.SILENT: (_death_or_stop, _slowness, _different_collectives),
        IncidentKind.STALLED: (_death_or_stop, _absence, _different_collectives),
        IncidentKind.MISMATCHED: (_death_or_stop,),
        IncidentKind.ENDED: (_earlier_failure, _different_collectives),
        IncidentKind.NOT_STARTED: (),
        IncidentKind.UNREACHED: (),
        IncidentKind.SPLIT: (),
        IncidentKind.CUT_OFF: (),
        IncidentKind.PARTED: (),
        IncidentKind.NARROWED: (),
        IncidentKind.OUTAGE: (),
        IncidentKind.MISNAMED: (),
        IncidentKind.FILTERED: (),
        IncidentKind.LOSSY: (),
        IncidentKind.START_FAILED: (),
        IncidentKind.LATE: (),
        IncidentKind.CORRUPTED: (),
        IncidentKind.PASSED: (),
        IncidentKind.THROTTLED: (),
        IncidentKind.SKEWED: (),
        IncidentKind.PAUSED: (),
        IncidentKind.INTERRUPTED: (),
    }
)
