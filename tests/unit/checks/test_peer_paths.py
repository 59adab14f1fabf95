"""Which path a copy from GPU to GPU takes, on each kind of machine."""

from dataclasses import replace

import pytest

from gpudiag.checks.links.peers import HOST, NVLINK, NVSWITCH, PCIE, UNKNOWN, PeerPath, path_between
from gpudiag.checks.ranks.bandwidth import bandwidth_peer
from gpudiag.model.active import PEER_COPY
from gpudiag.model.device import NvLink, PeerAccess
from tests.unit.checks.active_measures import gpu_snapshot, judged_by, measure_gpus
from tests.unit.model.nouns import NOT_SUPPORTED, make_device

GB = 1e9
IDS = [make_device(place).id.bus_id for place in range(4)]
SWITCHES = ("00000000:05:00.0", "00000000:06:00.0")


def link(number, remote, active=True):
    return NvLink(number, active, remote, 0, 0, 0, 0)


def joined(place, nvlink="ok"):
    """What one GPU says of the three others."""
    return tuple(PeerAccess(bus_id, "numa_node", "ok", nvlink) for bus_id in IDS if bus_id != IDS[place])


def machine(remotes, nvlink="ok"):
    """Four GPUs; `remotes` gives the far ends of one GPU's links."""
    snapshot = gpu_snapshot(4, nvlink_bytes_per_second=26_562e6)
    devices = tuple(
        replace(
            device,
            nvlinks=tuple(link(number, remote) for number, remote in enumerate(remotes(place)))
            or NOT_SUPPORTED,
            peers=joined(place, nvlink),
        )
        for place, device in enumerate(snapshot.devices)
    )
    return replace(snapshot, devices=devices)


def six_to_each(place):
    return [IDS[other] for other in range(4) if other != place for _ in range(6)]


def pairs_only(place):
    return [IDS[place ^ 1]] * 4


def path(snapshot, source=0, target=2, *, direct=True):
    copy = next(one for one in measure_gpus(snapshot).bandwidth if one.test == PEER_COPY)
    devices = snapshot.devices
    return path_between(snapshot, devices[source], devices[target], replace(copy, direct=direct))


@pytest.mark.parametrize(
    ("remotes", "nvlink", "expected"),
    [
        (six_to_each, "ok", PeerPath(NVLINK, 6)),
        (lambda _: SWITCHES * 9, "ok", PeerPath(NVSWITCH, 18)),
        (pairs_only, "not_supported", PeerPath(PCIE, way="numa_node")),
        (lambda _: (), "not_supported", PeerPath(PCIE, way="numa_node")),
        (lambda _: [NOT_SUPPORTED] * 18, "ok", PeerPath(NVSWITCH, 18)),
        (lambda _: [NOT_SUPPORTED] * 18, "not_supported", PeerPath(UNKNOWN, 18)),
    ],
    ids=["mesh of four", "switches", "bridged to another", "PCIe", "hidden ends", "hidden ends, not joined"],
)
def test_the_path_is_by_what_both_gpus_say(remotes, nvlink, expected):
    assert path(machine(remotes, nvlink)) == expected


def test_a_copy_through_the_host_has_no_link():
    assert path(machine(six_to_each), direct=False) == PeerPath(HOST)


def test_links_that_are_down_do_not_count():
    snapshot = machine(six_to_each)
    one = snapshot.devices[0]
    down = tuple(replace(each, active=each.link % 2 == 0) for each in one.nvlinks)
    snapshot = replace(snapshot, devices=(replace(one, nvlinks=down), *snapshot.devices[1:]))
    assert path(snapshot) == PeerPath(NVLINK, 3)


def slow_pairs(snapshot, speed_of):
    copies = tuple(
        replace(one, bytes_per_second=speed_of(one.rank, one.peer))
        for one in measure_gpus(snapshot).bandwidth
        if one.test == PEER_COPY
    )
    measured = replace(measure_gpus(snapshot), bandwidth=copies)
    return [
        tuple(int(end.split()[1]) for end in finding.subject.ends)
        for finding in bandwidth_peer.judge(judged_by(measured, snapshot)).findings
    ]


def test_four_gpus_joined_by_six_links_a_pair_are_not_held_against_eighteen():
    assert slow_pairs(machine(six_to_each), lambda *_: 130 * GB) == []
    assert slow_pairs(machine(six_to_each), lambda *_: 90 * GB)


def test_pairs_with_a_bridge_and_pairs_without_are_two_kinds():
    def speed(rank, peer):
        return 90 * GB if peer == rank ^ 1 else 20 * GB

    assert slow_pairs(machine(pairs_only), speed) == []

    def one_is_slow(rank, peer):
        return 10 * GB if (rank, peer) == (0, 2) else speed(rank, peer)

    assert slow_pairs(machine(pairs_only), one_is_slow) == [(0, 2)]
