"""Faults of the whole machine: driver, library, permissions, torch, environment, processes on GPUs."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from gpudiag.reference.declaration import ByHand, Call, Declared, Field
from gpudiag.reference.readings import READINGS
from gpudiag.simulate.blueprint import (
    Blueprint,
    GpuBlueprint,
    HostProcess,
    KernelLine,
    TorchBuild,
)
from gpudiag.simulate.faults.fault import Fault, has, only_known
from gpudiag.simulate.scenario import CallFault
from gpudiag.toml import tomllib
from gpudiag.units import GIB, MIB

# --- processes on a GPU

_HOUR = 3600.0
_FIRST_PID = {"busy": 41200, "idle-holder": 41300, "zombie": 41400}
_LAUNCHER_PID = 41100
_RESIDENT_BYTES = 9 * GIB
_BUSY_DEGREES = 30
_WAITING_DEGREES = 8  # warmer than idle, where a kernel only waits
_TEMPERATURES = ("temperature_celsius", "memory_temperature_celsius")
_WITHOUT_LIMIT_FACTOR = 8  # power under load where the GPU has no limit


def train(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Someone trains on the GPU: 98 % utilisation, most of its memory, near its power limit."""
    script = ("train.py", "--config", "llama-7b.yaml")
    job = int(blueprint.environment.get("SLURM_JOB_ID", 0)) or None
    launcher = HostProcess(
        pid=_LAUNCHER_PID,
        user="ann",
        uid=1000,
        argv=("torchrun", "--nproc-per-node=gpu", *script),
        age_seconds=6 * _HOUR,
        slurm_job_id=job,
    )
    process = HostProcess(
        pid=_pid(fault),
        user="ann",
        uid=1000,
        argv=("python", *script),
        age_seconds=6 * _HOUR,
        state="R",
        open_nodes=_nodes(blueprint, fault),
        slurm_job_id=job,
        parent_pid=launcher.pid,
        resident_bytes=_RESIDENT_BYTES,
    )
    if launcher not in blueprint.processes:
        blueprint = _with_process(blueprint, launcher)
    blueprint = _with_process(blueprint, process)
    return blueprint.change_gpu(fault.on, lambda gpu: _loaded(_holding(gpu, process.pid, 0.8, at_work=True)))


