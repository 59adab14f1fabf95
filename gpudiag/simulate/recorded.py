"""A recorded machine: what `gpudiag list --json` wrote on a real one, as a Blueprint.

The GPUs' readings are taken over as they are. The machine around them is rebuilt from the facts that
the document has; what was missing there stays missing. A record whose torch was not asked has none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.model.codec import encode
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.documents import loads
from gpudiag.model.host import Machine, PciDevice
from gpudiag.model.host_state import PciPlace
from gpudiag.model.reading import Missing, MissingReason, Reading, value_or
from gpudiag.model.report import Report
from gpudiag.simulate.blueprint import (
    Blueprint,
    GpuBlueprint,
    HostFacts,
    HostProcess,
    Interface,
    KernelLine,
    PciFunction,
    TorchBuild,
    sysfs_address,
)
from gpudiag.simulate.faults.gpu import IDENTITY_CALLS
from gpudiag.simulate.machine_file import DERIVED_READINGS, READINGS
from gpudiag.simulate.scenario import CallFault, SimulatedGpu, SimulatedNvml
from gpudiag.units import KIB

# What NVML answers for a GPU that gives nothing, and that CUDA does not list.
_GPU_IS_LOST = 15
_GONE = {MissingReason.DEVICE_LOST: _GPU_IS_LOST, MissingReason.RESET_REQUIRED: 16}
_UPTIME_SECONDS = 30 * 86400.0  # a record does not have the uptime of the machine
_FIRST_UID = 2000
_BRIDGE_CLASS_ID = "0680"  # an NVSwitch
_INIT_CODES = {
    SourceState.OK: 0,
    SourceState.NO_DEVICES: 0,
    SourceState.DRIVER_NOT_LOADED: 9,
    SourceState.VERSION_MISMATCH: 18,
    SourceState.NO_PERMISSION: 4,
    SourceState.FAILED: 999,
    SourceState.TIMED_OUT: 0,
}
_CGROUPS = {
    "docker": "0::/system.slice/docker-{id}.scope",
    "kubernetes": "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{id}.scope",
    "podman": "0::/machine.slice/libpod-{id}.scope",
    "containerd": "0::/containerd/{id}",
    "lxc": "0::/lxc.payload/{id}",
}
# A fact that a machine does not have, and the file that would hold it.
_FILES_OF_FACTS = {
    "kernel_release": "proc/sys/kernel/osrelease",
    "operating_system": "etc/os-release",
    "boot_id": "proc/sys/kernel/random/boot_id",
    "processor": "proc/cpuinfo",
    "logical_processors": "sys/devices/system/cpu/online",
    "memory_total_bytes": "proc/meminfo",
    "pci_devices": "sys/bus/pci",
    "kernel_modules": "proc/modules",
    "interfaces": "sys/class/net",
}


_HINT = "record one: gpudiag list --sources all --json --output FILE"


def read_recorded(path: Path) -> Blueprint:
    """The machine that the document describes.

    Raises:
        UsageError: the file cannot be read, is not such a document, or NVML was not asked when it was made.
    """
    try:
        noun = loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the recorded machine {path} cannot be read: {getattr(error, 'strerror', None) or error}",
            hint=_HINT,
        ) from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint or _HINT) from error
    snapshot = noun.snapshot if isinstance(noun, Report) else noun
    if not isinstance(snapshot, Snapshot):
        raise UsageError(f"{path} is not a recorded machine", hint=_HINT)
    if snapshot.source("nvml").state is SourceState.NOT_ASKED:
        raise UsageError(f"{path}: NVML was not asked", hint=_HINT)
    return _blueprint(snapshot, str(path))


def _blueprint(snapshot: Snapshot, name: str) -> Blueprint:
    processes = {
        process.pid: process for device in snapshot.devices for process in _processes(device, snapshot)
    }
    recorded = snapshot.taken_at.strftime("%Y-%m-%d %H:%M UTC")
    driver = value_or(snapshot.driver_version, "unknown")
    return Blueprint(
        name=name,
        description=f"recorded on {snapshot.host} at {recorded}, driver {driver}",
        sources=(f"gpudiag list --json on {snapshot.host}, {recorded}",),
        nvml=_nvml(snapshot),
        gpus=_gpus(snapshot),
        host=_host(snapshot.machine),
        torch=_torch(snapshot),
        environment=dict(snapshot.machine.allocation),
        nvidia_smi_present=snapshot.source("gputil").state is not SourceState.LIBRARY_ABSENT,
        kernel_log=tuple(_kernel_lines(snapshot)),
        processes=tuple(processes.values()),
    )


def _nvml(snapshot: Snapshot) -> SimulatedNvml:
    state = snapshot.source("nvml").state
    hangs = state is SourceState.TIMED_OUT and not snapshot.devices
    # A library that did not start gave no version; the kernel driver's is the nearest.
    driver = value_or(snapshot.driver_version, value_or(snapshot.machine.kernel_driver_version, ""))
    return SimulatedNvml(
        present=state is not SourceState.LIBRARY_ABSENT,
        driver_version=driver,
        nvml_version=value_or(snapshot.nvml_version, f"0.{driver}"),
        cuda_driver_version=value_or(snapshot.cuda_driver_version, ""),
        confidential_computing=value_or(snapshot.confidential_computing, None),
        init_code=_INIT_CODES.get(state, 0),
        faults=(CallFault("nvmlInit*", hang=True),) if hangs else (),
    )


def _gpus(snapshot: Snapshot) -> tuple[GpuBlueprint, ...]:
    """The GPUs in NVML's order, then those that only the bus shows."""
    on_bus = {device.bus_id: device for device in _bus(snapshot.machine)}
    order = sorted(snapshot.devices, key=lambda device: value_or(device.id.nvml_index, len(snapshot.devices)))
    gpus = [replace(_gpu(device, on_bus), **_in_cuda(device, snapshot)) for device in order]
    listed = {value_or(device.id.bus_id, "") for device in snapshot.devices}
    hidden = [device for bus_id, device in on_bus.items() if bus_id not in listed and not _is_switch(device)]
    return (*gpus, *map(_hidden_gpu, hidden))


