"""How agents of one run find each other, on one machine and across machines."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.ranks.agents.discovery import Meeting
from gpudiag.ranks.agents.link import Link


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The run directory of rank 0's agent of run 1."""
    path = tmp_path / "one" / f"run-{Meeting(tmp_path, 'run 1', 0, None).label}-abc"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def leader(directory: Path) -> Iterator[Meeting]:
    """Rank 0's agent, which listens for other machines too and answers there."""
    meeting = Meeting(directory.parent, "run 1", 0, "127.0.0.1")
    unix, tcp = meeting.listen(directory)
    tcp.setblocking(True)
    thread = threading.Thread(target=answer, args=(tcp, meeting.key), daemon=True)
    thread.start()
    with unix, tcp:
        yield meeting
        tcp.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def answer(listener: socket.socket, key: str) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        link = Link(connection)
        if link.await_message("agent", 1.0) == {"kind": "agent", "key": key}:
            link.send("agent", key=key)
        link.close()


def connect(meeting: Meeting, rank: int) -> bool:
    link = meeting.connect(rank, {})
    if link is not None:
        link.close()
    return link is not None


def test_agents_of_one_machine_find_each_other_by_run_and_rank(directory: Path) -> None:
    base = directory.parent
    with Meeting(base, "run 1", 0, None).listen(directory)[0]:
        assert connect(Meeting(base, "run 1", 1, None), 0)
        assert not connect(Meeting(base, "run 1", 1, None), 2)
        assert not connect(Meeting(base, "run 2", 1, None), 0)
    assert not connect(Meeting(base, "run 1", 1, None), 0)


def test_a_twin_is_found(directory: Path) -> None:
    with Meeting(directory.parent, "run 1", 0, None).listen(directory)[0]:
        assert Meeting(directory.parent, "run 1", 0, None).find_twin()
        assert not Meeting(directory.parent, "run 1", 1, None).find_twin()


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    base = tmp_path / ("x" * 120)
    meeting = Meeting(base, "run", 0, None)
    directory = base / f"run-{meeting.label}-abc"
    directory.mkdir(parents=True)
    with meeting.listen(directory)[0]:
        assert connect(Meeting(base, "run", 1, None), 0)


def test_agents_of_other_machines_find_rank_0_where_the_ranks_meet(leader: Meeting, tmp_path: Path) -> None:
    assert connect(Meeting(tmp_path / "elsewhere", "run 1", 1, "127.0.0.1"), 0)


def test_somebody_elses_port_is_passed_over(leader: Meeting, tmp_path: Path) -> None:
    other = Meeting(tmp_path / "elsewhere", "run 2", 1, "127.0.0.1")
    other._candidate_ports = leader._candidate_ports  # type: ignore[method-assign]
    assert not connect(other, 0)


def test_a_taken_port_is_no_obstacle(directory: Path) -> None:
    meeting = Meeting(directory.parent, "run 1", 0, "127.0.0.1")
    first = meeting._candidate_ports()[0]
    with socket.create_server(("", first)):
        unix, tcp = meeting.listen(directory)
        with unix, tcp:
            assert meeting.port in meeting._candidate_ports()[1:]


def test_agents_that_are_no_leader_are_reached_where_they_said(leader: Meeting, tmp_path: Path) -> None:
    other = Meeting(tmp_path / "elsewhere", "run 1", 2, "127.0.0.1")
    assert leader.port is not None
    link = other.connect(1, {1: ("127.0.0.1", leader.port)})
    assert link is not None
    link.close()
    assert other.connect(1, {}) is None


def test_on_one_machine_no_port_is_opened(directory: Path) -> None:
    meeting = Meeting(directory.parent, "run 1", 0, None)
    (listener,) = meeting.listen(directory)
    with listener:
        assert meeting.port is None
        assert meeting.own_address is None
