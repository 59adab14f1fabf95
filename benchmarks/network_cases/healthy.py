"""Networks and starts with which nothing is wrong: nobody may be blamed, and every rank ends with status 0."""

from benchmarks.network_cases.case import Case, Start

CASES = (
    Case("healthy"),
    Case("rank 0 comes 9 s late", starts={0: Start(delay_seconds=9)}),
    Case("rank 3 comes 9 s late", starts={3: Start(delay_seconds=9)}),
)
