"""Why this machine does not reach rank 0's: step by step, by name, address, port, and who answers there.

torch reports the same for all of them, "client socket has timed out", and only after its whole timeout.
"""

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpudiag.compat import StrEnum
from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.agents.addresses import find_odd_way
from gpudiag.ranks.agents.own_addresses import NOTICE_SECONDS, is_own_address, look_up_in_time
from gpudiag.ranks.agents.store_notes import StoreNotes
from gpudiag.ranks.agents.survey import may_send_to
from gpudiag.ranks.diagnosis.firewalls import OnlyOpenPort
from gpudiag.ranks.diagnosis.survey import Answer
from gpudiag.ranks.stages import RENDEZVOUS

_CONNECT_SECONDS = 1.0
_REPLY_SECONDS = 0.5
_MOST_ADDRESSES = 3
_MOST_AGENT_PORTS = 2  # rank 0's agent takes the first that is free
_LOOK_AFTER_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 1.0
_LATER_LOOK_SECONDS = 3.0  # once the notice is out
_LAST_LOOK_SECONDS = 1.0  # the last look before the notice starts so long before it
_LOOK_ON_SECONDS = 4.0
# Where nobody has an address of this machine's own network, its kernel reports that after 3 s
# (neigh/retrans_time_ms).
_NEIGHBOUR_SECONDS = 4.0
# In that time TCP sends a lost segment again twice (RFC 6298): an outage of a moment is no obstacle.
_LASTING_SECONDS = 3.0
_LASTING_LOOKS = 2
# What a client of torch's TCPStore sends first (TCPStoreBackend.hpp): VALIDATE with a magic number, then PING
# with a number that the store sends back.
_STORE_GREETING = struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 4242)
_STORE_ANSWER = struct.pack("<I", 4242)
# Servers of text wait for the end of a line before they send what they are.
_END_OF_LINES = b"\r\n\r\n"
_RESETS = "it resets connections"
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM)


class Obstacle(StrEnum):
    """What keeps this machine from rank 0's agent."""

    NO_ADDRESS = "no_address"
    OWN_ADDRESS = "own_address"  # the name leads to this machine, and rank 0 is on another one
    NO_ROUTE = "no_route"  # this machine's kernel knows no way, or the network reports that there is none
    NO_ANSWER = "no_answer"
    REFUSED = "refused"  # the machine is up, and nobody listens there
    FOREIGN = "foreign_server"
    OTHER_PORTS = "other_ports"  # the ranks' own port answers, and no other
    NOT_FOUND = "not_found"  # nothing is in the way, and rank 0 of this run is not there


_PASSED_OVER = (Obstacle.NO_ROUTE, Obstacle.NO_ANSWER, Obstacle.REFUSED)
_LASTING = (Obstacle.FOREIGN, Obstacle.OTHER_PORTS)
_NOBODY = {Obstacle.NO_ANSWER, Obstacle.NO_ROUTE}
# Of several addresses the one that rank 0 may have counts: who refuses is there, who does not answer may be
# nobody.
_HOPES = (Obstacle.NOT_FOUND, Obstacle.REFUSED, *_LASTING, Obstacle.NO_ANSWER, Obstacle.NO_ROUTE)


@dataclass(frozen=True, slots=True)
class Reach:
    """What a look at rank 0's machine found, in a few words that start with its name."""

    obstacle: Obstacle
    words: str
    place: str  # HOST:PORT, as it was given
    host: str | None = None  # the machine that was found there; None for this one
    only_open: OnlyOpenPort | None = None  # it is rank 0's of this run, and a firewall is between
    resets: bool = False  # another server is there, and it resets connections

    def evidence(self) -> tuple[Evidence, ...]:
        """The facts that judging needs."""
        return (
            Evidence("obstacle", self.obstacle.value, source="connecting to rank 0's machine"),
            Evidence("rank_0", self.place, source="the launcher's variables or --init-method"),
            Evidence("found", self.words, source="connecting to rank 0's machine"),
        )


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ranks meet: rank 0's machine and port, and the ports at which its agent may listen."""

    name: str
    port: int
    agent_ports: tuple[int, ...]
    elsewhere: bool  # rank 0 is on another machine than this one
    by_launcher: bool = False  # by a launcher, which starts the ranks of each machine itself
    names_are_late: bool = False  # machines get their addresses when they are up
    key: str = ""  # of the run, by which rank 0's agent is known in the ranks' store


