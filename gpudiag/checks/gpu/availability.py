"""Which GPUs this process was given, which are free to start work on, and why the others are not.

Free is what GPUtil's limits of load and memory, processes, health, compute mode, MIG and the job's share
allow.
"""

from dataclasses import dataclass, replace

from gpudiag.checks.gpu.products import is_coherent
from gpudiag.model.device import Device, GpuProcess, MigInstance, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, MissingReason, Reading

# --- what this process was given

# Values that grant nothing: CUDA stops at the first invalid ordinal, Slurm writes NoDevFiles.
_NO_DEVICES = ("", "-1", "NoDevFiles", "none")
# Values of NVIDIA_VISIBLE_DEVICES that name no number. CUDA base images set `all` whether or not a
# GPU was given; a device plugin that mounts the devices itself writes `void`.
_NO_NUMBER = ("", "all", "void")

# Exact counts for this node first; Slurm documents them in sbatch(1) and srun(1), "OUTPUT ENVIRONMENT
# VARIABLES".
_COUNT_VARIABLES = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
_LIST_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_SLURM_NUMBERS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_GRANTING_VARIABLES = (*_COUNT_VARIABLES, *_LIST_VARIABLES, "NVIDIA_VISIBLE_DEVICES")


def granted_count(variable: str, value: str) -> int | None:
    """How many GPUs of this node `variable` grants; None where it grants no particular number."""
    value = value.strip()
    if variable in _COUNT_VARIABLES:
        count = value.rpartition(":")[2]  # "4", or "h100:4"
        return int(count) if count.isdecimal() else None
    if variable in _LIST_VARIABLES:
        return 0 if value in _NO_DEVICES else len(_tokens(value))
    if variable == "NVIDIA_VISIBLE_DEVICES":
        if value in _NO_NUMBER or value.startswith("/"):  # a path: the device list is mounted as files
            return None
        return 0 if value == "none" else len(_tokens(value))
    return None


def granted(allocation: dict[str, str]) -> tuple[str, int] | None:
    """The variable that grants GPUs of this node, and how many it grants; None where none does."""
    for variable in _GRANTING_VARIABLES:
        count = granted_count(variable, allocation[variable]) if variable in allocation else None
        if count is not None:
            return variable, count
    return None


def is_granted(snapshot: Snapshot, device: Device) -> bool:
    """Whether CUDA_VISIBLE_DEVICES, if set, leaves the GPU to this process.

    Ordinals count in NVML's order. A MIG instance's UUID grants the GPU that holds it.
    """
    value = snapshot.machine.allocation.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return True
    if value.strip() in _NO_DEVICES:
        return False
    return any(_names(token, device) for token in _tokens(value))


def given_to_job(snapshot: Snapshot, device: Device) -> bool | None:
    """Whether a setting gives that GPU to the job; None if no setting names the job's GPUs.

    A Slurm prolog has its numbers in SLURM_JOB_GPUS and sees all GPUs; a job step sees only its own.
    """
    allocation, here = snapshot.machine.allocation, len(snapshot.devices)
    if "CUDA_VISIBLE_DEVICES" in allocation:
        return is_granted(snapshot, device)
    for variable in _SLURM_NUMBERS:
        numbers = _tokens(allocation.get(variable, ""))
        if numbers and here <= len(numbers):
            return True
        if numbers and all(number.isdecimal() for number in numbers):
            return str(device.id.nvml_index) in numbers
    count = granted(allocation)
    return True if count is not None and count[1] >= here else None


