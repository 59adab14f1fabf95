"""What is found on the way to rank 0's machine, here played by servers of this one."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.agents import reach
from gpudiag.ranks.agents.reach import Meeting, MeetingWatch, Obstacle, Reach, explain_absence, look_at

HERE = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Ports at which nobody listens."""
    sockets = [socket.create_server((HERE, 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that does that with each connection."""
    listener = socket.create_server((HERE, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def web(connection: socket.socket) -> None:
    heard = b""
    while b"\n" not in heard:
        heard += connection.recv(64)
    connection.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n")


def ssh(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def silent(connection: socket.socket) -> None:
    connection.settimeout(5)
    while connection.recv(64):
        pass


def tls(connection: socket.socket) -> None:
    connection.recv(64)
    connection.sendall(bytes((21, 3, 1, 0, 2, 2, 70)))


def closing(connection: socket.socket) -> None:
    connection.recv(64)


def resetting(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def store(connection: socket.socket) -> None:
    connection.recv(64)
    connection.sendall(reach._STORE_ANSWER)


def look(
    port: int, agent_ports: tuple[int, ...], *, name: str = HERE, elsewhere: bool = False
) -> Reach | None:
    return look_at(Meeting(name, port, agent_ports, elsewhere))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web, "'HTTP/1.0 400 Bad request'"),
        (ssh, "'SSH-2.0-OpenSSH_9.2'"),
        (silent, "accepts connections and sends nothing"),
        (tls, "answers 15 03 01 00 02 02 46, which is no rendezvous of torch's"),
        (closing, "closes connections and sends nothing"),
        (resetting, "resets connections"),
    ],
)
def test_another_server_is_told_by_what_it_answers(
    answer: Callable[[socket.socket], None], words: str
) -> None:
    with server(answer) as port:
        found = look(port, tuple(free_ports(1)))
    assert found is not None
    assert found.obstacle is Obstacle.FOREIGN
    assert words in found.words


def test_the_ranks_own_store_is_no_obstacle_and_neither_is_an_agent() -> None:
    with server(store) as port, server(silent) as agent:
        assert look(port, (agent,)) is None
        assert look(free_ports(1)[0], (agent,)) is None


def test_the_store_of_torch_itself_answers_as_it_is_asked() -> None:
    distributed = pytest.importorskip("torch.distributed")
    for libuv in (True, False):
        there = distributed.TCPStore(HERE, 0, is_master=True, wait_for_workers=False, use_libuv=libuv)
        found = look(there.port, tuple(free_ports(1)))
        assert found is not None
        assert found.obstacle is Obstacle.NOT_FOUND  # no agent is beside it: rank 0 may still come
        there.set("a", "b")
        assert there.get("a") == b"b"


def test_a_port_at_which_nobody_listens_is_told_with_the_machine() -> None:
    port, agent = free_ports(2)
    found = look(port, (agent,), name="localhost")
    assert found is not None
    assert (found.obstacle, found.host) == (Obstacle.REFUSED, None)
    assert found.words == f"localhost is {socket.gethostname()} itself, and nothing listens on port {port}"


def test_a_name_that_leads_back_here_is_told_where_rank_0_is_elsewhere() -> None:
    found = look(free_ports(1)[0], (), elsewhere=True)
    assert found is not None
    assert found.obstacle is Obstacle.OWN_ADDRESS


def test_a_name_without_an_address_is_told_in_the_resolver_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = look(29500, (), name="a9")
    assert found is not None
    assert found.words == "a9 has no address on this machine: Name or service not known"


def test_a_first_address_that_is_dead_and_a_second_that_works_is_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_up(name: str, port: int | None, *_: object, **__: object) -> list[tuple[object, ...]]:
        addresses = ("127.0.0.9", HERE) if name == "a1" else (name,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port or 0)) for one in addresses]

    with server(store) as port, server(silent) as agent:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        assert look(port, (agent,), name="a1") is None


def test_the_notice_comes_once_and_not_after_rank_0_was_met(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_AFTER_SECONDS", "_LAST_LOOK_SECONDS", "_LOOK_AGAIN_SECONDS", "NOTICE_SECONDS"):
        monkeypatch.setattr(reach, name, 0.01)
    told: list[str] = []
    came = threading.Event()
    port, agent = free_ports(2)
    meeting = Meeting(HERE, port, (agent,), elsewhere=False)

    def notice(words: str) -> None:
        told.append(words)
        came.set()

    watch = MeetingWatch(meeting, 2, notice)
    watch.start()
    assert came.wait(30)
    watch.stop()
    assert told[0].startswith(f"rank 2 on {socket.gethostname()} waits for rank 0: {HERE} is")
    stopped = MeetingWatch(meeting, 3, told.append)
    stopped.stop()
    stopped.start()
    assert len(told) == 1
    found = watch.conclude()
    assert found is not None
    assert found.obstacle is Obstacle.REFUSED


ABSENT = tuple(
    Incident(IncidentKind.NOT_STARTED, rank, "?", "import", 9.0, (Evidence("waited_for", 9.0),))
    for rank in (0, 1, 3)
)


def test_where_others_are_missing_too_this_rank_says_where_it_looked_and_not_that_rank_0_is_missing() -> None:
    for obstacle in (Obstacle.REFUSED, Obstacle.NO_ANSWER, Obstacle.FOREIGN, Obstacle.NOT_FOUND):
        (told,) = explain_absence(ABSENT, Reach(obstacle, "a0 was tried", "a0:29500", "a0"), 2, "a2")
        assert (told.kind, told.rank, told.host, told.stage) == (
            IncidentKind.UNREACHED,
            2,
            "a2",
            "rendezvous",
        )
        assert told.facts["found"] == "a0 was tried"


def test_where_all_others_are_here_rank_0_is_missing_unless_the_way_there_is_blocked() -> None:
    alone = ABSENT[:1]
    (refused,) = explain_absence(alone, Reach(Obstacle.REFUSED, "a0 is up", "a0:29500", "a0"), 2, "a2")
    assert (refused.kind, refused.rank, refused.host) == (IncidentKind.NOT_STARTED, 0, "a0")
    (cut,) = explain_absence(alone, Reach(Obstacle.NO_ANSWER, "a0 does not answer", "a0:29500"), 2, "a2")
    assert (cut.kind, cut.rank, cut.host) == (IncidentKind.UNREACHED, 2, "a2")


def test_another_incident_is_left_as_it_is() -> None:
    died = (Incident(IncidentKind.DIED, 2, "a2", "import", 1.0, ()),)
    assert explain_absence(died, Reach(Obstacle.NO_ANSWER, "", ""), 2, "a2") == died
