"""Agents on one machine that look at the network to each other: who replies, and whether a packet of full
size does.
"""

import contextlib
import time
from collections.abc import Iterator

import pytest

from gpudiag.ranks.agents.messages import PathTarget
from gpudiag.ranks.agents.path_watch import HostAgent, PathWatch
from gpudiag.ranks.diagnosis.paths import Contact

KEY = "one run"


@pytest.fixture
def watches() -> Iterator[list[PathWatch]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(PathWatch(KEY, rank))) for rank in range(3)]


def agents(watches: list[PathWatch]) -> list[HostAgent]:
    return [
        HostAgent(PathTarget(rank, ("127.0.0.1", watch.port)), f"a{rank + 1}")
        for rank, watch in enumerate(watches)
    ]


def test_all_that_run_reply_to_packets_of_every_size(watches: list[PathWatch]) -> None:
    paths = watches[0].look(agents(watches)[1:], "a1")
    assert paths.is_whole
    assert sorted(paths.rows) == [0, 1, 2]
    assert {contact for row in paths.rows.values() for contact in row.values()} == {Contact.REPLIES}
    size, passed = watches[0]._try_size(("127.0.0.1", watches[1].port), 1000, 5.0)
    assert (size, passed) == (1000, True)
    full, passed = watches[0]._try_size(("127.0.0.1", watches[1].port), None, 5.0)
    assert full > 1000
    assert passed


def test_one_that_ended_refuses_and_one_of_another_run_does_not_reply(watches: list[PathWatch]) -> None:
    others = agents(watches)[1:]
    watches[2].close()
    with contextlib.closing(PathWatch("another run", 3)) as foreign:
        assert watches[0].contact(("127.0.0.1", foreign.port)) is Contact.HUNG
        assert watches[0].look(others, "a1").rows[0] == {1: Contact.REPLIES, 2: Contact.REFUSED}


def test_looks_go_on_by_themselves_until_they_are_forgotten(watches: list[PathWatch]) -> None:
    others = agents(watches)[1:]
    until = time.monotonic() + 30
    while len(found := watches[0].look_on(others, "a1")) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert [one.paths.is_whole for one in found] == [True, True]
    assert found[0].ended <= found[1].began
    while watches[0].is_looking:
        time.sleep(0.05)
    watches[0].forget()
    assert watches[0].look_on(others, "a1", urgent=False) == ()
