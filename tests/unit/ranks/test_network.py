"""A name without an address is told before any rank waits for another one, once it had time to get one."""

import socket
import threading

import pytest

from gpudiag.errors import LaunchError
from gpudiag.ranks.agents.own_addresses import require_address


def test_a_name_without_an_address_is_refused_with_the_resolvers_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(name: str, port: None) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(LaunchError, match=r"rendezvous host a9 .* Name or service not known"):
        require_address("a9", patience_seconds=0)


def test_a_name_that_gets_its_address_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([socket.gaierror(socket.EAI_NONAME, "Name or service not known"), None])

    def late(name: str, port: None) -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    monkeypatch.setattr(socket, "getaddrinfo", late)
    require_address("a9", patience_seconds=60)
    assert next(answers, "asked twice") == "asked twice"


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: release.wait(60))
    require_address("a9", patience_seconds=60, look_up_seconds=0.01)
    release.set()


def test_an_address_needs_no_resolver() -> None:
    require_address("127.0.0.1", patience_seconds=0)
