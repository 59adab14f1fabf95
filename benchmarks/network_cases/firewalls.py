"""Ports that a firewall drops, resets or prohibits, on one machine or between two, and what harms nobody."""

import contextlib
from collections.abc import Iterator, Sequence

from benchmarks.network_cases.case import PORT, Arrange, Case, blamed
from tests.ranks.machines import Machine, filter_packets, filter_sent_packets

_ESTABLISHED = "ct state established,related accept"


def closed(rank: int, *rules: str) -> Arrange:
    """Rules for what comes in to that rank's machine."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        filter_packets(machines[rank], *rules)
        yield

    return arrange


def closed_out(rank: int, *rules: str) -> Arrange:
    """Rules for what goes out of that rank's machine."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        filter_sent_packets(machines[rank], *rules)
        yield

    return arrange


_NEW = "iifname eth0 tcp flags & (syn|ack) == syn"
_MASTER = f"iifname eth0 tcp dport {PORT}"
_HIGH = f"{_NEW} tcp dport 32768-65535"

CASES = (
    blamed(
        "firewall: the master's port is dropped", closed(0, f"{_MASTER} drop"), (str(PORT), "no answer"), 1
    ),
    blamed(
        "firewall: the master's port is reset",
        closed(0, f"{_MASTER} reject with tcp reset"),
        (str(PORT), "refused"),
        1,
    ),
    blamed(
        "firewall: the master's port is prohibited",
        closed(0, f"{_MASTER} reject with icmpx admin-prohibited"),
        (str(PORT), "prohibited"),
        1,
    ),
    blamed(
        "firewall: the master's port is closed to one",
        closed(0, f"ip saddr 198.18.77.3 {_MASTER} drop"),
        (str(PORT), "no answer", "machine3"),
        1,
        3,
    ),
    blamed(
        "firewall: one host lets nothing in, silent",
        closed(2, f"{_NEW} drop"),
        ("machine3 accepts no connection", "no answer", "nc -vz"),
        3,
    ),
    blamed(
        "firewall: one host resets high ports",
        closed(1, f"{_HIGH} reject with tcp reset"),
        ("machine2 accepts no connection", "refused"),
        2,
    ),
    blamed(
        "firewall: one host prohibits high ports",
        closed(2, f"{_HIGH} reject with icmpx admin-prohibited"),
        ("machine3 accepts no connection", "prohibited", "32768 to 65535"),
        3,
    ),
    blamed(
        "firewall: rank 0's host drops high ports",
        closed(0, f"{_HIGH} drop"),
        ("machine1 accepts no connection", "no answer", "32768 to 65535"),
        1,
    ),
    blamed(
        "firewall: only the master's port is open",
        closed(0, f"{_NEW} tcp dport != {PORT} drop"),
        (str(PORT), "machine1"),
        1,
    ),
    blamed(
        "firewall: only the master's port is open, the others are reset",
        closed(0, f"{_NEW} tcp dport != {PORT} reject with tcp reset"),
        (str(PORT), "machine1"),
        1,
    ),
    blamed(
        "firewall: only the master's port is open, replies too",
        closed(0, f"iifname eth0 tcp dport != {PORT} drop"),
        (str(PORT), "machine1"),
        1,
    ),
    blamed(
        "firewall: a pair is dropped",
        closed(2, "ip saddr 198.18.77.2 drop"),
        ("machine2 and machine3 do not reach each other", "no answer"),
        2,
        3,
    ),
    blamed(
        "firewall: a pair is rejected",
        closed(2, "ip saddr 198.18.77.2 meta l4proto tcp reject with icmpx port-unreachable"),
        ("machine2", "machine3"),
        2,
        3,
    ),
    blamed(
        "firewall: one way of a pair",
        closed(1, f"ip saddr 198.18.77.4 {_NEW} tcp dport 30000-65535 drop"),
        ("machine4 does not reach machine2", "no answer"),
        2,
        4,
    ),
    blamed(
        "firewall: nothing new goes out to high ports",
        closed_out(2, "oifname eth0 tcp flags & (syn|ack) == syn tcp dport 32768-65535 drop"),
        ("machine3 opens no connection", "no answer"),
        3,
    ),
    Case("healthy firewall: ICMP is blocked", closed(2, "meta l4proto icmp drop")),
    Case("healthy firewall: ICMP is blocked at rank 0", closed(0, "meta l4proto icmp drop")),
    Case(
        "healthy firewall: UDP and low ports are dropped",
        closed(1, "iifname eth0 tcp dport < 10000 drop", "meta l4proto udp drop"),
    ),
    # gloo connects from the greater address: nobody has to connect to machine4.
    Case("healthy firewall: the greatest address accepts nothing", closed(3, f"{_HIGH} drop")),
    Case(
        "healthy firewall: what is established is accepted first", closed(2, _ESTABLISHED, f"{_MASTER} drop")
    ),
)
