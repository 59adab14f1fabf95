import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.ranks.link import Link, LinkLostError, Meeting


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


def test_an_end_that_does_not_read_is_lost(pair: tuple[Link, Link]) -> None:
    ours, _ = pair
    ours.send("run", text="x" * (1 << 22))
    with pytest.raises(LinkLostError):
        ours.receive()


def test_silence_is_counted_and_ends_with_a_word(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    assert theirs.receive() == []
    assert theirs.unheard_seconds > 0
    ours.send("report")
    theirs.receive()
    assert theirs.unheard_seconds == 0


def test_agents_find_each_other_by_run_and_rank(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, "run 1", 0)
    directory = tmp_path / f"run-{meeting.label}-abc"
    directory.mkdir()
    with meeting.listen(directory):
        found = Meeting(tmp_path, "run 1", 1).connect(0)
        assert found is not None
        found.close()
        assert Meeting(tmp_path, "run 1", 1).connect(2) is None
        assert Meeting(tmp_path, "run 2", 1).connect(0) is None
    assert Meeting(tmp_path, "run 1", 1).connect(0) is None


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    base = tmp_path / ("x" * 120)
    meeting = Meeting(base, "run", 0)
    directory = base / f"run-{meeting.label}-abc"
    directory.mkdir(parents=True)
    with meeting.listen(directory):
        found = meeting.connect(0)
        assert found is not None
        found.close()
