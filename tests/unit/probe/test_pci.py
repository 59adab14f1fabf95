import pytest

from gpudiag.probe.host.pci import (
    parse_generation,
    parse_numa_node,
    parse_width,
    read_pci_devices,
)
from gpudiag.probe.sheet import Absent
from gpudiag.probe.sleeping import bus_id_of_address

H100 = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": "1"}
LINK = {
    "current_link_speed": "2.5 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_width": "16",
}
BRIDGE = {"vendor": "0x8086", "class": "0x060400", "max_link_speed": "16.0 GT/s PCIe", "max_link_width": "8"}


def write(directory, files):
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n")


@pytest.fixture
def bus(tmp_path):
    """A function that puts a device behind a bridge, as sysfs does: a folder, and a link by address."""

    def add(address, files, bridge="0000:17:01.0"):
        behind = tmp_path / "sys/devices/pci0000:17" / bridge
        write(behind, BRIDGE)
        write(behind / address, files)
        by_address = tmp_path / "sys/bus/pci/devices"
        by_address.mkdir(parents=True, exist_ok=True)
        (by_address / address).symlink_to(f"../../../devices/pci0000:17/{bridge}/{address}")
        return behind / address

    add.root = str(tmp_path)
    return add


def test_a_gpu_has_its_link_and_the_limits_of_its_slot(bus):
    (bus("0000:19:00.0", H100 | LINK) / "driver").symlink_to("../../../../bus/pci/drivers/nvidia")
    [gpu] = read_pci_devices(bus.root)
    assert gpu["bus_id"] == "00000000:19:00.0"
    assert (gpu["device_id"], gpu["class_id"], gpu["driver"], gpu["numa_node"]) == (
        "2330",
        "0302",
        "nvidia",
        1,
    )
    assert (gpu["link_generation"], gpu["link_generation_max"], gpu["link_width"]) == (1, 5, 16)
    assert (gpu["slot_generation_max"], gpu["slot_width_max"]) == (4, 8)


def test_only_gpus_and_nvswitches_of_nvidia_are_listed(bus):
    bus("0000:07:00.0", H100 | {"class": "0x068000"})
    bus("0000:19:00.0", H100)
    bus("0000:19:00.1", H100 | {"class": "0x040300"})  # the audio function of the same card
    bus("0000:54:00.0", H100 | {"vendor": "0x15b3", "class": "0x020700"})
    assert [device["class_id"] for device in read_pci_devices(bus.root)] == ["0680", "0302"]


def test_what_a_device_does_not_tell_has_a_reason(bus):
    bus("0000:19:00.0", H100 | LINK | {"current_link_speed": "Unknown", "current_link_width": "63"})
    [gpu] = read_pci_devices(bus.root)
    assert gpu["missing"]["driver"] == "source_absent"
    assert gpu["missing"]["link_generation"] == "error"
    assert gpu["missing"]["link_width"] == "error"


def test_a_device_without_a_link_has_none(bus):
    bus("0000:19:00.0", H100)
    [gpu] = read_pci_devices(bus.root)
    assert gpu["missing"]["link_generation"] == "not_supported"


def test_a_machine_without_a_bus_has_no_list(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_pci_devices(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "generation"),
    [("2.5 GT/s PCIe", 1), ("5.0 GT/s PCIe", 2), ("8 GT/s", 3), ("16.0 GT/s PCIe", 4), ("64.0 GT/s PCIe", 6)],
)
def test_a_speed_is_a_generation(text, generation):
    assert parse_generation(text) == generation


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_generation, ""), (parse_width, "255"), (parse_width, "0"), (parse_numa_node, "-1")],
)
def test_what_is_no_answer_is_absent(parse, text):
    with pytest.raises(Absent):
        parse(text)


def test_numa_node_zero_is_a_node():
    assert parse_numa_node("0") == 0


def test_an_address_becomes_a_bus_id():
    assert bus_id_of_address("000F:01:00.0") == "0000000f:01:00.0"
