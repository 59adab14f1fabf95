"""What the probes of the host's state read, from files in the kernel's own formats."""

import struct
from pathlib import Path

import pytest

from gpudiag.probe.guard import run_guarded
from gpudiag.probe.host.answer import host_state_of
from gpudiag.probe.host.interfaces import parse_rate, parse_state, read_infiniband_ports
from gpudiag.probe.host.limits import (
    parse_cpu_max,
    parse_maximum,
    read_cgroup,
    read_filesystems,
    read_process_limits,
)
from gpudiag.probe.host.pci import parse_acs_control, parse_error_total, read_redirecting_bridges
from gpudiag.probe.host.state import (
    parse_nccl_file,
    read_fabric_manager,
    read_iommu,
    read_memory_errors,
    read_name_addresses,
    read_processor_layout,
    read_settings,
)
from gpudiag.probe.sheet import NO_PERMISSION, SOURCE_ABSENT, Absent

LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max processes             96365                96365                processes \n"
    "Max open files            1024                 1048576              files     \n"
    "Max locked memory         unlimited            unlimited            bytes     \n"
)


def lay(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_soft_limits_count_and_unlimited_is_none(tmp_path: Path):
    found = read_process_limits(lay(tmp_path, {"proc/self/limits": LIMITS}))
    assert (found["processes"], found["open_files"], found["locked_memory_bytes"]) == (96365, 1024, None)


def test_the_tightest_cgroup_on_the_way_up_counts(tmp_path: Path):
    group = "sys/fs/cgroup/system.slice/job.scope"
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/job.scope\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
            "sys/fs/cgroup/system.slice/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/system.slice/memory.max": "max\n",
            f"{group}/cpu.max": "max 100000\n",
            f"{group}/memory.max": "1073741824\n",
            f"{group}/memory.current": "1048576\n",
            f"{group}/pids.max": "max\n",
        },
    )
    found = read_cgroup(root)
    assert (found["processors_limit"], found["memory_limit_bytes"], found["processes_limit"]) == (
        2.5,
        2**30,
        None,
    )
    assert found["memory_used_bytes"] == 2**20


def test_cgroup_v1_says_no_limit_by_numbers(tmp_path: Path):
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n2:pids:/job\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "4096\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/pids/job/pids.max": "512\n",
        },
    )
    found = read_cgroup(root)
    assert (found["memory_limit_bytes"], found["processors_limit"], found["processes_limit"]) == (
        None,
        4.0,
        512,
    )


def test_a_machine_without_cgroups_says_so(tmp_path: Path):
    with pytest.raises(Absent):
        read_cgroup(lay(tmp_path, {"proc/self/cgroup": "0::/\n"}))


@pytest.mark.parametrize(("text", "limit"), [("max\n", None), ("9223372036854771712", None), ("4096", 4096)])
def test_maxima(text: str, limit: int | None):
    assert parse_maximum(text) == limit


def test_a_quota_is_in_processors():
    assert parse_cpu_max("max 100000") is None
    assert parse_cpu_max("50000 100000") == 0.5


def test_processors_say_whether_a_hypervisor_runs_them(tmp_path: Path):
    files = {
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-3,8\n",
        "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu tsc hypervisor sse2\n",
        "sys/devices/system/node/node1/cpulist": "4-7\n",
        "sys/devices/system/node/node0/cpulist": "0-3\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    }
    found = read_processor_layout(lay(tmp_path, files))
    assert found["virtual_machine"] is True
    assert [node["node"] for node in found["numa_nodes"]] == [0, 1]
    assert (found["governors"], found["allowed"]) == (["performance", "powersave"], "0-3,8")


ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"
X86 = "processor\t: 0\nflags\t\t: fpu tsc sse2\n"


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "product", "expected"),
    [
        (ARM, "Amazon EC2", "g5g.xlarge", True),  # systemd issue 18929
        (ARM, "Amazon EC2", "g5g.metal", False),
        (ARM, "Microsoft Corporation", "Virtual Machine", True),  # systemd pull request 20998
        (ARM, "Alibaba Cloud", "Alibaba Cloud ECS", True),  # systemd pull request 43347
        (ARM, "QEMU", "QEMU Virtual Machine", True),  # systemd issue 18929
        (ARM, "Google", "Google Compute Engine", True),
        (ARM, "NVIDIA", "GB200 NVL", False),
        (ARM, "Microsoft Corporation", "Surface Pro", False),
        (ARM, "Supermicro", "ARS-111GL-NHR", False),
        (X86, "Google", "Google Compute Engine", False),  # a bare-metal instance: systemd pull request 38125
        (X86, "Alibaba Cloud", "Alibaba Cloud ECS", False),
    ],
)
def test_an_arm_machine_is_virtual_by_its_firmwares_tables(
    tmp_path: Path, cpuinfo, vendor, product, expected
):
    files = {
        "proc/self/status": "Cpus_allowed_list:\t0\n",
        "proc/cpuinfo": cpuinfo,
        "sys/class/dmi/id/sys_vendor": f"{vendor}\n",
        "sys/class/dmi/id/product_name": f"{product}\n",
    }
    (tmp_path / "sys/devices/system/cpu/cpu0").mkdir(parents=True)
    assert read_processor_layout(lay(tmp_path, files))["virtual_machine"] is expected


