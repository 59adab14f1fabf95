"""CUDA_VISIBLE_DEVICES, as CUDA reads it and as torch answers under it."""

import pytest

from gpudiag.simulate.torch_answer import select_visible
from tests.unit.simulate_scenarios.machines import machine

UUIDS = ("GPU-aa00", "GPU-aa11", "GPU-bb22", "GPU-cc33")


@pytest.mark.parametrize(
    ("value", "positions"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 2 ", [1, 2]),
        ("0,9,1", [0]),
        ("0,-1,1", [0]),
        ("1,1", []),
        ("0,x,1", [0]),
        ("2x,1", [2, 1]),
        ("GPU-bb22", [2]),
        ("GPU-bb,GPU-aa11", [2, 1]),
        ("GPU-aa", []),
        ("GPU-dd", []),
        ("GPU-cc33,0", [3, 0]),
    ],
)
def test_what_the_variable_leaves(value: str | None, positions: list[int]):
    assert select_visible(value, UUIDS) == positions


@pytest.mark.parametrize(("value", "count"), [("", 0), ("-1", 0), ("6,2", 2), ("0,1,8", 2), ("3,3", 0)])
def test_torch_counts_what_is_left(value: str, count: int):
    answer = machine(f"h100x8+visible:{value}").torch
    assert answer["facts"]["device_count"] == len(answer["devices"]) == count
    assert answer["facts"]["cuda_available"] is bool(count)


def test_torch_lists_in_the_order_of_the_variable():
    scenario = machine("h100x8+visible:6,2")
    assert [view["bus_id"] for view in scenario.torch["devices"]] == [
        scenario.gpus[6].readings["bus_id"],
        scenario.gpus[2].readings["bus_id"],
    ]


def test_a_mig_gpu_is_one_instance_to_a_process():
    instances = machine("h100-mig").gpus[0].readings["mig_instances"]
    assert [view["uuid"] for view in machine("h100-mig").torch["devices"]] == [instances[0]["uuid"]]
    third = machine(f"h100-mig+visible:{instances[2]['uuid']}").torch["devices"]
    assert [view["memory_total_bytes"] for view in third] == [instances[2]["memory_total_bytes"]]


def test_a_driver_older_than_the_build_starts_nothing():
    facts = machine("h100x8+old-driver").torch["facts"]
    assert facts["cuda_available"] is False
    assert "12000" in facts["missing_detail"]["context_starts"]
    assert facts["device_count"] == 8, "torch believes NVML's count"


def test_without_nvml_torch_counts_by_cuda():
    facts = machine("h100x8+no-driver").torch["facts"]
    assert facts["device_count"] == 0
    assert facts["missing"]["nvml_device_count"] == "error"
