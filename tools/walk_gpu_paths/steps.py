"""Every command on GPUs: healthy ones, 1 to 8 of them, of each kind, and each fault under each command."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SMALL = ("--max-bytes", "2K", "--step-factor", "16", "--iterations", "3", "--warmup", "1")
_ONE_SIZE = ("--min-bytes", "1003", "--max-bytes", "1003", "--iterations", "3", "--warmup", "1")
# Of the sustained load, for long.
_DURATION_SECONDS = 10
_LONG_ON_AT_MOST = 2
_QUICK = ("preflight", "--level", "quick")
_MACHINES = Path(__file__).parent
# Machines that stand for a kind of GPU, and how many of theirs take part.
_KINDS = (
    ("h100x8", 2),
    ("h200x8", 2),
    ("a100x8", 2),
    ("v100x8", 2),
    ("t4x1", 1),
    ("a10x1", 1),
    (f"{_MACHINES / 'l4x1.toml'}", 1),
    ("l40sx8", 2),
    ("a6000x4", 2),
    ("rtx4090x2", 2),
    ("gh200", 1),
    ("gb10", 1),
    ("b200x8", 2),
    ("gb200x4", 2),
    ("vgpu", 1),
    ("h100-mig", 1),
)
# The operation of GPU 1 that a fault happens to: within the measurement, after everything has started.
_IN_NCCL_TEST, _IN_TRAIN, _IN_TESTS = 60, 900, 300


@dataclass(frozen=True)
class Step:
    """A command on a machine, the exit status that it should have, and words that it must print."""

    name: str
    status: int
    scenario: str
    command: tuple[str, ...]
    words: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


def all_steps(counts: Sequence[int]) -> list[Step]:
    """Every step, with so many GPUs where the number is a choice."""
    return [*healthy_steps(counts), *kinds_of_gpus(), *faulty_steps(), *faulty_machines()]


def healthy_steps(counts: Sequence[int]) -> Iterator[Step]:
    """Every command on a healthy machine with so many GPUs."""
    for count in counts:
        commands = {
            "list": ("list", "--sources", "all"),
            "nccl-test": ("nccl-test", "--nproc", str(count), "--op", "all", "--dtype", "all", *_ONE_SIZE),
            "bandwidth": ("bandwidth",),
            "train": ("train", "--nproc", str(count), "--strategy", "all", "--steps", "4"),
            "quick": _QUICK,
            "standard": ("preflight", "--level", "standard"),
            "long": ("preflight", "--level", "long", "--duration", str(_DURATION_SECONDS)),
        }
        # The memory patterns go through most of what is free, and a rank needs 1 GiB: a processor does that
        # for two GPUs.
        little = {"CUDA_STAND_IN_FREE_BYTES": str(5 << 28)}
        if count > _LONG_ON_AT_MOST:
            del commands["long"]
        for name, command in commands.items():
            variables = _first(count) | (little if name == "long" else {})
            yield Step(f"{name} on {count}", 0, "h100x8", command, variables=variables)


def kinds_of_gpus() -> Iterator[Step]:
    """Every kind of GPU under each command, and what some of them need of one."""
    for scenario, count in _KINDS:
        commands = {
            "list": ("list", "--sources", "all"),
            "nccl-test": ("nccl-test", "--nproc", str(count), "--dtype", "all", *_SMALL),
            "bandwidth": ("bandwidth",),
            "train": ("train", "--nproc", str(count), "--strategy", "all", "--steps", "3"),
            "quick": _QUICK,
        }
        for name, command in commands.items():
            # What a preflight would measure on a GPU in MIG mode belongs to the jobs of its instances.
            left = scenario == "h100-mig" and name in ("bandwidth", "quick")
            yield Step(
                f"{name} on {Path(scenario).stem}",
                3 if left else 0,
                scenario,
                command,
                "MIG is on" if left else "",
                _first(count) if count > 1 else {},
            )
    localise = ("nccl-test", "--nproc", "4", "--localise", *_SMALL)
    yield Step("localise on 4", 0, "h100x8", localise, "Localisation: 4 nodes, all 6 pairs", _first(4))
    float8 = ("nccl-test", *_SMALL, "--nproc", "2", "--dtype", "float8_e4m3fn")
    yield Step("float8 on A100", 2, "a100x8", float8, "torch 2.8")
    yield Step("float8 on B200", 0, "b200x8", float8)


def faulty_steps() -> Iterator[Step]:
    """Each fault of a GPU under each command, with the words that name it."""
    two = ("--nproc", "2")
    commands = {
        "nccl-test": (("nccl-test", *two, *_SMALL), _IN_NCCL_TEST),
        "train": (("train", *two), _IN_TRAIN),
        "bandwidth": (("bandwidth",), _IN_TESTS),
        "quick": (_QUICK, _IN_TESTS),
    }
    words = {
        "stuck": "rank.silent|collective.stalled",
        "error": "illegal memory access",
        "oom": "rank.out_of_gpu_memory|train.out_of_memory|of memory are free",
    }
    for kind, wanted in words.items():
        for name, (command, operation) in commands.items():
            fault = _fault(f"{kind}:1@{operation}") | _first(2)
            # Memory that is gone is no fault of a GPU: ranks reach no verdict, and copies and products are
            # left out.
            status = {"nccl-test": 3, "quick": 3, "bandwidth": 0}.get(name, 1) if kind == "oom" else 1
            yield Step(f"{kind} in {name}", status, "h100x8", command, wanted, fault)
    exclusive = f"{_MACHINES / 'exclusive.toml'}"
    for name, (command, _) in commands.items():
        yield Step(f"no_peer in {name}", 0, "h100x8", command, "", _fault("no_peer:1") | _first(2))
        one_process = _fault("exclusive:0,exclusive:1") | _first(2)
        yield Step(f"exclusive in {name}", 0, exclusive, command, "", one_process)
    small = commands["nccl-test"][0]
    yield Step("larger than memory", 2, "h100x8", ("nccl-test", *two, "--max-bytes", "64G"), "--max-bytes")
    newer = {"CUDA_STAND_IN_NCCL": "2.30.3"}
    yield Step("two ranks on one GPU, old NCCL", 2, "h100x8", small, "2.30", _first(1))
    yield Step("two ranks on one GPU, new NCCL", 0, "h100x8", small, "", _first(1) | newer)
    yield Step("two ranks train on one GPU", 0, "h100x8", ("train", *two), "", _first(1) | newer)


def faulty_machines() -> Iterator[Step]:
    """Machines of which a GPU is not fit, under commands that test the others."""
    two = ("--nproc", "2")
    commands = {
        "nccl-test": ("nccl-test", *two, *_SMALL),
        "train": ("train", *two),
        "bandwidth": ("bandwidth",),
        "quick": _QUICK,
    }
    for fault, code in (("lost:1", "gpu.lost"), ("compute-prohibited:1", "mode.compute_prohibited")):
        for name, command in commands.items():
            scenario = f"h100x8+{fault}"
            yield Step(f"{fault.split(':')[0]} in {name}", 1, scenario, command, code, _first(4))


def _first(count: int) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count)))}


def _fault(text: str) -> dict[str, str]:
    return {"CUDA_STAND_IN_FAULTS": text}
