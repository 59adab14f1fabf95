"""Compare `gpudiag list --json` with what people use instead, on one simulated machine of 8 GPUs.

Wall time and peak memory of whole commands, started one after the other in interleaved rounds, so that a busy
moment hits all of them alike; gpudiag's share of each of the others by both times. Nothing here is a speed of
a GPU. With `+driver-costs` calls into the driver take what they did on an H100
(gpudiag/simulate/driver_costs.toml).

    python benchmarks/list_command.py [--rounds 15] [--scenario gh200+driver-costs] [--json]
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session

# The least that a script of one's own has to do: identity, memory, load and temperature of each GPU.
BARE_SCRIPT = """
import json
import pynvml
pynvml.nvmlInit()
rows = []
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    rows.append({
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "name": pynvml.nvmlDeviceGetName(handle),
        "memory_used": memory.used,
        "memory_total": memory.total,
        "utilization": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "temperature": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    })
print(json.dumps(rows))
"""
_SCRIPTS = Path(sys.executable).parent  # the console scripts of this environment, as people start them
SUBJECT = "gpudiag list --json"
COMMANDS = {
    SUBJECT: [str(_SCRIPTS / "gpudiag"), "list", "--json"],
    "nvitop -1": [str(_SCRIPTS / "nvitop"), "-1"],
    "gpustat --json": [str(_SCRIPTS / "gpustat"), "--json"],
    "bare pynvml script": [sys.executable, "-c", BARE_SCRIPT],
    "python -c pass": [sys.executable, "-c", "pass"],
}
AIMS = {"nvitop -1": 0.75, "gpustat --json": 0.1}
_MEASURE = Path(__file__).with_name("measure_command.py")
PACKAGES = ("nvidia-ml-py", "nvitop", "gpustat", "click")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one command: its wall time, its processor time, and the most memory it held."""

    wall_seconds: float
    processor_seconds: float
    peak_rss_bytes: int


def measure_command(argv: list[str], environment: Mapping[str, str]) -> Sample:
    """One run, output thrown away; children that the command waited for are counted with it.

    Raises:
        RuntimeError: the command failed, so its time means nothing.
    """
    command = [sys.executable, "-I", "-S", str(_MEASURE), *argv]
    # The time limit is for a command that hangs; it ends the benchmark.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    wall, processor, peak, status = done.stdout.split()
    if status != "0":
        raise RuntimeError(f"{' '.join(argv[:4])} exited with {status}")
    return Sample(float(wall), float(processor), int(peak))


def measure_rounds(rounds: int, environment: Mapping[str, str]) -> dict[str, list[Sample]]:
    """`rounds` samples of every command, interleaved, after one round that warms the file cache."""
    for argv in COMMANDS.values():
        measure_command(argv, environment)
    samples: dict[str, list[Sample]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, argv in COMMANDS.items():
            samples[name].append(measure_command(argv, environment))
    return samples


def render_table(samples: dict[str, list[Sample]]) -> str:
    """Medians, spread, and the ratios to the subject with the aim where there is one."""
    lines = [
        f"{'command':22} {'wall ms':>8} {'min-max':>15} {'CPU ms':>7} {'MiB':>6}  gpudiag is (wall, CPU)"
    ]
    for name, runs in samples.items():
        walls = sorted(run.wall_seconds * 1e3 for run in runs)
        wall = statistics.median(walls)
        processor = statistics.median(run.processor_seconds for run in runs) * 1e3
        memory = max(run.peak_rss_bytes for run in runs) / 1024**2
        ratio = ""
        if name != SUBJECT:
            of_processor = ratio_to(samples, name, by="processor_seconds")
            ratio = f"{ratio_to(samples, name):.2f}, {of_processor:.2f} of it"
        aim = f" (aim {AIMS[name]})" if name in AIMS else ""
        spread = f"{walls[0]:.1f}-{walls[-1]:.1f}"
        lines.append(f"{name:22} {wall:8.1f} {spread:>15} {processor:7.1f} {memory:6.1f}  {ratio}{aim}")
    return "\n".join(lines)


def describe_machine() -> str:
    """The machine and the versions that the figures belong to."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return (
        f"{_processor()}, {os.cpu_count()} logical processors, load {load}, Linux {platform.release()}\n"
        f"Python {platform.python_version()}, {versions}"
    )


def main() -> int:
    """Run the comparison and print it; 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description="gpudiag list against gpustat, nvitop and a bare script")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scenario", default="h100x8")
    parser.add_argument("--json", action="store_true", help="print the samples instead of the table")
    arguments = parser.parse_args()
    if absent := [argv[0] for argv in COMMANDS.values() if not Path(argv[0]).exists()]:
        parser.error(f"{absent[0]} is not there: pip install '.[benchmarks]'")
    with open_session(load_scenario(arguments.scenario)) as session:
        samples = measure_rounds(arguments.rounds, session.environment)
    if arguments.json:
        print(json.dumps({name: [vars_of(run) for run in runs] for name, runs in samples.items()}))
    else:
        print(f"{arguments.scenario} (simulated), {arguments.rounds} interleaved rounds")
        print(describe_machine())
        print(render_table(samples))
    return 0 if all(ratio_to(samples, name) <= aim for name, aim in AIMS.items()) else 1


def ratio_to(samples: dict[str, list[Sample]], name: str, by: str = "wall_seconds") -> float:
    """The subject's median time as a share of another command's."""
    subject, other = (
        statistics.median(getattr(run, by) for run in samples[which]) for which in (SUBJECT, name)
    )
    return float(subject / other)


def vars_of(sample: Sample) -> dict[str, float]:
    """One sample as a JSON object."""
    return {
        "wall_seconds": sample.wall_seconds,
        "processor_seconds": sample.processor_seconds,
        "peak_rss_bytes": sample.peak_rss_bytes,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
