"""Programs that other people wrote run unmodified on a simulated machine, healthy or not."""

import importlib.util
import json
import shutil
import sys
import sysconfig
from collections.abc import Callable

import pytest

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.scenario import CallFault, Scenario
from gpudiag.simulate.session import Session
from tests.unit.simulate_library.machines import make_gpu, make_machine, run

_SwitchOn = Callable[[Scenario], Session]


def program_path(name: str) -> str:
    """Where the program is; skips the test, loudly, where it is not installed."""
    path = shutil.which(name, path=sysconfig.get_path("scripts"))
    if path is None:
        pytest.skip(f"{name} is not installed: pip install 'gpudiag[benchmarks]'")
    return path


def eight(**faults_of_2: object) -> Scenario:
    """Eight GPUs, of which number 2 is otherwise."""
    return make_machine(*(make_gpu(i, **(faults_of_2 if i == 2 else {})) for i in range(8)))


def test_gpustat_lists_eight_gpus(switch_on: _SwitchOn) -> None:
    done = run(switch_on(eight()), program_path("gpustat"), "--json")
    assert done.returncode == 0, done.stderr
    gpus = json.loads(done.stdout)["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == [make_gpu(i).readings["uuid"] for i in range(8)]
    assert {gpu["memory.used"] for gpu in gpus} == {5120}
    assert {gpu["power.draw"] for gpu in gpus} == {640}


def test_gpustat_keeps_a_row_for_a_lost_gpu(switch_on: _SwitchOn) -> None:
    lost = (CallFault("nvmlDeviceGetHandleBy*", code=15),)
    done = run(switch_on(eight(faults=lost)), program_path("gpustat"), "--json")
    assert done.returncode == 0, done.stderr
    names = [gpu["name"] for gpu in json.loads(done.stdout)["gpus"]]
    assert names == ["NVIDIA H100 80GB HBM3"] * 2 + ["((GPU is lost))"] + ["NVIDIA H100 80GB HBM3"] * 5


def test_nvitop_shows_eight_gpus(switch_on: _SwitchOn) -> None:
    done = run(switch_on(eight()), program_path("nvitop"), "-1", "--ascii")
    assert done.returncode == 0, done.stderr
    assert [make_gpu(i).readings["bus_id"].upper() in done.stdout for i in range(8)] == [True] * 8
    assert done.stdout.count("641W / 696W") == 8


def test_nvitop_shows_mig_devices(switch_on: _SwitchOn) -> None:
    session = switch_on(load_scenario("h100-mig"))
    done = run(session, program_path("nvitop"), "-1", "--ascii")
    assert done.returncode == 0, done.stderr
    assert "1g.10gb" in done.stdout


def test_nvitop_shows_old_drivers_too(switch_on: _SwitchOn) -> None:
    machine = eight()
    omitted = (
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        # The first driver with this one and without the next had process lists of another size.
        "nvmlDeviceGetConfComputeMemSizeInfo",
        "nvmlDeviceGetRunningProcessDetailList",
    )
    nvml = {name: getattr(machine.nvml, name) for name in type(machine.nvml).__dataclass_fields__}
    old = make_machine(*machine.gpus, nvml=type(machine.nvml)(**{**nvml, "omitted_symbols": omitted}))
    done = run(switch_on(old), program_path("nvitop"), "-1", "--ascii")
    assert done.returncode == 0, done.stderr
    assert "61C" in done.stdout


def test_torch_counts_the_gpus_by_way_of_nvml(switch_on: _SwitchOn) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    program = """
import torch
print(torch.cuda._device_count_nvml(), torch.cuda.temperature(0), torch.cuda.power_draw(0))
"""
    done = run(switch_on(eight()), sys.executable, "-c", program)
    assert done.stdout == "8 61 640512\n", done.stderr
