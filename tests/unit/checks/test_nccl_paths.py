"""NCCL's rules, each by a case that its source decides."""

from dataclasses import replace

import pytest

from gpudiag.checks.links.nccl_paths import (
    WayToNic,
    add_relays,
    choose_transport,
    is_within,
    nics_of_gpu,
    read_levels,
    takes_nic,
    type_of_path,
)
from gpudiag.checks.links.topology import build_topology
from gpudiag.model.host_state import Settings
from gpudiag.model.reading import Missing, MissingReason
from tests.topologies import build_snapshot, read_machines
from tests.unit.model.nouns import NOT_SUPPORTED

AMD, INTEL = "AMD EPYC 7742 64-Core Processor", "Intel(R) Xeon(R) Platinum 8480C"
MACHINES = {machine["name"]: machine for machine in read_machines()}


def machine(processor=INTEL, files=None, **variables):
    """A host with that processor, NCCL variables and NCCL files."""
    host = build_snapshot(MACHINES["4x TITAN X on two Xeon E5"]).machine
    settings = Settings(variables, files or {})
    return replace(host, processor=processor, state=replace(host.state, settings=settings))


def levels(host, gpus=8, ready=True):
    return read_levels(host, gpus, gpu_direct_ready=ready)


@pytest.mark.parametrize(
    ("host", "gpus", "expected"),
    [
        (machine(), 8, ("PXB", None)),
        (machine(AMD), 8, ("PXB", None)),
        (machine(AMD), 2, ("SYS", None)),  # two GPUs on an AMD processor
        (machine(INTEL), 2, ("PXB", None)),
        (machine(NCCL_P2P_LEVEL="SYS"), 8, ("SYS", "NCCL_P2P_LEVEL=SYS")),
        (machine(NCCL_P2P_LEVEL="NVL"), 8, ("NVL", "NCCL_P2P_LEVEL=NVL")),
        (machine(NCCL_P2P_LEVEL="3"), 8, ("PHB", "NCCL_P2P_LEVEL=3")),
        (machine(NCCL_P2P_LEVEL="9"), 8, ("SYS", "NCCL_P2P_LEVEL=9")),
        (machine(NCCL_P2P_LEVEL="near"), 8, ("PXB", None)),  # NCCL ignores what it does not know
        (machine(NCCL_P2P_DISABLE="1", NCCL_P2P_LEVEL="SYS"), 8, ("LOC", "NCCL_P2P_DISABLE=1")),
        (machine(files={"/etc/nccl.conf": {"NCCL_P2P_LEVEL": "PIX"}}), 8, ("PIX", "NCCL_P2P_LEVEL=PIX")),
    ],
)
def test_how_far_p2p_goes(host, gpus, expected):
    found = levels(host, gpus)
    assert (found.p2p, found.p2p_setting) == expected


def test_how_far_gpu_direct_goes():
    assert levels(machine()).gpu_direct == "P2C"
    assert levels(machine(NCCL_NET_GDR_C2C="0")).gpu_direct == "PXB"
    assert levels(machine(NCCL_NET_GDR_LEVEL="SYS")).gpu_direct_setting == "NCCL_NET_GDR_LEVEL=SYS"


@pytest.mark.parametrize(
    ("path", "read", "faster", "expected"),
    [
        ("NVL", "ok", False, ("P2P", "NVL")),
        ("PXB", "ok", False, ("P2P", "PXB")),
        ("PHB", "ok", False, ("SHM", "PHB")),
        # What lies through the host is PHB in its log.
        (
            "PIX",
            "chipset_not_supported",
            False,
            ("SHM", "PHB"),
        ),
        ("SYS", "ok", False, ("SHM", "SYS")),
        ("SYS", "ok", True, ("NET", "SYS")),
        ("NVL", "ok", True, ("P2P", "NVL")),
        ("PHB", NOT_SUPPORTED, False, ("SHM", "PHB")),  # P2P does not come into question
    ],
)
def test_the_transport_between_two_gpus(path, read, faster, expected):
    assert choose_transport(path, read, levels(machine()), network_is_faster=faster) == expected


