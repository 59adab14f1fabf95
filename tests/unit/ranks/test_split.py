"""Which ranks look for rank 0 elsewhere, by what agents announce: decided by the leader, for both sides."""

from dataclasses import replace

import pytest

from gpudiag.checks.ranks.incidents import judge_incidents
from gpudiag.model.finding import Finding
from gpudiag.model.measure import IncidentKind
from gpudiag.ranks.diagnosis.split import Looker, Met, Relation, find_split

HERE = "a0:29500"
LEADER = Looker(0, "a0", 4, HERE, ("10.0.0.1",))


def stray(rank: int, place: str = "a3:29500", address: str = "10.0.0.4", **changes: object) -> Looker:
    looker = Looker(rank, f"a{rank}", 4, place, (address,), seconds=1.5)
    return replace(looker, **changes)  # type: ignore[arg-type]


def met(*ranks: int, leader: Looker = LEADER, world_size: int = 4) -> Met:
    hosts = {leader.rank: leader.host, **{rank: f"a{rank}" for rank in ranks}}
    return Met(leader, frozenset({"10.0.0.1"}), hosts, frozenset(range(world_size)) - hosts.keys())


def judged(found: Met, *strays: Looker, over: bool = False) -> list[Finding]:
    return list(judge_incidents(find_split(found, strays, 3.0, over=over), complete=False))


def test_one_rank_that_looks_elsewhere_is_one_finding_with_both_places() -> None:
    said = "a3 (10.0.0.4) is up, and nothing listens on port 29500"
    (found,) = judged(met(1, 3), stray(2, obstacle="refused", found=said))
    assert found.code == "rendezvous.split"
    assert found.message == f"rank 2 on a2 uses a3:29500, the others a0:29500: {said}"
    assert found.subject.host == "a2"


def test_what_has_the_port_there_gives_the_finding_its_kind() -> None:
    (web,) = judged(met(1, 3), stray(2, obstacle="foreign_server", found="another server has the port"))
    (unknown,) = judged(met(1, 3), stray(2, obstacle="no_address", found="a9 has no address there"))
    assert [web.code, unknown.code] == ["rendezvous.foreign_server", "rendezvous.wrong_address"]
    assert web.message.startswith("rank 2 on a2 uses a3:29500, the others a0:29500: another server")


def test_several_that_look_at_one_wrong_place_are_one_finding() -> None:
    (found,) = judged(met(1), stray(2), stray(3))
    assert found.message == "ranks 2 and 3 on a2, a3 use a3:29500, the others a0:29500"


def test_rank_0_is_the_one_where_most_look_at_another_port_of_its_machine() -> None:
    leader = replace(LEADER, place="a0:29501")
    (found,) = judged(met(leader=leader), *(stray(rank, HERE, "10.0.0.1") for rank in (1, 2, 3)))
    assert found.message == "rank 0 on a0 uses a0:29501, the others a0:29500"
    assert found.subject.host == "a0"


def test_the_place_that_is_not_rank_0_s_machine_is_the_wrong_one_however_many_use_it() -> None:
    (found,) = judged(met(), *(stray(rank) for rank in (1, 2, 3)))
    assert found.message == "ranks 1-3 on a1, a2, a3 use a3:29500, the others a0:29500"


def test_a_name_that_one_host_looks_up_otherwise_is_told_with_both_addresses() -> None:
    (found,) = judged(met(1, 2), stray(3, HERE, "10.0.0.2"))
    assert found.message == "rank 3 on a3 uses a0:29500 at 10.0.0.2, the others a0:29500 at 10.0.0.1"


def test_a_host_whose_resolver_has_not_replied_is_not_taken_for_one_that_looks_elsewhere() -> None:
    looking = stray(2, HERE, addresses=(), seconds=9.0)
    assert judged(met(1, 3), looking) == []
    (found,) = judged(met(1, 3), looking, over=True)
    assert (found.code, found.subject.host) == ("rendezvous.wrong_address", "a2")
    assert found.message == "rank 2 cannot reach rank 0: the resolver of a2 has not replied for a0"
    (known,) = judged(met(1, 3), replace(looking, obstacle="no_address", found="a0 has no address there"))
    assert known.message == "rank 2 cannot reach rank 0: a0 has no address there"


