"""The leader's door: agents that connect, until they have said which rank is theirs."""

import socket
from dataclasses import dataclass
from typing import Any

from gpudiag.ranks.link import Link, LinkLostError


@dataclass(frozen=True, slots=True)
class Guest:
    """An agent that has said who it is, on its line, and what it said after that."""

    link: Link
    hello: dict[str, Any]
    messages: list[dict[str, Any]]


class Reception:
    """Accepts connections, and lets in the agents of one run; the lines of guests are the caller's."""

    def __init__(self, listeners: list[socket.socket], key: str) -> None:
        """Wait on `listeners`, which stay the caller's, for agents that know the run's `key`."""
        self._listeners = listeners
        self._key = key
        self._unknown: list[Link] = []  # connected, rank not yet said

    def filenos(self) -> list[int]:
        """The descriptors to wait for."""
        listening = [listener.fileno() for listener in self._listeners]
        return listening + [link.fileno() for link in self._unknown]

    def poll(self) -> list[Guest]:
        """The agents that have said who they are since the last call, without waiting."""
        self._accept()
        return [guest for link in tuple(self._unknown) if (guest := self._greet(link)) is not None]

    def close(self) -> None:
        """Close the lines of those that have not said who they are."""
        for link in self._unknown:
            link.close()
        self._unknown.clear()

    def _accept(self) -> None:
        for listener in self._listeners:
            while (connection := _accept_one(listener)) is not None:
                self._unknown.append(Link(connection))

    def _greet(self, link: Link) -> Guest | None:
        try:
            messages = link.receive()
        except LinkLostError:
            self._unknown.remove(link)
            link.close()
            return None
        for place, message in enumerate(messages):
            if message["kind"] == "agent" and message["key"] == self._key:
                link.send("agent", key=self._key)
            elif message["kind"] == "hello":
                self._unknown.remove(link)
                return Guest(link, message, messages[place + 1 :])
        return None


def _accept_one(listener: socket.socket) -> socket.socket | None:
    """The next connection; None if nobody is waiting."""
    try:
        return listener.accept()[0]
    except OSError:
        return None
