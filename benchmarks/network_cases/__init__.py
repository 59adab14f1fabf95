"""Faults and oddities of the network between machines, each with what must be reported of it."""

from benchmarks.network_cases import (
    addresses,
    firewalls,
    healthy,
    host_settings,
    in_time,
    running,
    slow,
    splits,
)
from benchmarks.network_cases.case import Case

CASES: tuple[Case, ...] = (
    *healthy.CASES,
    *splits.CASES,
    *in_time.CASES,
    *addresses.CASES,
    *firewalls.CASES,
    *host_settings.CASES,
    *running.CASES,
    *slow.CASES,
)
