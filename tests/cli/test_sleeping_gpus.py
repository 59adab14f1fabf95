"""A GPU that the kernel has suspended stays so: neither a listing nor the bare command nor the service wakes
it.

Machines after public reports: hybrid laptops whose GPU a monitor keeps in D0 (henrygd/beszel-docs pull
request 35, corecoding/Vitals issue 442, aristocratos/btop issue 1838), a headless workstation card in D3cold
(NVIDIA/open-gpu-kernel-modules issue 907), and a second card that sleeps beside one that drives the display
(PolpOnline/gpu-usage-waybar pull request 41).
"""

import json
from pathlib import Path

import pytest

from gpudiag.simulate.nvml.answers import SUBJECTS_PER_GPU
from tests.cli.simulated import run_on, simulated_machine

ALL = "[gpu]\nasleep = true\n"
MACHINES = {
    "a hybrid laptop": ("laptop", ALL, {0}),
    "a headless workstation": ("rtx4090x2", ALL, {0, 1}),
    "the second card": ("rtx4090x2", "[gpus.1]\nasleep = true\n", {1}),
    "the first card": ("rtx4090x2", "[gpus.0]\nasleep = true\n", {0}),
    "two of four": ("a6000x4", "[gpus.1]\nasleep = true\n[gpus.2]\nasleep = true\n", {1, 2}),
}


@pytest.fixture(params=MACHINES)
def asleep(request, tmp_path):
    """The machine, the indices of GPUs asleep, and the log of NVML's calls."""
    base, differs, indices = MACHINES[request.param]
    file = tmp_path / "machine.toml"
    file.write_text(f'base = "{base}"\n{differs}')
    with simulated_machine(str(file)) as session:
        yield session, indices, tmp_path / "calls"


def is_about(call: str, index: int) -> bool:
    """Whether that call, as the log has it, is about the GPU of that index, or an instance of it."""
    subject = call.split()[1]
    return subject.isdecimal() and int(subject) // SUBJECTS_PER_GPU == index


def asked_of(log: Path) -> set[str]:
    """Each NVML function and device that was called: `nvmlDeviceGetName 16`."""
    return {" ".join(line.split()[2:4]) for line in log.read_text().splitlines()} if log.exists() else set()


@pytest.mark.sliced
def test_a_look_wakes_no_gpu_and_says_that_it_sleeps(asleep):
    session, indices, log = asleep
    done = run_on(session, "list", "--json", GPUDIAG_SIMULATED_CALL_LOG=str(log))
    rows = json.loads(done.out)["devices"]
    assert {row["nvml_index"] for row in rows if row["missing"].get("responding") == "not_asked"} == indices
    assert not {call for call in asked_of(log) for index in indices if is_about(call, index)}
    if len(rows) == len(indices):
        assert asked_of(log) == set()  # not even nvmlInit
    bare = run_on(session, GPUDIAG_SIMULATED_CALL_LOG=str(log))
    assert bare.status == 0, bare.out
    assert f"{len(indices)} asleep" in " ".join(bare.out.split())
    assert bare.out.startswith("PASS")
    assert not {call for call in asked_of(log) for index in indices if is_about(call, index)}


@pytest.mark.sliced
def test_a_gate_wakes_it(asleep):
    session, indices, log = asleep
    command = ("preflight", "--level", "instant", "--json")
    done = run_on(session, *command, GPUDIAG_SIMULATED_CALL_LOG=str(log))
    assert json.loads(done.out)["verdict"] == "pass"
    assert {index for index in indices if any(is_about(call, index) for call in asked_of(log))} == indices
