"""What is in the way to rank 0 for sure, and what may go away: a rank that is started late is waited for."""

import errno
import socket

import pytest

from gpudiag.ranks.agents import own_addresses, reach
from gpudiag.ranks.agents.reach import (
    Certainty,
    Meeting,
    Obstacle,
    Reach,
    look_at,
    look_for_silent_address,
)

PLACE = Meeting("a0", 29500, (20001,), elsewhere=True)
BY_LAUNCHER = Meeting("a0", 29500, (20001,), elsewhere=True, by_launcher=True)
CONTAINERS = Meeting("a0", 29500, (20001,), elsewhere=True, names_are_late=True)


def certain_after(meeting: Meeting, *obstacles: Obstacle | None) -> list[bool]:
    """Whether the cause is certain after each of these looks, which take a second each."""
    certainty = Certainty(meeting)
    found = []
    for second, obstacle in enumerate(obstacles):
        look = None if obstacle is None else Reach(obstacle, "a0 ...", "a0:29500")
        certainty.add(look, float(second), second + 1.0)
        found.append(certainty.reach is not None)
    return found


@pytest.mark.parametrize(
    "obstacle",
    [
        Obstacle.NO_ANSWER,
        Obstacle.NO_ROUTE,
        Obstacle.FOREIGN,
        Obstacle.OTHER_PORTS,
        Obstacle.NO_ADDRESS,
    ],
)
def test_what_another_rank_cannot_take_away_is_certain_once_it_has_lasted(obstacle: Obstacle) -> None:
    assert certain_after(PLACE, *[obstacle] * 4) == [False, False, True, True]
    assert certain_after(PLACE, obstacle, obstacle, None, obstacle, obstacle) == [False] * 5
    assert certain_after(PLACE, *[obstacle] * 3, None)[-2:] == [True, False]


def test_a_machine_that_does_not_answer_is_one_cause_with_the_kernel_s_word_for_it() -> None:
    turns = (Obstacle.NO_ANSWER, Obstacle.NO_ROUTE, Obstacle.NO_ANSWER)
    assert certain_after(PLACE, *turns) == [False, False, True]
    assert certain_after(PLACE, Obstacle.NO_ANSWER, Obstacle.REFUSED, Obstacle.NO_ANSWER)[-1] is False


def test_a_machine_that_refuses_may_have_rank_0_started_any_moment() -> None:
    assert not any(certain_after(BY_LAUNCHER, *[Obstacle.REFUSED] * 100))


def test_a_name_of_a_container_may_come_late() -> None:
    assert not any(certain_after(CONTAINERS, *[Obstacle.NO_ADDRESS] * 100))


def test_a_name_that_leads_back_is_certain_only_where_a_launcher_says_that_rank_0_is_elsewhere() -> None:
    """Who starts ranks by hand may start several on one machine, and rank 0 last."""
    assert not any(certain_after(PLACE, *[Obstacle.OWN_ADDRESS] * 100))
    assert certain_after(BY_LAUNCHER, *[Obstacle.OWN_ADDRESS] * 3)[-1]


@pytest.mark.parametrize("order", [("fd00::9", "127.0.0.1"), ("127.0.0.1", "fd00::9")])
@pytest.mark.parametrize("dead", [errno.ETIMEDOUT, errno.EHOSTUNREACH])
def test_of_several_addresses_the_one_where_rank_0_may_be_counts(
    monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], dead: int
) -> None:
    def look_up(name: str, port: int | None, *_: object, **__: object) -> list[tuple[object, ...]]:
        addresses = order if name == "a0" else (name,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port or 0)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(reach, "is_own_address", lambda _: False)
    monkeypatch.setattr(reach, "_connect", lambda address, _: dead if ":" in address else errno.ECONNREFUSED)
    found = look_at(PLACE)
    assert found is not None
    assert found.obstacle is Obstacle.REFUSED


@pytest.mark.parametrize(
    ("first", "is_obstacle"),
    [
        ((errno.ETIMEDOUT, errno.ETIMEDOUT), True),
        ((errno.ETIMEDOUT, errno.EHOSTUNREACH), False),  # torch learns that nobody is there, and goes on
        ((errno.ENETUNREACH,), False),
        ((errno.ECONNREFUSED,), False),  # rank 0 may be started there
    ],
)
def test_torch_waits_for_a_first_address_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, first: tuple[int, ...], is_obstacle: bool
) -> None:
    answers = iter(first)

    def connect(address: str, *_: object) -> int:
        return next(answers) if ":" in address else errno.ECONNREFUSED

    monkeypatch.setattr(reach, "look_up_in_time", lambda _: ("127.0.0.1", "fd00::9"))
    monkeypatch.setattr(reach, "_connect", connect)
    found = look_for_silent_address(PLACE)
    assert (found is not None) == is_obstacle
    monkeypatch.setattr(reach, "look_up_in_time", lambda _: ("fd00::9",))
    assert look_for_silent_address(PLACE) is None


def test_names_are_late_in_kubernetes_and_in_networks_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = "nameserver 10.0.0.2\n"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(own_addresses.Path, "exists", lambda _: False)
    monkeypatch.setattr(own_addresses, "_read", lambda _: resolver)
    assert not own_addresses.names_are_late()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert own_addresses.names_are_late()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    resolver = "nameserver 127.0.0.11\noptions ndots:0\n"
    assert own_addresses.names_are_late()