def look_at(meeting: Meeting) -> Reach | None:
    """What keeps this machine from rank 0's agent; None where its machine answers as it should.

    Takes some seconds at most: one for each port that does not answer.
    """
    place = f"{meeting.name}:{meeting.port}"
    found = look_up_in_time(meeting.name)
    if isinstance(found, str):
        return Reach(Obstacle.NO_ADDRESS, f"{meeting.name} has no address on this machine: {found}", place)
    if not found:  # the resolver takes its time
        return None
    if meeting.elsewhere and all(is_own_address(address) for address in found):
        named = "" if meeting.name in found else f" {', '.join(found)} on this machine, which is"
        words = f"{meeting.name} is{named} this machine itself"
        return Reach(Obstacle.OWN_ADDRESS, words, place)
    seen = [_look_at_address(address, meeting, place) for address in found[:_MOST_ADDRESSES]]
    # A first address that is dead and a second one that works are healthy.
    if None in seen:
        return None
    return min((one for one in seen if one is not None), key=lambda one: _HOPES.index(one.obstacle))


def look_for_silent_address(meeting: Meeting) -> Reach | None:
    """The address of the name that torch waits for until its timeout, with others behind it.

    It is None where there is none. torch tries IPv6 before IPv4, and goes on to the next address only where
    it learns that there is no way to the one before. Takes up to 5 s.
    """
    found = look_up_in_time(meeting.name)
    if isinstance(found, str):
        return None
    in_order = sorted(found[:_MOST_ADDRESSES], key=lambda address: ":" not in address)
    for address in in_order[:-1]:
        answer = _connect(address, meeting.port)
        if (
            answer == errno.ETIMEDOUT
        ):  # once more: what was lost is sent again, and the kernel finds that nobody is there
            answer = _connect(address, meeting.port, _NEIGHBOUR_SECONDS)
        if isinstance(answer, socket.socket):
            answer.close()
            return None
        if answer == errno.ETIMEDOUT:
            words = (
                f"{meeting.name} ({address}) does not answer on port {meeting.port}, and"
                " torch does not try its next address"
            )
            return Reach(Obstacle.NO_ANSWER, words, f"{meeting.name}:{meeting.port}")
        if answer not in _NO_ROUTE:
            return None
    return None


def look_for_other_server(meeting: Meeting) -> Reach | None:
    """The server that takes connections at an address of the name before rank 0's own does.

    It is None where there is none. torch stays with the first address that takes a connection, whoever
    listens there; agents try on. Where that server resets the connection torch tries again, and comes past it
    within seconds.
    """
    found = look_up_in_time(meeting.name)
    if isinstance(found, str) or len(found) < 2:
        return None
    place = f"{meeting.name}:{meeting.port}"
    for address in found[:_MOST_ADDRESSES]:
        reach = _look_at_address(address, meeting, place)
        if reach is None or reach.obstacle not in _PASSED_OVER:
            is_kept = reach is not None and reach.obstacle is Obstacle.FOREIGN and not reach.resets
            return reach if is_kept else None
    return None


class Certainty:
    """Whether what is in the way to rank 0 lasts, and does not go away because another rank is started.

    A machine that is up and refuses the connection may have rank 0 started any moment. A name that nobody
    knows, a machine that does not answer, or another server at the port need not be waited for.
    """

    def __init__(self, meeting: Meeting) -> None:
        """Judge looks at that place; times are of one clock, in seconds."""
        self._lasting = {Obstacle.NO_ROUTE, Obstacle.NO_ANSWER, *_LASTING}
        if not meeting.names_are_late:
            self._lasting.add(Obstacle.NO_ADDRESS)
        if meeting.by_launcher:
            self._lasting.add(Obstacle.OWN_ADDRESS)
        self._obstacle: Obstacle | None = None
        self._since = 0.0
        self._looks = 0
        self.reach: Reach | None = None  # what is certainly in the way

    def add(self, found: Reach | None, began: float, ended: float) -> None:
        """Add what a look between those times has found."""
        obstacle = None if found is None else found.obstacle
        # The kernel reports that there is no route where the machine has answered no look for its address for
        # a while.
        same = obstacle is self._obstacle or {obstacle, self._obstacle} == _NOBODY
        if not same:
            self._since, self._looks = began, 0
        self._obstacle = obstacle
        self._looks += 1
        lasted = self._looks >= _LASTING_LOOKS and ended - self._since >= _LASTING_SECONDS
        self.reach = found if lasted and obstacle in self._lasting else None


