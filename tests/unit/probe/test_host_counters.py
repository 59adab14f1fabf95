"""The host's counters out of the kernel's files."""

import os
from pathlib import Path

import pytest

from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.host.counters import (
    parse_interfaces,
    parse_protocol,
    parse_steal_seconds,
    parse_throttled_seconds,
    parse_vmstat,
    read_host_counters,
)
from gpudiag.probe.sheet import Absent

SNMP = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 5000 47\n"
INTERFACES = (
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier\n"
    "    lo: 1000 10 0 0 0 0 0 0 1000 10 0 0 0 0 0 0\n"
    "  eth0: 2000 20 1 2 0 0 0 0 3000 30 4 8 0 0 0 0\n"
)


def test_counters_of_protocols_are_found_by_name() -> None:
    assert parse_protocol(SNMP, "Tcp", "RetransSegs") == 47
    with pytest.raises(Absent):
        parse_protocol(SNMP, "Tcp", "InCsumErrors")


def test_errors_and_drops_of_all_interfaces_are_added() -> None:
    assert parse_interfaces(INTERFACES) == (5, 10)


def test_steal_is_counted_in_clock_ticks() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert parse_steal_seconds(f"cpu  1 2 3 4 5 6 7 {3 * ticks} 0 0\ncpu0 1 2\n") == 3.0
    with pytest.raises(Absent):
        parse_steal_seconds("cpu 1 2 3\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("nr_periods 5\nnr_throttled 2\nthrottled_usec 1500000\n", 1.5), ("throttled_time 2000000000\n", 2.0)],
)
def test_throttling_is_counted_by_either_version_of_control_groups(text: str, seconds: float) -> None:
    assert parse_throttled_seconds(text) == seconds


def test_a_group_without_a_quota_counts_no_throttling() -> None:
    with pytest.raises(Absent):
        parse_throttled_seconds("usage_usec 5\n")


def test_the_oom_killer_is_counted_by_name() -> None:
    assert parse_vmstat("pgfault 9\noom_kill 2\n", "oom_kill") == 2


def test_this_host_counts() -> None:
    counters = read_host_counters()
    assert isinstance(counters.tcp_retransmits, int)
    assert isinstance(counters.steal_seconds, float)


def test_what_a_host_does_not_have_is_missing_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("oom_kill 1\n")
    counters = read_host_counters(str(tmp_path))
    assert counters.oom_kills == 1
    assert isinstance(counters.tcp_retransmits, Missing)
    assert counters.tcp_retransmits.reason is MissingReason.SOURCE_ABSENT
