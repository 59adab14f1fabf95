"""What is suspected and then goes away is told as healed, with how long it lasted."""

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.suspicion import Suspicions, may_heal


def incident(kind: IncidentKind, rank: int = 1, at: float = 5.0) -> Incident:
    facts = (Evidence("process_state", "stopped by a signal"), Evidence("stopped_for", 0.4, unit="s"))
    return Incident(kind, rank, "a1", "measure", at, facts)


def test_only_stops_and_hangs_may_heal() -> None:
    assert may_heal([incident(IncidentKind.STOPPED), incident(IncidentKind.SILENT)])
    assert may_heal([incident(IncidentKind.STALLED)])
    assert not may_heal([incident(IncidentKind.STOPPED), incident(IncidentKind.DIED)])
    assert not may_heal([])


def test_what_goes_away_has_healed_and_says_how_long_it_lasted() -> None:
    suspicions = Suspicions()
    for now in (5.4, 5.5, 6.4):
        suspicions.add([incident(IncidentKind.STOPPED)], now)
    suspicions.add([], 6.5)
    (healed,) = suspicions.healed(())
    assert (healed.kind, healed.rank, healed.at_seconds) == (IncidentKind.PAUSED, 1, 5.0)
    facts = {fact.name: fact.value for fact in healed.evidence}
    assert facts == {"lasted": 1.5, "times": 1, "process_state": "stopped by a signal"}


def test_the_longest_of_several_is_told_with_their_number() -> None:
    suspicions = Suspicions()
    for at, until in ((5.0, 6.0), (8.0, 10.0), (12.0, 12.5)):
        suspicions.add([incident(IncidentKind.STALLED, at=at)], at + 0.1)
        suspicions.add([], until)
    (healed,) = suspicions.healed(())
    assert (healed.kind, healed.at_seconds) == (IncidentKind.INTERRUPTED, 8.0)
    assert {fact.name: fact.value for fact in healed.evidence}["times"] == 3


def test_what_is_still_there_has_not_healed() -> None:
    suspicions = Suspicions()
    suspicions.add([incident(IncidentKind.SILENT)], 6.0)
    assert suspicions.healed(()) == ()


def test_a_rank_that_is_told_of_anyway_is_not_told_twice() -> None:
    suspicions = Suspicions()
    suspicions.add([incident(IncidentKind.SILENT)], 6.0)
    suspicions.add([], 7.0)
    assert suspicions.healed([incident(IncidentKind.DIED)]) == ()
