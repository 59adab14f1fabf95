"""Starts that cannot succeed: a certain cause is reported at once, before `--rendezvous-timeout`."""

import contextlib
from collections.abc import Iterator, Sequence

from benchmarks.network_cases.case import PORT, Arrange, Start, blamed
from benchmarks.network_cases.healthy import dead_ipv6
from tests.ranks.machines import Machine, filter_packets

# The aim is 5 s on machines of their own; here four share two processors.
_SOON_SECONDS = 7.0
_OTHERS_WAIT = ("--rendezvous-timeout", "20")
_NOBODY = "198.18.77.99"


def _at(place: str) -> Start:
    return Start(flags=("--init-method", f"tcp://{place}:{PORT}"))


def _dropped(machine: int, *rules: str) -> Arrange:
    """On that machine, counted from 1, these packets are dropped as they come in."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        filter_packets(machines[machine - 1], *rules)
        yield

    return arrange


CASES = (
    blamed(
        "in time: nobody knows the master's name",
        {rank: _at("machine9") for rank in range(4)},
        ("machine9", "has no address"),
        within_seconds=_SOON_SECONDS,
    ),
    blamed(
        "in time: one machine does not know the master's name",
        {2: _at("machine9")},
        ("machine9", "has no address"),
        3,
        flags=_OTHERS_WAIT,
        within_seconds=_SOON_SECONDS,
    ),
    blamed(
        "in time: nobody has the master's address",
        {rank: _at(_NOBODY) for rank in range(4)},
        (_NOBODY,),
        flags=_OTHERS_WAIT,
        within_seconds=_SOON_SECONDS,
    ),
    blamed(
        "in time: one machine looks for the master where nobody is",
        {2: _at(_NOBODY)},
        (_NOBODY,),
        3,
        flags=_OTHERS_WAIT,
        within_seconds=_SOON_SECONDS,
    ),
    blamed(
        "in time: rank 0's machine drops all that comes in",
        _dropped(1, 'iifname "eth0" ct state new drop'),
        ("does not answer",),
        flags=_OTHERS_WAIT,
        within_seconds=_SOON_SECONDS,
    ),
    blamed(
        "in time: rank 0's machine drops all from one machine",
        _dropped(1, "ip saddr 198.18.77.3 drop"),
        ("does not answer",),
        flags=_OTHERS_WAIT,
        within_seconds=_SOON_SECONDS,
    ),
    blamed(
        "in time: the master's first address does not answer on one machine",
        dead_ipv6(2, silent=True),
        ("fd00:77::1", "next address"),
        3,
        within_seconds=_SOON_SECONDS,
    ),
    blamed(
        "in time: a rank was not started, and may come until the timeout",
        {2: Start(missing=True)},
        ("rank 2 never arrived",),
        flags=_OTHERS_WAIT,
        within_seconds=26.0,
    ),
)