def test_what_keeps_an_agent_from_the_leader_is_looked_for_on_the_leader_s_host_too() -> None:
    silent = stray(2, HERE, "10.0.0.1", joined=False, obstacle="no_answer", seconds=4.0)
    (unreached,) = judged(met(1, 3), silent)
    assert (unreached.code, unreached.subject.host) == ("rendezvous.unreachable", "a2")
    routed = replace(silent, sent_by="tun0 (10.8.0.1/24)", known_by="eth0 (10.0.0.1/24)")
    (route,) = judged(met(1), routed, replace(routed, rank=3, host="a3"))
    assert (route.code, route.subject.host) == ("network.setup_conflict", "a0")
    assert "a0 sends what is for a2, a3 by tun0 (10.8.0.1/24)" in route.message
    (shared,) = judged(met(1, 3), replace(silent, address="10.0.0.3", shares_with="a3"))
    assert (shared.code, shared.subject.host) == ("network.setup_conflict", "a2")
    assert "on a2 has 10.0.0.3, which is the address of a3" in shared.message


def test_where_all_look_at_a_machine_that_is_not_rank_0_s_it_is_the_address_that_is_wrong() -> None:
    leader = replace(LEADER, place="a3:29500", addresses=("10.0.0.4",))
    (found,) = judged(met(leader=leader), *(stray(rank, found="nobody listens") for rank in (1, 2, 3)))
    assert found.message == "rank 0 runs on a0, and all ranks look for it at a3:29500: nobody listens"


@pytest.mark.parametrize(
    ("leader_size", "sizes", "words"),
    [
        (4, {2: 5}, "rank 2 on a2 was started with WORLD_SIZE 5, the others with 4"),
        (5, {1: 4, 2: 4, 3: 4}, "rank 0 on a0 was started with WORLD_SIZE 5, the others with 4"),
    ],
)
def test_the_world_size_that_few_have_is_the_wrong_one(
    leader_size: int, sizes: dict[int, int], words: str
) -> None:
    leader = replace(LEADER, world_size=leader_size)
    others = [rank for rank in (1, 2, 3) if rank not in sizes]
    strays = [stray(rank, HERE, "10.0.0.1", world_size=size) for rank, size in sizes.items()]
    (found,) = judged(met(*others, leader=leader), *strays, over=True)
    assert found.message == words


def test_a_process_that_cannot_start_is_told_with_its_own_words_and_what_to_do() -> None:
    (found,) = judged(met(1, 3), stray(2, "", trouble="MASTER_ADDR is not set", hint="set MASTER_ADDR"))
    assert found.code == "rank.start_failed"
    assert found.message == "rank 2 on a2 could not be started: MASTER_ADDR is not set"
    assert found.remedy == "Set MASTER_ADDR."


@pytest.mark.parametrize(
    ("present", "strays", "settled"),
    [
        ((1, 3), (stray(2, seconds=0.5),), False),  # others may be on their way
        ((1, 3), (stray(2, seconds=1.1),), True),
        ((1,), (stray(2, seconds=1.1),), False),  # rank 3 is nowhere yet
        ((1,), (stray(2, seconds=5.1),), True),
        # Perhaps of another job that starts.
        (
            (1, 3),
            (stray(2, relation=Relation.LIKELY, seconds=3.0),),
            False,
        ),
        ((1, 3), (stray(2, relation=Relation.LIKELY, seconds=4.1),), True),
        ((1, 3), (stray(2, relation=Relation.POSSIBLE, seconds=9.0),), False),
        ((1, 3), (stray(2, relation=Relation.POSSIBLE, seconds=10.1),), True),
        # Two jobs, both of which lack ranks.
        (
            (1,),
            (stray(2, relation=Relation.LIKELY, seconds=60.0),),
            False,
        ),
    ],
)
def test_nothing_is_said_before_it_is_certain(
    present: tuple[int, ...], strays: tuple[Looker, ...], settled: bool
) -> None:
    assert bool(find_split(met(*present), strays, 3.0, over=False)) is settled
    assert find_split(met(*present), strays, 3.0, over=True)[0].kind is IncidentKind.SPLIT


@pytest.mark.parametrize(
    ("obstacle", "seconds", "told"),
    [
        ("no_answer", 3.1, True),
        ("no_route", 3.1, True),
        ("no_answer", 2.0, False),
        ("refused", 9.0, False),
        ("", 9.0, False),
    ],
)
def test_a_rank_that_is_heard_and_that_no_link_reaches_is_kept_out_where_its_way_is_cut(
    obstacle: str, seconds: float, told: bool
) -> None:
    heard = stray(2, HERE, "10.0.0.1", joined=False, obstacle=obstacle, found="a0 is silent", seconds=seconds)
    found = judged(met(1, 3), heard)
    assert [(one.code, one.message) for one in found] == [
        ("rendezvous.unreachable", "rank 2 cannot reach rank 0: a0 is silent")
    ] * told


def test_without_strays_nobody_is_elsewhere() -> None:
    assert find_split(met(1, 3), (), 3.0, over=True) == ()
