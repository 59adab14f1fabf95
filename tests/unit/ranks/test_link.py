import socket
from collections.abc import Iterator

import pytest

from gpudiag.ranks.agents.link import Link, LinkLostError
from gpudiag.ranks.agents.messages import (
    ClockQuestion,
    Ended,
    EndRequest,
    Interrupted,
    MachineReport,
    RefusedRank,
    RunKey,
)


@pytest.fixture
def pair() -> Iterator[tuple[Link, Link]]:
    """Both ends of a line."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Link(ours), Link(theirs)


def test_messages_arrive_whole_and_in_order(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.send(RefusedRank(1))
    ours.send(Ended((17,)))
    assert theirs.receive() == [RefusedRank(1), Ended((17,))]
    assert theirs.receive() == []


def test_what_was_said_before_the_end_is_heard(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.send(Interrupted())
    ours.close()
    theirs.send(EndRequest())  # nobody is there to read it
    assert theirs.receive() == [Interrupted()]
    with pytest.raises(LinkLostError):
        theirs.receive()


def test_an_end_that_does_not_read_gets_everything_once_it_does(pair: tuple[Link, Link]) -> None:
    """It may be paused: whether it is hung is told by its own silence."""
    ours, theirs = pair
    long = MachineReport(1, 1, 0, "n01", {"text": "x" * (1 << 22)})
    ours.send(long)
    ours.send(EndRequest())
    assert ours.receive() == []
    received = []
    while len(received) < 2:
        received += theirs.receive()
        ours.receive()
    assert received == [long, EndRequest()]


def test_silence_is_counted_and_ends_with_a_word(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    assert theirs.receive() == []
    assert theirs.silent_seconds > 0
    ours.send(EndRequest())
    theirs.receive()
    assert theirs.silent_seconds == 0


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"[]\n",
        b"{}\n",
        b'{"kind": "Farewell"}\n',
        b'{"kind": "RefusedRank", "rank": "one"}\n',
        b'{"kind": "Ended"}\n',
    ],
)
def test_what_is_no_message_comes_from_no_agent(pair: tuple[Link, Link], line: bytes) -> None:
    _, theirs = pair
    theirs._connection.sendall(line)
    with pytest.raises(LinkLostError):
        pair[0].receive()


def test_a_message_is_awaited_and_what_came_with_it_is_kept(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    theirs.send(RunKey("k"))
    theirs.send(ClockQuestion(1.5))
    assert ours.await_message(RunKey, 1.0) == RunKey("k")
    assert ours.receive() == [ClockQuestion(1.5)]


def test_another_message_or_none_is_not_what_was_awaited(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    assert ours.await_message(RunKey, 0.05) is None
    theirs.send(ClockQuestion(1.5))
    assert ours.await_message(RunKey, 1.0) is None