def test_a_virtual_machine_shows_no_governor(tmp_path: Path):
    files = {"proc/self/status": "Cpus_allowed_list:\t0\n", "proc/cpuinfo": "flags\t: fpu\n"}
    (tmp_path / "sys/devices/system/cpu/cpu0").mkdir(parents=True)
    found = read_processor_layout(lay(tmp_path, files))
    assert found["missing"]["governors"] == SOURCE_ABSENT
    assert found["virtual_machine"] is False


def test_rdma_ports_with_the_counters_that_they_have(tmp_path: Path):
    port = "sys/class/infiniband/mlx5_10/ports/1"
    root = lay(
        tmp_path,
        {
            f"{port}/state": "4: ACTIVE\n",
            f"{port}/phys_state": "5: LinkUp\n",
            f"{port}/link_layer": "InfiniBand\n",
            f"{port}/rate": "400 Gb/sec (4X NDR)\n",
            f"{port}/counters/link_downed": "3\n",
            "sys/class/infiniband/mlx5_2/ports/1/state": "1: DOWN\n",
        },
    )
    second, tenth = read_infiniband_ports(root)
    assert (second["device"], second["state"], second["missing"]["rate_gbit_per_second"]) == (
        "mlx5_2",
        "DOWN",
        SOURCE_ABSENT,
    )
    assert (tenth["rate_gbit_per_second"], tenth["counters"]) == (400.0, {"link_downed": 3})


def test_states_and_rates_are_words_and_numbers():
    assert parse_state("3: Disabled") == "Disabled"
    assert parse_rate("2.5 Gb/sec (1X SDR)") == 2.5
    with pytest.raises(Absent):
        parse_state("ACTIVE")
    with pytest.raises(Absent):
        parse_rate("0 Gb/sec")


