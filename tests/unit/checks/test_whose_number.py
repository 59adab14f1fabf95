"""Who a number is of: a limiter's, the system's, or nobody's (values that no GPU has)."""

from dataclasses import replace

import pytest

from gpudiag.checks.gpu.availability import signs_of_use
from gpudiag.checks.gpu.leftovers import memory_leftover
from gpudiag.checks.gpu.memory import memory_size
from gpudiag.model.finding import Outcome
from gpudiag.probe.host.machine import read_memory_only_nodes
from gpudiag.probe.sheet import Absent
from gpudiag.probe.visibility import read_allocation
from gpudiag.reference.memory_limiters import find_limiter, memory_limiters
from gpudiag.units import GIB
from tests.unit.checks.machines import look_at, make_bare_machine
from tests.unit.model.nouns import make_device, make_snapshot

SLICE = make_device(0, name="NVIDIA H100 80GB HBM3", memory_total_bytes=10 * GIB, memory_kind="dedicated")

# Project-HAMi/HAMi issues 332 and 1777, volcano-vgpu-device-plugin issue 8, tkestack/vcuda-controller,
# KubeShare, Alibaba's cGPU and Run:ai's fractions by their documentation.
LIMITED = {
    "HAMi by its variable": ({"CUDA_DEVICE_MEMORY_LIMIT_0": "10000m"}, ()),
    "HAMi by ld.so.preload": ({}, ("/usr/local/vgpu/libvgpu.so",)),
    "HAMi by LD_PRELOAD": ({"LD_PRELOAD": "/usr/local/vgpu/libvgpu.so"}, ()),
    "Tencent's GPU manager": ({"LD_PRELOAD": "/usr/lib64/libcuda-control.so"}, ()),
    "KubeShare": ({"LD_PRELOAD": "/kubeshare/library/libgemhook.so.1"}, ()),
    "cGPU": ({"ALIYUN_COM_GPU_MEM_CONTAINER": "10"}, ()),
    "Run:ai": ({"RUNAI_GPU_MEMORY_LIMIT": "10Gi"}, ()),
    "MPS": ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10G"}, ()),
}


@pytest.mark.parametrize(("environment", "preloaded"), LIMITED.values(), ids=LIMITED)
def test_a_slice_of_a_gpu_is_no_short_board(environment, preloaded):
    machine = make_bare_machine(
        gpus=1, allocation=read_allocation(environment), preloaded_libraries=preloaded
    )
    judgement = memory_size.judge(look_at(make_snapshot(SLICE, machine=machine)))
    assert judgement.outcome is Outcome.SKIP
    assert "limits the memory that NVML shows" in judgement.reason


def test_a_short_board_is_one_where_nobody_limits_it():
    machine = make_bare_machine(gpus=1, preloaded_libraries=("/usr/lib/libjemalloc.so.2",))
    assert memory_size.judge(look_at(make_snapshot(SLICE, machine=machine))).outcome is Outcome.FAIL


def test_every_variable_of_the_table_is_read():
    names = [variable.rstrip("*") for limiter in memory_limiters() for variable in limiter.variables]
    assert set(read_allocation(dict.fromkeys(names, "1"))) == set(names)
    assert find_limiter((), {"PATH": "/bin"}) is None


COHERENT = make_device(
    0,
    name="NVIDIA GH200 144G HBM3e",
    memory_total_bytes=142 * GIB,
    memory_used_bytes=67 * GIB,
    processes=(),
    utilization_percent=0,
    memory_kind="dedicated",
    memory_reserved_bytes=GIB,
)


@pytest.mark.parametrize(
    "name", ["NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e", "NVIDIA GB200", "NVIDIA GB300"]
)
def test_the_page_cache_on_a_coherent_gpu_is_no_leftover(name):
    """vllm-project/vllm issue 35313: 67.6 of 142.5 GiB used on a GH200, by no process."""
    device = replace(COHERENT, name=name)
    machine = make_bare_machine(gpus=1, memory_only_nodes_used_bytes=68 * GIB)
    assert memory_leftover.judge(look_at(make_snapshot(device, machine=machine))).outcome is Outcome.SKIP
    assert signs_of_use(device) == []


@pytest.mark.parametrize(
    ("name", "system"), [("NVIDIA GH200 480GB", 20 * GIB), ("NVIDIA H100 80GB HBM3", 68 * GIB)], ids=str
)
def test_more_than_the_system_has_is_a_leftover(name, system):
    device = replace(COHERENT, name=name)
    machine = make_bare_machine(gpus=1, memory_only_nodes_used_bytes=system)
    assert memory_leftover.judge(look_at(make_snapshot(device, machine=machine))).outcome is Outcome.WARN


def test_nodes_without_processors_are_added_up(tmp_path):
    nodes = tmp_path / "sys/devices/system/node"
    for node, used in ((0, 5), (1, 7), (2, 9)):
        (nodes / f"node{node}").mkdir(parents=True)
        (nodes / f"node{node}/meminfo").write_text(
            f"Node {node} MemTotal: 99 kB\nNode {node} MemUsed:       {used} kB\n"
        )
    (nodes / "has_cpu").write_text("0\n")
    (nodes / "has_memory").write_text("0-2\n")
    assert read_memory_only_nodes(str(tmp_path)) == 16 * 1024
    (nodes / "has_cpu").write_text("0-2\n")
    with pytest.raises(Absent):
        read_memory_only_nodes(str(tmp_path))
