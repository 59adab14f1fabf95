"""What a host's services leave in its files: room on its disks, a set clock, the fabric manager."""

from gpudiag.simulate.blueprint import NVIDIA_VENDOR_ID, Blueprint, HostFacts
from gpudiag.units import GIB, KIB, TIB

# probe/filesystems.py reads this file on a simulated machine: no kernel file says how full a disk is.
_FILESYSTEMS = "run/gpudiag/filesystems"
_FABRIC_MANAGER_PID = 2201
_BRIDGE_CLASS = "0680"


def render_services(blueprint: Blueprint) -> dict[str, str]:
    """The files of a host whose disks have room, whose clock is set, and whose NVSwitches are managed."""
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