def names_instance(allocation: dict[str, str], mig_uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES, where it is set, leaves that MIG instance to this process."""
    value = allocation.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return True
    return any(not token.startswith("MIG-") or mig_uuid.startswith(token) for token in _tokens(value))


def _names(token: str, device: Device) -> bool:
    if token.isdecimal():
        return device.id.nvml_index == int(token)
    if token.startswith("MIG-"):
        instances = device.mig_instances
        return not isinstance(instances, Missing) and any(
            not isinstance(instance.uuid, Missing) and instance.uuid.startswith(token)
            for instance in instances
        )
    # CUDA takes any beginning of a UUID that is unique on the machine.
    return not isinstance(device.id.uuid, Missing) and device.id.uuid.startswith(token)


def _tokens(value: str) -> list[str]:
    """The identifiers before the first one that CUDA calls invalid; it ignores the rest of the list."""
    tokens: list[str] = []
    for token in (part.strip() for part in value.split(",")):
        if token in ("", "-1"):
            break
        tokens.append(token)
    return tokens


# --- what is free

# Idle GPUs show 0 % load and no used memory in `nvidia-smi -q` (A100, H100, B200, T4: driver reserves are
# counted apart). GPUtil's own limits are 50 % of each, which calls a GPU free that another job half fills.
MAX_UTILIZATION_PERCENT = 10
MAX_MEMORY_USED_PERCENT = 10

_CLOSED_COMPUTE_MODES = ("prohibited",)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One GPU or MIG instance that work could start on; free where there is no reason not to."""

    label: str  # the NVML index, `0:2` for the third MIG instance of GPU 0
    uuid: Reading[str]  # what CUDA_VISIBLE_DEVICES takes, whatever the order of ordinals
    against: tuple[str, ...]

    @property
    def free(self) -> bool:
        """Whether there is no reason not to use it."""
        return not self.against


def judge_availability(snapshot: Snapshot, findings: tuple[Finding, ...]) -> tuple[Candidate, ...]:
    """Every GPU, or its MIG instances where MIG is on, with the reasons not to use it."""
    faulty = _faulty_subjects(findings)
    return tuple(
        candidate for device in snapshot.devices for candidate in _candidates(snapshot, device, faulty)
    )


def mark_free(snapshot: Snapshot, findings: tuple[Finding, ...]) -> Snapshot:
    """The snapshot with `free` on each GPU and MIG instance; a GPU with MIG is free if an instance is."""
    faulty = _faulty_subjects(findings)
    return replace(
        snapshot,
        devices=tuple(_marked(device, _candidates(snapshot, device, faulty)) for device in snapshot.devices),
    )


def _marked(device: Device, candidates: tuple[Candidate, ...]) -> Device:
    marked = replace(device, free=any(candidate.free for candidate in candidates))
    instances = device.mig_instances
    if not _is_split(device) or isinstance(instances, Missing):
        return marked
    pairs = zip(instances, candidates, strict=True)
    return replace(marked, mig_instances=tuple(replace(one, free=candidate.free) for one, candidate in pairs))


def reasons_against(snapshot: Snapshot, device: Device, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """Why no work may start on the GPU, nor on any of its MIG instances; empty where one is free."""
    candidates = _candidates(snapshot, device, _faulty_subjects(findings))
    if any(candidate.free for candidate in candidates):
        return ()
    reasons = tuple(dict.fromkeys(reason for candidate in candidates for reason in candidate.against))
    return reasons or ("MIG is on, and it has no instance",)


def _is_split(device: Device) -> bool:
    """Whether work starts on the GPU's MIG instances, and not on the whole."""
    return device.mig_mode == "enabled" and not isinstance(device.mig_instances, Missing)


def _candidates(
    snapshot: Snapshot, device: Device, faulty: frozenset[Reading[str] | Reading[int]]
) -> tuple[Candidate, ...]:
    label = "?" if isinstance(device.id.nvml_index, Missing) else str(device.id.nvml_index)
    against = tuple(_against_device(snapshot, device, faulty))
    instances = device.mig_instances
    if device.mig_mode == "enabled" and not isinstance(instances, Missing):
        return tuple(
            Candidate(
                f"{label}:{place}",
                instance.uuid,
                against + tuple(_against_instance(snapshot, device, instance)),
            )
            for place, instance in enumerate(instances)
        )
    return (Candidate(label, device.id.uuid, against + tuple(signs_of_use(device))),)


def why_not_free(snapshot: Snapshot, device: Device) -> tuple[str, ...]:
    """The reasons not to start work on the whole GPU, faults aside; empty where it is free."""
    return (*_against_device(snapshot, device, frozenset()), *signs_of_use(device))


def _against_device(
    snapshot: Snapshot, device: Device, faulty: frozenset[Reading[str] | Reading[int]]
) -> list[str]:
    against = []
    if isinstance(device.responding, Missing):
        against.append("it is asleep" if device.is_asleep else "it gives no readings")
    if device.id.uuid in faulty or device.id.bus_id in faulty:
        against.append("a check found a fault on it")
    if device.compute_mode in _CLOSED_COMPUTE_MODES:
        against.append(f"its compute mode is {device.compute_mode}")
    if not is_granted(snapshot, device):
        against.append("CUDA_VISIBLE_DEVICES does not give it to this job")
    return against


def signs_of_use(device: Device) -> list[str]:
    """The signs that the GPU is in use, or that this is unknown; empty if it is idle.

    In a container load and memory show use by processes that it cannot see.
    """
    shared = device.memory_kind == "unified" or is_coherent(device)  # what is in use there may be the host's
    memory = None if shared else _against_memory(device.memory_used_bytes, device.memory_total_bytes)
    if isinstance(device.processes, Missing) and isinstance(device.memory_used_bytes, Missing):
        return ["whether it is in use is unknown"]
    readings = (_against_processes(device.processes), memory, _against_load(device.utilization_percent))
    return [text for text in readings if text is not None]


def _against_instance(snapshot: Snapshot, device: Device, instance: MigInstance) -> list[str]:
    processes = device.processes
    if not isinstance(processes, Missing):
        processes = tuple(process for process in processes if _runs_on(process, instance))
    memory = _against_memory(instance.memory_used_bytes, instance.memory_total_bytes)
    against = [text for text in (_against_processes(processes), memory) if text is not None]
    uuid = instance.uuid
    if isinstance(uuid, Missing):
        against.append("its UUID is not known")
    elif not names_instance(snapshot.machine.allocation, uuid):
        against.append("CUDA_VISIBLE_DEVICES does not give it to this job")
    return against


def _runs_on(process: GpuProcess, instance: MigInstance) -> bool:
    """Whether a process is on that MIG instance, or NVML leaves it open."""
    return isinstance(process.gpu_instance_id, Missing) or process.gpu_instance_id == instance.gpu_instance_id


def _against_processes(processes: Reading[tuple[GpuProcess, ...]]) -> str | None:
    if isinstance(processes, Missing):
        return _unknown(processes, "its processes are not known")
    computing = [process for process in processes if process.kind != "graphics"]
    if not computing:
        return None
    return f"{len(computing)} compute process{'es' * (len(computing) > 1)}"


def _against_memory(used: Reading[int], total: Reading[int]) -> str | None:
    if isinstance(used, Missing):
        return _unknown(used, "its used memory is not known")
    if isinstance(total, Missing):
        return _unknown(total, "its memory is not known")
    percent = 100 * used / total if total else 0.0
    return None if percent < MAX_MEMORY_USED_PERCENT else f"{percent:.0f} % of its memory is used"


def _against_load(utilization: Reading[int]) -> str | None:
    if isinstance(utilization, Missing):
        return _unknown(utilization, "its load is not known")
    return None if utilization < MAX_UTILIZATION_PERCENT else f"{utilization} % load"


def _unknown(missing: Missing, text: str) -> str | None:
    """Why a missing reading counts against the GPU; None for one that this kind of GPU never gives."""
    return None if missing.reason is MissingReason.NOT_SUPPORTED else text


def _faulty_subjects(findings: tuple[Finding, ...]) -> frozenset[Reading[str] | Reading[int]]:
    """The UUIDs and bus ids of the GPUs with a FAIL or an ERROR."""
    subjects = (finding.subject for finding in findings if finding.outcome in (Outcome.FAIL, Outcome.ERROR))
    names = (
        name
        for subject in subjects
        if isinstance(subject, DeviceSubject)
        for name in (subject.uuid, subject.bus_id)
    )
    return frozenset(name for name in names if not isinstance(name, Missing))
