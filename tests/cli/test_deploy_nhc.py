"""`gpudiag deploy --nhc`: files in the form of LBNL NHC and AzNHC, and every check that these two have."""

import shlex

import pytest

from gpudiag.checks import BUILTIN
from gpudiag.cli.main import main
from gpudiag.cli.preflight import preflight
from gpudiag.errors import ExitStatus
from gpudiag.reference.nhc import gate_command, measuring_command, nhc_checks, parse_nhc
from tests.walking import walk

# What the scripts of both define, read 2026-11-27; a check of GPUs, links or memory must have an entry,
# covered or not.
GPU_CHECKS = [
    "check_app_gpu_clocks",
    "check_ecc",
    "check_gpu_bw",
    "check_gpu_clock_throttling",
    "check_gpu_count",
    "check_gpu_ecc",
    "check_gpu_persistence",
    "check_gpu_xid",
    "check_hw_topology",
    "check_ib_bw_gdr",
    "check_ib_bw_non_gdr",
    "check_ib_link_flapping",
    "check_nccl_allreduce",
    "check_nccl_allreduce_ib_loopback",
    "check_nvlink_enabled",
    "check_nvlink_status",
    "check_nvsmi_healthmon",
    "check_nv_healthmon",
    "check_nvme_count",
    "check_vbios_version",
    "check_hw_ib",
    "check_hw_eth",
    "check_hw_cpuinfo",
    "check_hw_physmem",
    "check_hw_mem",
    "check_hw_mcelog",
    "check_cpu_stream",
    "check_cmd_dmesg",
    "check_fs_mount_rw",
    "check_fs_free",
    "check_fs_used",
]
AZURE = """
# NHC Configuration File
 * || export TIMEOUT=300
 * || check_hw_cpuinfo 2 96 96
 * || check_hw_ib 400 mlx5_ib0:1
 * || check_hw_ib 400 mlx5_ib1:1
# * || check_gpu_count 4
 * || check_gpu_count 8
 * || check_gpu_bw 48 335
 * || check_nccl_allreduce 460.0 1 16G $AZ_NHC_ROOT/topofiles/ndv5-topo.xml
 * || check_ib_bw_gdr 380
 /^login/ || check_fs_mount_rw -t "/(none|devpts)/" -f /dev/pts
"""


@walk(GPU_CHECKS, str)
def test_every_check_of_gpus_and_links_is_known(name: str) -> None:
    assert nhc_checks()[name].checks or nhc_checks()[name].words


@walk(tuple(nhc_checks().values()), lambda one: one.name)
def test_every_entry_names_checks_that_exist_at_its_level(one: object) -> None:
    levels = {check.name: check.level.name.lower() for check in BUILTIN}
    order = ["instant", "quick", "standard", "long"]
    entry = nhc_checks()[one.name]
    assert set(entry.checks) <= set(levels)
    if entry.checks:
        assert order.index(entry.level) == max(order.index(levels[name]) for name in entry.checks)


def test_the_commands_are_ones_that_preflight_takes():
    lines = parse_nhc(AZURE, "nhc.conf")
    for command in (gate_command(lines), measuring_command(lines)):
        program, name, *words = shlex.split(command)
        assert (program, name) == ("gpudiag", "preflight")
        with preflight.make_context("preflight", words) as context:
            assert context.params["expect_gpus"] == 8


def test_comments_and_settings_are_no_checks():
    names = [line.name for line in parse_nhc(AZURE, "nhc.conf")]
    assert len(names) == 8
    assert "export" not in names


def test_lines_of_one_check_are_one_row_and_targets_are_kept(tmp_path, capsys):
    path = tmp_path / "nhc.conf"
    path.write_text(AZURE)
    assert main(["deploy", "--nhc", str(path)]) == ExitStatus.PASS
    printed = capsys.readouterr().out
    assert "  check_hw_ib (lines 5 and 6)\n" in printed
    assert "Before each job, on /^login/:" in printed
    assert "--expect-gpus 8" in printed
    assert max(map(len, printed.splitlines()[1:])) <= 100
    stays = printed.partition("Stays with NHC")[2]
    assert "check_ib_bw_gdr 380" in stays
    assert "check_gpu_count" not in stays


@pytest.mark.parametrize("text", ["", "# only a comment\n", "127.0.0.1 localhost\n", "* || export A=1\n"])
def test_a_file_that_is_no_nhc_conf_is_a_usage_error(text, tmp_path, capsys):
    path = tmp_path / "hosts"
    path.write_text(text)
    assert main(["deploy", "--nhc", str(path)]) == ExitStatus.USAGE
    assert "/etc/nhc/nhc.conf" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--nhc", "/nope/nhc.conf"], ["slurm", "--nhc", "x"], ["--nhc", "x", "--output", "y"]]
)
def test_what_cannot_be_done_is_a_usage_error(words):
    assert main(["deploy", *words]) == ExitStatus.USAGE
