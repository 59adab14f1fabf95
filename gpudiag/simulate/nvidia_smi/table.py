"""The table that a plain nvidia-smi prints, for the simulated one."""

from __future__ import annotations

import time

from gpudiag.simulate.nvidia_smi.fields import find_field
from gpudiag.simulate.nvidia_smi.nvml import Gpu, Nvml, NvmlError, words_of

_WIDTH = 91
_NOT_THERE = "N/A"
_RULE = "+" + "-" * _WIDTH + "+"


def render_table(nvml: Nvml, gpus: list[Gpu]) -> str:
    """The table of driver, GPUs and processes in nvidia-smi's order, two lines per GPU."""
    major, minor = divmod(nvml.number("nvmlSystemGetCudaDriverVersion_v2"), 1000)
    driver = nvml.text("nvmlSystemGetDriverVersion")
    title = f"NVIDIA-SMI {driver}      Driver Version: {driver}      CUDA Version: {major}.{minor // 10}"
    lines = [time.strftime("%a %b %d %H:%M:%S %Y"), _RULE, _row(title), _RULE]
    lines += [*(_row(_columns(*heads)) for heads in _HEADS), _RULE]
    for gpu in gpus:
        lines += [_row(line) for line in _gpu_lines(gpu)]
    lines += [_RULE, _row("Processes:  GPU   PID      Type   GPU Memory  Process name")]
    lines += [_row(line) for line in _process_lines(gpus)]
    return "\n".join([*lines, _RULE])


_HEADS = (
    ("GPU  Name                   Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC"),
    ("Fan  Temp  Perf          Pwr:Usage/Cap", "Memory-Usage", "GPU-Util  Compute M."),
)


def _gpu_lines(gpu: Gpu) -> tuple[str, str]:
    name, persistence = _cell(gpu, "name"), _short(_cell(gpu, "persistence_mode"))
    bus_id, display = _cell(gpu, "pci.bus_id"), _short(_cell(gpu, "display_active"))
    fan, temperature = _cell(gpu, "fan.speed"), _cell(gpu, "temperature.gpu", "C")
    pstate = _cell(gpu, "pstate")
    power = f"{_cell(gpu, 'power.draw', 'W')} / {_cell(gpu, 'enforced.power.limit', 'W')}"
    memory = f"{_cell(gpu, 'memory.used', 'MiB')} / {_cell(gpu, 'memory.total', 'MiB')}"
    mode = f"{_cell(gpu, 'utilization.gpu', '%')}  {_short(_cell(gpu, 'compute_mode')):>10}"
    return (
        _columns(
            f"{gpu.nvml_index:>3}  {name[:26]:<26} {persistence:>9}",
            f"{bus_id} {display:>5}",
            _cell(gpu, "ecc.errors.uncorrected.volatile.total"),
        ),
        _columns(f"{f'{fan:>3} ':<5}{temperature:>4}  {pstate:>4}  {power:>24}", memory, mode),
    )


def _columns(first: str, second: str, third: str) -> str:
    return f"{first:<41} | {second:>22} | {third:>20}"


def _process_lines(gpus: list[Gpu]) -> list[str]:
    lines = []
    for gpu in gpus:
        for kind in ("Compute", "Graphics"):
            try:
                processes = gpu.processes(kind)
            except NvmlError:
                continue
            for pid, memory in processes:
                used = "N/A" if memory is None else f"{-(-memory // 1024**2)}MiB"
                lines.append(f"{gpu.nvml_index:>15} {pid:>7} {kind[0]:>8} {used:>12}  {_name_of(gpu, pid)}")
    return lines or [" No running processes found"]


def _name_of(gpu: Gpu, pid: int) -> str:
    try:
        return gpu.nvml.process_name(pid)
    except NvmlError:
        return "[Not Found]"


def _cell(gpu: Gpu, name: str, unit: str = "") -> str:
    """The value with its unit; N/A for what the GPU does not have, ERR! where the call failed."""
    field = find_field(name)
    try:
        value = str(field[0](gpu)) if field else _NOT_THERE
    except NvmlError as error:
        value = words_of(gpu.nvml, error.code)
        return _NOT_THERE if value == _NOT_THERE else "ERR!"
    return value if value == _NOT_THERE else f"{value}{unit}"


def _short(word: str) -> str:
    return {"Enabled": "On", "Disabled": "Off", "Exclusive_Process": "E. Process"}.get(word, word)


def _row(text: str) -> str:
    return f"| {text:<{_WIDTH - 2}} |"
