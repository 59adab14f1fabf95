"""The files of a simulated machine in the kernel's formats, which probe/host reads, one file per topic.

This one: /proc, /etc, /sys; pci.py: /sys/devices; network.py; processes.py: /proc/PID; driver.py: /dev/kmsg.
"""

from datetime import datetime

from gpudiag.simulate.blueprint import NVIDIA_VENDOR_ID, Blueprint, HostFacts
from gpudiag.simulate.host.driver import device_nodes, render_driver, render_kernel_log
from gpudiag.simulate.host.interfaces import render_network
from gpudiag.simulate.host.pci import cpulist, render_pci
from gpudiag.simulate.host.processes import boot_time, render_open_nodes, render_processes
from gpudiag.simulate.scenario import HostTree
from gpudiag.units import GIB, KIB, TIB

# --- the machine itself

# The users of every simulated machine; a process may add more.
_USERS = {"root": 0, "ann": 1000, "bob": 1001}
# The kernel shows ARM cores by part number only (arch/arm64/include/asm/cputype.h); others than these are
# shown by their name, as the kernels of some boards and hypervisors do.
_ARM_PARTS = {"Cortex-X925": "0xd85", "Neoverse-V2": "0xd4f"}


def render_etc(blueprint: Blueprint) -> dict[str, str]:
    """/etc: the system's name, the host's, and the users."""
    host = blueprint.host
    users = _USERS | {process.user: process.uid for process in blueprint.processes}
    files = {
        "etc/os-release": f'PRETTY_NAME="{host.operating_system}"\n',
        "etc/hostname": f"{host.hostname}\n",
        "etc/hosts": _hosts(host),
        "etc/passwd": "".join(_passwd_line(user, uid) for user, uid in users.items()),
    }
    if host.container_runtime == "docker":
        files[".dockerenv"] = ""
    if host.container_runtime == "podman":
        files["run/.containerenv"] = 'engine="podman-5.4.0"\n'
    return files


def render_proc(host: HostFacts, now: datetime) -> dict[str, str]:
    """/proc without its processes, network and driver."""
    mounts = _mounts(host)
    kernel_thread = {"proc/2/comm": "kthreadd\n"} if host.container_runtime is None else {}
    return {
        "proc/cpuinfo": _cpuinfo(host),
        "proc/meminfo": _meminfo(host),
        "proc/version": (
            f"Linux version {host.kernel_release} (build@host) (gcc 13.3.0) #1 SMP PREEMPT_DYNAMIC\n"
        ),
        "proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{host.kernel_release} root=/dev/sda1 ro iommu=pt\n",
        "proc/uptime": f"{host.uptime_seconds:.2f} {host.uptime_seconds * host.logical_processors:.2f}\n",
        "proc/loadavg": "0.42 0.37 0.31 1/2048 88123\n",
        "proc/stat": f"cpu  1000 0 1000 90000 0 0 0 0 0 0\nbtime {boot_time(host, now)}\n",
        "proc/sys/kernel/ostype": "Linux\n",
        "proc/sys/kernel/osrelease": f"{host.kernel_release}\n",
        "proc/sys/kernel/hostname": f"{host.hostname}\n",
        "proc/sys/kernel/random/boot_id": f"{host.boot_id}\n",
        "proc/mounts": mounts,
        "proc/self/mounts": mounts,
        "proc/self/mountinfo": _mountinfo(host),
        "proc/1/mountinfo": _mountinfo(host),
        **kernel_thread,
        "proc/self/cgroup": f"{host.cgroup}\n",
        "proc/1/cgroup": "0::/init.scope\n" if host.container_runtime is None else "0::/\n",
        "proc/self/status": (
            f"Name:\tpython3\nState:\tR (running)\nCpus_allowed_list:\t0-{host.logical_processors - 1}\n"
        ),
        "proc/self/limits": _LIMITS,
    }


def render_sys(host: HostFacts) -> dict[str, str]:
    """/sys: processors, NUMA nodes, clock source and cgroup limits."""
    processors = f"0-{host.logical_processors - 1}\n"
    files = {
        "sys/devices/system/cpu/online": processors,
        "sys/devices/system/cpu/possible": processors,
        "sys/devices/system/node/online": f"0-{host.sockets - 1}\n" if host.sockets > 1 else "0\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": (
            "tsc\n" if host.processor_architecture == "x86_64" else "arch_sys_counter\n"
        ),
        "sys/devices/system/clocksource/clocksource0/available_clocksource": (
            "tsc hpet acpi_pm\n" if host.processor_architecture == "x86_64" else "arch_sys_counter\n"
        ),
        "sys/devices/system/edac/mc/mc0/ce_count": "0\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
    }
    group = f"sys/fs/cgroup{host.cgroup.removeprefix('0::').rstrip('/')}"
    used = (host.memory_total_kib - host.memory_available_kib) * KIB // 4
    limits = {"cpu.max": "max 100000", "memory.max": "max", "memory.current": used, "pids.max": "max"}
    files |= {f"{group}/{name}": f"{value}\n" for name, value in limits.items()}
    files |= {f"sys/module/{name}/initstate": "live\n" for name in host.kernel_modules}
    for node in range(host.sockets):
        files[f"sys/devices/system/node/node{node}/cpulist"] = f"{cpulist(host, node)}\n"
    files["sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"] = "performance\n"
    return files


