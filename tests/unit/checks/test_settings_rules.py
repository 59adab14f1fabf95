"""The rules by which NCCL, gloo, CUDA and torch read their settings."""

import pytest

from gpudiag.checks.host.network import spans_machines
from gpudiag.checks.software.settings import nccl_settings, parse_allocator_options
from gpudiag.checks.software.torch_build import compiles_for, runs_natively
from gpudiag.model.host_state import Settings, parse_processor_list
from gpudiag.model.published import names_interface


@pytest.mark.parametrize(
    ("variable", "value", "interface", "selected"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "eth,ib", "ib0", True),
        ("NCCL_SOCKET_IFNAME", "=eth0", "eth01", False),
        ("NCCL_SOCKET_IFNAME", "=eth0,eth1", "eth1", True),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "docker0", False),
        ("NCCL_SOCKET_IFNAME", "^=docker0", "docker01", True),
        ("GLOO_SOCKET_IFNAME", "eth", "eth0", False),
        ("GLOO_SOCKET_IFNAME", "eth1, eth0", "eth0", True),
    ],
)
def test_interfaces_are_matched_as_the_library_does(
    variable: str, value: str, interface: str, selected: bool
):
    assert names_interface(variable, value, interface) is selected


def test_the_environment_goes_before_files_and_the_users_file_before_the_systems():
    files = {
        "/home/ann/.nccl.conf": {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5"},
        "/etc/nccl.conf": {"NCCL_IB_HCA": "mlx4", "NCCL_P2P_DISABLE": "1"},
    }
    settings = Settings({"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}, files)
    assert nccl_settings(settings) == {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5", "NCCL_P2P_DISABLE": "1"}


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        *(("sm_80", "8.0", True), ("sm_80", "8.6", True), ("sm_86", "8.0", False), ("sm_80", "9.0", False)),
        *(("sm_90a", "9.0", True), ("sm_100a", "10.3", False), ("sm_100f", "10.3", True)),
        *(("sm_120", "12.1", True), ("compute_90", "9.0", False), ("gfx942", "9.0", False)),
    ],
)
def test_compiled_code_runs_on_its_major_and_no_lower_minor_version(
    architecture: str, capability: str, runs: bool
):
    assert runs_natively(architecture, capability) is runs


@pytest.mark.parametrize(
    ("architecture", "capability", "compiles"),
    [
        ("compute_80", "9.0", True),
        ("compute_120", "9.0", False),
        ("compute_90", "9.0", True),
        ("sm_80", "8.0", False),
    ],
)
def test_ptx_compiles_for_equal_and_later_versions(architecture: str, capability: str, compiles: bool):
    assert compiles_for(architecture, capability) is compiles


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", []),
        ("expandable_segments:True", ["expandable_segments"]),
        ("a:[256:1,512:2,>:4], b:0.8,", ["a", "b"]),
        ("nonsense", ["nonsense"]),
    ],
)
def test_allocator_options_are_taken_apart_with_their_lists(text: str, options: list):
    assert parse_allocator_options(text) == options


@pytest.mark.parametrize(
    ("variables", "spans"),
    [
        ({}, False),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, False),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, True),
        ({"SLURM_NNODES": "4"}, True),
        ({"SLURM_JOB_NUM_NODES": "1"}, False),
        ({"WORLD_SIZE": "many", "SLURM_NNODES": "x"}, False),
    ],
)
def test_a_job_spans_machines_where_its_launcher_says_so(variables: dict, spans: bool):
    assert spans_machines(Settings(variables, {})) is spans


def test_kernel_lists_of_processors():
    assert parse_processor_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_processor_list("") == frozenset()
