"""How agents of one run find each other, on one machine and across machines."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpudiag.ranks.agents.discovery import Discovery
from gpudiag.ranks.agents.link import Link
from gpudiag.ranks.agents.messages import RunKey


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The run directory of rank 0's agent of run 1."""
    path = tmp_path / "one" / f"run-{Discovery(tmp_path, 'run 1', 0, None).label}-abc"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def leader(directory: Path) -> Iterator[Discovery]:
    """Rank 0's agent, which listens for other machines too and answers there."""
    discovery = Discovery(directory.parent, "run 1", 0, "127.0.0.1")
    unix, tcp = discovery.listen(directory)
    tcp.setblocking(True)
    thread = threading.Thread(target=answer, args=(tcp, discovery.key), daemon=True)
    thread.start()
    with unix, tcp:
        yield discovery
        tcp.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def answer(listener: socket.socket, key: str) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        link = Link(connection)
        if link.await_message(RunKey, 1.0) == RunKey(key):
            link.send(RunKey(key))
        link.close()


def connect(discovery: Discovery, rank: int) -> bool:
    link = discovery.connect(rank, {})
    if link is not None:
        link.close()
    return link is not None


def test_agents_of_one_machine_find_each_other_by_run_and_rank(directory: Path) -> None:
    base = directory.parent
    with Discovery(base, "run 1", 0, None).listen(directory)[0]:
        assert connect(Discovery(base, "run 1", 1, None), 0)
        assert not connect(Discovery(base, "run 1", 1, None), 2)
        assert not connect(Discovery(base, "run 2", 1, None), 0)
    assert not connect(Discovery(base, "run 1", 1, None), 0)


def test_a_twin_is_found(directory: Path) -> None:
    with Discovery(directory.parent, "run 1", 0, None).listen(directory)[0]:
        assert Discovery(directory.parent, "run 1", 0, None).find_twin()
        assert not Discovery(directory.parent, "run 1", 1, None).find_twin()


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    base = tmp_path / ("x" * 120)
    discovery = Discovery(base, "run", 0, None)
    directory = base / f"run-{discovery.label}-abc"
    directory.mkdir(parents=True)
    with discovery.listen(directory)[0]:
        assert connect(Discovery(base, "run", 1, None), 0)


def test_agents_of_other_machines_find_rank_0_where_the_ranks_meet(leader: Discovery, tmp_path: Path) -> None:
    assert connect(Discovery(tmp_path / "elsewhere", "run 1", 1, "127.0.0.1"), 0)


def test_somebody_elses_port_is_passed_over(leader: Discovery, tmp_path: Path) -> None:
    other = Discovery(tmp_path / "elsewhere", "run 2", 1, "127.0.0.1")
    other.candidate_ports = leader.candidate_ports  # type: ignore[method-assign]
    assert not connect(other, 0)


def test_a_taken_port_is_no_obstacle(directory: Path) -> None:
    discovery = Discovery(directory.parent, "run 1", 0, "127.0.0.1")
    first = discovery.candidate_ports()[0]
    with socket.create_server(("", first)):
        unix, tcp = discovery.listen(directory)
        with unix, tcp:
            assert discovery.port in discovery.candidate_ports()[1:]


def test_agents_that_are_no_leader_are_reached_where_they_said(leader: Discovery, tmp_path: Path) -> None:
    other = Discovery(tmp_path / "elsewhere", "run 1", 2, "127.0.0.1")
    assert leader.port is not None
    link = other.connect(1, {1: ("127.0.0.1", leader.port)})
    assert link is not None
    link.close()
    assert other.connect(1, {}) is None


def test_on_one_machine_no_port_is_opened(directory: Path) -> None:
    discovery = Discovery(directory.parent, "run 1", 0, None)
    (listener,) = discovery.listen(directory)
    with listener:
        assert discovery.port is None
        assert discovery.own_address is None
