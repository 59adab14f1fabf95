import socket
from collections.abc import Iterator

import pytest

from gpudiag.ranks.agents.link import Link, LinkLostError


@pytest.fixture
def pair() -> Iterator[tuple[Link, Link]]:
    """Both ends of a line."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Link(ours), Link(theirs)


def test_messages_arrive_whole_and_in_order(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.send("report", rank=1)
    ours.send("ended")
    assert theirs.receive() == [{"kind": "report", "rank": 1}, {"kind": "ended"}]
    assert theirs.receive() == []


def test_what_was_said_before_the_end_is_heard(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.send("interrupted")
    ours.close()
    theirs.send("report")  # nobody is there to read it
    assert theirs.receive() == [{"kind": "interrupted"}]
    with pytest.raises(LinkLostError):
        theirs.receive()


def test_an_end_that_does_not_read_gets_everything_once_it_does(pair: tuple[Link, Link]) -> None:
    """It may be paused: whether it is hung is told by its own silence."""
    ours, theirs = pair
    ours.send("run", text="x" * (1 << 22))
    ours.send("end")
    assert ours.receive() == []
    received = []
    while len(received) < 2:
        received += theirs.receive()
        ours.receive()
    assert [message["kind"] for message in received] == ["run", "end"]


def test_silence_is_counted_and_ends_with_a_word(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    assert theirs.receive() == []
    assert theirs.unheard_seconds > 0
    ours.send("report")
    theirs.receive()
    assert theirs.unheard_seconds == 0


def test_what_is_not_json_comes_from_no_agent(pair: tuple[Link, Link]) -> None:
    _, theirs = pair
    theirs._connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(LinkLostError):
        pair[0].receive()


def test_a_message_is_awaited_and_what_came_with_it_is_kept(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    theirs.send("agent", key="k")
    theirs.send("views")
    assert ours.await_message("agent", 1.0) == {"kind": "agent", "key": "k"}
    assert ours.receive() == [{"kind": "views"}]


def test_another_message_or_none_is_not_what_was_awaited(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    assert ours.await_message("agent", 0.05) is None
    theirs.send("views")
    assert ours.await_message("agent", 1.0) is None
