"""Slurm's notation, as `scontrol show hostnames` reads it."""

import subprocess
from pathlib import Path

import pytest

from gpudiag.ranks.launchers import expand_nodes, tasks_on_node
from tests.slurm_cluster import missing_programs, slurm_cluster

LISTS = {
    "n01": ("n01",),
    "n[01-03]": ("n01", "n02", "n03"),
    "gpu[1,3-4],login": ("gpu1", "gpu3", "gpu4", "login"),
    "r[1-2]n[08-10]": ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"),
    "a,b,c": ("a", "b", "c"),
    "": (),
}


@pytest.mark.parametrize("text", LISTS)
def test_lists_of_nodes_are_expanded_in_order(text: str) -> None:
    assert expand_nodes(text) == LISTS[text]


@pytest.mark.parametrize("text", ["n[", "n[a-b]", "n[3-1]", "n[]", "n[1-9999999]"])
def test_what_is_no_list_names_no_node_and_takes_no_time(text: str) -> None:
    assert all("[" not in node or node == text for node in expand_nodes(text))


@pytest.mark.parametrize(
    ("text", "node", "tasks"),
    [
        ("2(x2),1", 0, 2),
        ("2(x2),1", 1, 2),
        ("2(x2),1", 2, 1),
        ("4", 0, 4),
        ("4", 1, None),
        ("", 0, None),
        ("x", 0, None),
    ],
)
def test_tasks_of_a_node(text: str, node: int, tasks: int | None) -> None:
    assert tasks_on_node(text, node) == tasks


@pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {', '.join(missing_programs())}")
def test_slurm_itself_reads_them_alike(tmp_path: Path) -> None:
    with slurm_cluster(tmp_path) as cluster:
        for text, nodes in LISTS.items():
            if text:
                shown: subprocess.CompletedProcess[str] = cluster.run("scontrol", "show", "hostnames", text)
                assert tuple(shown.stdout.split()) == nodes
