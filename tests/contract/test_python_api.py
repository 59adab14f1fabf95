"""gpudiag as a library: what a program gets, and what it must not notice."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpudiag
from gpudiag import library
from gpudiag.errors import SourceAbsentError, SourceFailedError
from gpudiag.model.device import SourceState, SourceStatus
from tests.cli.simulated import TIME_LIMIT_SECONDS, simulated_machine
from tests.unit.model.nouns import make_machine, make_snapshot

ROOT = Path(__file__).parents[2]
ON_THE_BUS = make_machine(device_nodes=("/dev/nvidia0",))
PROGRAM = """
import json, os, signal, sys, threading
import gpudiag
light = sorted(name for name in sys.modules if name.startswith("gpudiag"))
before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)}
os.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", MASTER_ADDR="10.255.255.1", MASTER_PORT="1",
                  SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_ID="0", SLURM_JOB_ID="7")
told = {}
def look():
    told["devices"] = [isinstance(gpu.responding, gpudiag.Missing) for gpu in gpudiag.list_devices()]
thread = threading.Thread(target=look)
thread.start()
report = gpudiag.preflight("instant", expect_gpus=8)
thread.join()
told["verdict"] = report.verdict
told["codes"] = [finding.code for finding in report.findings() if finding.outcome == "fail"]
told["handlers"] = before == {number: signal.getsignal(number) for number in before}
told["loaded"] = sorted({"torch", "pynvml", "click"} & set(sys.modules))
told["light"] = light
told["errors"] = []
for ask in (
    lambda: gpudiag.preflight("nightly"),
    lambda: gpudiag.preflight("instant", only=["gpu.lots"]),
    lambda: gpudiag.preflight("instant", timeout_seconds=0.01),
    lambda: gpudiag.take_snapshot(deadline_seconds=-1),
):
    try:
        ask()
    except gpudiag.errors.GpudiagError as error:
        told["errors"].append([type(error).__name__, error.message])
print(json.dumps(told))
"""


def nvml(state: SourceState) -> SourceStatus:
    return SourceStatus("nvml", state, "it says why")


def run_in(machine: str, program: str) -> subprocess.CompletedProcess[str]:
    with simulated_machine(machine) as session:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=dict(session.environment),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_SECONDS,
        )


def test_a_program_gets_the_machine_and_notices_nothing_else():
    done = run_in("h100x8+lost:3", PROGRAM)
    assert done.stderr == ""
    told = json.loads(done.stdout)  # one line: nothing else was printed
    assert told["devices"] == [number == 3 for number in range(8)]
    assert told["verdict"] == "fail"
    assert "gpu.lost" in told["codes"]
    assert told["handlers"]
    assert told["loaded"] == []
    assert told["light"] == ["gpudiag"]
    kinds, words = zip(*told["errors"], strict=True)
    assert kinds == ("UsageError", "UsageError", "GpudiagError", "UsageError")
    assert "'nightly' is not a level" in words[0]
    assert "no check 'gpu.lots'" in words[1]
    assert "did not end within 0.01 s" in words[2]
    assert "-1" in words[3]


@pytest.mark.parametrize(
    ("snapshot", "answer"),
    [
        (make_snapshot(sources=(nvml(SourceState.LIBRARY_ABSENT),)), ()),
        (make_snapshot(sources=(nvml(SourceState.LIBRARY_ABSENT),), machine=ON_THE_BUS), SourceAbsentError),
        (make_snapshot(sources=(nvml(SourceState.NO_DEVICES),)), SourceFailedError),
        (make_snapshot(sources=(nvml(SourceState.TIMED_OUT),)), SourceFailedError),
    ],
    ids=["no GPU", "on the bus", "library without GPU", "hung"],
)
def test_a_gpu_that_cannot_be_listed_is_no_empty_list(snapshot, answer, monkeypatch):
    monkeypatch.setattr(library, "take_snapshot", lambda **_: snapshot)
    if answer == ():
        assert library.list_devices() == ()
        return
    with pytest.raises(answer, match="no GPU can be listed here: "):
        library.list_devices()


def test_the_examples_of_the_page_run():
    page = (ROOT / "docs/python-api.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    done = run_in("h100x8+lost:3", "\n".join(examples))
    assert done.stderr == ""
    assert "GPU 3: device_lost" in done.stdout
    assert "gpu.lost GPU 3" in done.stdout
    assert "there is no check 'gpu.lots'" in done.stdout


def test_every_public_name_is_there_and_on_the_page():
    page = (ROOT / "docs/python-api.md").read_text()
    assert set(gpudiag.__all__) <= set(dir(gpudiag))
    for name in gpudiag.__all__:
        assert getattr(gpudiag, name) is not None
        assert name.startswith("__") or f"{name}" in page, name
