"""The recipe of `gpudiag train --advise`: inspect the machine, advise a strategy, run nothing."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudiag.checks.traces import gpu_traces
from gpudiag.errors import SourceFailedError, UsageError
from gpudiag.model.device import Device
from gpudiag.model.finding import Outcome
from gpudiag.model.host import Machine
from gpudiag.model.option import require_between, require_known
from gpudiag.model.reading import Missing, Reading
from gpudiag.model.training import OPTIMIZERS, TRAINING_DTYPES, TrainingReport
from gpudiag.probe.inventory import take_snapshot
from gpudiag.probe.visibility import cuda_visible
from gpudiag.runs.placement import Placement
from gpudiag.runs.train import describe_machine
from gpudiag.training.advise import DEFAULT_DTYPE, DEFAULT_OPTIMIZER, DEFAULT_PARAMETERS, Model, Place, advise

_MAX_NODES = 100_000

_FIRST_COUNT = re.compile(r"[0-9]+")  # of `8(x2),4`
_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMBT]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def advise_strategy(
    parameters: str | None,
    *,
    nodes: int | None = None,
    dtype: str = DEFAULT_DTYPE,
    optimizer: str = DEFAULT_OPTIMIZER,
    master_weights: bool = True,
) -> TrainingReport:
    """The advice for a model of that many parameters, such as `7B`; by default `1B`.

    The GPUs are those that the allocation gives, a MIG instance with its own memory; the hosts are `nodes`,
    or those of the job that this is part of.

    Raises:
        UsageError: the size is not a number, or there are no such dtype, optimizer, weights or nodes.
        SourceFailedError: there is a trace of a GPU, and none can be read.
    """
    size = DEFAULT_PARAMETERS if parameters is None else parse_parameters(parameters)
    require_known(dtype, TRAINING_DTYPES, "a dtype")
    require_known(optimizer, OPTIMIZERS, "an optimizer")
    model = Model(size, dtype, optimizer, master_weights)
    if nodes is not None:
        require_between(nodes, 1, _MAX_NODES, "--nodes")
    snapshot = take_snapshot()
    devices = tuple(
        device for device in snapshot.devices if not isinstance(device.memory_total_bytes, Missing)
    )
    traces = gpu_traces(snapshot)
    if traces and not devices:
        why = snapshot.source("nvml").reason or "NVML gives no memory size"
        raise SourceFailedError(
            f"a GPU was found ({traces[0].text}), but it cannot be read: {why}",
            hint="see `gpudiag` and `gpudiag list --sources all`",
        )
    given = given_gpus(snapshot.machine, snapshot.devices)
    memory_bytes = given.memory_bytes if given.mig else with_other_tasks(given.memory_bytes, os.environ)
    if devices and not memory_bytes:
        raise UsageError(
            f"none of the {len(devices)} GPUs here is visible to this process",
            hint="see CUDA_VISIBLE_DEVICES, and the MIG instances of `nvidia-smi -L`",
        )
    here = Placement(
        "nccl" if devices else "gloo", max(1, len(memory_bytes)), devices=devices, snapshot=snapshot
    )
    memory = snapshot.machine.memory_total_bytes
    place = Place(
        memory_bytes,
        nodes or nodes_of_job(os.environ, len(memory_bytes)),
        None if isinstance(memory, Missing) else memory,
        any(device.memory_kind == "unified" for device in devices),
        given.mig,
    )
    return TrainingReport(
        outcome=Outcome.PASS,
        host=snapshot.host,
        strategies=(),
        findings=(),
        advice=advise(model, place),
        simulated=snapshot.simulated,
        machine=describe_machine(here),
    )


@dataclass(frozen=True, slots=True)
class Given:
    """The memory of each GPU that CUDA shows to a process; `mig`: it is one MIG instance."""

    memory_bytes: tuple[int, ...]
    mig: bool = False


def given_gpus(machine: Machine, devices: Sequence[Device]) -> Given:
    """What CUDA shows to a process of this allocation: whole GPUs, or if there are none, one MIG instance.

    It shows at most one, and nothing else of a GPU with MIG (MIG User Guide, "CUDA Device Enumeration").
    """
    whole = [device for device in devices if device.mig_mode != "enabled"]
    instances = [
        one
        for device in devices
        if device.mig_mode == "enabled" and not isinstance(device.mig_instances, Missing)
        for one in device.mig_instances
    ]
    by_instance = cuda_visible(
        machine, [None if isinstance(one.uuid, Missing) else one.uuid for one in instances]
    )
    if machine.allocation.get("CUDA_VISIBLE_DEVICES", "").strip().startswith("MIG-"):
        return Given(_known([instances[at].memory_total_bytes for at in (by_instance or ())[:1]]), mig=True)
    if not whole and instances:
        return Given(_known([instances[0].memory_total_bytes] if by_instance != [] else []), mig=True)
    visible = cuda_visible(
        machine, [None if isinstance(one.id.uuid, Missing) else one.id.uuid for one in whole]
    )
    chosen = range(len(whole)) if visible is None else visible
    return Given(_known([whole[at].memory_total_bytes for at in chosen]))


def _known(sizes: Sequence[Reading[int]]) -> tuple[int, ...]:
    return tuple(size for size in sizes if not isinstance(size, Missing))


def with_other_tasks(memory_bytes: tuple[int, ...], environment: Mapping[str, str]) -> tuple[int, ...]:
    """`memory_bytes` and that of the GPUs of the job's other Slurm tasks on this host, taken as alike.

    srun(1), "OUTPUT ENVIRONMENT VARIABLES".
    """
    on_host = environment.get("SLURM_GPUS_ON_NODE", "")
    tasks = _FIRST_COUNT.match(
        environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    )
    if not memory_bytes or not on_host.isdecimal() or tasks is None:
        return memory_bytes
    others = min(int(on_host), len(memory_bytes) * int(tasks[0])) - len(memory_bytes)
    return memory_bytes + (min(memory_bytes),) * others


def nodes_of_job(environment: Mapping[str, str], gpus: int) -> int:
    """How many hosts this process's job has, by Slurm's or the launcher's variables; 1 by default."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if environment.get(name, "").isdecimal():
            return max(1, int(environment[name]))
    world, local = (environment.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    here = int(local) if local.isdecimal() else gpus
    return max(1, -(-int(world) // here)) if world.isdecimal() and here else 1


def parse_parameters(text: str) -> int:
    """The number that `350M` or `7B` stands for. Raises UsageError: it is not such a number."""
    match = _PATTERN.fullmatch(text.strip())
    size = 0.0 if match is None else float(match[1]) * _FACTORS[match[2].upper()]
    if size < 1:
        raise UsageError(f"--parameters {text} is not a number of parameters", hint="write it as 350M or 7B")
    return int(size)
