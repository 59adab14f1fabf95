"""The files of a simulated machine, rendered from its Blueprint in the kernel's own formats.

One file per topic does the rendering: host_proc (/proc and /etc), host_pci (/sys/devices), host_network,
host_processes (/proc/PID), kernel_log (/dev/kmsg). What probe/host.py and its neighbours read is here.
"""

from datetime import datetime

from gpudiag.simulate.blueprint import Blueprint
from gpudiag.simulate.host_driver import device_nodes, render_driver
from gpudiag.simulate.host_network import render_network
from gpudiag.simulate.host_pci import render_pci
from gpudiag.simulate.host_proc import render_etc, render_proc, render_sys
from gpudiag.simulate.host_processes import render_open_nodes, render_processes
from gpudiag.simulate.host_services import render_services
from gpudiag.simulate.kernel_log import render_kernel_log
from gpudiag.simulate.scenario import HostTree


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