class MeetingWatch:
    """Looks at rank 0's machine while its agent is waited for, and reports once what is in the way."""

    def __init__(self, meeting: Meeting, rank: int, notice: Callable[[str], None] | None) -> None:
        """`notice` gets the one sentence, which names this `rank`, from a thread of its own."""
        self._meeting = meeting
        self._rank = rank
        self._notice = notice
        self._over = threading.Event()
        self._certainty = Certainty(meeting)
        self._found: list[Reach | None] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Start looking, once; rank 0 gets a moment to come up first."""
        if not self._thread.is_alive() and not self._over.is_set():
            self._thread.start()

    @property
    def has_looked(self) -> bool:
        """Whether there was a look yet."""
        return bool(self._found)

    @property
    def latest(self) -> Reach | None:
        """What the latest look found in the way; None where it found nothing, or there was none yet."""
        return self._found[-1] if self._found else None

    @property
    def certain(self) -> Reach | None:
        """What is in the way for sure, so that rank 0 need not be waited for.

        It is None where there may be nothing.
        """
        return self._certainty.reach

    def stop(self) -> None:
        """Report nothing from now on: rank 0 was met, or is waited for no longer."""
        self._over.set()

    def look_on(self, report: Callable[[Reach | None], None]) -> None:
        """Look once more in a thread, after rank 0's agent was met: another server may keep its rank away.

        `report` gets what was found in the way, or None.
        """

        def look() -> None:
            began, found = time.monotonic(), None
            try:
                found = look_for_silent_address(self._meeting)
                if found is None:
                    time.sleep(max(0.0, _LOOK_ON_SECONDS - (time.monotonic() - began)))
                    found = look_for_other_server(self._meeting)
            finally:
                report(found)  # in any case: the leader holds its verdict on this rank until then

        threading.Thread(target=look, daemon=True).start()

    @property
    def shut_out(self) -> OnlyOpenPort | None:
        """That a firewall is between, unless a further look found otherwise: then do not wait any longer.

        Rank 0 may have ended by then, as it found out too.
        """
        places = [place for place, one in enumerate(self._found) if one is not None and one.only_open]
        if not places or places[0] == len(self._found) - 1 or None in self._found[places[0] :]:
            return None
        found = self._found[places[-1]]
        return None if found is None else found.only_open

    def conclude(self) -> Reach:
        """What was in the way, or that rank 0 is not there.

        Rank 0 may have given up by now. So a port that somebody else had, or that alone was open, counts for
        more than that nobody listens there any more.
        """
        lasting = [one for one in self._found if one is not None and one.obstacle in _LASTING]
        if lasting:
            return lasting[-1]
        latest = self._found[-1] if self._found else look_at(self._meeting)
        if latest is not None:
            return latest
        place = f"{self._meeting.name}:{self._meeting.port}"
        return Reach(
            Obstacle.NOT_FOUND, f"{place} was tried, and no rank 0 of this run was found there", place
        )

    def _leave_note(self, found: Reach | None) -> None:
        """Let rank 0's agent know that this one reaches the store, and not it."""
        if found is not None and found.only_open is not None:
            shut_out = found.only_open
            notes = StoreNotes((self._meeting.name, self._meeting.port), self._meeting.key)
            notes.write(self._rank, f"{shut_out.hosts[0]} {','.join(shut_out.answers)}")

    def _watch(self) -> None:
        began = time.monotonic()
        pause = _LOOK_AFTER_SECONDS
        while not self._over.wait(pause):
            self._look()
            if self._notice is None:
                pause = _LATER_LOOK_SECONDS
                continue
            left = NOTICE_SECONDS - (time.monotonic() - began)
            pause = min(_LOOK_AGAIN_SECONDS, left - _LAST_LOOK_SECONDS)
            if pause > 0:  # by then rank 0 may have come up
                continue
            if self._over.wait(max(0.0, left)):
                return
            notice, self._notice = self._notice, None
            why = "" if self._found[-1] is None else f": {self._found[-1].words}"
            notice(f"rank {self._rank} on {socket.gethostname()} waits for rank 0{why}")
            pause = _LATER_LOOK_SECONDS

    def _look(self) -> None:
        began = time.monotonic()
        found = look_at(self._meeting)
        self._found.append(found)
        self._certainty.add(found, began, time.monotonic())
        self._leave_note(found)


