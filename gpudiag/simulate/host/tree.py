"""The files of a simulated machine, rendered from its Blueprint in the kernel's own formats.

One file per topic renders them: machine.py (/proc, /etc, /sys), pci.py (/sys/devices), network.py,
processes.py (/proc/PID), driver.py (/dev/kmsg). They are the files that probe/host reads.
"""

from datetime import datetime

from gpudiag.simulate.blueprint import NVIDIA_VENDOR_ID, Blueprint, HostFacts
from gpudiag.simulate.host.driver import device_nodes, render_driver, render_kernel_log
from gpudiag.simulate.host.machine import render_etc, render_proc, render_sys
from gpudiag.simulate.host.network import render_network
from gpudiag.simulate.host.pci import render_pci
from gpudiag.simulate.host.processes import render_open_nodes, render_processes
from gpudiag.simulate.scenario import HostTree
from gpudiag.units import GIB, KIB, TIB

# probe/host/limits.py reads this file on a simulated machine: no kernel file says how full a disk is.
_FILESYSTEMS = "run/gpudiag/filesystems"
_FABRIC_MANAGER_PID = 2201
_BRIDGE_CLASS = "0680"


def render_services(blueprint: Blueprint) -> dict[str, str]:
    """The files of a host with free disk space, a synchronized clock and a running fabric manager."""
    host = blueprint.host
    files = {_FILESYSTEMS: _filesystems(host)}
    if host.container_runtime is not None:
        return files
    files["run/systemd/timesync/synchronized"] = ""
    switches = [
        function
        for function in host.pci_functions
        if function.vendor_id == NVIDIA_VENDOR_ID and function.class_id == _BRIDGE_CLASS
    ]
    if switches:
        files |= _fabric_manager(blueprint.nvml.driver_version)
    return files


def _filesystems(host: HostFacts) -> str:
    shm = host.shared_memory_kib * KIB
    rows = (
        f"/ {960 * GIB} {700 * GIB} 62000000 60000000 rw",
        f"/home/ann {100 * TIB} {60 * TIB} 0 0 rw",
        f"/dev/shm {shm} {shm} 0 0 rw",  # noqa: S108 - a line about the mount
    )
    return "".join(f"{row}\n" for row in rows)


def _fabric_manager(version: str) -> dict[str, str]:
    directory = f"proc/{_FABRIC_MANAGER_PID}"
    return {
        f"{directory}/comm": "nv-fabricmanage\n",
        f"{directory}/cmdline": "/usr/bin/nv-fabricmanager\0-c\0/usr/share/nvidia/nvswitch/fabricmanager.cfg\0",
        "var/log/fabricmanager.log": f"[INFO] fabric manager version is : {version}\n",
    }


def render_host_tree(blueprint: Blueprint, now: datetime) -> HostTree:
    """The files, links and device names of the machine; times in them are relative to `now`."""
    pci_files, pci_links = render_pci(blueprint)
    files = {
        **render_etc(blueprint),
        **render_proc(blueprint.host, now),
        **render_sys(blueprint.host),
        **render_driver(blueprint),
        **pci_files,
        **render_network(blueprint.host),
        **render_processes(blueprint, now),
        **render_services(blueprint),
        **render_kernel_log(blueprint),
        **blueprint.host.extra_files,
    }
    absent = blueprint.host.absent_files
    shown = {path: text for path, text in files.items() if not path.startswith(absent)}
    links = {**pci_links, **render_open_nodes(blueprint)}
    return HostTree(files=shown, links=links, nodes=device_nodes(blueprint))
