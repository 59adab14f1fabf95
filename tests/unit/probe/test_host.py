import json
import os

import pytest

from gpudiag.model.host import Machine
from gpudiag.probe.host.machine import (
    count_in_list,
    parse_meminfo,
    parse_modules,
    parse_os_release,
    read_machine,
)
from gpudiag.probe.host.pci import parse_kernel_driver, parse_uuid
from gpudiag.probe.sheet import Absent

OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build  (dvs-builder@x)\n"
    "GCC version:  gcc version 12.3.0\n"
)
CLOSED_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n"


@pytest.fixture
def root(tmp_path):
    def write(name, text=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("proc/sys/kernel/hostname", "a1\n")
    write("proc/meminfo", "MemTotal:       2113409024 kB\nMemFree: 1 kB\nMemAvailable:   2000000000 kB\n")
    write("proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n")
    write("proc/driver/nvidia/version", OPEN_DRIVER)
    write("proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\next4 3 1 - Live 0x0\n")
    write("sys/devices/system/cpu/online", "0-223\n")
    write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-55,112-167\n")
    for node in (
        "nvidia10",
        "nvidia2",
        "nvidiactl",
        "nvidia-uvm",
        "null",
        "nvidia-caps-imex-channels",
        "dxg",
    ):
        write(f"dev/{node}")
    return tmp_path


def test_every_fact_of_a_machine_is_a_value_or_a_reason(root):
    facts = read_machine(str(root))
    read = (set(facts) | set(facts["missing"])) - {"missing", "missing_detail"}
    assert read >= {name for name in Machine.__dataclass_fields__ if name not in ("allocation", "state")}
    json.dumps(facts)  # plain data


def test_facts_are_read_under_the_root(root):
    facts = read_machine(str(root))
    assert facts["hostname"] == "a1"
    assert facts["memory_total_bytes"] == 2113409024 * 1024
    assert facts["shared_memory_total_bytes"] == 64 * 1024**2
    assert (facts["kernel_driver_version"], facts["kernel_driver_flavor"]) == ("580.105.08", "open")
    assert facts["kernel_modules"] == ["nvidia_uvm", "nvidia"]
    assert (facts["logical_processors"], facts["logical_processors_allowed"]) == (224, 112)


def test_device_nodes_are_those_of_gpus_in_the_order_of_their_numbers(root):
    nodes = read_machine(str(root))["device_nodes"]
    assert nodes == ["/dev/dxg", "/dev/nvidia2", "/dev/nvidia10", "/dev/nvidia-uvm", "/dev/nvidiactl"]


def test_an_empty_machine_has_a_reason_for_everything(tmp_path):
    facts = read_machine(str(tmp_path))
    assert facts["missing"]["pci_devices"] == "source_absent"
    assert facts["missing"]["kernel_driver_version"] == "source_absent"
    assert facts["container"] is None


def test_this_machine_has_its_own_facts():
    facts = read_machine()
    assert facts["hostname"] == os.uname().nodename
    assert facts["processor_architecture"] == os.uname().machine
    assert facts["logical_processors_allowed"] == len(os.sched_getaffinity(0))
    assert 0 < facts["memory_available_bytes"] <= facts["memory_total_bytes"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(OPEN_DRIVER, ("580.105.08", "open")), (CLOSED_DRIVER, ("470.256.02", "proprietary"))],
)
def test_the_kernel_driver_names_its_version_and_flavor(text, expected):
    assert parse_kernel_driver(text) == expected


def test_a_driver_file_without_a_version_has_none():
    with pytest.raises(Absent):
        parse_kernel_driver("NVRM version: \n")


@pytest.mark.parametrize(
    ("text", "uuid"),
    [
        (
            "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-62f746b4-84e6-1ceb-95bd-447e7184d454\n"
            "Bus Type: PCIe\n",
            "GPU-62f746b4-84e6-1ceb-95bd-447e7184d454",
        ),
        ("Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\n", None),
    ],
)
def test_the_driver_shows_a_uuid_once_the_gpu_is_up(text, uuid):
    assert parse_uuid(text) == uuid


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("0-3", 4), ("0-3,8,10-11\n", 7), ("", 0)])
def test_a_kernel_list_is_counted(text, count):
    assert count_in_list(text) == count


def test_memory_is_in_bytes_and_modules_are_those_of_gpus():
    assert parse_meminfo("MemTotal:  16 kB\n", "MemTotal") == 16 * 1024
    assert parse_modules("nouveau 1 0\nnvidia_drm 1 0\nnvme 1 0\nnvidiafb 1 0\n") == ["nouveau", "nvidia_drm"]
    assert parse_os_release('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n') == "Ubuntu 24.04.3 LTS"
