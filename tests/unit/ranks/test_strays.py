"""What a leading agent makes of processes that come to it beside the rendezvous: strays, twins, those that
cannot start.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.linux.namespaces import read_machine
from gpudiag.model.measure import IncidentKind
from gpudiag.ranks.agents import announce, refusal
from gpudiag.ranks.agents.announce import Announcer
from gpudiag.ranks.agents.discovery import Discovery, connect_agent
from gpudiag.ranks.agents.link import Link, LinkLostError
from gpudiag.ranks.agents.messages import (
    AgentLocation,
    Card,
    FinishedRun,
    Hello,
    Message,
    RankState,
    RefusedRank,
    RelayedCard,
    Stray,
)
from gpudiag.ranks.agents.refusal import share_refusal
from gpudiag.ranks.agents.remote import RemoteRanks
from gpudiag.ranks.diagnosis.split import find_split
from gpudiag.ranks.rank_run import RankEvent, RankRun
from tests.unit.ranks.views import view

KEY = "run 1"
HERE = AgentLocation(os.getpid(), read_machine())
PLACE = "127.0.0.1:29500"


class Leader:
    """Rank 0's agent of a run of three, which listens on loopback."""

    def __init__(self, announcer: Announcer | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.address: tuple[str, int] = self.listener.getsockname()
        self.remote = RemoteRanks([self.listener], KEY, 3, 0, HERE, "elsewhere", None, announcer)

    def close(self) -> None:
        self.remote.close()
        self.listener.close()

    def poll_until(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + 30
        while not condition() and time.monotonic() < until:
            self.remote.poll()
            time.sleep(0.01)
        assert condition()

    def connect(self, message: Message) -> Link:
        """A link of another process, which has said that."""
        found: list[Link | None] = []
        thread = threading.Thread(target=lambda: found.append(connect_agent(self.address, KEY)))
        thread.start()
        self.poll_until(lambda: not thread.is_alive())
        (link,) = found
        assert link is not None
        link.send(message)
        return link


@pytest.fixture
def leader() -> Iterator[Leader]:
    with closing(Leader()) as made:
        yield made


def hello(rank: int, host: str, world_size: int = 3) -> Hello:
    return Hello(rank, replace(HERE, pid=sum(host.encode())), None, None, host, world_size)


def card(rank: int, host: str, **changes: object) -> Card:
    made = Card("another run", "nccl-test", "", os.getuid(), rank, 3, host, "a9:29500", ("10.0.0.9",))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_stray_counts_where_its_rank_is_missing_and_tells_more_later(leader: Leader) -> None:
    with closing(leader.connect(Stray(card(2, "a2")))) as link:
        leader.poll_until(leader.remote.strays.lookers)
        link.send(Stray(card(2, "a2", obstacle="refused", found="nobody listens")))
        leader.poll_until(lambda: leader.remote.strays.lookers()[0].found)
        (stray,) = leader.remote.strays.lookers()
        assert (stray.rank, stray.host, stray.place, stray.found) == (2, "a2", "a9:29500", "nobody listens")
        assert leader.remote.strays.met().absent == {1, 2}
    leader.poll_until(lambda: not leader.remote.strays.lookers())  # it has found its own rank 0


def test_events_that_come_while_the_leader_waits_for_a_reply_are_kept(leader: Leader) -> None:
    event = RankEvent(1, 1.0, {"size": 8})
    with closing(leader.connect(hello(1, "a1"))) as link:
        link.send(RankState(view(1), (event,)))
        while not leader.remote._received:
            leader.remote.receive()  # as a survey of the hosts does
        assert leader.remote.poll() == [event]
        assert leader.remote.poll() == []


def test_what_a_follower_hears_counts_as_what_the_leader_hears() -> None:
    own = Card(KEY, "nccl-test", "", os.getuid(), 0, 3, "a0", PLACE, leads=True)
    lost = card(2, "a2", key=KEY, place=PLACE, obstacle="no_answer", found="a0 does not answer")
    with closing(Leader(Announcer(own))) as leader, closing(leader.connect(hello(1, "a1"))) as link:
        link.send(RelayedCard(lost, "10.0.0.2"))
        leader.poll_until(leader.remote.strays.lookers)
        (looker,) = leader.remote.strays.lookers()
        assert (looker.rank, looker.host, looker.obstacle, looker.joined) == (2, "a2", "no_answer", False)
        link.send(RelayedCard(replace(lost, rank=1), "10.0.0.2"))  # a rank that has met this leader
        leader.poll_until(lambda: len(leader.remote.strays._relayed) == 2)
        assert [one.rank for one in leader.remote.strays.lookers()] == [2]


def test_who_looks_where_a_rank_looks_that_is_here_is_of_another_job(leader: Leader) -> None:
    with (
        closing(leader.connect(hello(1, "a1"))),
        closing(leader.connect(Stray(card(1, "b1")))),
        closing(leader.connect(Stray(card(2, "b2")))) as last,
    ):
        leader.poll_until(lambda: len(leader.remote.strays.links()) == 2)
        assert leader.remote.strays.lookers() == ()
        run = RankRun(3, "explicit", "a0", (), (), (), 9.0)
        leader.remote.send_verdict(FinishedRun(run))
        with pytest.raises(LinkLostError):  # the verdict is not for them
            last.await_message(FinishedRun, 30) or last.receive()


def test_another_world_size_is_no_end_but_a_stray(leader: Leader) -> None:
    with closing(leader.connect(hello(1, "a1", world_size=4))):
        leader.poll_until(leader.remote.strays.lookers)
        (found,) = find_split(leader.remote.strays.met(), leader.remote.strays.lookers(), 9.0, over=True)
        assert (found.rank, found.host, found.facts["world_size"]) == (1, "a1", 4)


def test_a_second_process_of_a_rank_waits_for_the_report_and_is_refused_once_the_run_is_under_way(
    leader: Leader,
) -> None:
    with closing(leader.connect(hello(1, "a1"))) as first, closing(leader.connect(hello(2, "a2"))) as second:
        with closing(leader.connect(hello(2, "b2"))):
            leader.poll_until(lambda: leader.remote.strays.twins)
            assert leader.remote.strays.twins == {(2, "b2"): "rank 2 on a2 and on b2"}
        for rank, link in ((1, first), (2, second)):
            link.send(RankState(view(rank), ()))
        leader.poll_until(lambda: leader.remote._is_under_way)
        with closing(leader.connect(hello(2, "c2"))) as late:
            told: list[Message] = []
            leader.poll_until(lambda: told or told.extend(late.receive()))
            (refused,) = told
            assert isinstance(refused, RefusedRank)
            assert refused.why == "rank 2 was started twice in this run, on a1 and on c2, or two jobs meet"
        assert (2, "c2") not in leader.remote.strays.twins


def test_a_process_that_connects_again_is_no_second_one(leader: Leader) -> None:
    with closing(leader.connect(hello(1, "a1"))) as first:
        leader.poll_until(lambda: 1 in leader.remote.strays.met().hosts)
        with closing(leader.connect(hello(1, "a1"))):
            leader.poll_until(lambda: _is_gone(first))
            assert leader.remote.strays.twins == {}
            assert 1 in leader.remote.strays.met().hosts


def _is_gone(link: Link) -> bool:
    try:
        link.receive()
    except LinkLostError:
        return True
    return False


def test_a_process_that_cannot_start_ends_with_the_report_of_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("ANNOUNCE_AFTER_SECONDS", 0.0), ("_networks", lambda: iter((("127.0.0.1", ()),)))):
        monkeypatch.setattr(announce, name, value)
    monkeypatch.setattr(announce, "read_neighbours", lambda: ())
    monkeypatch.setattr(refusal, "_FIND_SECONDS", 30.0)
    own = Card(KEY, "nccl-test", "", os.getuid(), 0, 3, "a0", PLACE)
    announcer = Announcer(own)
    with closing(announcer), closing(Leader(announcer)) as leader:
        announcer.introduce(replace(own, leads=True, port=leader.address[1]))
        announcer.start()
        shared: list[bool] = []
        error = UsageError("MASTER_ADDR is not set", hint="set it")
        thread = threading.Thread(target=lambda: shared.append(share_refusal(error, 2, 3)))
        thread.start()
        leader.poll_until(leader.remote.strays.lookers)
        (incident,) = find_split(leader.remote.strays.met(), leader.remote.strays.lookers(), 9.0, over=True)
        assert (incident.kind, incident.rank) == (IncidentKind.START_FAILED, 2)
        assert incident.facts["refused"] == "MASTER_ADDR is not set"
        run = RankRun(3, "explicit", "a0", (), (incident,), (), 9.0)
        leader.remote.send(FinishedRun(run))
        thread.join(30)
        assert shared == [True]


def test_where_nobody_leads_a_process_that_cannot_start_goes_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "_FIND_SECONDS", 0.0)
    assert not share_refusal(UsageError("no"), 2, 3)


def test_an_agent_takes_the_key_of_the_run_that_it_turns_out_to_be_of() -> None:
    discovery = Discovery(Path("/nowhere"), "run 2", 1, "a0")
    discovery.adopt(KEY)
    assert discovery.key == KEY
