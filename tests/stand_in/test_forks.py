"""The stand-in refuses CUDA in forks as torch does, and gpudiag uses it nevertheless."""

import json
import sys
from pathlib import Path

import pytest

from tests.cuda_stand_in.forks import HARMLESS, MARKED_WORDS, MARKING, STARTED_WORDS, STARTING
from tests.stand_in.running import run_program

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(300)]

RECORDED = Path(__file__).parents[1] / "corpus" / "forks" / "h100-torch-2.11.txt"
# The calls of the recording, by the names that it has for them.
RECORDED_CALLS = {
    "is_available": "torch.cuda.is_available()",
    "nvml_count": "torch.cuda._device_count_nvml()",
    "archflags": "torch._C._cuda_getArchFlags()",
    "nccl": "torch.cuda.nccl.version()",
    "none": "torch.version.cuda",
}
# Each call in a process of its own, which then forks one that uses CUDA: all of them forks of one that
# imported torch.
PROGRAM = """
import json, os, sys, torch
answers = {}
def read(run):
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, run().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text
def use():
    try:
        torch.zeros(1, device="cuda").item()
    except Exception as error:
        return str(error).splitlines()[0]
    return ""
def call_and_fork(call):
    eval(call)
    return read(use)
print(json.dumps({call: read(lambda: call_and_fork(call)) for call in json.loads(sys.argv[1])}))
"""


def _words_by_call(calls: list[str]) -> dict[str, str]:
    ended = run_program("h100x8", sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(calls))
    assert ended.status == 0, ended.error
    answers: dict[str, str] = json.loads(ended.output)
    return answers


def test_forks_have_cuda_after_those_calls_alone_after_which_torch_leaves_it_to_them(extension):
    import torch

    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    expected = dict.fromkeys(HARMLESS, "")
    expected |= {call: MARKED_WORDS for calls in MARKING.values() for call in calls}
    expected |= {
        start.call: STARTED_WORDS if start.since <= release < start.before else "" for start in STARTING
    }
    assert _words_by_call(list(expected)) == expected


def test_the_stand_in_says_what_an_h100_said(extension):
    recorded = dict(line.split(": ", 1) for line in RECORDED.read_text().splitlines())
    assert recorded.keys() == RECORDED_CALLS.keys()
    said = _words_by_call(list(RECORDED_CALLS.values()))
    for name, words in recorded.items():
        now = said[RECORDED_CALLS[name]]
        assert now.startswith(words.removeprefix("POISONED ")) if words != "fork ok" else not now, name


@pytest.mark.parametrize("asks", ["torch.cuda.is_available()", "torch.get_device_module()"])
def test_an_import_of_torch_that_asks_for_cuda_costs_no_gpu_its_test(on_gpus, asks):
    """Some torch's import, or that of a framework, may do so: gpudiag's forks are useless then, and no GPU is
    to blame.
    """
    variables = {"CUDA_STAND_IN_IMPORT": asks}
    flags = ("--nproc", "2", "--max-bytes", "64", "--iterations", "3", "--warmup", "1", "--json")
    ended = on_gpus("rtx4090x2", "nccl-test", *flags, variables=variables)
    document = ended.document()
    assert (ended.status, document["world_size"], document["backend"]) == (0, 2, "nccl"), document["findings"]
    assert all(result["verified"] for result in document["results"])


def test_the_loaded_nccl_decides_what_two_ranks_may_share(on_gpus):
    """Torch's own number is that of its build."""
    flags = ("nccl-test", "--nproc", "2", "--max-bytes", "64", "--iterations", "3", "--warmup", "1", "--json")
    newer = {"CUDA_STAND_IN_NCCL": "2.32.3", "CUDA_STAND_IN_NCCL_BUILT": "2.28.9"}
    ended = on_gpus("t4x1", *flags, variables=newer)
    document = ended.document()
    assert (ended.status, document["ranks_share_gpu"]) == (0, True), document["findings"]
    assert (document["nccl_version"], document["nccl_built_version"]) == ("2.32.3", "2.28.9")
    older = {"CUDA_STAND_IN_NCCL": "2.28.9", "CUDA_STAND_IN_NCCL_BUILT": "2.32.3"}
    ended = on_gpus("t4x1", *flags, variables=older)
    assert ended.status == 2
    assert "NCCL 2.30" in ended.error
    assert "NCCL 2.28.9" in ended.error


# What the template imports before it forks ranks for GPUs.
IMPORTED = (
    "torch._dynamo",
    "gpudiag.collectives.rank_main",
    "gpudiag.collectives.localise_main",
    "gpudiag.bandwidth.rank_main",
    "gpudiag.training.rank_main",
    "gpudiag.training.script_main",
    "gpudiag.training.strategies.fsdp2",
)


@pytest.mark.each_run
def test_nothing_that_ranks_import_before_the_fork_asks_for_cuda(extension):
    """It would cost each rank an import of torch."""
    program = f"""
import importlib, os, torch
from gpudiag.loaded_cuda import driver_has_started, refuses_cuda
from gpudiag.ranks.rank.job import read_settings
wrong = []
for name in {IMPORTED!r}:
    importlib.import_module(name)
    if driver_has_started():
        wrong.append((name, "starts"))
read_settings()
pid = os.fork()
if not pid:
    os._exit(refuses_cuda(torch))
print(wrong, os.waitpid(pid, 0)[1], driver_has_started())
"""
    ended = run_program("h100x8", sys.executable, "-c", program)
    assert ended.output.split("\n")[0] == "[] 0 False", (ended.output, ended.error)
