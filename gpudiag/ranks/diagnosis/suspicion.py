"""What was suspected during a run and then healed: a pause of a rank, an outage between ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.evidence import PROCESS_TABLE, SIDE_CHANNEL

# The kinds of incident that may heal, and what they are called then.
_HEALED = {
    IncidentKind.STOPPED: IncidentKind.PAUSED,
    IncidentKind.SILENT: IncidentKind.PAUSED,
    IncidentKind.STALLED: IncidentKind.INTERRUPTED,
}
# The evidence of a suspicion that is still true once it has healed.
_KEPT = frozenset(
    {
        "process_state",
        "waited_in",
        "operation",
        "iteration",
        "place",
        "ranks_inside",
        "pid",
        "frozen_by",
        "agent_state",
    }
)

_Key = tuple[IncidentKind, int]


@dataclass(frozen=True, slots=True)
class _Healed:
    """An incident that healed, the longest time that it lasted, and how often it happened."""

    incident: Incident
    seconds: float
    times: int


def may_heal(incidents: Sequence[Incident]) -> bool:
    """Whether all of these incidents may heal by themselves; False if there are none."""
    return bool(incidents) and all(incident.kind in _HEALED for incident in incidents)


class Suspicions:
    """The suspected incidents, updated with every look."""

    def __init__(self) -> None:
        """Start without a suspicion."""
        self._open: dict[_Key, Incident] = {}
        self._healed: dict[_Key, _Healed] = {}

    def add(self, suspected: Sequence[Incident], now: float) -> None:
        """Record what is suspected now (seconds since the run started); what no longer is has healed."""
        current = {(one.kind, one.rank): one for one in suspected if one.kind in _HEALED}
        for key in self._open.keys() - current.keys():
            self._close(key, now)
        for key, incident in current.items():
            self._open.setdefault(key, incident)

    def forget(self) -> None:
        """Drop what is suspected now, but for processes that are stopped: the network explains it."""
        self._open = {key: one for key, one in self._open.items() if one.kind is IncidentKind.STOPPED}

    def healed(self, reported: Sequence[Incident]) -> tuple[Incident, ...]:
        """What healed, by time, as incidents; without the ranks that are in `reported` anyway."""
        ranks = {incident.rank for incident in reported}
        found = [_describe(one) for one in self._healed.values() if one.incident.rank not in ranks]
        return tuple(sorted(found, key=lambda incident: incident.at_seconds))

    def _close(self, key: _Key, now: float) -> None:
        incident = self._open.pop(key)
        seconds = now - incident.at_seconds
        before = self._healed.get((_HEALED[key[0]], key[1]))
        if before is None:
            healed = _Healed(incident, seconds, 1)
        elif before.seconds >= seconds:
            healed = replace(before, times=before.times + 1)
        else:
            healed = _Healed(incident, seconds, before.times + 1)
        self._healed[_HEALED[key[0]], key[1]] = healed


def _describe(healed: _Healed) -> Incident:
    incident = healed.incident
    source = PROCESS_TABLE if incident.kind is IncidentKind.STOPPED else SIDE_CHANNEL
    facts = (
        Evidence("lasted", round(healed.seconds, 1), unit="s", source=source),
        Evidence("times", healed.times, source=source),
        *(fact for fact in incident.evidence if fact.name in _KEPT),
    )
    return replace(incident, kind=_HEALED[incident.kind], evidence=facts)
