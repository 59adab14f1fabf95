"""The host tree: the kernel's formats, and one fact alike in every file that has it."""

import re

import pytest

from gpudiag.probe.host.machine import parse_meminfo, parse_modules, read_machine
from gpudiag.simulate.host.pci import cpulist, speed_text
from gpudiag.simulate.loader import base_machines, load_scenario
from gpudiag.simulate.machine_file import build_blueprint, read_layers
from gpudiag.simulate.scenario import Scenario
from tests.kernel_lines import parse_kernel_lines
from tests.unit.simulate_scenarios.machines import NOW, kernel_log, machine


@pytest.fixture(params=sorted(base_machines()))
def base(request: pytest.FixtureRequest) -> Scenario:
    return machine(request.param)


def resolved(scenario: Scenario, link: str) -> str:
    """Where a link of the tree points, as a path in the tree."""
    parts = link.split("/")[:-1] + scenario.host.links[link].split("/")
    path: list[str] = []
    for part in parts:
        if part == "..":
            path.pop()
        else:
            path.append(part)
    return "/".join(path)


def test_every_link_on_the_bus_leads_to_a_function(base: Scenario):
    for link in base.host.links:
        if link.startswith("sys/bus/pci/devices/"):
            assert f"{resolved(base, link)}/vendor" in base.host.files


def test_every_bound_driver_is_there(base: Scenario):
    for link in base.host.links:
        if link.endswith("/driver"):
            assert f"{resolved(base, link)}/uevent" in base.host.files


def test_no_file_is_a_folder_of_another(base: Scenario):
    folders = {
        "/".join(path.split("/")[:depth])
        for path in base.host.files
        for depth in range(1, path.count("/") + 1)
    }
    assert not folders & {*base.host.files, *base.host.links}


def test_gpus_are_where_their_readings_place_them():
    scenario = machine("h100x8")
    for gpu in scenario.gpus:
        link = f"sys/bus/pci/devices/{gpu.readings['bus_id'][4:]}"
        folder = resolved(scenario, link)
        files = scenario.host.files
        assert files[f"{folder}/device"] == f"0x{gpu.pci_device_id}\n"
        assert files[f"{folder}/numa_node"] == f"{gpu.readings['numa_node']}\n"
        assert files[f"{folder}/current_link_speed"] == f"{speed_text(gpu.readings['pcie_generation'])}\n"
        slot = folder.rsplit("/", 1)[0]
        assert files[f"{slot}/max_link_width"] == f"{gpu.readings['pcie_width_slot_max']}\n"
        information = files[f"proc/driver/nvidia/gpus/{gpu.readings['bus_id'][4:]}/information"]
        assert gpu.readings["uuid"] in information


def test_a_link_that_trained_badly_shows_in_sysfs_too():
    scenario = machine("h100x8+pcie-width:2+pcie-gen:3")
    files = {
        path: text
        for path, text in scenario.host.files.items()
        if "0000:75:00.0" in path or "0000:86:00.0" in path
    }
    by_end = {"/".join(path.split("/")[-2:]): text for path, text in files.items()}
    assert by_end["0000:75:00.0/current_link_width"] == "8\n"
    assert by_end["0000:86:00.0/current_link_speed"] == "8.0 GT/s PCIe\n"


def test_the_kernel_log_is_in_order_and_names_the_machine(base: Scenario):
    text = base.host.files.get("dev/kmsg")
    if base.name == "h100x8-container2":
        assert text is None, "a container has none"
        return
    records = [re.fullmatch(r"\d,(\d+),(\d+),-;.+", line) for line in text.splitlines()]
    assert all(records)
    assert [int(record[1]) for record in records] == list(range(len(records)))
    moments = [int(record[2]) for record in records]
    assert moments == sorted(moments)


def test_the_probe_reads_the_faults_lines():
    scenario = machine("h100x8+lost:3+ecc:1+recovery:5:gpu_reset+xid:2:74")
    events = list(parse_kernel_lines((NOW, line) for line in kernel_log(scenario)))
    xids = {(event.bus_id, event.xid_code) for event in events if event.xid_code is not None}
    assert xids == {
        *(("00000000:86:00.0", 79), ("00000000:64:00.0", 48), ("00000000:64:00.0", 63)),
        *(("00000000:a8:00.0", 154), ("00000000:75:00.0", 74), ("00000000:86:00.0", 154)),
        *(("00000000:64:00.0", 154), ("00000000:75:00.0", 154)),
    }
    assert {event.recovery_action for event in events} == {None, "gpu_reset", "node_reboot"}


def test_a_healthy_machine_logs_no_event(base: Scenario):
    assert list(parse_kernel_lines((NOW, line) for line in kernel_log(base))) == []


def test_the_boot_is_as_long_ago_as_the_machine_is_up():
    files = machine("h100x8").host.files
    boot = int(re.search(r"btime (\d+)", files["proc/stat"])[1])
    assert boot + float(files["proc/uptime"].split()[0]) == NOW.timestamp()


def test_sizes_and_modules_are_in_the_kernels_form():
    files = machine("gb10").host.files
    assert parse_meminfo(files["proc/meminfo"], "MemTotal") == 127600748 * 1024
    assert "nvidia_uvm" in parse_modules(files["proc/modules"])
    assert "size=63800374k" in files["proc/mounts"]


def test_processors_of_a_numa_node():
    host = build_blueprint(read_layers("h100x8"), "h100x8").host
    assert (cpulist(host, 0), cpulist(host, 1), cpulist(host, -1)) == ("0-111", "112-223", "0-223")


def test_a_processor_that_the_list_of_arm_cores_lacks_has_its_own_name(tmp_path):
    file = tmp_path / "arm.toml"
    file.write_text('base = "gb10"\n[host]\nprocessor = "Ampere-Altra"\n')
    files = load_scenario(str(file)).host.files
    for name in ("proc/cpuinfo", "proc/version"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(files[name])
    facts = read_machine(str(tmp_path))
    assert (facts["processor"], facts["processor_architecture"]) == ("Ampere-Altra", "aarch64")