def explain_absence(
    incidents: tuple[Incident, ...], reach: Reach, rank: int, host: str
) -> tuple[Incident, ...]:
    """The incidents of a rank that has not met rank 0: who never came, or that this host does not get there.

    Where all others are here, and nobody listens on rank 0's machine, it is rank 0 that is missing. Else this
    rank may be the one that looks at a wrong place: it reports where it looked, and what is there.
    """
    missing = [one for one in incidents if one.kind is IncidentKind.NOT_STARTED]
    absent = next((one for one in missing if one.rank == 0), None)
    if absent is None:
        return incidents
    rest = tuple(one for one in incidents if one.kind is not IncidentKind.NOT_STARTED)
    if reach.only_open is not None:
        return (reach.only_open.incident(absent.at_seconds), *rest)
    evidence = (*absent.evidence, *reach.evidence())
    if missing == [absent] and reach.obstacle in (Obstacle.REFUSED, Obstacle.NOT_FOUND):
        return (replace(absent, host=reach.host or absent.host, evidence=evidence), *rest)
    unreached = Incident(IncidentKind.UNREACHED, rank, host, RENDEZVOUS, absent.at_seconds, evidence)
    return (unreached, *rest)


def _look_at_address(address: str, meeting: Meeting, place: str) -> Reach | None:
    named = meeting.name if meeting.name in (address, "localhost") else f"{meeting.name} ({address})"
    answer = _connect(address, meeting.port)
    if isinstance(answer, socket.socket):
        with answer:
            return _identify(answer, named, address, meeting, place)
    if answer in _NO_ROUTE:
        words = f"there is no route from this machine to {named}: {os.strerror(answer)}{_odd_way(address)}"
        if may_send_to(address):  # an ICMP message came back
            words = (
                f"port {meeting.port} of {named} is prohibited by a firewall, or it is unreachable behind a"
                f" router: {os.strerror(answer)}"
            )
        return Reach(Obstacle.NO_ROUTE, words, place)
    if answer == errno.ECONNRESET:  # before the server could be greeted
        words = f"another server has port {meeting.port} of {named}; {_RESETS}"
        return Reach(Obstacle.FOREIGN, words, place, resets=True)
    if answer == errno.ECONNREFUSED:
        tried = _try_agents(address, meeting)
        if None in tried:
            return None  # its agent, or somebody else's: the agents find out
        own = is_own_address(address)
        where = f"{named} is {socket.gethostname()} itself" if own else f"{named} is up"
        words = f"{where}, and nothing listens on port {meeting.port}{_describe_closed(meeting, tried)}"
        return Reach(Obstacle.REFUSED, words, place, None if own else meeting.name)
    words = f"{named} does not answer on port {meeting.port}{_odd_way(address)}"
    return Reach(Obstacle.NO_ANSWER, words, place)


def _odd_way(address: str) -> str:
    found = find_odd_way(address)
    if found is None:
        return ""
    return f"; this machine sends there by {found[0]}, and {found[1]} is in that network, too"


def _describe_closed(meeting: Meeting, tried: Sequence[int | None]) -> str:
    """What a firewall does with the ports of rank 0's agent, where the host itself would refuse.

    It is empty for none.
    """
    answers = {_answer(number) for number in tried if number is not None}
    if not answers or Answer.REFUSED.value in answers:
        return ""
    how = "does not answer" if answers == {Answer.SILENT.value} else "is prohibited"
    return f"; port {meeting.agent_ports[0]} {how}"


