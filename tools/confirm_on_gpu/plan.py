"""The steps, in the order in which they run: what later ones build on first, then what tells most.

Deadlines are several times what a step takes on an H100-class machine by its parts; the run as a whole has a limit
too, and a step gets what is left of it.
"""

from __future__ import annotations

from tools.confirm_on_gpu import reading
from tools.confirm_on_gpu.step import Need, Step

LIMIT_SECONDS = 570.0  # of the whole run: under ten minutes with what cleaning up takes

_ONE_GPU = {"CUDA_VISIBLE_DEVICES": "{first_gpu}"}


def _gpudiag(words: str) -> tuple[str, ...]:
    """That command of gpudiag's, with its result as JSON."""
    return ("{python}", "-m", "gpudiag", *words.split(), "--json")


LOOK = Step(
    name="machine",
    confirms="NVML, torch and the host answer; the machine is recorded as a scenario",
    command=_gpudiag("list --sources all"),
    deadline_seconds=60,
    read=reading.read_machine,
    leaves="machine.json",
)

STEPS: tuple[Step, ...] = (
    LOOK,
    Step(
        name="nvidia_smi",
        confirms="what nvidia-smi says of the same moment",
        command=("nvidia-smi", "-q", "-x"),
        deadline_seconds=30,
        read=reading.read_capture,
        needs=(Need.NVIDIA_SMI,),
        leaves="nvidia-smi.xml",
    ),
    Step(
        name="readings",
        confirms="every reading is what nvidia-smi shows",
        command=(
            "{python}",
            "-m",
            "tools.confirm_on_gpu.hold_against_nvidia_smi",
            "{folder}/machine.json",
            "{folder}/nvidia-smi.xml",
        ),
        deadline_seconds=20,
        read=reading.read_comparison,
        needs=(Need.MACHINE, Need.CAPTURE),
    ),
    Step(
        name="playback",
        confirms="the record plays back through gpudiag simulate",
        command=("{python}", "-m", "tools.confirm_on_gpu.playback", "{folder}/machine.json"),
        deadline_seconds=30,
        read=reading.read_playback,
        needs=(Need.CLICK, Need.MACHINE, Need.COMPILER),
    ),
    Step(
        name="nccl_one_rank",
        confirms="one NCCL rank is exact over sizes up to 256 MiB",
        command=_gpudiag("nccl-test --nproc 1 --max-bytes 256M --step-factor 8"),
        deadline_seconds=60,
        read=reading.read_collective,
        needs=(Need.CLICK, Need.CUDA),
    ),
    Step(
        name="preflight",
        confirms="every check up to level standard, on real readings",
        command=_gpudiag("preflight --level standard"),
        deadline_seconds=180,
        read=reading.read_preflight,
        needs=(Need.CLICK, Need.PYNVML),
        leaves="preflight.json",
    ),
    Step(
        name="preflight_quick",
        confirms="level quick takes the 45 s and 4 s for each GPU that are promised",
        command=_gpudiag("preflight --level quick"),
        deadline_seconds=150,
        read=reading.read_quick,
        needs=(Need.CLICK, Need.CUDA, Need.PYNVML),
    ),
    Step(
        name="bandwidth",
        confirms="copies and matrix products of one GPU, verified and timed",
        command=_gpudiag("bandwidth"),
        deadline_seconds=60,
        read=reading.read_bandwidth,
        needs=(Need.CLICK, Need.CUDA),
        environment=_ONE_GPU,
        leaves="bandwidth.json",
    ),
    Step(
        name="bare_loop",
        confirms="the same copies and products in a bare torch loop",
        command=("{python}", "-m", "tools.confirm_on_gpu.bare_loop", "{sizes}"),
        deadline_seconds=60,
        read=reading.read_loop,
        needs=(Need.CUDA, Need.SPEEDS),
        environment=_ONE_GPU,
    ),
    Step(
        name="bandwidth_again",
        confirms="gpudiag's speeds once more, behind the loop",
        command=_gpudiag("bandwidth"),
        deadline_seconds=60,
        read=reading.read_bandwidth,
        needs=(Need.CLICK, Need.CUDA, Need.SPEEDS),
        environment=_ONE_GPU,
    ),
    Step(
        name="nccl_two_ranks_bare",
        confirms="whether this NCCL lets two ranks share a GPU",
        command=("{python}", "-m", "tools.confirm_on_gpu.nccl_pair"),
        deadline_seconds=45,
        read=reading.read_pair,
        needs=(Need.CUDA,),
        environment=_ONE_GPU,
    ),
    Step(
        name="nccl_two_ranks_one_gpu",
        confirms="two ranks on one GPU: legal from NCCL 2.30, refused before",
        command=_gpudiag("nccl-test --nproc 2 --max-bytes 64K"),
        deadline_seconds=60,
        read=reading.read_shared,
        needs=(Need.CLICK, Need.CUDA),
        environment=_ONE_GPU,
    ),
    Step(
        name="nccl_two_gpus",
        confirms="every operation and dtype is exact between two GPUs",
        command=_gpudiag(
            "nccl-test --nproc 2 --op all --dtype all --min-bytes 1003 --max-bytes 1003 --iterations 3 --warmup 1"
        ),
        deadline_seconds=90,
        read=reading.read_collective,
        needs=(Need.CLICK, Need.CUDA, Need.TWO_GPUS),
    ),
    Step(
        name="nccl_speed",
        confirms="bus bandwidth over all GPUs up to 1 GiB",
        command=_gpudiag("nccl-test --max-bytes 1G --step-factor 8"),
        deadline_seconds=90,
        read=reading.read_collective,
        needs=(Need.CLICK, Need.CUDA, Need.TWO_GPUS),
        leaves="nccl-speed.json",
    ),
    Step(
        name="nccl_stopped_rank",
        confirms="a rank that stops inside NCCL's reach is named",
        command=_gpudiag("nccl-test --nproc 2 --max-bytes 1K --inject stop:1@5"),
        deadline_seconds=90,
        read=reading.read_fault,
        needs=(Need.CLICK, Need.CUDA, Need.TWO_GPUS),
    ),
    Step(
        name="training",
        confirms="bf16 training is that of a single process",
        command=_gpudiag("train --strategy data-parallel,ddp,fsdp2 --workload transformer --dtype bfloat16"),
        deadline_seconds=90,
        read=reading.read_training,
        needs=(Need.CLICK, Need.CUDA),
        leaves="training.json",
    ),
    Step(
        name="gpu_tests",
        confirms="the tests of tests/gpu",
        command=("{python}", "-m", "tools.confirm_on_gpu.gpu_tests", "tests/gpu", "{folder}/gpu-tests.xml"),
        deadline_seconds=180,
        read=reading.read_tests,
        needs=(Need.CLICK, Need.PYNVML),
    ),
)
