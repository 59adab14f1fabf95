"""Labels of nodes: what each format says, and one sentence for what is none."""

import json
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.model.measure import Node
from gpudiag.model.reading import NOT_ASKED, Missing
from gpudiag.ranks.node_labels import NodeLabels, label_nodes, labels_of_slurm, parse_labels, read_labels
from tests.walking import walk

TREE = """# two levels
SwitchName=s0 Nodes=tux[0-1,4]
switchname=s1 nodes=tux[2-3] LinkSpeed=900
SwitchName=s2 \\
    Switches=s[0-1]   # the core
"""
SHOWN = """SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-1]
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=tux[0-1] Switches=s0
"""
BLOCKS = "BlockName=b1 Nodes=gb[01-18]\nBlockName=b2 Nodes=gb[19-36]\nBlockSizes=18\n"
PLAIN = """
gpu[01-02] rack=r1 leaf=s1 nvlink=d1 rails=mlx5_0,mlx5_1   # first rack
gpu03      leaf=s2
"""


def kubernetes(**labels: str) -> str:
    node = {
        "kind": "Node",
        "metadata": {"name": "ip-10-0-0-1", "labels": {"kubernetes.io/hostname": "worker-1", **labels}},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    }
    pod = {
        "kind": "Pod",
        "metadata": {"name": "job-0"},
        "spec": {"nodeName": "ip-10-0-0-1", "hostname": "trainer-0"},
    }
    return json.dumps({"kind": "List", "items": [node, pod]})


def test_slurms_tree_gives_the_leaf_and_all_above_it():
    found = parse_labels(TREE, "topology.conf")
    assert found["tux4"] == NodeLabels(("switch s2", "leaf s0"))
    assert found["tux2"] == NodeLabels(("switch s2", "leaf s1"))
    assert len(found) == 5
    assert parse_labels(SHOWN, "-")["tux1"] == NodeLabels(("switch s2", "leaf s0"))


def test_slurms_blocks_are_nvlink_domains():
    found = parse_labels(BLOCKS, "topology.conf")
    assert (found["gb18"].nvlink_domain, found["gb19"].nvlink_domain, len(found)) == ("b1", "b2", 36)


def test_a_plain_file_names_racks_leaves_domains_and_rails():
    found = parse_labels(PLAIN, "labels")
    assert found["gpu02"] == NodeLabels(("rack r1", "leaf s1"), "d1", ("mlx5_0", "mlx5_1"))
    assert found["gpu03"] == NodeLabels(("leaf s2",))


@walk(
    [
        ({"network.topology.nvidia.com/spine": "s9", "network.topology.nvidia.com/leaf": "s1"},
            ("spine s9", "leaf s1")),
        ({"fabric.topograph.run/tier-1": "s9", "fabric.topograph.run/tier-0": "s1"}, ("spine s9", "leaf s1")),
        ({"topology.k8s.aws/network-node-layer-1": "nn-a", "topology.k8s.aws/network-node-layer-3": "nn-c"},
            ("layer nn-a", "layer nn-c")),
        ({"cloud.google.com/gce-topology-block": "b", "cloud.google.com/gce-topology-subblock": "c"},
            ("block b", "subblock c")),
        ({"oci.oraclecloud.com/rdma.local_block_id": "x7"}, ("local block x7",)),
        ({"backend.coreweave.cloud/leafgroup": "4"}, ("leafgroup 4",)),
        ({"topology.kubernetes.io/zone": "z1"}, ("zone z1",)),
    ]
)  # fmt: skip
def test_kubernetes_labels_of_each_cloud_are_read_from_the_outermost_to_the_leaf(case):
    labels, switches = case
    found = parse_labels(kubernetes(**labels, **{"nvidia.com/gpu.clique": "uuid.7"}), "nodes.json")
    assert found["ip-10-0-0-1"] == NodeLabels(switches, "uuid.7")
    # By each name that a rank may have for its host: also that of its pod.
    assert {"worker-1", "10.0.0.1", "job-0", "trainer-0"} <= set(found)


@walk(
    [
        ("{", "is no whole JSON"),
        ('{"items": []}', "has no object of kind Node"),
        ("SwitchName=s0 Nodes=tux[0-\n", "line 1 of --labels f: tux[0- is no list of names"),
        (
            "SwitchName=s0 Switches=s1\nSwitchName=s1 Switches=s0\nSwitchName=s1 Nodes=a\n",
            "is above and below itself",
        ),
        ("BlockName=b1 Nodes=a\nNodes=b\n", "line 2 of --labels f names no switch and no block"),
        ("gpu01 leaf=s1\ngpu01 leaf=s2\n", "line 2 of --labels f: gpu01 has other labels above"),
        (
            "gpu01 lef=s1\n",
            "line 1 of --labels f: 'lef' is none of core, spine, pod, block, rack, leaf, nvlink, rails",
        ),
        ("gpu01\n", "line 1 of --labels f: 'gpu01' has no label"),
        ("the quick brown fox\n", "is none of"),
    ]
)
def test_what_is_no_file_of_labels_gets_one_sentence(case):
    text, words = case
    with pytest.raises(UsageError) as caught:
        parse_labels(text, "f")
    assert words in str(caught.value)
    assert "topology.conf" in (caught.value.hint or "")


def test_a_file_that_is_not_there_or_is_no_text_gets_one_sentence(tmp_path: Path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match=f"--labels {path} cannot be read"):
            read_labels(str(path))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UsageError, match="it is no text"):
        read_labels(str(binary))
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    with pytest.raises(UsageError, match="names no node with a label"):
        read_labels(str(empty))


def test_nodes_are_found_by_their_short_names_and_some_may_be_missing(tmp_path: Path):
    path = tmp_path / "labels"
    path.write_text(PLAIN)
    nodes = (Node("gpu01.cluster.example", (0, 1)), Node("gpu09", (2, 3)))
    labelled, source = label_nodes(nodes, read_labels(str(path)))
    assert labelled[0].switches == ("rack r1", "leaf s1")
    assert labelled[1] == nodes[1]
    assert source == f"{path}: 1 of 2 nodes"


def test_a_file_of_other_nodes_is_told_and_changes_nothing(tmp_path: Path):
    path = tmp_path / "labels"
    path.write_text(PLAIN)
    nodes = (Node("a1", (0,)), Node("a2", (1,)))
    same, why = label_nodes(nodes, read_labels(str(path)))
    assert same == nodes
    assert isinstance(why, Missing)
    assert "names none of the nodes of this run (a1, a2)" in why.detail


def test_ranks_of_one_machine_have_names_of_their_own(tmp_path: Path):
    path = tmp_path / "labels"
    path.write_text("rank[0-1] leaf=a\nrank[2-3] leaf=b\n")
    labelled, _ = label_nodes(tuple(Node("here", (rank,)) for rank in range(4)), read_labels(str(path)))
    assert [one.switches for one in labelled] == [("leaf a",)] * 2 + [("leaf b",)] * 2


def test_slurm_tells_each_task_its_switches():
    assert labels_of_slurm("s0.s4.s8.tux1", "switch.switch.switch.node").switches == (
        "switch s0",
        "switch s4",
        "leaf s8",
    )
    assert labels_of_slurm("b1.tux1", "block.node") == NodeLabels((), "b1")
    assert labels_of_slurm("tux1", "node") == labels_of_slurm("", "") == NodeLabels()
    assert Node("a", (0,)).switches == NOT_ASKED