def _identify(
    connection: socket.socket, named: str, address: str, meeting: Meeting, place: str
) -> Reach | None:
    """Who listens where the ranks are to meet.

    A job of somebody else's has no agents, and an old torch that does not know the greeting: nothing is sent
    to it.
    """
    if not meeting.agent_ports:
        return None
    reply, ended = _greet(connection)
    other = f"another server has port {meeting.port} of {named}"
    text = reply.decode("ascii", errors="replace").partition("\n")[0]
    first = "".join(letter for letter in text if letter.isprintable())[:60]
    if first.isascii() and len(first) >= 4:
        return Reach(Obstacle.FOREIGN, f"{other}; it {_protocol(first)}answers {first!r}", place)
    tried = _try_agents(address, meeting)
    shut_out = _find_shut_out(reply, address, meeting, tried)
    if shut_out is not None:
        words = (
            f"{named} answers on port {meeting.port} and on no other port: a firewall is"
            " between the hosts, or on that host"
        )
        return Reach(Obstacle.OTHER_PORTS, words, place, shut_out.host, shut_out)
    is_store = reply[:4] == _STORE_ANSWER
    if is_store and all(one == errno.ETIMEDOUT or one in _NO_ROUTE for one in tried):
        words = (
            f"{named} answers on port {meeting.port} and on no other port: a firewall is"
            " between the hosts, or on that host"
        )
        return Reach(Obstacle.OTHER_PORTS, words, place)
    if any(one != errno.ECONNREFUSED for one in tried):
        return None
    if is_store:  # another job's, or torchrun's own, which is there before rank 0
        words = (
            f"a rendezvous of torch has port {meeting.port} of {named}, and rank 0 of this run is not there"
        )
        return Reach(Obstacle.NOT_FOUND, words, place)
    if reply:
        what = f"it answers {reply[:8].hex(' ')}, which is no rendezvous of torch's"
    else:
        what = {
            "reset": _RESETS,
            "closed": "it closes connections and sends nothing",
        }.get(ended, "it accepts connections and sends nothing")
    return Reach(Obstacle.FOREIGN, f"{other}; {what}", place, resets=what == _RESETS)


def _protocol(first_line: str) -> str:
    """What the server speaks, where its first line shows that; a web server may leave out its status line."""
    line = first_line.lower()
    spoken = (
        "HTTP"
        if line.startswith(("http/", "<!doctype html", "<html"))
        else "SSH"
        if line.startswith("ssh-")
        else ""
    )
    return f"speaks {spoken} and " if spoken else ""


def _greet(connection: socket.socket) -> tuple[bytes, str]:
    """The server's reply to torch's greeting, or to a line's end, and how the connection ended, if it did."""
    connection.settimeout(_REPLY_SECONDS)
    for greeting in (_STORE_GREETING, _END_OF_LINES):
        try:
            connection.sendall(greeting)
            reply = connection.recv(256)
        except TimeoutError:
            continue
        except OSError:
            return b"", "reset"
        return reply, "" if reply else "closed"
    return b"", ""


def _find_shut_out(
    reply: bytes, address: str, meeting: Meeting, tried: Sequence[int | None]
) -> OnlyOpenPort | None:
    """That the store there is this run's, and none of the ports of rank 0's agent answers.

    It is None where it is not so.
    """
    if not meeting.key or not tried or None in tried or reply[:4] != _STORE_ANSWER:
        return None
    host = StoreNotes((address, meeting.port), meeting.key).read_host()
    if host is None:
        return None
    answers = tuple(sorted({_answer(number) for number in tried if number is not None}))
    port = meeting.agent_ports[0]
    return OnlyOpenPort(host, meeting.name, meeting.port, port, answers, (socket.gethostname(),))


def _answer(number: int) -> str:
    """What a note calls an error of connect(2): the kernel's routes were good enough for the other port."""
    answers = {errno.ECONNREFUSED: Answer.REFUSED, errno.ETIMEDOUT: Answer.SILENT}
    return answers.get(number, Answer.PROHIBITED).value


def _try_agents(address: str, meeting: Meeting) -> list[int | None]:
    """For each port at which rank 0's agent may listen the number of the error.

    It is None where somebody answers.
    """
    tried: list[int | None] = []
    for port in meeting.agent_ports[:_MOST_AGENT_PORTS]:
        answer = _connect(address, port)
        if isinstance(answer, socket.socket):
            answer.close()
        tried.append(None if isinstance(answer, socket.socket) else answer)
    return tried


def _connect(address: str, port: int, seconds: float = _CONNECT_SECONDS) -> socket.socket | int:
    """A connection; else the number of the error, ETIMEDOUT where nobody answers."""
    try:
        return socket.create_connection((address, port), timeout=seconds)
    except TimeoutError:
        return errno.ETIMEDOUT
    except OSError as error:
        return error.errno or errno.ETIMEDOUT
