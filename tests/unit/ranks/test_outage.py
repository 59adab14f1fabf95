"""A link that is away for a while is waited for, as long as TCP needs.

What stays away is a cut, and large packets a hole.
"""

from dataclasses import replace

from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.outage import CUT_SECONDS, Outages
from gpudiag.ranks.diagnosis.paths import Contact, Paths, explain
from gpudiag.ranks.diagnosis.view import Life, RankView
from gpudiag.ranks.stages import INIT, Position
from tests.unit.ranks.test_paths import look

WHOLE, AWAY, PAIR = look(4), look(4, [(2, 0), (2, 1), (2, 3)]), look(4, [(1, 2)])
STALLED = (Incident(IncidentKind.STALLED, 0, "a1", "measure", 4.0, ()),)


def views(unheard: float = 0.0, still: float = 0.0, stage: str = "measure") -> tuple[RankView, ...]:
    """Four hosts with a rank each, of which the third one's agent is not heard."""
    position = Position(stage, 3, None, False, None, 0.0, None, None)
    one = RankView(0, 0, "a1", Life.ALIVE, still_seconds=still, position=position)
    hosts = (replace(one, rank=rank, host=f"a{rank + 1}") for rank in range(4))
    return tuple(replace(view, silent_seconds=unheard) if view.rank == 2 else view for view in hosts)


def told(incidents: tuple[Incident, ...]) -> list[tuple[IncidentKind, str]]:
    return [(one.kind, one.host) for one in incidents]


def test_a_link_that_comes_back_is_an_outage_of_its_host_and_excuses_what_tcp_still_needs() -> None:
    outages = Outages()
    for tenth in range(5, 35):
        now = 10 + tenth / 10
        outages.observe(views(tenth / 10, tenth / 10), now)
        assert outages.judge([(10.5, AWAY)], STALLED, STALLED, views(tenth / 10), now) == ()
        assert outages.names == "nothing passes between a3 and the other hosts"
    for now in (14.0, 16.0, 18.0):  # back at 13.4: TCP needs up to 3.4 s more, and the ranks a moment
        assert outages.judge([(10.5, AWAY), (13.6, WHOLE)], STALLED, STALLED, views(), now) == ()
        assert outages.is_excused(now)
    assert outages.judge([(13.6, WHOLE), (20.0, WHOLE)], STALLED, STALLED, views(), 20.1) == STALLED
    (healed,) = outages.healed()
    assert (healed.kind, healed.host, healed.facts["times"]) == (IncidentKind.OUTAGE, "a3", 1)
    assert 3.0 <= float(healed.facts["lasted"]) <= 4.0
    assert outages.has_end("a3")
    assert not outages.has_end("a1")


def test_a_cut_that_stays_is_told_after_ten_seconds_and_not_before() -> None:
    for found, kind, host in ((AWAY, IncidentKind.CUT_OFF, "a3"), (PAIR, IncidentKind.PARTED, "a3")):
        outages = Outages()
        for second in range(1, 13):
            now = 10.0 + second
            outages.observe(views(second if found is AWAY else 0.0, second), now)
            judged = outages.judge([(now - 1, found)], STALLED, STALLED, views(second), now)
            assert told(judged) == ([(kind, host)] if second >= CUT_SECONDS else [])
        assert outages.healed() == ()


def test_while_ranks_meet_two_looks_are_enough_for_there_is_no_link_to_come_back() -> None:
    meeting = views(still=2.0, stage=INIT)
    assert Outages().judge([(10.0, PAIR)], (), STALLED, meeting, 11.0) == ()
    judged = Outages().judge([(10.0, PAIR), (12.0, PAIR)], (), STALLED, meeting, 13.0)
    assert told(judged) == [(IncidentKind.PARTED, "a3")]


def test_a_pair_that_comes_back_is_an_outage_between_the_two() -> None:
    outages = Outages()
    outages.observe(views(still=3.0), 13.0)
    assert outages.judge([(11.0, PAIR)], (), STALLED, views(still=3.0), 13.0) == ()
    outages.judge([(11.0, PAIR), (14.0, WHOLE)], (), (), views(), 14.1)
    outages.close(15.0)
    (healed,) = outages.healed()
    assert (healed.facts["one_side"], healed.facts["other_side"]) == ("a2", "a3")
    assert healed.facts["lasted"] == 4.0


def test_nothing_is_said_before_the_first_look_nor_of_a_sound_network() -> None:
    assert Outages().judge([], STALLED, STALLED, views(), 11.0) == ()
    assert Outages().judge([], STALLED, STALLED, views(), 11.0, at_the_end=True) == STALLED
    outages = Outages()
    assert outages.judge([(10.0, WHOLE)], STALLED, STALLED, views(), 11.0) == STALLED
    assert (outages.names, outages.healed()) == (None, ())


def narrow(*pairs: tuple[int, int], hosts: int = 4) -> Paths:
    """A sound network but for pairs that lose packets over 1,000 bytes."""
    rows = {
        one: {
            other: Contact.SMALL_ONLY if {(one, other), (other, one)} & set(pairs) else Contact.REPLIES
            for other in range(hosts)
            if other != one
        }
        for one in range(hosts)
    }
    return Paths(0, {rank: f"a{rank + 1}" for rank in range(hosts)}, rows, dict.fromkeys(pairs, 1000))


def test_large_packets_that_are_lost_are_told_in_the_second_look() -> None:
    hole = narrow((0, 2), (1, 2), (2, 3))
    assert Outages().judge([(10.0, hole)], STALLED, STALLED, views(), 11.0) == ()
    assert Outages().judge([(10.0, PAIR), (11.0, hole)], STALLED, STALLED, views(), 12.0) == ()
    judged = Outages().judge([(10.0, hole), (12.0, hole)], (), (), views(still=3.0), 13.0)
    assert told(judged) == [(IncidentKind.NARROWED, "a3")]
    assert judged[0].facts["largest_packet"] == 1000


def test_large_packets_are_the_fault_of_one_host_only_where_all_its_pairs_lose_them() -> None:
    def of(paths: Paths) -> list[tuple[str, str]]:
        explained = explain(STALLED, paths)
        assert explained is not None
        return [(str(one.facts.get("one_side", "")), one.host) for one in explained]

    assert of(narrow((1, 2))) == [("a2", "a3")]
    assert of(narrow((0, 2), (1, 2))) == [("a1", "a3"), ("a2", "a3")]
    assert of(narrow((0, 1), hosts=2)) == [("a1", "a2")]
    assert of(narrow((0, 1), (1, 2), hosts=3)) == [("", "a2")]
    for own in range(4):
        paths = replace(narrow((0, 3), (1, 3), (2, 3)), own=own)
        assert of(paths) == [("", "a4")]