def configuration_space(control: int, *, at: int = 0x148) -> bytes:
    """4 KiB with an AER capability first and ACS behind it."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, at << 20 | 2 << 16 | 0x0001)
    struct.pack_into("<I", space, at, 1 << 16 | 0x000D)
    struct.pack_into("<H", space, at + 6, control)
    return bytes(space)


def test_acs_is_found_behind_other_capabilities():
    assert parse_acs_control(configuration_space(0x1D)) == 0x1D
    assert parse_acs_control(bytes(256)) == 0
    circle = bytearray(4096)
    struct.pack_into("<I", circle, 0x100, 0x100 << 20 | 0x0001)
    with pytest.raises(Absent):
        parse_acs_control(bytes(circle))


def test_bridges_above_gpus_are_looked_at_and_others_are_not(tmp_path: Path):
    devices = tmp_path / "sys/devices/pci0000:50/0000:50:01.0"
    gpu = devices / "0000:53:00.0"
    lay(gpu, {"vendor": "0x10de\n", "class": "0x030200\n"})
    (devices / "config").write_bytes(configuration_space(0x1D))
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / "0000:53:00.0").symlink_to(gpu)
    assert read_redirecting_bridges(str(tmp_path)) == ["00000000:50:01.0"]
    (devices / "config").write_bytes(configuration_space(0x01))
    assert read_redirecting_bridges(str(tmp_path)) == []
    (devices / "config").write_bytes(bytes(64))  # all that the kernel shows without root
    with pytest.raises(Absent) as absent:
        read_redirecting_bridges(str(tmp_path))
    assert absent.value.reason == NO_PERMISSION


def test_the_fabric_manager_is_found_by_its_name_and_its_log(tmp_path: Path):
    log = "[INFO] fabric manager version is : 575.57.08\n[INFO] Fabric Manager version is : 580.105.08\n"
    root = lay(tmp_path, {"proc/77/comm": "nv-fabricmanage\n", "var/log/fabricmanager.log": log})
    assert read_fabric_manager(root) == {
        "running": True,
        "version": "580.105.08",
        "missing": {},
        "missing_detail": {},
    }
    (tmp_path / "proc/77/comm").write_text("python3\n")
    (tmp_path / "var/log/fabricmanager.log").unlink()
    assert read_fabric_manager(root)["running"] is False
    assert read_fabric_manager(root)["missing"] == {"version": SOURCE_ABSENT}


def test_iommu_kinds_are_those_of_the_gpus(tmp_path: Path):
    root = lay(
        tmp_path,
        {
            "sys/kernel/iommu_groups/1/type": "DMA-FQ\n",
            "sys/kernel/iommu_groups/2/type": "identity\n",
            "sys/kernel/iommu_groups/1/devices/0000:00:1f.0/x": "",
            "sys/kernel/iommu_groups/2/devices/0000:53:00.0/x": "",
            "sys/bus/pci/devices/0000:53:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:53:00.0/class": "0x030200\n",
            "sys/bus/pci/devices/0000:00:1f.0/vendor": "0x8086\n",
        },
    )
    assert read_iommu(root) == {"groups": 2, "kinds": ["identity"]}


def test_memory_errors_are_added_up(tmp_path: Path):
    mc = "sys/devices/system/edac/mc"
    root = lay(
        tmp_path,
        {
            f"{mc}/mc0/ce_count": "3\n",
            f"{mc}/mc0/ue_count": "0\n",
            f"{mc}/mc1/ce_count": "4\n",
            f"{mc}/mc1/ue_count": "1\n",
        },
    )
    assert read_memory_errors(root) == {"corrected": 7, "uncorrected": 1}


def test_the_hosts_own_name_in_its_files(tmp_path: Path):
    root = lay(
        tmp_path,
        {
            "proc/sys/kernel/hostname": "a1\n",
            "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 a1.example a1 # debian\n",
        },
    )
    assert read_name_addresses(root) == ["127.0.1.1"]
    (tmp_path / "etc/hosts").write_text("127.0.0.1 localhost\n")
    with pytest.raises(Absent):
        read_name_addresses(root)


def test_only_variables_of_ours_are_kept_and_secrets_are_not(tmp_path: Path):
    environment = {
        "NCCL_DEBUG": "INFO",
        "NCCL_PSK": "abc",
        "HOME": "/home/ann",
        "AWS_SECRET_KEY": "x",
        "LOCAL_RANK": "3",
    }
    root = lay(
        tmp_path,
        {"etc/nccl.conf": "# site\nNCCL_IB_HCA=mlx5\n", "home/ann/.nccl.conf": "NCCL_NVLS_ENABLE=0\n"},
    )
    found = read_settings(root, environment)
    assert found["environment"] == {"LOCAL_RANK": "3", "NCCL_DEBUG": "INFO", "NCCL_PSK": "(set)"}
    assert found["nccl_files"] == {
        "/home/ann/.nccl.conf": {"NCCL_NVLS_ENABLE": "0"},
        "/etc/nccl.conf": {"NCCL_IB_HCA": "mlx5"},
    }
    assert parse_nccl_file("NCCL_SOCKET_IFNAME==eth0\nnonsense\n") == {"NCCL_SOCKET_IFNAME": "=eth0"}


def test_a_total_of_pcie_errors():
    assert parse_error_total("RxErr 2\nBadTLP 1\nTOTAL_ERR_COR 3\n", "TOTAL_ERR_COR") == 3
    with pytest.raises(Absent):
        parse_error_total("RxErr 2\n", "TOTAL_ERR_COR")


def test_this_machine_is_read_whole_and_in_time():
    child = run_guarded("gpudiag.probe.host.state:stream_host_state", 20.0, "/", {})
    assert child.ending == "finished"
    state = host_state_of(child)
    assert state.process_limits.open_files > 0
    assert {one.path for one in state.filesystems} >= {"/"}
    assert read_filesystems("/", {})[0]["total_bytes"] > 0
    assert host_state_of(None).reason.value == "not_asked"


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("forked")
def test_a_topic_that_hangs_costs_only_itself(monkeypatch: pytest.MonkeyPatch):
    from threading import Event

    from gpudiag.probe.host import state as host_state

    monkeypatch.setattr(host_state, "read_name_addresses", lambda root: Event().wait())
    child = run_guarded("gpudiag.probe.host.state:stream_host_state", 1.0, "/", {})
    state = host_state_of(child)
    assert child.ending == "timed_out"
    assert state.name_addresses.reason.value == "timed_out"
    assert state.process_limits.open_files > 0
