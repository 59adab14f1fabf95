"""Lossy paths between hosts, and the kernel's counters that show them."""

import os
import socket
import struct
import time

import pytest

from gpudiag.model.measure import IncidentKind
from gpudiag.ranks.agents.tcp_counters import TcpCounters, _parse_connection, plain_address
from gpudiag.ranks.diagnosis.loss import PathSegments, find_lossy_paths


def path(sender: str, receiver: str, segments: int, again: int) -> PathSegments:
    return PathSegments(int(sender[1:]) - 1, sender, receiver, segments, again)


def told(*paths: PathSegments) -> list[tuple[str, object]]:
    found = find_lossy_paths({(one.sender, one.receiver): one for one in paths}, 3.0)
    assert all(one.kind is IncidentKind.LOSSY for one in found)
    return [
        (one.host, next(fact.value for fact in one.evidence if fact.name == "other_side")) for one in found
    ]


def test_the_path_that_loses_is_named_with_its_direction_and_the_worst_comes_first() -> None:
    clean = [path("a1", "a2", 90_000, 4), path("a3", "a1", 90_000, 0)]
    assert told(*clean, path("a2", "a3", 50_000, 600), path("a4", "a1", 50_000, 2_000)) == [
        ("a4", "a1"),
        ("a2", "a3"),
    ]


@pytest.mark.parametrize(
    ("segments", "again"),
    [(0, 0), (499, 400), (500, 9), (100_000, 499)],
    ids=["nothing sent", "too few to say", "a few losses", "below the share"],
)
def test_a_few_losses_are_no_finding(segments: int, again: int) -> None:
    assert told(path("a1", "a2", segments, again)) == []


def test_the_limits_themselves_are_a_finding() -> None:
    assert told(path("a1", "a2", 500, 10)) == [("a1", "a2")]
    assert told(path("a1", "a2", 100_000, 500)) == [("a1", "a2")]


def test_the_kernel_counts_what_a_connection_sent_also_once_it_is_closed() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        client = socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 0))
        there, _ = server.accept()
        counters = TcpCounters()
        client.sendall(b"x" * 200_000)
        while there.recv(1 << 20, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b"":
            time.sleep(0.01)
        assert counters.sample([os.getpid()])
        assert not counters.sample([os.getpid()])  # only twice a second
        client.close()
        there.close()
    sent = {peer.address: peer for peer in counters.totals()}
    assert sent["127.0.0.2"].segments > 0
    assert sent["127.0.0.2"].retransmitted == 0


def info_of_connection(retransmitted: int, sent_for_nothing: int | None) -> bytes:
    """What the kernel answers of one connection (struct inet_diag_msg, then tcp_info as an attribute)."""
    info = bytearray(216 if sent_for_nothing is None else 280)
    struct.pack_into("=I", info, 100, retransmitted)
    struct.pack_into("=I", info, 156, 27_754)
    if sent_for_nothing is not None:
        struct.pack_into("=I", info, 216, sent_for_nothing)
    head = bytearray(72)
    head[8:12], head[24:28] = socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2")
    struct.pack_into("=I", head, 68, 4711)
    return bytes(head) + struct.pack("=HH", len(info) + 4, 2) + bytes(info)


@pytest.mark.parametrize(
    ("retransmitted", "for_nothing", "lost"),
    [(684, 215, 469), (941, 941, 0), (3, 5, 0), (684, None, 684)],
    ids=["some arrived", "all had arrived", "more than sent", "an old kernel"],
)
def test_segments_that_were_sent_again_for_nothing_were_not_lost(
    retransmitted: int, for_nothing: int | None, lost: int
) -> None:
    found = _parse_connection(socket.AF_INET, info_of_connection(retransmitted, for_nothing), {4711})
    assert found is not None
    assert (found[1].address, found[1].segments, found[1].retransmitted) == ("10.0.0.2", 27_754, lost)


def test_connections_of_other_processes_and_of_one_that_is_gone_are_not_counted() -> None:
    counters = TcpCounters()
    assert counters.sample([2**22 + 1])
    assert counters.totals() == ()


@pytest.mark.parametrize(
    ("text", "plain"),
    [("::ffff:10.1.2.3", "10.1.2.3"), ("fe80::1%eth0", "fe80::1"), ("10.1.2.3", "10.1.2.3")],
)
def test_addresses_compare_however_they_are_written(text: str, plain: str) -> None:
    assert plain_address(text) == plain
