"""Processes on a GPU: one that trains, one that only holds memory, one that is dead and still holds it."""

from dataclasses import replace
from typing import Any

from gpudiag.simulate.blueprint import Blueprint, GpuBlueprint, HostProcess
from gpudiag.simulate.faults.fault import Fault, has, only_known
from gpudiag.units import GIB, MIB

_HOUR = 3600.0
_FIRST_PID = {"busy": 41200, "idle-holder": 41300, "zombie": 41400}
_BUSY_DEGREES = 30
_WITHOUT_LIMIT_FACTOR = 8  # power under load where the GPU has no limit


def train(blueprint: Blueprint, fault: Fault) -> Blueprint:
    """Someone trains on the GPU: 98 % utilisation, most of its memory, near its power limit."""
    process = HostProcess(
        pid=_pid(fault),
        user="ann",
        uid=1000,
        argv=("python", "train.py", "--config", "llama-7b.yaml"),
        age_seconds=6 * _HOUR,
        state="R",
        open_nodes=_nodes(blueprint, fault),
    )
    blueprint = _with_process(blueprint, process)
    return blueprint.change_gpu(fault.on, lambda gpu: _loaded(_holding(gpu, process.pid, 0.8)))


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


def _holding(gpu: GpuBlueprint, pid: int, share: float) -> GpuBlueprint:
    """The GPU with a process on it that holds `share` of its free memory."""
    readings = gpu.gpu.readings
    entry: dict[str, Any] = {"pid": pid, "kind": "compute"}
    instances = readings.get("mig_instances") or []
    pool = instances[0] if instances else readings
    held = int(pool.get("memory_free_bytes", 16 * GIB) * share) // MIB * MIB
    entry["memory_used_bytes"] = held
    if instances:
        first = instances[0]
        entry |= {name: first[name] for name in ("gpu_instance_id", "compute_instance_id")}
        gpu = gpu.with_readings(mig_instances=[_filled(first, held), *instances[1:]])
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
    )


_CLOCKS = ("graphics_clock_mhz", "sm_clock_mhz", "memory_clock_mhz")
_GENERATION_LIMITS = ("pcie_generation_gpu_max", "pcie_generation_slot_max")
