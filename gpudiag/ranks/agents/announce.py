"""How agents that miss others find them: by datagrams to their own networks and to known hosts.

An agent that has missed somebody for a moment announces who it is and where it looks for rank 0; the leader
of others of its job replies (`astray`, `diagnosis.split`).
"""

import contextlib
import ipaddress
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpudiag.linux.interfaces import list_addresses
from gpudiag.model.untrusted_text import escape_controls
from gpudiag.ranks.agents.link import wait_readable
from gpudiag.ranks.agents.messages import Card, decode_message, encode_message
from gpudiag.ranks.agents.own_addresses import AGENT_PORTS

ANNOUNCE_PORTS = AGENT_PORTS[:16]  # of UDP: as many agents of one machine can be received
_PORTS_OF_ONE_HOST = ANNOUNCE_PORTS[:4]  # at a host that is only known, and may not be of this job

# Ranks that are started together meet sooner.
ANNOUNCE_AFTER_SECONDS = 1.5
_PAUSES_SECONDS = (0.5, 0.5, 1.0, 1.0, 2.0, 4.0, 8.0)  # the last one again and again
_LOOK_UP_SECONDS = 1.0  # what takes longer is announced later
_TIMES_OF_END, _PAUSE_OF_END_SECONDS = 3, 0.05
FRESH_SECONDS = 2.5 * _PAUSES_SECONDS[-1]
_MOST_BYTES = 4096
_MOST_CARDS = 1024
_MOST_KNOWN = 64
_MOST_TEXT = 255
_MOST_ADDRESSES = 32
# The interface and the address that a datagram leaves by, for sendmsg(2); empty: those of the routes.
_Way = tuple[tuple[int, int, bytes], ...]
_IP_PKTINFO = 8  # of linux/in.h; Python 3.12 has no name for it
_COMPLETE = 0x2  # ATF_COM of linux/if_arp.h: the kernel has this neighbour's hardware address


@dataclass(frozen=True, slots=True)
class ReceivedCard:
    """A card, its sender's address, and when it came last and first (CLOCK_MONOTONIC)."""

    card: Card
    address: str
    at: float
    first_at: float