def hold(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """A notebook holds half of the GPU's memory and has done nothing for nine hours."""
    process = HostProcess(
        pid=_pid(fault),
        user="bob",
        uid=1001,
        argv=("python", "-m", "ipykernel_launcher", "-f", "/home/bob/kernel.json"),
        age_seconds=9 * _HOUR,
        open_nodes=_nodes(blueprint, fault),
    )
    return _with_process(blueprint, process).change_gpu(fault.on, lambda gpu: _holding(gpu, process.pid, 0.5))


def leave_zombie(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """A process is dead but not reaped, and its GPU memory is not freed."""
    process = HostProcess(
        pid=_pid(fault), user="ann", uid=1000, argv=("python",), age_seconds=2 * _HOUR, state="Z"
    )
    return _with_process(blueprint, process).change_gpu(fault.on, lambda gpu: _holding(gpu, process.pid, 0.1))


# A job of four ranks under torchrun, of which rank 2 waits for a data loader's worker that never answers, as
# it was recorded with gloo on processors (tests/corpus/hang); its processes and script have the names of
# `train`.
_HUNG_JOB = "loader_deadlock.json.gz"
_HUNG_RANKS, _ABSENT_RANK = 4, 2
# Of a GPU's power limit: 124 W of 700 W on an H100 whose rank waits in an NCCL kernel, 68 W on one without a
# kernel.
_WAITING_POWER_SHARE, _IDLE_POWER_SHARE = 0.18, 0.1
# A kernel that only polls for the other ranks keeps the GPU "busy", and hardly any multiprocessor.
_WAITING_ACTIVITY = {"graphics_activity_percent": 100.0, "sm_activity_percent": 0.8}


def hang_job(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The job on GPUs 0 to 3 stands still: three ranks wait in a collective that rank 2 does not come to."""
    pids = {_FIRST_PID["busy"] + rank for rank in range(_HUNG_RANKS)}
    if not pids <= {process.pid for process in blueprint.processes}:
        raise fault.refuse(
            "no job of four ranks is on the machine",
            "+".join([*(f"busy:{rank}" for rank in range(_HUNG_RANKS)), fault.text]),
        )
    job = json.loads(
        gzip.decompress(files("gpudiag.simulate").joinpath("jobs").joinpath(_HUNG_JOB).read_bytes())
    )
    blueprint = replace(blueprint, jobs=({**job, "host": blueprint.host.hostname},))
    for rank in range(_HUNG_RANKS):
        blueprint = blueprint.change_gpu(rank, _without_work if rank == _ABSENT_RANK else _waiting)
    return blueprint


def _waiting(gpu: GpuBlueprint) -> GpuBlueprint:
    """The GPU while a kernel of a collective polls for the other ranks: busy by its utilization, and cool."""
    gpu = _without_work(gpu, _WAITING_POWER_SHARE)
    return only_known(gpu, utilization_percent=100, memory_utilization_percent=1, **_WAITING_ACTIVITY)


def _without_work(gpu: GpuBlueprint, power_share: float = _IDLE_POWER_SHARE) -> GpuBlueprint:
    """The GPU while a process holds it, and none of its kernels computes."""
    readings = gpu.gpu.readings
    return only_known(
        gpu,
        utilization_percent=0,
        memory_utilization_percent=0,
        power_draw_watts=round(readings.get("power_limit_enforced_watts", 0.0) * power_share, 2),
        **_cooler(readings),
        **dict.fromkeys(_ACTIVITY, 0.0),
    )


def _cooler(readings: Mapping[str, Any]) -> dict[str, int]:
    """The temperatures of a GPU that was at work, and no longer computes."""
    down = _BUSY_DEGREES - _WAITING_DEGREES
    cooler = {name: readings[name] - down for name in _TEMPERATURES if name in readings}
    if "temperature_margin_celsius" in readings:
        cooler["temperature_margin_celsius"] = readings["temperature_margin_celsius"] + down
    return cooler


def _pid(fault: Fault) -> int:
    return _FIRST_PID[fault.kind.name] + fault.on


def _nodes(blueprint: Blueprint, fault: Fault) -> tuple[str, ...]:
    minor = blueprint.listed()[fault.on].gpu.minor_number
    return () if minor is None else (f"nvidia{minor}", "nvidiactl", "nvidia-uvm")


def _with_process(blueprint: Blueprint, process: HostProcess) -> Blueprint:
    """The machine with the process in /proc; unchanged in a container, whose /proc lacks the host's pids."""
    if blueprint.host.container_runtime is not None:
        return blueprint
    return replace(blueprint, processes=(*blueprint.processes, process))


def _holding(gpu: GpuBlueprint, pid: int, share: float, *, at_work: bool = False) -> GpuBlueprint:
    """The GPU with a process on it that holds `share` of its free memory, and works if it is `at_work`."""
    readings = gpu.gpu.readings
    entry: dict[str, Any] = {"pid": pid, "kind": "compute"}
    instances = readings.get("mig_instances") or []
    pool = instances[0] if instances else readings
    held = int(pool.get("memory_free_bytes", 16 * GIB) * share) // MIB * MIB
    entry["memory_used_bytes"] = held
    if instances:
        first = instances[0]
        entry |= {name: first[name] for name in ("gpu_instance_id", "compute_instance_id")}
        busy = {name: _ACTIVITY[name] for name in first if name in _ACTIVITY} if at_work else {}
        gpu = gpu.with_readings(mig_instances=[{**_filled(first, held), **busy}, *instances[1:]])
    if not has(gpu, "processes"):
        return gpu
    entries = sorted([*readings["processes"], entry], key=lambda known: known["pid"])
    return only_known(gpu, processes=entries, **_moved(readings, held))


def _filled(instance: dict[str, Any], held: int) -> dict[str, Any]:
    return {**instance, **_moved(instance, held)}


def _moved(memory: Any, held: int) -> dict[str, int]:
    """Used and free memory once `held` bytes have moved from free to used."""
    if "memory_free_bytes" not in memory:
        return {}
    return {
        "memory_used_bytes": memory["memory_used_bytes"] + held,
        "memory_free_bytes": memory["memory_free_bytes"] - held,
    }


def _loaded(gpu: GpuBlueprint) -> GpuBlueprint:
    """The GPU at work: clocks at their maximum, warm, near its power limit, its PCIe link trained up."""
    readings = gpu.gpu.readings
    maxima = {name: readings.get(name.replace("_mhz", "_max_mhz")) for name in _CLOCKS}
    limit = readings.get("power_limit_enforced_watts")
    draw = readings.get("power_draw_watts", 0.0) * _WITHOUT_LIMIT_FACTOR if limit is None else limit * 0.93
    generations = [readings[name] for name in _GENERATION_LIMITS if name in readings]
    return only_known(
        gpu,
        utilization_percent=98,
        memory_utilization_percent=61,
        temperature_celsius=readings.get("temperature_celsius", 0) + _BUSY_DEGREES,
        temperature_margin_celsius=readings.get("temperature_margin_celsius", 0) - _BUSY_DEGREES,
        memory_temperature_celsius=readings.get("memory_temperature_celsius", 0) + _BUSY_DEGREES,
        power_draw_watts=round(draw, 2),
        pstate=0,
        clocks_event_reasons=[],
        **{name: maximum for name, maximum in maxima.items() if maximum is not None},
        **({"pcie_generation": min(generations)} if generations else {}),
        **_ACTIVITY,
    )


# A step of a large model in bf16: tensor cores busy half of the time, gradients over NVLink.
_ACTIVITY = {
    "graphics_activity_percent": 97.412,
    "sm_activity_percent": 91.687,
    "sm_occupancy_percent": 24.371,
    "tensor_activity_percent": 52.845,
    "dram_activity_percent": 41.206,
    "fp64_activity_percent": 0.0,
    "fp32_activity_percent": 9.318,
    "fp16_activity_percent": 4.027,
    "pcie_transmitted_bytes_per_second": 1_254_096_896.0,
    "pcie_received_bytes_per_second": 2_871_001_088.0,
    "nvlink_transmitted_bytes_per_second": 118_380_036_096.0,
    "nvlink_received_bytes_per_second": 118_204_923_904.0,
}
_CLOCKS = ("graphics_clock_mhz", "sm_clock_mhz", "memory_clock_mhz")
_GENERATION_LIMITS = ("pcie_generation_gpu_max", "pcie_generation_slot_max")


# --- the machine

_SECONDS_AGO = 1800.0
_FABRIC_MANAGER = "nv-fabricmanager"
_AT_BOOT = float("inf")  # the kernel log puts it where the driver is loaded
_NO_PERMISSION, _DRIVER_NOT_LOADED, _VERSION_MISMATCH = 4, 9, 18  # nvmlReturn_t

# c10/cuda/CUDAFunctions.cpp and cudaGetErrorString, torch 2.13.
_NO_DRIVER_TEXT = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
)
_UNEXPECTED = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error {number}: {words}"
)
_CUDA_ERRORS = {
    304: "OS call failed or operation not supported on this OS",
    802: "system not yet initialized",
    803: "system has unsupported display driver / cuda driver combination",
}
_UNKNOWN_ERROR = (
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable "
    "CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
)


def unload_driver(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The kernel driver is not loaded; the GPUs are on the bus with no driver bound."""
    return _cuda_fails(_without_kernel_driver(blueprint, None, fault), _NO_DRIVER_TEXT)


def load_nouveau(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The nouveau driver took the GPUs before the NVIDIA driver could."""
    if not blueprint.host.kernel_modules:
        raise fault.refuse("this machine loads no kernel modules for its GPUs")
    blueprint = _without_kernel_driver(blueprint, "nouveau", fault)
    host = replace(blueprint.host, kernel_modules=(*blueprint.host.kernel_modules, "nouveau"))
    lines = [
        KernelLine(_AT_BOOT, f"nouveau {gpu.sysfs_address}: unknown chipset (00000000)", 3)
        for gpu in blueprint.gpus
        if gpu.on_bus
    ]
    return _cuda_fails(replace(blueprint, host=host).log(*lines), _NO_DRIVER_TEXT)


def remove_library(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The driver's libraries and nvidia-smi are not installed; the kernel driver is loaded."""
    _need_driver(blueprint, fault)
    blueprint = replace(blueprint, nvml=replace(blueprint.nvml, present=False), nvidia_smi_present=False)
    return _cuda_fails(blueprint, _NO_DRIVER_TEXT)


def mismatch_versions(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The libraries were upgraded and the older kernel driver is still loaded."""
    _need_driver(blueprint, fault)
    if blueprint.host.kernel_driver_version is None:
        raise fault.refuse("this machine has no kernel driver of its own")
    library = blueprint.nvml.driver_version
    kernel = "575.57.08" if int(library.split(".")[0]) >= 580 else "550.163.01"
    blueprint = replace(
        blueprint,
        nvml=replace(blueprint.nvml, init_code=_VERSION_MISMATCH),
        host=replace(blueprint.host, kernel_driver_version=kernel),
    )
    blueprint = blueprint.log(
        KernelLine(_SECONDS_AGO, f"NVRM: API mismatch: the client has the version {library}, but", 3),
        KernelLine(_SECONDS_AGO, f"NVRM: this kernel module has the version {kernel}.  Please", 3),
        KernelLine(_SECONDS_AGO, "NVRM: make sure that this kernel module and all NVIDIA driver", 3),
        KernelLine(_SECONDS_AGO, "NVRM: components have the same version.", 3),
    )
    return _cuda_fails(blueprint, _unexpected(803))


def deny_permission(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """This user may not open the driver's device nodes."""
    _need_driver(blueprint, fault)
    blueprint = replace(blueprint, nvml=replace(blueprint.nvml, init_code=_NO_PERMISSION))
    return _cuda_fails(blueprint, _unexpected(304))


def start_no_gpu(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The driver is loaded and could not start any GPU: NVML counts 0, the PCI bus shows them."""
    _need_driver(blueprint, fault)
    lines = [
        KernelLine(_SECONDS_AGO, f"NVRM: GPU {gpu.sysfs_address}: RmInitAdapter failed! (0x24:0x72:1568)", 3)
        for gpu in blueprint.listed()
        if gpu.on_bus
    ]

    def stop(gpu: GpuBlueprint) -> GpuBlueprint:
        if not gpu.gpu.visible:
            return gpu
        return replace(gpu, gpu=replace(gpu.gpu, visible=False), initialized=False)

    return blueprint.change_gpus(stop).log(*lines)


def hang_init(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The first call, nvmlInit, never returns, nor does CUDA."""
    _need_driver(blueprint, fault)
    faults = (*blueprint.nvml.faults, CallFault("nvmlInit*", hang=True))
    blueprint = replace(blueprint, nvml=replace(blueprint.nvml, faults=faults))
    return replace(blueprint, torch=replace(blueprint.torch, hangs=True))


def slow_init(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The first call, nvmlInit, takes that many seconds."""
    _need_driver(blueprint, fault)
    return replace(blueprint, nvml=replace(blueprint.nvml, init_delay_seconds=float(fault.argument or 0)))


def charge_calls(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Each call into the driver costs processor time, as on one real GPU (driver_costs.toml)."""
    _need_driver(blueprint, fault)
    costs = tomllib.loads(
        files("gpudiag.simulate").joinpath("driver_costs.toml").read_text(encoding="utf-8")
    )["microseconds"]
    return replace(blueprint, nvml=replace(blueprint.nvml, call_microseconds=costs))


def cool_down(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Nothing holds the GPUs: at its first handle each takes that many seconds to attach, one by one."""
    _need_driver(blueprint, fault)
    seconds = float(fault.argument or 0)
    attached = CallFault("nvmlDeviceGetHandleBy*", delay_seconds=seconds, in_turn=True, nth=1)

    def cool(gpu: GpuBlueprint) -> GpuBlueprint:
        kept = {**gpu.gpu.readings, "persistence_mode": "disabled"}
        readings = kept if "persistence_mode" in gpu.gpu.readings else gpu.gpu.readings
        return replace(gpu, gpu=replace(gpu.gpu, readings=readings, faults=(attached, *gpu.gpu.faults)))

    return blueprint.change_gpus(cool)


def install_old_driver(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The oldest driver branch that runs these GPUs: it lacks what NVML has gained since."""
    _need_driver(blueprint, fault)
    branch = _branch_for(blueprint, fault)
    host = blueprint.host
    version = branch["driver_version"] if host.kernel_driver_version is not None else None
    blueprint = replace(
        blueprint,
        nvml=replace(
            blueprint.nvml,
            driver_version=branch["driver_version"],
            nvml_version=branch["nvml_version"],
            cuda_driver_version=branch["cuda_driver_version"],
            omitted_symbols=tuple(branch["omitted_symbols"]),
        ),
        host=replace(host, kernel_driver_version=version, kernel_driver_flavor="proprietary"),
    )
    return blueprint.change_gpus(lambda gpu: _as_old(gpu, branch))


def break_cuda(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """NVML works but CUDA does not start; with NVSwitches, because the fabric manager does not run."""
    if blueprint.torch.cuda_runtime_version is None:
        raise fault.refuse("torch there is a CPU build")
    if not any(_FABRIC_MANAGER in process.argv[0] for process in blueprint.processes):
        return _cuda_fails(blueprint, _UNKNOWN_ERROR)
    kept = tuple(process for process in blueprint.processes if _FABRIC_MANAGER not in process.argv[0])
    blueprint = replace(blueprint, processes=kept).change_gpus(_unregistered)
    return _cuda_fails(blueprint, _unexpected(802))


def install_cpu_torch(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """The installed torch is its CPU build."""
    version = blueprint.torch.version.split("+")[0]
    return replace(blueprint, torch=TorchBuild(version=f"{version}+cpu", python=blueprint.torch.python))


def remove_torch(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """There is no torch."""
    return replace(blueprint, torch=replace(blueprint.torch, absent=True))


def reorder_cuda(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """CUDA numbers the GPUs differently from NVML: the last one, which it takes for the fastest, first."""
    if len(blueprint.listed()) < 2:
        raise fault.refuse("an order needs two GPUs")
    if blueprint.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        raise fault.refuse("CUDA_DEVICE_ORDER=PCI_BUS_ID keeps NVML's order")
    return replace(blueprint, torch=replace(blueprint.torch, reordered=True))


def set_visible(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """CUDA_VISIBLE_DEVICES is set to that list."""
    return replace(
        blueprint, environment={**blueprint.environment, "CUDA_VISIBLE_DEVICES": fault.argument or ""}
    )


def _need_driver(blueprint: Blueprint, fault: Fault) -> None:
    if not blueprint.gpus:
        raise fault.refuse("this machine has no GPU, so no driver that could be at fault")


def _cuda_fails(blueprint: Blueprint, words: str) -> Blueprint:
    return replace(blueprint, torch=replace(blueprint.torch, cuda_error=words))


def _unexpected(number: int) -> str:
    return _UNEXPECTED.format(number=number, words=_CUDA_ERRORS[number])


def _without_kernel_driver(blueprint: Blueprint, driver: str | None, fault: Fault) -> Blueprint:
    """The machine without NVIDIA's modules, files and nodes; its GPUs are bound to `driver` or to none."""
    _need_driver(blueprint, fault)
    host = blueprint.host
    functions = tuple(
        replace(function, driver=None)
        if function.driver is not None and function.driver.startswith("nvidia")
        else function
        for function in host.pci_functions
    )
    host = replace(
        host,
        kernel_modules=tuple(name for name in host.kernel_modules if not name.startswith("nvidia")),
        kernel_driver_version=None,
        device_nodes=tuple(name for name in host.device_nodes if not name.startswith(("nvidia", "dxg"))),
        pci_functions=functions,
    )
    blueprint = replace(
        blueprint, host=host, nvml=replace(blueprint.nvml, init_code=_DRIVER_NOT_LOADED), processes=()
    )
    return blueprint.change_gpus(lambda gpu: replace(gpu, kernel_driver=driver))


def _unregistered(gpu: GpuBlueprint) -> GpuBlueprint:
    """The GPU waiting for the fabric manager; unchanged if it has no fabric reading."""
    fabric = gpu.gpu.readings.get("fabric")
    return gpu if fabric is None else gpu.with_readings(fabric={**fabric, "state": "in_progress"})


_MEMORY_WITH_RESERVED = "nvmlDeviceGetMemoryInfo_v2"  # older: what the driver reserves counts as used


def _branch_for(blueprint: Blueprint, fault: Fault) -> dict[str, Any]:
    branches = tomllib.loads(
        files("gpudiag.simulate").joinpath("old_drivers.toml").read_text(encoding="utf-8")
    )
    gpu = blueprint.gpus[0].gpu.readings
    for branch in branches.values():
        older = int(branch["driver_version"].split(".")[0]) < int(blueprint.nvml.driver_version.split(".")[0])
        if (
            gpu.get("architecture") in branch["architectures"]
            and older
            and gpu.get("memory_kind") != "unified"
        ):
            found: dict[str, Any] = branch
            return found
    raise fault.refuse(f"no older driver runs {gpu.get('name', 'this GPU')}")


def _as_old(gpu: GpuBlueprint, branch: dict[str, Any]) -> GpuBlueprint:
    old = replace(gpu, gpu=replace(gpu.gpu, faults=()))
    for declared in READINGS:
        if reason := _why_unknown(declared, branch):
            old = old.without_readings(reason, declared.name)
    readings = old.gpu.readings
    if _MEMORY_WITH_RESERVED in branch["omitted_symbols"] and "memory_reserved_bytes" in readings:
        used = readings["memory_used_bytes"] + readings["memory_reserved_bytes"]
        old = old.with_readings(memory_used_bytes=used)
        old = old.without_readings("function_not_found", "memory_reserved_bytes")
    return old


def _why_unknown(declared: Declared, branch: dict[str, Any]) -> str:
    """Why a driver of that branch has no such reading; empty where it has."""
    question = declared.question
    if isinstance(question, ByHand):
        return "function_not_found" if declared.name in branch["by_hand_not_found"] else ""
    if isinstance(question, Field):
        # NVML answers so for a field that it does not know.
        unknown = question.number >= branch["fields_below"] and question.otherwise is None
        return "not_supported" if unknown else ""
    if isinstance(question, Call) and question.older is None:
        return "function_not_found" if question.function in branch["omitted_symbols"] else ""
    return ""