def _gpu(device: Device, on_bus: Mapping[str, PciDevice]) -> GpuBlueprint:
    document = encode(device)
    missing = {
        name: reason for name, reason in document.pop("missing", {}).items() if name not in DERIVED_READINGS
    }
    readings = {name: value for name, value in document.items() if name in READINGS and name not in missing}
    if "processes" in readings:
        readings["processes"] = [_nvml_entry(entry) for entry in readings["processes"]]
    faults: tuple[CallFault, ...] = ()
    if isinstance(device.responding, Missing):
        missing["responding"] = device.responding.reason.value
        faults = (_silence(device.responding),)
    pci = on_bus.get(value_or(device.id.bus_id, ""))
    gpu = SimulatedGpu(
        readings=readings,
        missing=missing,
        faults=faults,
        visible=not isinstance(device.id.nvml_index, Missing),
        pci_device_id=pci.device_id if pci else None,
        pci_subsystem_id=value_or(device.pci_subsystem_id, None),
    )
    return _on_bus(gpu, pci)


def _in_cuda(device: Device, snapshot: Snapshot) -> dict[str, Any]:
    """How CUDA sees the GPU: a lost one is not listed, and on another a context may not start."""
    if isinstance(device.responding, Missing) and device.responding.reason in _GONE:
        return {"cuda_lists_it": False}
    facts = snapshot.torch
    if (
        isinstance(facts, Missing)
        or not isinstance(facts.context_starts, Missing)
        or not facts.cuda_available
    ):
        return {}
    started = [view.uuid for view in snapshot.views if view.source == "torch" and view.context_starts is True]
    hidden = "CUDA_VISIBLE_DEVICES" in snapshot.machine.allocation
    return {} if hidden or device.id.uuid in started else {"context_error": facts.context_starts.detail}


def _silence(responding: Missing) -> CallFault:
    if responding.reason is MissingReason.TIMED_OUT:
        return CallFault("*", hang=True)
    return CallFault("*", except_calls=IDENTITY_CALLS, code=_GONE.get(responding.reason, _GPU_IS_LOST))


