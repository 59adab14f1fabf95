"""The steps, in the order in which they run: what later ones build on first, then the most informative.

`seconds` are those of one H100 80GB HBM3 (2026-11), or what the parts of a step come to: their sum is under
the limit of the whole run. A deadline is twice to four times that; the run as a whole has a limit too, and a
step gets what is left of it.
"""

from __future__ import annotations

from collections.abc import Collection

from tools.confirm_on_gpu import reading
from tools.confirm_on_gpu.step import Need, Step

LIMIT_SECONDS = 360.0  # of the whole run

_ONE_GPU = {"CUDA_VISIBLE_DEVICES": "{first_gpu}"}
# Two ranks on it; from NCCL 2.30 on, and with the library that the folder of wheels brought.
_SHARED = {**_ONE_GPU, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "LD_PRELOAD": "{nccl}"}
_SHARING = (Need.CLICK, Need.CUDA, Need.SHARING)
_PAIR = "nccl_two_ranks_bare"
_TWO = "nccl-test --nproc 2 --max-bytes 1K"


def _gpudiag(words: str, *, events: str = "") -> tuple[str, ...]:
    """That command of gpudiag's, with its result as JSON, and its events in that file."""
    kept = ("--events", f"{{folder}}/{events}") if events else ()
    return ("{python}", "-m", "gpudiag", *words.split(), "--json", *kept)


def _tool(module: str, *words: str) -> tuple[str, ...]:
    return ("{python}", "-m", f"tools.confirm_on_gpu.{module}", *words)


def _step(
    name: str,
    confirms: str,
    words: str,
    seconds: float,
    read: object,
    needs: tuple[Need, ...],
    **more: object,
) -> Step:
    """A step of a command whose events show how far it was."""
    events = f"{name}.events"
    command = _gpudiag(words, events=events)
    return Step(
        name,
        confirms,
        command,
        seconds,
        3 * seconds + 15,
        read,  # type: ignore[arg-type]
        needs,
        events=events,
        **more,  # type: ignore[arg-type]
    )


LOOK = Step(
    name="machine",
    confirms="NVML, torch and the host answer; the machine is recorded as a scenario",
    command=_gpudiag("list --sources all"),
    seconds=6,
    deadline_seconds=60,
    read=reading.read_machine,
    leaves="machine.json",
)

