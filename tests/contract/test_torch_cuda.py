"""torch asked in a child: the torch that is installed here, and CUDA builds that misbehave."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from gpudiag.model.device import SourceState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.guard import collect
from gpudiag.probe.torch.answer import simulated_torch_answer, start_torch, torch_answer_of

FAKE = Path(__file__).with_name("fake_torch")
SOON = 60.0


def ask(environment, python=None, deadline=SOON):
    child = start_torch(environment, python)
    collect([(child, child.started_at + deadline)])
    return torch_answer_of(child, python)


def ask_fake(fault="", gpus=2, deadline=SOON):
    return ask(
        {**os.environ, "PYTHONPATH": str(FAKE), "FAKE_TORCH_FAULT": fault, "FAKE_TORCH_GPUS": str(gpus)},
        deadline=deadline,
    )


def test_the_torch_that_is_installed_here_is_asked():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.version.cuda is not None:
        pytest.skip("this torch is a CUDA build; tests/gpu asks it")
    answer = ask(os.environ)
    assert answer.status.state is SourceState.NO_DEVICES
    assert "CPU build" in answer.status.reason
    assert answer.facts.version == torch.__version__
    assert answer.facts.python == sys.executable
    assert answer.facts.gloo_available == torch.distributed.is_gloo_available()
    assert answer.facts.cuda_runtime_version.reason is MissingReason.NOT_SUPPORTED
    assert (answer.facts.device_count, answer.views) == (0, ())


def test_a_cuda_build_shows_its_gpus_and_starts_a_context_on_each():
    answer = ask_fake()
    assert (answer.status.state, answer.status.device_count) == (SourceState.OK, 2)
    facts = answer.facts
    assert (facts.cuda_runtime_version, facts.nccl_version, facts.architectures) == (
        "13.0",
        "2.30.4",
        ("sm_90", "sm_100"),
    )
    assert (facts.device_count, facts.nvml_device_count, facts.context_starts) == (2, 2, True)
    first, second = answer.views
    assert (first.uuid, first.bus_id) == ("GPU-00000000-0000-0000-0000-000000000000", "00000000:53:00.0")
    assert (first.memory_total_bytes, first.memory_free_bytes) == (85 * 10**9, 84 * 10**9)
    assert (second.source_index, second.context_starts) == (1, True)


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("error:1", MissingReason.ERROR, "uncorrectable ECC error"),
        ("crash:1", MissingReason.ERROR, "signal 9"),
        ("hang:1", MissingReason.TIMED_OUT, "no answer"),
    ],
)
def test_a_gpu_on_which_no_context_starts_costs_only_itself(fault, reason, words):
    answer = ask_fake(fault, gpus=3, deadline=5.0)
    assert [view.context_starts is True for view in answer.views] == [True, False, True]
    broken = answer.views[1].context_starts
    assert broken.reason is reason
    assert words in broken.detail
    assert answer.facts.context_starts == Missing(reason, f"on 1 of 3 GPUs: {broken.detail}")
    assert answer.status.state is SourceState.OK
    assert words in answer.status.reason


def test_cuda_that_does_not_initialise_fails_with_its_words():
    answer = ask_fake("init-error")
    assert answer.status.state is SourceState.FAILED
    assert "Error 802" in answer.status.reason
    assert (answer.facts.cuda_available, answer.facts.device_count) == (False, 2)


@pytest.mark.parametrize("fault", ["import-marks", "import-starts"])
def test_a_torch_whose_import_asks_for_cuda_is_asked_in_interpreters_of_its_own(fault):
    answer = ask_fake(fault)
    assert (answer.status.state, answer.status.device_count) == (SourceState.OK, 2)
    assert answer.facts.context_starts is True
    assert [view.context_starts for view in answer.views] == [True, True]


def test_cuda_that_hangs_leaves_the_build_facts():
    answer = ask_fake("init-hang", deadline=3.0)
    assert answer.status.state is SourceState.TIMED_OUT
    assert answer.facts.version == "2.13.0+cu130"
    assert answer.facts.device_count.reason is MissingReason.TIMED_OUT


def test_a_torch_that_cannot_be_imported_says_why():
    answer = ask_fake("import-error")
    assert answer.status.state is SourceState.FAILED
    assert "libcudart.so.13" in answer.status.reason
    assert isinstance(answer.facts, Missing)


def test_a_cuda_build_that_shows_no_gpu_has_none():
    answer = ask_fake(gpus=0)
    assert (answer.facts.device_count, answer.views) == (0, ())
    assert answer.facts.context_starts is not True


def test_no_process_is_left_of_a_torch_that_hangs(tmp_path):
    mark = str(tmp_path)
    ask(
        {**os.environ, "PYTHONPATH": str(FAKE), "FAKE_TORCH_FAULT": "hang:1", "GPUDIAG_TEST_MARK": mark},
        deadline=3.0,
    )
    until = time.monotonic() + SOON
    while (left := _processes_with(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def _processes_with(mark):
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            continue
    return found


def test_an_interpreter_without_torch_says_how_to_get_it():
    answer = ask({"PATH": "/usr/bin:/bin"}, python=_bare_interpreter())
    assert answer.status.state is SourceState.LIBRARY_ABSENT
    assert "-m pip install torch" in answer.status.reason


def _bare_interpreter():
    """The interpreter behind this virtual environment, without what is installed in the environment."""
    base = Path(sys.base_prefix) / "bin/python3"
    if sys.prefix == sys.base_prefix or not base.exists():
        pytest.skip("this interpreter is no virtual environment's")
    return str(base)


def test_an_interpreter_that_is_not_there_says_so():
    answer = ask(os.environ, python="/nonexistent/python")
    assert answer.status.state is SourceState.FAILED
    assert "/nonexistent/python could not be started" in answer.status.reason


def test_the_program_runs_under_any_interpreter_of_the_job():
    other = shutil.which("python3", path="/usr/bin:/bin")
    if other is None:
        pytest.skip("no other python3 on this machine")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(FAKE)}
    answer = ask(environment, python=other)
    assert answer.facts.python == other
    assert answer.facts.context_starts is True


def test_on_a_simulated_machine_the_answer_is_the_scenarios(tmp_path):
    view = dict.fromkeys(
        ("uuid", "bus_id", "name", "memory_total_bytes", "memory_used_bytes", "memory_free_bytes")
    )
    view |= {"source": "torch", "source_index": 0, "utilization_percent": None, "driver_version": None}
    view["missing"] = {name: "not_supported" for name, value in view.items() if value is None}
    facts = (
        {"version": "2.13.0", "python": "python", "cuda_runtime_version": "13.0"}
        | {"architectures": ["sm_90"], "nccl_version": "2.30", "nccl_available": True, "gloo_available": True}
        | {"cuda_available": True, "device_count": 1, "nvml_device_count": 1, "context_starts": True}
    )
    path = tmp_path / "torch.json"
    path.write_text(json.dumps({"facts": facts, "devices": [view]}))
    answer = simulated_torch_answer(str(path))
    assert (answer.status.state, answer.facts.device_count, len(answer.views)) == (SourceState.OK, 1, 1)
    path.write_text(json.dumps({"absent": True}))
    assert simulated_torch_answer(str(path)).status.state is SourceState.LIBRARY_ABSENT
