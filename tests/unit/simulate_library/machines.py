"""Small machines for the tests of the simulated library, and programs that look at them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpudiag.simulate.scenario import HostTree, Scenario, SimulatedGpu, SimulatedNvml
from gpudiag.simulate.session import Session
from tests.unit.simulate_library.every_reading import READINGS

ROOT = Path(__file__).parents[3]
TIME_LIMIT_SECONDS = 60  # proves that a program ends; none needs a tenth of it


def make_gpu(index: int = 0, **changes: Any) -> SimulatedGpu:
    """GPU number `index`; `changes` are members of SimulatedGpu or readings."""
    own = {
        "uuid": f"GPU-{index:08x}-1111-2222-3333-444455556666",
        "bus_id": f"00000000:{0x19 + 8 * index:02x}:00.0",
        "serial": f"165000000000{index}",
        "nvml_index": index,
    }
    members = {name: changes.pop(name) for name in SimulatedGpu.__dataclass_fields__ if name in changes}
    return replace(SimulatedGpu(readings={**READINGS, **own, **changes}), **members)


def make_machine(*gpus: SimulatedGpu, **changes: Any) -> Scenario:
    """A machine with these GPUs (one healthy one if there are none); `changes` are members of Scenario."""
    machine = Scenario(
        name="test-machine",
        hostname="test-1",
        description="a machine of the tests",
        nvml=SimulatedNvml(
            driver_version="580.105.08", nvml_version="13.580.105.08", cuda_driver_version="13.0"
        ),
        gpus=gpus or (make_gpu(),),
        host=HostTree(),
        torch={"absent": True},
    )
    return replace(machine, **changes)


def start(session: Session, *command: str, **environment: str) -> subprocess.Popen[str]:
    """A program on the machine, its output in pipes."""
    return subprocess.Popen(
        command,
        env={**session.environment, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(session: Session, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program on the machine, run to its end."""
    with start(session, *command, **environment) as program:
        try:
            out, err = program.communicate(timeout=TIME_LIMIT_SECONDS)
        finally:
            program.kill()
    return subprocess.CompletedProcess(command, program.returncode, out, err)


# `N` is pynvml, `gpu(i)` a handle, `code(call, *arguments)` the return code of a call that fails, or 0.
_PRELUDE = """
import json
import pynvml as N

def gpu(index=0):
    return N.nvmlDeviceGetHandleByIndex(index)

def code(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except N.NVMLError as error:
        return error.value
    return 0
"""


def ask(session: Session, expression: str, *, init: bool = True, **environment: str) -> Any:
    """The value of a Python expression with pynvml on the machine."""
    lines = [_PRELUDE, "N.nvmlInit()" if init else "", f"print(json.dumps({expression}))"]
    done = run(session, sys.executable, "-c", "\n".join(lines), **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_script(session: Session, script: Path, *arguments: str) -> Any:
    """What a script of the tests prints on the machine, as JSON."""
    done = run(session, sys.executable, str(script), *arguments, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