def _hosts(host: HostFacts) -> str:
    """The host's name with its first reachable address, as a cluster's installer writes it."""
    addresses = (
        address.split("/")[0]
        for interface in host.interfaces
        if not interface.loopback
        for address in interface.addresses
        if ":" not in address
    )
    return (
        f"127.0.0.1 localhost\n{next(addresses, '127.0.1.1')} {host.hostname}\n::1 localhost ip6-localhost\n"
    )


def _passwd_line(user: str, uid: int) -> str:
    home = "/root" if user == "root" else f"/home/{user}"
    return f"{user}:x:{uid}:{uid}::{home}:/bin/bash\n"


def _cpuinfo(host: HostFacts) -> str:
    share = host.logical_processors // host.sockets
    flags = "fpu tsc msr sse2 avx2 constant_tsc nonstop_tsc" + " hypervisor" * host.virtual_machine
    blocks = []
    for number in range(host.logical_processors):
        if host.processor_architecture == "x86_64":
            vendor = "AuthenticAMD" if "AMD" in host.processor else "GenuineIntel"
            lines = (
                f"processor\t: {number}\nvendor_id\t: {vendor}\nmodel name\t: {host.processor}\n"
                f"physical id\t: {number // share}\nsiblings\t: {share}\nflags\t\t: {flags}\n"
            )
        else:
            part = _ARM_PARTS.get(host.processor)
            named = f"model name\t: {host.processor}" if part is None else f"CPU part\t: {part}"
            lines = f"processor\t: {number}\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n{named}\n"
        blocks.append(lines)
    return "\n".join(blocks) + "\n"


def _meminfo(host: HostFacts) -> str:
    free = host.memory_available_kib * 9 // 10
    values = {
        "MemTotal": host.memory_total_kib,
        "MemFree": free,
        "MemAvailable": host.memory_available_kib,
        "Cached": host.memory_available_kib - free,
        "Shmem": 10240,
        "SwapTotal": 0,
        "SwapFree": 0,
    }
    return "".join(f"{name + ':':<16}{kib:>8} kB\n" for name, kib in values.items())


def _mounts(host: HostFacts) -> str:
    root = (
        "overlay / overlay rw,relatime 0 0" if host.container_runtime else "/dev/sda1 / ext4 rw,relatime 0 0"
    )
    return (
        f"{root}\nproc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n"
        "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\n"
        "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime 0 0\n"
        f"tmpfs /dev/shm tmpfs rw,nosuid,nodev,size={host.shared_memory_kib}k 0 0\n"
    )


def _mountinfo(host: HostFacts) -> str:
    """proc_pid_mountinfo(5); Docker binds three files of /etc from the container's own directory."""
    text = f"31 24 0:26 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size={host.shared_memory_kib}k\n"
    if host.container_runtime != "docker":
        return f"24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n{text}"
    directory = f"/var/lib/docker/containers/{host.container_id}"
    binds = "".join(
        f"{number} 24 8:1 {directory}/{name} /etc/{name} rw,relatime - ext4 /dev/sda1 rw\n"
        for number, name in enumerate(("resolv.conf", "hostname", "hosts"), start=40)
    )
    return f"24 1 0:50 / / rw,relatime - overlay overlay rw\n{text}{binds}"


_LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max processes             unlimited            unlimited            processes \n"
    "Max open files            1048576              1048576              files     \n"
    "Max locked memory         unlimited            unlimited            bytes     \n"
    "Max address space         unlimited            unlimited            bytes     \n"
)


# --- all files

# probe/host/limits.py reads this file on a simulated machine: no kernel file has how full a disk is.
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
        f"{directory}/cmdline": (
            "/usr/bin/nv-fabricmanager\0-c\0/usr/share/nvidia/nvswitch/fabricmanager.cfg\0"
        ),
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
    # proc_pid_ns(5): the kernel's first process namespace has a fixed number, any other its own.
    namespace = 4026531836 if blueprint.host.container_runtime is None else 4026532541
    links = {**pci_links, **render_open_nodes(blueprint), "proc/self/ns/pid": f"pid:[{namespace}]"}
    return HostTree(files=shown, links=links, nodes=device_nodes(blueprint))
