"""Networks that break, or stand still for a moment, in the middle of a run."""

from benchmarks.network_cases.case import Case
from benchmarks.network_cases.links import away, cut_for_good, interface_away, narrow

# Long enough for the fault and for what follows: some fifteen seconds.
_WHILE = ("--iterations", "3000")
_INTERRUPTED = ("network.interrupted", "stood still for")

CASES = (
    Case(
        "link away for 2 s",
        flags=_WHILE,
        then=away(2.0, 2),
        words=_INTERRUPTED,
        hosts=("machine3",),
        warning=True,
    ),
    Case(
        "link away for 3 s",
        flags=_WHILE,
        then=away(3.0, 2),
        words=_INTERRUPTED,
        hosts=("machine3",),
        warning=True,
    ),
    Case(
        "link away for 6 s",
        flags=_WHILE,
        then=away(6.0, 3),
        words=_INTERRUPTED,
        hosts=("machine4",),
        warning=True,
    ),
    Case(
        "rank 0's link away for 3 s",
        flags=_WHILE,
        then=away(3.0, 0),
        words=_INTERRUPTED,
        hosts=("machine1",),
        warning=True,
    ),
    Case(
        "no carrier for 3 s",
        flags=_WHILE,
        then=interface_away(3.0, 1),
        words=_INTERRUPTED,
        hosts=("machine2",),
        warning=True,
    ),
    Case(
        "a pair away for 4 s",
        flags=_WHILE,
        then=away(4.0, 1, 2),
        words=_INTERRUPTED,
        hosts=("machine2", "machine3"),
        warning=True,
    ),
    Case(
        "a pair with rank 0 away for 4 s",
        flags=_WHILE,
        then=away(4.0, 2, 0),
        words=_INTERRUPTED,
        hosts=("machine1", "machine3"),
        warning=True,
    ),
    Case(
        "link away twice for 2.5 s",
        flags=_WHILE,
        then=away(2.5, 2, times=2),
        words=_INTERRUPTED,
        hosts=("machine3",),
        warning=True,
    ),
    Case(
        "link cut for good",
        then=cut_for_good(2),
        words=("network.host_cut_off",),
        hosts=("machine3",),
        reports=2,
    ),
    Case(
        "pair cut for good",
        then=cut_for_good(1, 2),
        words=("network.hosts_parted",),
        hosts=("machine2", "machine3"),
    ),
    Case(
        "pair with rank 0 cut for good",
        then=cut_for_good(2, 0),
        words=("network.hosts_parted",),
        hosts=("machine1", "machine3"),
        reports=2,
    ),
    Case(
        "hole of 1000 bytes begins on one machine",
        then=narrow(1000, 2),
        words=("network.large_packets_lost", "packets over"),
        hosts=("machine3",),
    ),
    Case(
        "hole of 1400 bytes begins on rank 0's machine",
        then=narrow(1400, 0),
        words=("network.large_packets_lost", "packets over"),
        hosts=("machine1",),
    ),
    Case(
        "hole of 700 bytes begins between two",
        then=narrow(700, 1, 2),
        words=("network.large_packets_lost", "packets over"),
        hosts=("machine2", "machine3"),
    ),
)
