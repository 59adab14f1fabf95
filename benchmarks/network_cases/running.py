"""Networks that break, or stand still for a moment, in the middle of a run."""

from collections.abc import Callable, Sequence

from benchmarks.network_cases.case import Case, broken
from benchmarks.network_cases.links import away, cut_for_good, interface_away, narrow
from tests.ranks.machines import Machine

# Long enough for the fault and for what follows: some fifteen seconds.
_WHILE = ("--iterations", "3000")
_HOLE = ("network.large_packets_lost", "packets over")


def _stalled(name: str, then: Callable[[Sequence[Machine]], None], *machines: int) -> Case:
    words = ("network.interrupted", "stood still for")
    return broken(name, then, words, *machines, flags=_WHILE, warning=True)


CASES = (
    _stalled("link away for 2 s", away(2.0, 2), 3),
    _stalled("link away for 3 s", away(3.0, 2), 3),
    _stalled("link away for 6 s", away(6.0, 3), 4),
    _stalled("rank 0's link away for 3 s", away(3.0, 0), 1),
    _stalled("no carrier for 3 s", interface_away(3.0, 1), 2),
    _stalled("a pair away for 4 s", away(4.0, 1, 2), 2, 3),
    _stalled("a pair with rank 0 away for 4 s", away(4.0, 2, 0), 1, 3),
    _stalled("link away twice for 2.5 s", away(2.5, 2, times=2), 3),
    broken("link cut for good", cut_for_good(2), ("network.host_cut_off",), 3, reports=2),
    broken("pair cut for good", cut_for_good(1, 2), ("network.hosts_parted",), 2, 3),
    broken("pair with rank 0 cut for good", cut_for_good(2, 0), ("network.hosts_parted",), 1, 3, reports=2),
    broken("hole of 1000 bytes begins on one machine", narrow(1000, 2), _HOLE, 3),
    broken("hole of 1400 bytes begins on rank 0's machine", narrow(1400, 0), _HOLE, 1),
    broken("hole of 700 bytes begins between two", narrow(700, 1, 2), _HOLE, 2, 3),
)
