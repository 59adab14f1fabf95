"""Starts in which a part of the ranks went elsewhere."""

from benchmarks.network_cases.case import Case, Start

CASES = (
    Case(
        "rank 2 has another port",
        starts={2: Start(flags=("--init-method", "tcp://machine1:29501"))},
        words=("29501", "29500"),
        hosts=("machine3",),
    ),
)