def _hidden_gpu(pci: PciDevice) -> GpuBlueprint:
    missing = dict.fromkeys((name for name in READINGS if name != "bus_id"), "not_asked")
    gpu = SimulatedGpu({"bus_id": pci.bus_id}, missing, visible=False, pci_device_id=pci.device_id)
    return _on_bus(gpu, pci)


def _on_bus(gpu: SimulatedGpu, pci: PciDevice | None) -> GpuBlueprint:
    if pci is None:
        return GpuBlueprint(gpu, on_bus=False)
    return GpuBlueprint(
        gpu,
        pci_class_id=pci.class_id,
        kernel_driver=value_or(pci.driver, "") or None,
        link_lost=isinstance(pci.link_width, Missing) and not isinstance(pci.driver, Missing),
    )


def _bus(machine: Machine) -> tuple[PciDevice, ...]:
    return () if isinstance(machine.pci_devices, Missing) else machine.pci_devices


def _is_switch(device: PciDevice) -> bool:
    return device.class_id == _BRIDGE_CLASS_ID


def _nvml_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What NVML itself reported of a process; /proc adds the rest when the machine is rendered."""
    kept = ("pid", "kind", "memory_used_bytes", "gpu_instance_id", "compute_instance_id")
    missing = {
        name: reason for name, reason in entry.get("missing", {}).items() if name == "memory_used_bytes"
    }
    described = {name: entry[name] for name in kept if name in entry}
    return {**described, "missing": missing} if missing else described


def _processes(device: Device, snapshot: Snapshot) -> Iterable[HostProcess]:
    if isinstance(device.processes, Missing):
        return
    for process in device.processes:
        if process.visible:
            started = value_or(process.started_at, snapshot.taken_at)
            user = value_or(process.user, "root")
            yield HostProcess(
                pid=process.pid,
                user=user,
                uid=0 if user == "root" else _FIRST_UID + sum(user.encode()),
                argv=tuple(value_or(process.command, "unknown").split(" ")),
                age_seconds=max(0.0, (snapshot.taken_at - started).total_seconds()),
                container_id=value_or(process.container_id, "") or None,
                slurm_job_id=value_or(process.slurm_job_id, 0) or None,
            )


def _host(machine: Machine) -> HostFacts:
    absent = [path for fact, path in _FILES_OF_FACTS.items() if isinstance(getattr(machine, fact), Missing)]
    container = machine.container
    container_id = value_or(container.container_id, "") if container else ""
    cgroup = (
        _CGROUPS.get(container.runtime, "0::/").format(id=container_id) if container else "0::/init.scope"
    )
    return HostFacts(
        hostname=machine.hostname,
        kernel_release=value_or(machine.kernel_release, ""),
        operating_system=value_or(machine.operating_system, ""),
        processor=value_or(machine.processor, ""),
        processor_architecture=value_or(machine.processor_architecture, "x86_64"),
        logical_processors=value_or(machine.logical_processors, 1),
        memory_total_kib=_kib(machine.memory_total_bytes),
        memory_available_kib=_kib(machine.memory_available_bytes),
        shared_memory_kib=_kib(machine.shared_memory_total_bytes),
        boot_id=value_or(machine.boot_id, ""),
        uptime_seconds=_UPTIME_SECONDS,
        kernel_modules=value_or(machine.kernel_modules, ()),
        kernel_driver_version=value_or(machine.kernel_driver_version, "") or None,
        kernel_driver_flavor=value_or(machine.kernel_driver_flavor, "open"),
        device_nodes=tuple(node.removeprefix("/dev/") for node in value_or(machine.device_nodes, ())),
        pci_functions=(
            *(_function(device) for device in _bus(machine) if _is_switch(device)),
            *(_card(place) for place in _places(machine) if place.kind == "nic"),
        ),
        pci_paths=tuple(map(_path, _places(machine))),
        infiniband_gbit_per_second=_rdma_rates(machine),
        interfaces=tuple(map(_interface, value_or(machine.interfaces, ()))),
        container_runtime=container.runtime if container else None,
        container_id=container_id or None,
        cgroup=cgroup,
        absent_files=tuple(absent),
    )


def _kib(size_bytes: Reading[int]) -> int:
    return value_or(size_bytes, 0) // KIB


def _function(device: PciDevice) -> PciFunction:
    return PciFunction(
        address=sysfs_address(device.bus_id),
        vendor_id=device.vendor_id,
        device_id=device.device_id,
        class_id=device.class_id,
        driver=value_or(device.driver, "") or None,
        numa_node=value_or(device.numa_node, -1),
    )


def _places(machine: Machine) -> tuple[PciPlace, ...]:
    """The places on the PCI bus, which a report has and no listing: RDMA cards first, by name."""
    state = machine.state
    found = () if isinstance(state, Missing) else value_or(state.pci_places, ())
    order = list(_rdma_rates(machine))
    return tuple(
        sorted(
            found,
            key=lambda place: min((order.index(name) for name in place.rdma_devices), default=len(order)),
        )
    )


def _rdma_rates(machine: Machine) -> dict[str, int]:
    """The rate of each RDMA device in Gbit/s, in the order of the ports; one without a rate is left out."""
    state = machine.state
    ports = () if isinstance(state, Missing) else value_or(state.infiniband_ports, ())
    return {
        port.device: int(value_or(port.rate_gbit_per_second, 0))
        for port in ports
        if not isinstance(port.rate_gbit_per_second, Missing)
    }


def _card(place: PciPlace) -> PciFunction:
    """A network card; its maker is not in the record."""
    return PciFunction(
        address=sysfs_address(place.bus_id),
        vendor_id="ffff",
        device_id="ffff",
        class_id="0207" if place.rdma_devices else "0200",
        driver=None,
        numa_node=value_or(place.numa_node, -1),
        link_generation=value_or(place.link_generation, 0) or None,
        link_width=value_or(place.link_width, 0) or None,
    )


def _path(place: PciPlace) -> str:
    return "/".join((place.root, *map(sysfs_address, (*place.bridges, place.bus_id))))


def _interface(interface: Any) -> Interface:
    """The interface as recorded; the record has no prefix lengths, so the usual ones are used.

    What is no address is left out: whoever gives a record away may have replaced it.
    """
    return Interface(
        name=interface.name,
        up=interface.up,
        loopback=interface.loopback,
        mtu=value_or(interface.mtu, 1500),
        speed_mbit_per_second=value_or(interface.speed_mbit_per_second, 0) or None,
        addresses=tuple(
            f"{at}/64" if ":" in at else f"{at}/24" for at in interface.addresses if _is_address(at)
        ),
    )


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _torch(snapshot: Snapshot) -> TorchBuild:
    facts = snapshot.torch
    if isinstance(facts, Missing):
        return TorchBuild(version="", python="", absent=True)
    build = TorchBuild(
        version=facts.version,
        python=facts.python,
        cuda_runtime_version=value_or(facts.cuda_runtime_version, "") or None,
        architectures=value_or(facts.architectures, ()),
        nccl_version=value_or(facts.nccl_version, "") or None,
        nccl_built_version=value_or(facts.nccl_built_version, "") or None,
        nccl_library=value_or(facts.nccl_library, "") or None,
    )
    context = facts.context_starts
    if isinstance(context, Missing) and facts.cuda_available is False:
        return replace(build, cuda_error=context.detail or None)
    return replace(build, hangs=isinstance(context, Missing) and context.reason.value == "timed_out")


def _kernel_lines(snapshot: Snapshot) -> Iterable[KernelLine]:
    """The lines of its events, and once each line about a restart since."""
    lines = {
        (event.text, value_or(event.at, snapshot.taken_at)): None
        for event in value_or(snapshot.kernel_log, ())
    }
    lines |= {
        (event.restarted_by, event.restarted_at or snapshot.taken_at): None
        for event in value_or(snapshot.kernel_log, ())
        if event.restarted_by is not None
    }
    for text, at in lines:
        yield KernelLine(max(0.0, (snapshot.taken_at - at).total_seconds()), text)
