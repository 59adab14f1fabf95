"""The PCI bus as sysfs shows it: each function below its root port, and /sys/bus/pci/devices."""

from collections.abc import Mapping

from gpudiag.simulate.blueprint import NVIDIA_VENDOR_ID, Blueprint, GpuBlueprint, HostFacts, PciFunction

# PCIe generation -> transfer rate, as drivers/pci writes it.
_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
# A configuration space that reads as ones has the width field at its largest value.
_LOST_WIDTH = 63
_INTEL_VENDOR_ID, _ROOT_PORT_ID, _BRIDGE_CLASS_ID, _NETWORK_CLASS = "8086", "352a", "0604", "02"

Tree = tuple[dict[str, str], dict[str, str]]


def render_pci(blueprint: Blueprint) -> Tree:
    """The files and links of every function: GPUs, their slots' root ports, and what else there is."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    parents: dict[str, str] = {}
    host = blueprint.host
    listed = {path.rpartition("/")[2]: f"sys/devices/{path.rpartition('/')[0]}" for path in host.pci_paths}
    on_bus = [gpu for gpu in blueprint.gpus if gpu.on_bus]
    for position, gpu in enumerate(on_bus):
        parent = listed.get(gpu.sysfs_address)
        if parent is None:
            parent = _add_root_port(files, links, gpu, position, host)
        else:
            _add_bridges(files, links, parent, gpu.kernel_view.get("numa_node", -1), gpu)
        parents[_bus(gpu.sysfs_address)] = parent
        _add_gpu(files, links, gpu, parent, host)
    for function in host.pci_functions:
        parent = listed.get(function.address) or parents.get(_bus(function.address))
        if parent is None:
            parent = f"sys/devices/pci{_bus(function.address)}"
        _add_bridges(files, links, parent, function.numa_node)
        path = _add_function(files, links, function, parent)
        files[f"{path}/local_cpulist"] = f"{cpulist(host, function.numa_node)}\n"
        if function.link_generation is not None and function.link_width is not None:
            link = (function.link_generation, function.link_width)
            _add_link(files, path, link, link)
    _add_rdma_devices(links, host)
    return files, links


def _add_rdma_devices(links: dict[str, str], host: HostFacts) -> None:
    """Add which network card each RDMA device belongs to: cards in the order of the devices."""
    cards = (one.address for one in host.pci_functions if one.class_id.startswith(_NETWORK_CLASS))
    for device, address in zip(host.infiniband_gbit_per_second, cards, strict=False):
        folder = links[f"sys/bus/pci/devices/{address}"].removeprefix("../../../")
        links[f"sys/class/infiniband/{device}/device"] = f"../../../{folder}"


def _add_bridges(
    files: dict[str, str], links: dict[str, str], parent: str, numa_node: int, gpu: GpuBlueprint | None = None
) -> None:
    """Add the missing bridges of a folder's path; the last one is the GPU's slot, if given."""
    folders = parent.split("/")
    for depth in range(3, len(folders)):  # behind sys, devices and the root
        above = "/".join(folders[:depth])
        if f"{above}/{folders[depth]}/vendor" not in files:
            bridge = PciFunction(
                folders[depth], _INTEL_VENDOR_ID, _ROOT_PORT_ID, _BRIDGE_CLASS_ID, "pcieport", numa_node
            )
            _add_function(files, links, bridge, above)
    slot = None if gpu is None else _slot_link(gpu)
    if slot is not None:
        _add_link(files, parent, *slot)


def _slot_link(gpu: GpuBlueprint) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The link of the GPU's slot, now and at most; None where the machine shows no slot."""
    readings = gpu.kernel_view
    maximum = _pair(readings, "pcie_generation_slot_max", "pcie_width_slot_max")
    return maximum and ((readings.get("pcie_generation", 1), readings.get("pcie_width", 1)), maximum)


def speed_text(generation: int) -> str:
    """A link speed as sysfs writes it: `32.0 GT/s PCIe` for generation 5."""
    return f"{_SPEEDS[generation]} GT/s PCIe"


def _add_root_port(
    files: dict[str, str], links: dict[str, str], gpu: GpuBlueprint, position: int, host: HostFacts
) -> str:
    """The GPU's parent directory: its slot's root port, or the root of a bus without slots.

    With several sockets each GPU has a host bridge, whose bus is numbered before the GPU's.
    """
    domain, bus, _ = gpu.sysfs_address.split(":")
    bus, port = (f"{int(bus, 16) - 1:02x}", 1) if host.sockets > 1 and bus != "00" else ("00", position + 1)
    root = f"sys/devices/pci{domain}:{bus}"
    slot = _slot_link(gpu)
    if slot is None:
        return f"sys/devices/pci{_bus(gpu.sysfs_address)}"
    bridge = PciFunction(
        address=f"{domain}:{bus}:{port:02x}.0",
        vendor_id=_INTEL_VENDOR_ID,
        device_id=_ROOT_PORT_ID,
        class_id=_BRIDGE_CLASS_ID,
        driver="pcieport",
        numa_node=gpu.kernel_view.get("numa_node", -1),
    )
    path = _add_function(files, links, bridge, root)
    _add_link(files, path, *slot)
    return path


