"""A simulated machine, described for a person: its GPUs, what is wrong with it, what to try."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from gpudiag.reference.nvml import return_texts
from gpudiag.render.style import Column, render_table, wrapped
from gpudiag.simulate.scenario import Scenario, SimulatedGpu
from gpudiag.units import format_gib

_INDENT = "  "
_TRIALS = ("gpudiag", "gpudiag list --sources all", "nvidia-smi")


def render_machine(scenario: Scenario, fault_usages: Iterable[str]) -> str:
    """The description; `fault_usages` are the faults that a spec can add."""
    lines = wrapped(
        f"{scenario.name}: {scenario.description}; {_driver_words(scenario)}",
        first="Simulated machine ",
        indent=_INDENT,
    )
    if scenario.gpus:
        lines += ["", *render_table(_COLUMNS, [_gpu_row(gpu) for gpu in scenario.gpus])]
    lines += ["", f"Torch: {_torch_words(scenario.torch)}"]
    if scenario.environment:
        settings = " ".join(f"{name}={value}" for name, value in sorted(scenario.environment.items()))
        lines += wrapped(settings, first="Environment: ", indent=_INDENT)
    if scenario.faults:
        lines += ["", "Faults:"]
        lines += [line for fault in scenario.faults for line in _item(fault)]
    if scenario.sources:
        lines += ["", "Its facts come from:"]
        lines += [line for source in scenario.sources for line in _item(source)]
    spec = shlex.quote(scenario.name)
    lines += ["", "Try:", *(f"{_INDENT}gpudiag simulate {spec} -- {command}" for command in _TRIALS)]
    lines += ["", "Faults that can be added with a plus sign (N: a GPU), as in h100x8+lost:3+hot:5:"]
    lines += wrapped(" ".join(fault_usages), first=_INDENT, indent=_INDENT)
    return "\n".join(lines)


_COLUMNS = (
    Column("GPU", right=True),
    Column("NAME", gives_way=True),
    Column("BUS ID"),
    Column("MEM GiB", right=True),
    Column("NVML"),
)


def _gpu_row(gpu: SimulatedGpu) -> tuple[str, ...]:
    readings = gpu.readings
    total = readings.get("memory_total_bytes")
    return (
        str(readings.get("nvml_index", "-")) if gpu.visible else "-",
        str(readings.get("name", "-")),
        str(readings.get("bus_id", "-")),
        "-" if total is None else format_gib(total),
        _nvml_words(gpu),
    )


def _nvml_words(gpu: SimulatedGpu) -> str:
    """NVML's answer for the GPU as a whole."""
    if not gpu.visible:
        return "hidden"
    every_call = [fault for fault in gpu.faults if fault.call == "*"]
    if any(fault.hang for fault in every_call):
        return "hangs"
    code = next((fault.code for fault in every_call if fault.code is not None), None)
    if code is not None:
        return f"answers {code}: {return_texts().get(code, 'unknown code')}"
    return f"answers; {len(gpu.faults)} calls faulty" if gpu.faults else "answers"


def _driver_words(scenario: Scenario) -> str:
    nvml = scenario.nvml
    if not nvml.present:
        return "no NVML library"
    words = f"driver {nvml.driver_version}, NVML {nvml.nvml_version}, CUDA {nvml.cuda_driver_version}"
    return f"{words}; nvmlInit answers {nvml.init_code}" if nvml.init_code else words


def _torch_words(torch: Mapping[str, Any]) -> str:
    facts = torch.get("facts")
    if torch.get("absent") or not facts:
        return "not installed"
    cuda = facts.get("cuda_runtime_version")
    build = f"CUDA {cuda}" if cuda else "CPU build"
    return f"{facts.get('version')} ({build}), sees {len(torch.get('devices') or ())} GPUs"


def _item(text: str) -> list[str]:
    return wrapped(text, first=f"{_INDENT}- ", indent=f"{_INDENT}  ")