class Announcer:
    """Announces an agent's card while it misses others, and keeps theirs; idle until `start`."""

    def __init__(self, card: Card, hosts: Sequence[str] = ()) -> None:
        """`hosts` are names or addresses of machines that may have agents of this job."""
        self._card = card
        self._addresses, self._machine = card.addresses, card.machine
        self._hosts = tuple(hosts)[:_MOST_KNOWN]
        self._known: tuple[str, ...] | None = None
        self._received_cards: dict[tuple[str, int, str, str, bool], ReceivedCard] = {}
        self._misses = False
        self._closed = False
        self._relayed: Card | None = None
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    @property
    def card(self) -> Card:
        """What is announced, with the addresses that this machine looks up."""
        return replace(self._card, addresses=self._addresses, machine=self._machine)

    @property
    def is_announcing(self) -> bool:
        """Whether somebody has been missed for so long that this agent announces itself."""
        return self._misses and self._socket is not None

    def start(self) -> None:
        """Announce from 1.5 s on, unless `pause` is called before; again and again, ever more seldom."""
        self._misses = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def relay(self, card: Card) -> None:
        """Answer agents of that leader's run with its card, and keep theirs; announce nothing."""
        self._relayed = replace(card, relayed=True)
        if self._thread is None:
            self._thread = threading.Thread(target=self._open_and_announce, daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Announce nothing until the next `start`: nobody is missed."""
        self._misses = False

    def close(self) -> None:
        """Stop for good; a second call does nothing."""
        self._misses, self._closed = False, True

    def introduce(self, card: Card) -> None:
        """Announce this card from now on."""
        self._card = card

    def announce_end(self, exit_status: int) -> None:
        """Announce that all are to end with that status, to agents that no link reaches."""
        opened = self._socket
        if opened is None or self._closed:
            return
        self._card = replace(self._relayed or self._card, ended=exit_status)
        for _ in range(_TIMES_OF_END):
            with contextlib.suppress(OSError):
                self._send_to_all(opened)
            time.sleep(_PAUSE_OF_END_SECONDS)

    def received_cards(self) -> tuple[ReceivedCard, ...]:
        """What other agents have announced lately."""
        oldest = time.monotonic() - FRESH_SECONDS
        return tuple(one for one in tuple(self._received_cards.values()) if one.at >= oldest)

    def _run(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < ANNOUNCE_AFTER_SECONDS:
            if self._closed or not self._misses:
                self._thread = None  # all came in time: not even a socket was made
                return
            time.sleep(0.05)
        self._open_and_announce()

    def _open_and_announce(self) -> None:
        with contextlib.suppress(OSError), _open_socket() as self._socket:
            self._announce(self._socket)

    def _announce(self, opened: socket.socket) -> None:
        turn, due = 0, 0.0
        self._machine = own_addresses()
        looking = threading.Thread(target=self._look_up_place, daemon=True)  # a resolver may hang
        looking.start()
        looking.join(_LOOK_UP_SECONDS)
        sent = None
        while not self._closed:
            card = self.card
            if self._misses and (time.monotonic() >= due or sent != card):
                self._send_to_all(opened)
                due = time.monotonic() + _PAUSES_SECONDS[min(turn, len(_PAUSES_SECONDS) - 1)]
                turn, sent = turn + 1, card
            wait_readable((opened.fileno(),), 0.1)
            while (received := _receive(opened)) is not None:
                self._note(opened, *received)

    def _note(self, opened: socket.socket, card: Card, address: tuple[str, int]) -> None:
        own = self.card
        if (card.key, card.rank, card.host, card.entry) == (own.key, own.rank, own.host, own.entry):
            return
        place = (card.key, card.rank, card.host, card.place, card.relayed)
        if place in self._received_cards or len(self._received_cards) < _MOST_CARDS:
            now = time.monotonic()
            first = self._received_cards[place].first_at if place in self._received_cards else now
            self._received_cards[place] = ReceivedCard(card, address[0], now, first)
        answer = own if own.leads else self._relayed
        if answer is not None and not card.leads and (own.leads or card.key == answer.key):
            _send(opened, _datagram(answer), address)

    def _send_to_all(self, opened: socket.socket) -> None:
        data = _datagram(self.card)
        for address, way in _networks():
            for port in ANNOUNCE_PORTS:
                _send(opened, data, (address, port), way)
        if self._known is None:
            self._known = ()
            threading.Thread(target=self._look_up_hosts, daemon=True).start()  # as above
        for address in dict.fromkeys((*self._known, *read_neighbours())):
            for port in _PORTS_OF_ONE_HOST:
                _send(opened, data, (address, port))

    def _look_up_place(self) -> None:
        name = self.card.place.rpartition(":")[0].strip("[]")
        self._addresses = look_up_addresses(name) if name else ()

    def _look_up_hosts(self) -> None:
        for name in self._hosts:
            with contextlib.suppress(OSError):
                entries = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_DGRAM)
                self._known = (*(self._known or ()), *(str(entry[4][0]) for entry in entries))


def look_up_addresses(name: str) -> tuple[str, ...]:
    """The addresses of that name here; empty for none. May take as long as the resolver."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def own_addresses() -> tuple[str, ...]:
    """The addresses of this machine's interfaces, without loopback; empty if not listed."""
    try:
        texts = [one.address.partition("%")[0] for one in list_addresses()]
    except OSError:
        return ()
    return tuple(text for text in texts if not ipaddress.ip_address(text).is_loopback)[:_MOST_ADDRESSES]


def read_neighbours(path: str = "/proc/net/arp") -> tuple[str, ...]:
    """The IPv4 addresses of hosts with which the kernel has lately exchanged packets (proc_net_arp(5))."""
    try:
        lines = Path(path).read_text().splitlines()[1:]
    except OSError:
        return ()
    rows = [line.split() for line in lines]
    return tuple(row[0] for row in rows if len(row) > 2 and int(row[2], 16) & _COMPLETE)[:_MOST_KNOWN]


def _networks() -> Iterator[tuple[str, _Way]]:
    """Loopback, for agents here, and everybody on the link of each of this machine's addresses.

    To all on the link, and not to its network's broadcast address: a machine with another netmask, or that
    has no route, is to be found, too.
    """
    yield "127.0.0.1", ()
    with contextlib.suppress(OSError):
        for one in list_addresses():
            if ":" not in one.address and not one.address.startswith("127."):
                # in_pktinfo of linux/in.h
                source = struct.pack("=i4s4x", one.interface_index, socket.inet_aton(one.address))
                yield "255.255.255.255", ((socket.IPPROTO_IP, _IP_PKTINFO, source),)


def _open_socket() -> socket.socket:
    """A socket that receives announcements; where all ports are taken, one that receives replies alone."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        opened.setblocking(False)
        for port in (*ANNOUNCE_PORTS, 0):
            with contextlib.suppress(OSError):
                opened.bind(("", port))
                break
    except OSError:
        opened.close()
        raise
    return opened


def _datagram(card: Card) -> bytes:
    return json.dumps(encode_message(card)).encode()


def _send(opened: socket.socket, data: bytes, address: tuple[str, int], way: _Way = ()) -> None:
    with contextlib.suppress(OSError):  # no such network any more, a filter, or nobody there
        opened.sendmsg([data], way, 0, address)


def _receive(opened: socket.socket) -> tuple[Card, tuple[str, int]] | None:
    """The next card and where it came from; None where none waits. What is no card is dropped."""
    while True:
        try:
            data, address = opened.recvfrom(_MOST_BYTES)
        except OSError:  # nothing waits, or a host refused what was sent to it: the next turn reads on
            return None
        try:
            card = decode_message(json.loads(data))
        except (ValueError, RecursionError):
            continue
        if isinstance(card, Card):
            return _plain(card), address


def _plain(card: Card) -> Card:
    """The card with texts that can stand in a report."""
    host, place = _plain_text(card.host), _plain_text(card.place)
    return replace(
        card, host=host, place=place, trouble=_plain_text(card.trouble), hint=_plain_text(card.hint)
    )


def _plain_text(text: str) -> str:
    return escape_controls(text[:_MOST_TEXT])
