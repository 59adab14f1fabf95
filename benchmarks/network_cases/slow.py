"""Networks that are slow, lossy or delayed: which machine or pair, why, and within bounded time."""

from collections.abc import Sequence

from benchmarks.network_cases.case import Arrange, Case
from benchmarks.network_cases.links import arranged, delayed, lossy, slow, slow_pair

# The sizes that gpudiag chooses by itself, and the search for who it is.
_ALL_SIZES = ("--min-bytes", "8", "--max-bytes", "64M")
_LOCALISE = ("--localise",)


def _case(name: str, arrange: Arrange, words: Sequence[str], hosts: Sequence[str], ranks: int = 4) -> Case:
    return Case(
        name,
        arrange=arrange,
        flags=(*_ALL_SIZES, *_LOCALISE),
        automatic=True,
        words=words,
        hosts=hosts,
        ranks=ranks,
        warning=True,
    )


_NODE, _LINK = ("network.node_slow",), ("network.link_slow",)
CASES = (
    _case("slow: one of 4 at 50 Mbit/s", arranged(slow("50mbit", 2)), _NODE, ("machine3",)),
    _case("slow: one of 8 at 50 Mbit/s", arranged(slow("50mbit", 5)), _NODE, ("machine6",), 8),
    _case(
        "slow: a pair of 4 at 20 Mbit/s", arranged(slow_pair("20mbit", 1, 2)), _LINK, ("machine2", "machine3")
    ),
    _case(
        "slow: a pair of 8 at 20 Mbit/s",
        arranged(slow_pair("20mbit", 1, 6)),
        _LINK,
        ("machine2", "machine7"),
        8,
    ),
    _case("slow: all of 4 at 100 Mbit/s", arranged(slow("100mbit", 0, 1, 2, 3)), ("network.all_slow",), ()),
    _case("slow: all of 8 at 100 Mbit/s", arranged(slow("100mbit", *range(8))), ("network.all_slow",), (), 8),
    _case("slow: two of 8 at 50 Mbit/s", arranged(slow("50mbit", 2, 5)), _NODE, ("machine3", "machine6"), 8),
    _case("slow: two of 4 at 100 Mbit/s", arranged(slow("100mbit", 0, 3)), _NODE, ("machine1", "machine4")),
    _case(
        "slow: one of 8 at 50 Mbit/s, one that loses 3 %",
        arranged(slow("50mbit", 2), lossy(30, 6)),
        ("network.node_slow", "network.node_lossy"),
        ("machine3", "machine7"),
        8,
    ),
    _case("lossy: one of 4 loses 2 %", arranged(lossy(20, 1)), ("network.node_lossy",), ("machine2",)),
    _case(
        "lossy: a pair of 8 loses 3 %",
        arranged(lossy(30, 1, 4)),
        ("network.link_lossy",),
        ("machine2", "machine5"),
        8,
    ),
    _case("delayed: one of 4 by 20 ms", delayed(20, 2), _NODE, ("machine3",)),
    _case("delayed: one of 8 by 20 ms", delayed(20, 5), _NODE, ("machine6",), 8),
    Case("healthy: all sizes on 4 and the search", flags=(*_ALL_SIZES, *_LOCALISE), automatic=True),
    Case("healthy: all sizes on 8 and the search", flags=(*_ALL_SIZES, *_LOCALISE), automatic=True, ranks=8),
)
