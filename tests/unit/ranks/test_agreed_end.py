"""The end of a run that several agents agree on: nobody leaves before the verdict is there, and none that
left has died.
"""

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpudiag.errors import LaunchError
from gpudiag.linux.namespaces import read_machine
from gpudiag.ranks.agents import messages
from gpudiag.ranks.agents.discovery import Peers
from gpudiag.ranks.agents.link import Link, LinkLostError
from gpudiag.ranks.agents.membership import Follower
from gpudiag.ranks.agents.remote import RemoteRanks
from gpudiag.ranks.agents.tcp_counters import TcpCounters
from gpudiag.ranks.event_log import EventLog
from gpudiag.ranks.stages import Budgets
from tests.unit.ranks.views import view

OWN = messages.AgentLocation(1, read_machine())


Ends = tuple[Link, Link]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = map(Link, socket.socketpair())
    yield one, other
    one.close()
    other.close()


class Ranks:
    """The ranks of a follower: one, which does nothing."""

    world_size = 2
    start_failure = None

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "settings": {},
            "views": (view(1),),
            "filenos": (),
            "live_pids": (),
            "poll": [],
            "end": (),
        }
        return answers[name] if name == "settings" else lambda *_: answers.get(name)


def follow(link: Link) -> None:
    assignment: Any = SimpleNamespace(
        tcp=TcpCounters(),
        local=Ranks(),
        interrupts=SimpleNamespace(fileno=link.fileno, is_due=lambda _: False),
        host="a1",
        started=time.monotonic(),
        budgets=Budgets(),
    )
    Follower(link, assignment, EventLog(0.0), Peers(), None).follow(1, OWN, None, 0)


def test_the_leader_waits_until_an_agent_has_the_verdict(ends: Ends) -> None:
    ours, theirs = ends
    remote = RemoteRanks([], "key", 2, 0, OWN, "a0")
    remote._records[1].link = ours
    sent = threading.Event()

    def receive() -> None:
        theirs.await_message(messages.FailedRun, 30)
        time.sleep(0.3)  # a slow network
        sent.set()
        theirs.send(messages.VerdictReceived())

    threading.Thread(target=receive, daemon=True).start()
    remote.send(messages.FailedRun(3))
    remote.await_receipts(lambda: False)
    assert sent.is_set()
    assert remote._records[1].has_verdict


@pytest.mark.parametrize("reason", ["gone", "interrupted"])
def test_the_leader_does_not_wait_for_an_agent_that_is_gone_or_where_it_is_interrupted(
    ends: Ends, reason: str
) -> None:
    ours, theirs = ends
    remote = RemoteRanks([], "key", 2, 0, OWN, "a0")
    remote._records[1].link = ours
    if reason == "gone":
        theirs.close()
    remote.await_receipts(lambda: reason == "interrupted")
    assert not remote._records[1].has_verdict


def test_a_leader_that_leaves_after_it_has_judged_the_run_has_not_died(ends: Ends) -> None:
    ours, theirs = ends
    theirs.send(messages.EndRequest())
    theirs.close()
    with pytest.raises(LaunchError, match="its report did not reach this host"):
        follow(ours)


def test_a_leader_that_is_gone_before_that_is_lost(ends: Ends) -> None:
    ours, theirs = ends
    theirs.close()
    with pytest.raises(LinkLostError):
        follow(ours)


def test_a_follower_says_that_it_has_the_verdict(ends: Ends) -> None:
    ours, theirs = ends
    theirs.send(messages.EndRequest())
    theirs.send(messages.FailedRun(3))
    follow(ours)
    said: list[messages.Message] = []
    while not any(isinstance(one, messages.VerdictReceived) for one in said):
        said += theirs.receive()