def cpulist(host: HostFacts, node: int) -> str:
    """The processors of a NUMA node as a kernel list, `56-111`; all processors for node -1."""
    if node < 0:
        return f"0-{host.logical_processors - 1}"
    share = host.logical_processors // host.sockets
    return f"{node * share}-{(node + 1) * share - 1}"


def _add_gpu(
    files: dict[str, str], links: dict[str, str], gpu: GpuBlueprint, parent: str, host: HostFacts
) -> None:
    readings = gpu.kernel_view
    function = PciFunction(
        address=gpu.sysfs_address,
        vendor_id=NVIDIA_VENDOR_ID,
        device_id=gpu.gpu.pci_device_id or "ffff",
        class_id=gpu.pci_class_id,
        driver=gpu.kernel_driver,
        numa_node=readings.get("numa_node", -1),
    )
    path = _add_function(files, links, function, parent)
    if gpu.asleep:
        files[f"{path}/power/runtime_status"] = "suspended\n"
    files[f"{path}/local_cpulist"] = f"{cpulist(host, readings.get('numa_node', -1))}\n"
    subsystem = gpu.gpu.pci_subsystem_id or "00000000"
    files[f"{path}/subsystem_device"] = f"0x{subsystem[:4]}\n"
    files[f"{path}/subsystem_vendor"] = f"0x{subsystem[4:]}\n"
    if gpu.link_lost:
        files |= {f"{path}/{which}_link_speed": "Unknown\n" for which in ("current", "max")}
        files |= {f"{path}/{which}_link_width": f"{_LOST_WIDTH}\n" for which in ("current", "max")}
        return
    if "pcie_width_slot_max" in readings:  # a virtual machine that shows no slot shows neither of these
        _add_error_counts(files, path, readings.get("pcie_errors") or {})
        _add_iommu_group(files, links, gpu, path)
    current = _pair(readings, "pcie_generation", "pcie_width")
    maximum = _pair(readings, "pcie_generation_gpu_max", "pcie_width_gpu_max")
    if current and maximum:
        _add_link(files, path, current, maximum)


def _add_error_counts(files: dict[str, str], path: str, counts: Mapping[str, int]) -> None:
    """Add the kernel's counts of PCIe errors; all errors of a kind are counted under one cause."""
    for file, cause, total, name in (
        ("aer_dev_correctable", "RxErr", "TOTAL_ERR_COR", "correctable"),
        ("aer_dev_nonfatal", "CmpltTO", "TOTAL_ERR_NONFATAL", "nonfatal"),
        ("aer_dev_fatal", "DLP", "TOTAL_ERR_FATAL", "fatal"),
    ):
        count = counts.get(name, 0)
        files[f"{path}/{file}"] = f"{cause} {count}\n{total} {count}\n"


def _add_iommu_group(files: dict[str, str], links: dict[str, str], gpu: GpuBlueprint, path: str) -> None:
    """Add an IOMMU group for the GPU alone, in passthrough mode (`iommu=pt` on the kernel command line)."""
    group = f"sys/kernel/iommu_groups/{int(gpu.sysfs_address.split(':')[1], 16)}"
    files[f"{group}/type"] = "identity\n"
    links[f"{group}/devices/{gpu.sysfs_address}"] = "../../../../../" + path


def _pair(readings: Mapping[str, int], generation: str, width: str) -> tuple[int, int] | None:
    return (readings[generation], readings[width]) if generation in readings and width in readings else None


def _add_link(files: dict[str, str], path: str, current: tuple[int, int], maximum: tuple[int, int]) -> None:
    for which, (generation, width) in (("current", current), ("max", maximum)):
        files[f"{path}/{which}_link_speed"] = f"{speed_text(generation)}\n"
        files[f"{path}/{which}_link_width"] = f"{width}\n"


def _add_function(files: dict[str, str], links: dict[str, str], function: PciFunction, parent: str) -> str:
    path = f"{parent}/{function.address}"
    files[f"{path}/vendor"] = f"0x{function.vendor_id}\n"
    files[f"{path}/device"] = f"0x{function.device_id}\n"
    files[f"{path}/class"] = f"0x{function.class_id}00\n"
    files[f"{path}/numa_node"] = f"{function.numa_node}\n"
    files[f"{path}/power/runtime_status"] = "active\n"
    links[f"sys/bus/pci/devices/{function.address}"] = "../../../" + path.removeprefix("sys/")
    if function.driver is not None:
        depth = path.count("/")
        links[f"{path}/driver"] = "../" * depth + f"bus/pci/drivers/{function.driver}"
        files[f"sys/bus/pci/drivers/{function.driver}/uevent"] = ""
        links[f"sys/bus/pci/drivers/{function.driver}/{function.address}"] = (
            "../../../../" + path.removeprefix("sys/")
        )
    return path


def _bus(address: str) -> str:
    """`0000:53` of `0000:53:00.0`."""
    return address.rsplit(":", 1)[0]
