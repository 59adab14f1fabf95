"""A rank is bound to its GPU's NUMA node before it pins memory, within what it may use."""

import os

import pytest

from gpudiag.bandwidth.rank_main import bind_to_node
from gpudiag.model.active import ActivePlan
from gpudiag.model.codec import decode, encode
from gpudiag.model.reading import Missing, MissingReason


@pytest.fixture
def bound(monkeypatch, tmp_path):
    """A machine of two nodes of four processors, and what the process is bound to."""
    asked = []
    for node, processors in enumerate(("0-3", "4-7")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{processors}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, processors: asked.append(processors))
    return tmp_path, asked


def test_only_the_processors_of_the_node_that_may_be_used_are_bound_to(bound):
    root, asked = bound
    assert bind_to_node(1, root) == 1
    assert bind_to_node(0, root) == 0
    assert asked == [{5}, {1, 2}]


def test_a_node_that_may_not_be_used_or_is_not_there_leaves_the_rank_where_it_is(bound, monkeypatch):
    root, asked = bound
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    answers = [bind_to_node(1, root), bind_to_node(7, root), bind_to_node(None, root)]
    assert [one.reason for one in answers if isinstance(one, Missing)] == [
        MissingReason.NO_PERMISSION,
        MissingReason.ERROR,
        MissingReason.NOT_SUPPORTED,
    ]
    assert asked == []


def test_the_plan_carries_the_node_of_each_rank_s_gpu():
    plan = ActivePlan(("host_to_device",), "cuda", numa_nodes=(0, None, 1))
    assert decode(ActivePlan, encode(plan)) == plan
