"""How one GPU's readings are said in a table cell: name, memory, power, processes, state."""

from datetime import datetime

from gpudiag.checks.gpu_state import GpuState
from gpudiag.model.device import Device, GpuProcess, MigInstance
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.units import format_gib, format_seconds

NO_VALUE = "-"

_MISSING_WORDS = {
    MissingReason.NOT_SUPPORTED: "this GPU does not report it",
    MissingReason.FUNCTION_NOT_FOUND: "the driver is too old to report it",
    MissingReason.NO_PERMISSION: "no permission to read it",
    MissingReason.DEVICE_LOST: "the GPU is lost",
    MissingReason.RESET_REQUIRED: "the GPU must be reset first",
    MissingReason.SOURCE_ABSENT: "its source is not here",
    MissingReason.TIMED_OUT: "no answer by the deadline",
    MissingReason.ATTACHING: "the driver is still attaching the GPU",
    MissingReason.NOT_ASKED: "not asked",
    MissingReason.ERROR: "the driver answered with an error",
}
# Programs that run others: the script's name says more than theirs.
_INTERPRETERS = ("python", "bash", "sh", "torchrun", "mpirun")


def say_missing(missing: Missing) -> str:
    """Why a value is not there, in words; the source's own words follow where there are any."""
    words = _MISSING_WORDS[missing.reason]
    return f"{words} ({missing.detail})" if missing.detail else words


def say_index(device: Device) -> str:
    """The NVML index, or `?` for a GPU that NVML does not list."""
    index = device.id.nvml_index
    return "?" if isinstance(index, Missing) else str(index)


def say_name(device: Device) -> Reading[str]:
    """The product's name without the maker, the brand and the kind of memory: `H100 80GB`."""
    name = device.name
    if isinstance(name, Missing):
        return name
    words = name.removeprefix("NVIDIA ").removeprefix("GeForce ").split()
    return " ".join(word for word in words if not word.startswith("HBM"))


def say_memory_gib(used: Reading[int], total: Reading[int]) -> Reading[str]:
    """Used and total memory in GiB: `66.3/79.6`."""
    if isinstance(total, Missing):
        return total
    return f"{NO_VALUE if isinstance(used, Missing) else format_gib(used)}/{format_gib(total)}"


def say_power_watts(device: Device) -> Reading[str]:
    """Power draw and enforced limit in watts: `640/700`."""
    draw, limit = device.power_draw_watts, device.power_limit_enforced_watts
    if isinstance(draw, Missing):
        return draw
    return f"{draw:.0f}" if isinstance(limit, Missing) else f"{draw:.0f}/{limit:.0f}"


def say_suffixed(reading: Reading[int], suffix: str) -> Reading[str]:
    """A number with its unit right behind it: `98%`, `61C`."""
    return reading if isinstance(reading, Missing) else f"{reading}{suffix}"


def say_instance_name(instance: MigInstance) -> Reading[str]:
    """What a MIG instance is, without the name of its GPU: `MIG 1g.10gb`."""
    name = instance.name
    return name if isinstance(name, Missing) else name[max(0, name.find("MIG ")) :]


def computing(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    """The processes that compute; a desktop that draws keeps nobody from working."""
    return tuple(process for process in processes if process.kind != "graphics")


def say_processes(processes: tuple[GpuProcess, ...], now: datetime) -> str:
    """Who uses a GPU: the process with most memory, computing ones first, and how many more there are."""
    if not processes:
        return NO_VALUE
    largest = max(computing(processes) or processes, key=_memory_used)
    more = f" +{len(processes) - 1}" if len(processes) > 1 else ""
    return say_process(largest, now) + more


def say_process(process: GpuProcess, now: datetime) -> str:
    """One process: `ann train.py 6 h`, or `pid 4242` where /proc does not know it."""
    if isinstance(process.command, Missing):
        return f"pid {process.pid}"
    user = "" if isinstance(process.user, Missing) else f"{process.user} "
    age = "" if isinstance(process.started_at, Missing) else f" {_age(process.started_at, now)}"
    return f"{user}{short_command(process.command)}{age}"


def short_command(command: str) -> str:
    """The program's name; for an interpreter the script that it runs."""
    words = command.split()
    names = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
    if not names:
        return command
    if len(names) > 1 and names[0].startswith(_INTERPRETERS):
        return names[1]
    return names[0]


def say_state(state: GpuState) -> str:
    """The word in a table: `ok`, `suspect`, or what is wrong in capitals."""
    if state is GpuState.HEALTHY:
        return "ok"
    return state.value if state is GpuState.SUSPECT else state.value.upper()


def _memory_used(process: GpuProcess) -> int:
    used = process.memory_used_bytes
    return 0 if isinstance(used, Missing) else used


def _age(started_at: datetime, now: datetime) -> str:
    return format_seconds(max(0.0, (now - started_at).total_seconds())).replace(" ", "")
