"""Notes of agents in torch's own store, by its protocol: both of torch's servers, and what is no store of the
run.
"""

import socket
import time

import pytest
import torch.distributed as dist

from gpudiag.ranks.agents.reach import Meeting, MeetingWatch, Obstacle, look_at
from gpudiag.ranks.agents.store_notes import StoreNotes, StoreWatch

KEY = "a" * 64
HERE = "127.0.0.1"


@pytest.fixture(params=[True, False], ids=["libuv", "threads"])
def store(request: pytest.FixtureRequest) -> dist.TCPStore:
    return dist.TCPStore(HERE, 0, 2, True, wait_for_workers=False, use_libuv=request.param)


def closed_ports() -> tuple[int, ...]:
    sockets = [socket.create_server((HERE, 0)) for _ in range(2)]
    ports = tuple(int(one.getsockname()[1]) for one in sockets)
    for one in sockets:
        one.close()
    return ports


def wait_for(notes: StoreNotes) -> None:
    until = time.monotonic() + 30
    while notes.read_host() is None and time.monotonic() < until:
        time.sleep(0.05)


def test_what_is_written_is_read_by_those_of_the_run_alone(store: dist.TCPStore) -> None:
    notes = StoreNotes((HERE, store.port), KEY)
    assert notes.read_host() is None
    assert notes.read(range(4)) == {}
    assert notes.write_host("machine1")
    assert notes.write(2, "machine3 silent")
    assert notes.read_host() == "machine1"
    assert notes.read(range(4)) == {2: "machine3 silent"}
    assert StoreNotes((HERE, store.port), "b" * 64).read_host() is None
    store.set("own", "kept")  # the ranks' own keys are as they were
    assert store.get("own") == b"kept"


def test_where_no_store_listens_there_are_no_notes() -> None:
    notes = StoreNotes((HERE, closed_ports()[0]), KEY)
    assert notes.read_host() is None
    assert not notes.write_host("machine1")
    assert notes.read(range(4)) == {}


def test_rank_0_s_agent_and_one_that_is_shut_out_find_the_same(store: dist.TCPStore) -> None:
    ports = closed_ports()
    notes = StoreNotes((HERE, store.port), KEY)
    watch = StoreWatch(notes, "machine1", range(1, 4))
    try:
        wait_for(notes)
        found = look_at(Meeting(HERE, store.port, ports, False, key=KEY))
        assert found is not None
        assert (found.obstacle, found.host) == (Obstacle.OTHER_PORTS, "machine1")
        assert found.only_open is not None
        assert (found.only_open.port, found.only_open.answers) == (store.port, ("refused",))
        assert watch.notes == {}
        MeetingWatch(Meeting(HERE, store.port, ports, False, key=KEY), 3, None)._leave_note(found)
        until = time.monotonic() + 30
        while not watch.notes and time.monotonic() < until:
            time.sleep(0.05)
        assert watch.notes == {3: f"{socket.gethostname()} refused"}
        assert watch.waited_seconds >= 0
    finally:
        watch.stop()


def test_another_job_s_store_is_no_sign_of_a_firewall(store: dist.TCPStore) -> None:
    found = look_at(Meeting(HERE, store.port, closed_ports(), False, key=KEY))
    assert found is None or found.only_open is None


def test_a_store_of_somebody_else_s_job_is_no_obstacle(store: dist.TCPStore) -> None:
    assert look_at(Meeting(HERE, store.port, (), False)) is None


def test_a_firewall_is_certain_once_a_second_look_does_not_say_otherwise(store: dist.TCPStore) -> None:
    assert StoreNotes((HERE, store.port), KEY).write_host("machine1")
    meeting = Meeting(HERE, store.port, closed_ports(), False, key=KEY)
    found = look_at(meeting)
    assert found is not None
    refused = look_at(Meeting(HERE, closed_ports()[0], closed_ports(), False, key=KEY))
    for looks, certain in (
        ([found], False),
        ([found, found], True),
        ([found, refused], True),
        ([found, None], False),
    ):
        watch = MeetingWatch(meeting, 1, None)
        watch._found = list(looks)
        assert (watch.shut_out is not None) is certain