def test_an_unread_peer_access_leaves_the_transport_open():
    silent = Missing(MissingReason.TIMED_OUT)
    transport, path = choose_transport("NVL", silent, levels(machine()), network_is_faster=False)
    assert (transport, path) == (silent, "NVL")


def test_paths_that_are_new_to_us_have_no_type():
    assert isinstance(type_of_path("unknown_60"), Missing)
    assert type_of_path("numa_node") == type_of_path("host_bridge") == "PHB"
    assert is_within("PXB", "P2C")
    assert not is_within("PHB", "PXN")


# --- network cards


def ways(*rows):
    """GPU by GPU, the types of the ways to each card; all carry the same, but SYS."""
    return [
        [WayToNic(kind, 22.0 if kind == "SYS" else 48.0, is_within(kind, "P2C")) for kind in row.split()]
        for row in rows
    ]


def test_each_gpu_takes_the_card_beside_it():
    found = ways("PIX PHB SYS SYS", "PHB PIX SYS SYS", "SYS SYS PIX PHB", "SYS SYS PHB PIX")
    assert [nics_of_gpu(found, gpu) for gpu in range(4)] == [[0], [1], [2], [3]]


def test_two_gpus_share_two_cards_and_each_begins_with_another():
    found = ways("PXB PXB SYS SYS", "PXB PXB SYS SYS", "SYS SYS PXB PXB", "SYS SYS PXB PXB")
    assert [nics_of_gpu(found, gpu) for gpu in range(4)] == [[0], [1], [2], [3]]


def test_one_gpu_takes_all_cards_that_are_as_near():
    assert nics_of_gpu(ways("PIX PIX PHB"), 0) == [0, 1]


def test_the_faster_card_is_taken_before_the_nearer_one():
    slow = WayToNic("PIX", 12.5, True)
    assert nics_of_gpu([[slow, WayToNic("PHB", 48.0, False)]], 0) == [1]


def test_a_card_beside_another_gpu_is_reached_over_it():
    """PXN: over NVLink and the GPU beside the card, where the own way is by a processor."""
    found = add_relays(ways("PIX SYS", "SYS PIX"), [[False, True], [True, False]])
    assert [[way.path for way in own] for own in found] == [["PIX", "PXN"], ["PXN", "PIX"]]
    assert [nics_of_gpu(found, gpu) for gpu in range(2)] == [[0], [1]]


def test_without_nvlink_there_is_no_relay():
    found = add_relays(ways("PIX SYS", "SYS PIX"), [[False, False], [False, False]])
    assert [[way.path for way in own] for own in found] == [["PIX", "SYS"], ["SYS", "PIX"]]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["mlx4_0", "mlx4_1"]),
        ({"NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_IB_HCA": "mlx4_1"}, ["mlx4_1"]),
        ({"NCCL_IB_HCA": "=mlx4_1:1"}, ["mlx4_1"]),
        ({"NCCL_IB_HCA": "mlx4"}, ["mlx4_0", "mlx4_1"]),
        ({"NCCL_IB_HCA": "=mlx4"}, []),
        ({"NCCL_IB_HCA": "^mlx4_1"}, ["mlx4_0"]),
    ],
)
def test_which_cards_nccl_takes(variables, expected):
    snapshot = build_snapshot(MACHINES["4x TITAN X on two Xeon E5"])
    nics = build_topology(snapshot).nics
    assert [nic.name for nic in nics if takes_nic(machine(**variables), nic)] == expected


def test_a_card_that_is_down_is_not_taken():
    nics = build_topology(build_snapshot(MACHINES["4x TITAN X on two Xeon E5"])).nics
    assert not takes_nic(machine(), replace(nics[0], active=False))


def test_cards_beside_gpus_are_faster_than_an_old_link_between_sockets():
    """ncclTopoCheckNet: eight PCIe GPUs on Ice Lake, 400 Gbit/s cards below their switches, two sockets."""
    posted = MACHINES["GPUs whose pairs are all SYS, six rows shown; the thread does not name them"]
    for processor, transport in (
        ("Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", "NET"),
        ("Intel(R) Xeon(R) Platinum 8592+", "SHM"),
    ):
        topology = build_topology(build_snapshot({**posted, "processor": processor}))
        assert {link.nccl_transport for link in topology.links} == {transport}
