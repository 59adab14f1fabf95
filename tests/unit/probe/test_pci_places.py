"""Where functions are on the PCI bus, in folders as the kernel makes them."""

import os

import pytest

from gpudiag.probe.host.pci_places import read_pci_places

GPU = {"vendor": "0x10de", "class": "0x030200"}
SWITCH = {"vendor": "0x10de", "class": "0x068000"}
CARD = {
    "vendor": "0x15b3",
    "class": "0x020700",
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
}
BRIDGE = {"vendor": "0x1000", "class": "0x060400"}
BELOW_SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:0{}.0/{}"


class Tree:
    def __init__(self, root):
        self.root = root

    def add(self, path, files, numa_node="0"):
        """A function at a path below /sys/devices, and the bridges above it."""
        folder = self.root / "sys/devices"
        *above, own = path.split("/")
        for name in above:
            folder = folder / name
            if not name.startswith("pci"):
                self._write(folder, name, BRIDGE)
        self._write(folder / own, own, {"numa_node": numa_node, "local_cpulist": "0-31,64-95", **files})
        return folder / own

    def _write(self, folder, address, files):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")
        link = self.root / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(folder, link.parent))

    def name(self, kind, name, folder):
        """An entry of /sys/class whose device is in a folder; None: it has none."""
        entry = self.root / "sys/class" / kind / name
        entry.mkdir(parents=True)
        if folder is not None:
            (entry / "device").symlink_to(os.path.relpath(folder, entry))

    def read(self):
        return {place["bus_id"]: place for place in read_pci_places(str(self.root))}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_gpu_and_its_card_share_the_bridges_of_their_switch(tree):
    tree.add(BELOW_SWITCH.format(0, "0000:18:00.0"), GPU)
    card = tree.add(BELOW_SWITCH.format(1, "0000:19:00.0"), CARD)
    tree.name("infiniband", "mlx5_0", card)
    tree.name("net", "ib0", card)
    found = tree.read()
    assert set(found) == {"00000000:18:00.0", "00000000:19:00.0"}  # bridges are no places
    gpu, nic = found["00000000:18:00.0"], found["00000000:19:00.0"]
    assert gpu["root"] == nic["root"] == "pci0000:15"
    assert gpu["bridges"] == ["00000000:15:01.0", "00000000:16:00.0", "00000000:17:00.0"]
    assert gpu["bridges"][:2] == nic["bridges"][:2]
    assert (gpu["kind"], nic["kind"], nic["rdma_devices"], nic["interfaces"]) == (
        "gpu",
        "nic",
        ["mlx5_0"],
        ["ib0"],
    )
    assert (nic["link_generation"], nic["link_width"], nic["numa_node"], nic["processors"]) == (
        5,
        16,
        0,
        "0-31,64-95",
    )
    assert gpu["missing"]["link_width"] == "not_supported"  # this folder describes no link


def test_a_guest_without_nodes_or_bridges(tree):
    tree.add("pci0000:00/0000:00:06.0", GPU, numa_node="-1")
    [place] = tree.read().values()
    assert (place["root"], place["bridges"]) == ("pci0000:00", [])
    assert place["missing"]["numa_node"] == "not_supported"


def test_what_hangs_below_a_function_is_of_that_function(tree):
    """virtio's devices, subfunctions of a card; software RDMA (siw, rxe) is of none."""
    card = tree.add("pci0000:00/0000:00:03.0", {"vendor": "0x1af4", "class": "0x020000"})
    below = card / "virtio2"
    below.mkdir()
    tree.name("net", "eth0", below)
    tree.name("net", "lo", None)
    tree.name("infiniband", "siw_eth0", None)
    [place] = tree.read().values()
    assert (place["interfaces"], place["rdma_devices"]) == (["eth0"], [])


def test_virtual_functions_and_switches_are_distinguished(tree):
    tree.add("pci0000:00/0000:00:1b.0/0000:05:00.0", SWITCH)
    whole = tree.add("pci0000:16/0000:16:02.0/0000:17:00.0", CARD)
    virtual = tree.add("pci0000:16/0000:16:02.0/0000:17:00.2", CARD)
    (virtual / "physfn").symlink_to(os.path.relpath(whole, virtual))
    found = tree.read()
    assert found["00000000:05:00.0"]["kind"] == "nvswitch"
    assert [found[f"00000000:17:00.{function}"]["virtual_function"] for function in (0, 2)] == [False, True]


def test_a_sleeping_gpu_is_not_woken(tree):
    gpu = tree.add(
        "pci0000:00/0000:00:01.0/0000:01:00.0", {**GPU, "current_link_speed": "x", "current_link_width": "x"}
    )
    (gpu / "power").mkdir()
    (gpu / "power/runtime_status").write_text("suspended\n")
    [place] = tree.read().values()
    assert place["missing"]["link_width"] == place["missing"]["link_generation"] == "not_asked"


def test_without_a_bus_the_reason_is_raised(tree):
    with pytest.raises(FileNotFoundError):
        tree.read()