STEPS: tuple[Step, ...] = (
    LOOK,
    Step(
        name="nvidia_smi",
        confirms="what nvidia-smi shows at the same moment",
        command=("nvidia-smi", "-q", "-x"),
        seconds=1,
        deadline_seconds=30,
        read=reading.read_capture,
        needs=(Need.NVIDIA_SMI,),
        leaves="nvidia-smi.xml",
    ),
    Step(
        name="readings",
        confirms="every reading is what nvidia-smi shows",
        command=_tool("hold_against_nvidia_smi", "{folder}/machine.json", "{folder}/nvidia-smi.xml"),
        seconds=1,
        deadline_seconds=20,
        read=reading.read_comparison,
        needs=(Need.MACHINE, Need.CAPTURE),
    ),
    Step(
        name=_PAIR,
        confirms="whether this NCCL lets two ranks share a GPU",
        command=_tool("nccl_pair"),
        seconds=10,
        deadline_seconds=45,
        read=reading.read_pair,
        needs=(Need.CUDA,),
        environment=_SHARED,
        leaves="nccl-pair.json",
    ),
    _step(
        "nccl_two_ranks",
        "two NCCL ranks on one GPU: every operation and dtype is exact",
        "nccl-test --nproc 2 --op all --dtype all --min-bytes 1003"
        " --max-bytes 1003 --iterations 3 --warmup 1",
        20,
        reading.read_shared,
        _SHARING,
        environment=_SHARED,
    ),
    Step(
        name="nccl_two_ranks_refused",
        confirms="two ranks on one GPU are refused in a sentence, where NCCL cannot",
        command=_gpudiag("nccl-test --nproc 2 --max-bytes 64K"),
        seconds=5,
        deadline_seconds=40,
        read=reading.read_shared,
        needs=(Need.CLICK, Need.CUDA, Need.NO_SHARING),
        environment=_ONE_GPU,
    ),
    Step(
        name="hang_jobs",
        confirms="gpudiag hang on four jobs of two NCCL ranks that hang, and a healthy one",
        command=_tool("hang_jobs"),
        seconds=55,
        deadline_seconds=150,
        read=reading.read_hangs,
        needs=(*_SHARING, Need.PY_SPY),
        environment=_SHARED,
        lines=True,
    ),
    Step(
        name="service",
        confirms="the service for 30 s, beside those jobs: its processor time and memory",
        command=_tool("service_cost"),
        seconds=55,
        deadline_seconds=120,
        read=reading.read_service,
        needs=(Need.CLICK, Need.PYNVML, Need.SERVICE),
        lines=True,
        beside="hang_jobs",
    ),
    _step(
        "training_two_ranks",
        "DDP, FSDP2 and, where DeepSpeed is, ZeRO on two NCCL ranks match a single process",
        "train --nproc 2 --strategy {strategies}",
        35,
        reading.read_training,
        _SHARING,
        environment=_SHARED,
    ),
    _step(
        "preflight",
        "every check up to level standard, on real readings",
        "preflight --level standard",
        75,
        reading.read_preflight,
        (Need.CLICK, Need.PYNVML),
        leaves="preflight.json",
    ),
    _step(
        "nccl_stopped",
        "two NCCL ranks on one GPU: the one that stops is named",
        f"{_TWO} --inject stop:1@5",
        12,
        reading.read_fault,
        _SHARING,
        environment=_SHARED,
    ),
    _step(
        "nccl_killed",
        "the one that is killed is named",
        f"{_TWO} --inject kill:1@5",
        10,
        reading.read_kill,
        _SHARING,
        environment=_SHARED,
    ),
    _step(
        "nccl_mismatch",
        "the one that enters another size is named",
        f"{_TWO} --inject mismatch:1@3:size",
        12,
        reading.read_mismatch,
        _SHARING,
        environment=_SHARED,
    ),
    Step(
        name="nvml_costs",
        confirms="what each call into NVML costs, of a listing and of a tick of the sampler",
        command=_tool("nvml_costs"),
        seconds=10,
        deadline_seconds=45,
        read=reading.read_costs,
        needs=(Need.PYNVML,),
        lines=True,
    ),
    Step(
        name="start_times",
        confirms="how long list, the bare command and level instant take, beside others",
        command=_tool("start_times"),
        seconds=20,
        deadline_seconds=60,
        read=reading.read_starts,
        needs=(Need.CLICK, Need.PYNVML),
        lines=True,
    ),
    Step(
        name="bare_loop",
        confirms="the copies and products of preflight in a bare torch loop",
        command=_tool("bare_loop", "{sizes}"),
        seconds=17,
        deadline_seconds=60,
        read=reading.read_loop,
        needs=(Need.CUDA, Need.SPEEDS),
        environment=_ONE_GPU,
    ),
    _step(
        "bandwidth",
        "the same by gpudiag once more, behind the loop",
        "bandwidth",
        25,
        reading.read_bandwidth,
        (Need.CLICK, Need.CUDA),
        environment=_ONE_GPU,
        leaves="bandwidth.json",
    ),
    Step(
        name="playback",
        confirms="the record plays back through gpudiag simulate",
        command=_tool("playback", "{folder}/machine.json"),
        seconds=3,
        deadline_seconds=30,
        read=reading.read_playback,
        needs=(Need.CLICK, Need.MACHINE, Need.COMPILER),
    ),
    _step(
        "nccl_one_rank",
        "one NCCL rank is exact over sizes up to 256 MiB",
        "nccl-test --nproc 1 --max-bytes 256M --step-factor 8",
        13,
        reading.read_collective,
        (Need.CLICK, Need.CUDA),
    ),
    Step(
        name="gpu_tests",
        confirms="the tests of tests/gpu",
        command=_tool("gpu_tests", "tests/gpu", "{folder}/gpu-tests.xml"),
        seconds=30,
        deadline_seconds=120,
        read=reading.read_tests,
        needs=(Need.CLICK, Need.PYNVML),
    ),
    _step(
        "training",
        "bf16 training of one rank is that of a single process, where two ranks cannot share the GPU",
        "train --strategy data-parallel,ddp,fsdp2 --workload transformer --dtype bfloat16",
        35,
        reading.read_training,
        (Need.CLICK, Need.CUDA, Need.NO_SHARING),
        leaves="training.json",
    ),
    _step(
        "nccl_two_gpus",
        "every operation and dtype is exact between two GPUs",
        "nccl-test --nproc 2 --op all --dtype all --min-bytes 1003"
        " --max-bytes 1003 --iterations 3 --warmup 1",
        20,
        reading.read_collective,
        (Need.CLICK, Need.CUDA, Need.TWO_GPUS),
    ),
    _step(
        "nccl_speed",
        "bus bandwidth over all GPUs up to 1 GiB",
        "nccl-test --max-bytes 1G --step-factor 8",
        20,
        reading.read_collective,
        (Need.CLICK, Need.CUDA, Need.TWO_GPUS),
        leaves="nccl-speed.json",
    ),
    _step(
        "nccl_stopped_two_gpus",
        "a rank on a GPU of its own that stops inside NCCL's reach is named",
        f"{_TWO} --inject stop:1@5",
        12,
        reading.read_fault,
        (Need.CLICK, Need.CUDA, Need.TWO_GPUS),
    ),
)


def chosen_steps(names: Collection[str]) -> list[Step]:
    """The steps of those names in order, behind the look at what they need."""
    needs = {need for step in STEPS if step.name in names for need in step.needs}
    before = {LOOK.name} | ({_PAIR} if needs & {Need.SHARING, Need.NO_SHARING} else set())
    return [step for step in STEPS if step.name in before or step.name in names]
