"""Starts that cannot succeed: a cause that is certain is reported at once, and does not wait for `--rendezvous-timeout`."""

import contextlib
from collections.abc import Iterator, Sequence

from benchmarks.network_cases.case import PORT, Arrange, Case, Start
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
    Case(
        "in time: nobody knows the master's name",
        starts={rank: _at("machine9") for rank in range(4)},
        words=("machine9", "has no address"),
        within_seconds=_SOON_SECONDS,
    ),
    Case(
        "in time: one machine does not know the master's name",
        starts={2: _at("machine9")},
        flags=_OTHERS_WAIT,
        words=("machine9", "has no address"),
        hosts=("machine3",),
        within_seconds=_SOON_SECONDS,
    ),
    Case(
        "in time: nobody has the master's address",
        starts={rank: _at(_NOBODY) for rank in range(4)},
        flags=_OTHERS_WAIT,
        words=(_NOBODY,),
        within_seconds=_SOON_SECONDS,
    ),
    Case(
        "in time: one machine looks for the master where nobody is",
        starts={2: _at(_NOBODY)},
        flags=_OTHERS_WAIT,
        words=(_NOBODY,),
        hosts=("machine3",),
        within_seconds=_SOON_SECONDS,
    ),
    Case(
        "in time: rank 0's machine drops all that comes in",
        arrange=_dropped(1, 'iifname "eth0" ct state new drop'),
        flags=_OTHERS_WAIT,
        words=("does not answer",),
        within_seconds=_SOON_SECONDS,
    ),
    Case(
        "in time: rank 0's machine drops all from one machine",
        arrange=_dropped(1, "ip saddr 198.18.77.3 drop"),
        flags=_OTHERS_WAIT,
        words=("does not answer",),
        within_seconds=_SOON_SECONDS,
    ),
    Case(
        "in time: the master's first address does not answer on one machine",
        arrange=dead_ipv6(2, silent=True),
        words=("fd00:77::1", "next address"),
        hosts=("machine3",),
        within_seconds=_SOON_SECONDS,
    ),
    Case(
        "in time: a rank was not started, and may come until the timeout",
        starts={2: Start(missing=True)},
        flags=_OTHERS_WAIT,
        words=("rank 2 never arrived",),
        within_seconds=26.0,
    ),
)
