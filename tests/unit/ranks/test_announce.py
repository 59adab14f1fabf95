"""Agents that miss others announce themselves, and hear each other: here on loopback, without a network."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.ranks.agents import announce
from gpudiag.ranks.agents.announce import ANNOUNCE_PORTS, Announcer, own_addresses, read_neighbours
from gpudiag.ranks.agents.astray import Astray, is_same_job, relation
from gpudiag.ranks.agents.discovery import Discovery
from gpudiag.ranks.agents.messages import Card, FailedRun
from gpudiag.ranks.diagnosis.split import Relation

RUN = "run 1"
CARD = Card(RUN, "nccl-test", "", os.getuid(), 2, 4, "a2", "127.0.0.1:29501", port=25000)
LEADER = replace(CARD, key="run 2", rank=0, host="a0", place="127.0.0.1:29500", leads=True)


@pytest.fixture(autouse=True)
def _at_once_and_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "ANNOUNCE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(announce, "_networks", lambda: iter((("127.0.0.1", ()),)))
    monkeypatch.setattr(announce, "read_neighbours", lambda: ())


@contextmanager
def announced(card: Card) -> Iterator[Announcer]:
    with closing(Announcer(card)) as announcer:
        announcer.start()
        yield announcer


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_one_that_misses_others_hears_their_leader_and_the_leader_hears_it() -> None:
    with announced(CARD) as one, announced(LEADER) as leader:
        wait_for(one.received_cards)
        wait_for(leader.received_cards)
        assert one.received_cards()[0].card.leads
        assert one.received_cards()[0].address == "127.0.0.1"


def test_what_is_no_card_is_dropped_and_texts_are_made_plain() -> None:
    noise = (b"", b"{", b"[" * 4000, b'{"kind": "Card"}', b'{"kind": "EndRequest"}', b"\xff\xfe")
    steering = announce._datagram(replace(LEADER, host="b0\x1b[31m\n", trouble="x" * 900))
    with announced(CARD) as announcer, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:

        def received_cards() -> bool:
            for port in ANNOUNCE_PORTS:
                for data in (*noise, steering):
                    other.sendto(data, ("127.0.0.1", port))
            return any(one.card.trouble for one in announcer.received_cards())

        wait_for(received_cards)
        (found,) = [one for one in announcer.received_cards() if one.card.trouble]
        assert found.card.host == r"b0\x1b[31m\n"
        assert len(found.card.trouble) == 255


def test_all_that_came_in_time_need_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "ANNOUNCE_AFTER_SECONDS", 30.0)
    with announced(CARD) as one:
        one.pause()
        wait_for(lambda: one._thread is None)
        assert one._socket is None


def test_neighbours_are_those_that_the_kernel_has_an_answer_from(tmp_path: Path) -> None:
    table = tmp_path / "arp"
    table.write_text(
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "10.0.0.2         0x1         0x2         02:42:ac:11:00:02     *        eth0\n"
        "10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        eth0\n"
    )
    assert read_neighbours(str(table)) == ("10.0.0.2",)
    assert read_neighbours(str(tmp_path / "nothing")) == ()
    assert not any(one.startswith("127.") for one in own_addresses())


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"user": os.getuid() + 1}, False),
        ({"world_size": 8}, False),
        ({"entry": "train"}, False),
        ({"entry": ""}, True),  # a process that has not got that far
        ({"job": "7"}, True),
    ],
)
def test_agents_of_one_job_have_user_command_and_size_in_common(
    changes: dict[str, object], same: bool
) -> None:
    assert is_same_job(CARD, replace(LEADER, **changes)) is same  # type: ignore[arg-type]


def test_the_launcher_s_name_of_the_job_decides_where_both_have_one() -> None:
    own = replace(CARD, job="slurm:7")
    assert is_same_job(own, replace(LEADER, job="slurm:7", user=-1))
    assert not is_same_job(own, replace(LEADER, job="slurm:8"))


@pytest.mark.parametrize(
    ("place", "addresses", "found"),
    [
        ("a0:29777", ("10.0.0.1",), Relation.CERTAIN),  # rank 0's machine
        ("a3:29777", ("10.0.0.4",), Relation.CERTAIN),  # a machine of the job
        ("b0:29500", ("10.1.0.1",), Relation.LIKELY),  # the port alone, which most jobs leave as it is
        ("b0:29777", ("10.1.0.1",), Relation.POSSIBLE),
    ],
)
def test_what_two_places_have_in_common_makes_one_job_of_them(
    place: str, addresses: tuple[str, ...], found: Relation
) -> None:
    leader = replace(LEADER, place="a0:29500", addresses=("10.0.0.1",), machine=("10.0.0.1",))
    other = replace(CARD, place=place, addresses=addresses)
    assert relation(leader, frozenset({"10.0.0.4"}), other) is found
    assert relation(leader, frozenset(), replace(other, key=leader.key)) is Relation.CERTAIN


def hears(card: Card, other: Card, address: str) -> Astray:
    announcer = Announcer(card)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        announcer._note(unused, other, (address, 20000))
    return Astray(announcer, Discovery(Path("/nowhere"), RUN, card.rank, "a0"), None)


def test_a_leader_at_another_name_of_the_same_place_is_the_own_leader() -> None:
    own = replace(CARD, place="10.0.0.1:29500", addresses=("10.0.0.1",))
    leader = replace(LEADER, place="a0:29500", addresses=("10.0.0.1",), machine=("10.0.0.1", "172.17.0.1"))
    astray = hears(own, leader, "10.0.0.1")
    assert astray.poll() is None
    assert astray.card.key == leader.key
    assert astray.addresses() == {0: ("10.0.0.1", 25000)}
    assert not astray.is_joined


def test_those_that_all_miss_rank_0_find_the_lowest_of_them() -> None:
    first = replace(CARD, rank=1, host="a1")
    astray = hears(CARD, first, "10.0.0.2")
    assert astray.addresses() == {1: ("10.0.0.2", 25000)}
    assert astray.leader() is None
    assert hears(CARD, replace(first, leads=True), "10.0.0.2").leader() == 1
    assert hears(first, CARD, "10.0.0.3").addresses() == {}


def test_one_that_is_kept_out_waits_for_lower_ranks_that_were_started_later() -> None:
    first = replace(CARD, rank=1, host="a1")
    for own, later, waits in ((CARD, first, True), (first, CARD, False)):
        astray = hears(own, later, "10.0.0.2")
        astray._began = time.monotonic() - 5
        assert astray.may_be_reported is waits
        astray._began = time.monotonic() - 15
        assert not astray.may_be_reported


def test_a_follower_relays_the_leader_s_card_to_those_of_its_run_and_announces_nothing() -> None:
    leader = replace(LEADER, key=RUN)
    follower = replace(CARD, rank=1, host="a1")
    with closing(Announcer(follower)) as relay, announced(CARD) as one:
        relay.relay(leader)
        wait_for(one.received_cards)
        wait_for(relay.received_cards)
        assert [received.card for received in one.received_cards()] == [replace(leader, relayed=True)]
        assert [received.card.host for received in relay.received_cards()] == ["a2"]
        relay.announce_end(3)
        wait_for(lambda: one.received_cards()[0].card.ended == 3)


def test_a_relayed_leader_is_alive_and_is_not_where_its_card_came_from() -> None:
    own = replace(CARD, place="10.0.0.1:29500", addresses=("10.0.0.1",))
    leader = replace(LEADER, key=RUN, place=own.place, addresses=own.addresses, machine=own.addresses)
    astray = hears(own, replace(leader, relayed=True), "10.0.0.2")
    astray._began = time.monotonic() - 5  # it has looked for a leader for longer than that takes
    assert astray.may_be_reported
    assert astray.addresses() == {}
    assert astray.poll() is None
    assert not astray.is_joined
    ended = hears(own, replace(leader, relayed=True, ended=3), "10.0.0.2")
    assert ended.poll() == FailedRun(3)
