"""MIG: the mode of a GPU, and its instances as devices with handles of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.reference.nvml import pack_struct
from gpudiag.simulate.answers import (
    NO_SUBJECT,
    SUBJECTS_PER_GPU,
    AnswerTable,
    Refusal,
    both,
    hash_text,
    text,
    u32,
)
from gpudiag.simulate.encode_memory import bar1_bytes, encode_memory_info, encode_window
from gpudiag.simulate.encode_processes import encode_processes
from gpudiag.simulate.gpu_answers import GpuAnswers, PlacedGpu, read_member

_MOST_INSTANCES = 7  # of any GPU with MIG so far (NVIDIA MIG User Guide, 2026)
_BYTES_PER_MIB = 1024**2


def encode_mig(placed: PlacedGpu, table: AnswerTable) -> None:
    """Give each of its MIG instances a handle."""
    answers = GpuAnswers(table, placed.subject)
    modes = both(placed.read("mig_mode"), placed.read("mig_mode_pending"))
    answers.reply("nvmlDeviceIsMigDeviceHandle", 0)
    instances = list_mig_instances(placed)
    enabled = not isinstance(modes, Refusal) and modes[0] == "enabled"
    answers.reply("nvmlDeviceGetMaxMigDeviceCount", _MOST_INSTANCES if enabled else 0)
    if isinstance(modes, Refusal):
        table.refuse_all("nvmlDeviceGetMigDeviceHandleByIndex", placed.subject, modes)
    for number, instance in enumerate(instances):
        # The indices of MIG devices may have holes: a recorded machine says which they are.
        index = instance.get("mig_index", number)
        handle = u32(placed.mig_subject(number))
        table.answer("nvmlDeviceGetMigDeviceHandleByIndex", placed.subject, handle, keys=(index,))
        _encode_instance(placed, number, index, instance, table)


def list_mig_instances(placed: PlacedGpu) -> Sequence[Mapping[str, Any]]:
    """The GPU's MIG instances, none where it has no such reading.

    Raises:
        UsageError: there are more than a GPU can have.
    """
    instances: Sequence[Mapping[str, Any]] = placed.gpu.readings.get("mig_instances") or ()
    if len(instances) >= SUBJECTS_PER_GPU:
        raise UsageError(f"a GPU has at most {_MOST_INSTANCES} MIG instances, not {len(instances)}")
    return instances


def _encode_instance(
    placed: PlacedGpu, number: int, index: int, instance: Mapping[str, Any], table: AnswerTable
) -> None:
    answers = GpuAnswers(table, placed.mig_subject(number))
    uuid = read_member(instance, "uuid")
    answers.reply("nvmlDeviceGetUUID", uuid, text)
    if not isinstance(uuid, Refusal):
        for function in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByUUIDV"):
            table.answer(function, NO_SUBJECT, u32(answers.subject), keys=(hash_text(uuid),))
    answers.reply("nvmlDeviceGetName", read_member(instance, "name"), text)
    answers.reply("nvmlDeviceGetIndex", index)
    answers.reply("nvmlDeviceIsMigDeviceHandle", 1)
    answers.reply("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", placed.subject)
    answers.reply("nvmlDeviceGetGpuInstanceId", read_member(instance, "gpu_instance_id"))
    answers.reply("nvmlDeviceGetComputeInstanceId", read_member(instance, "compute_instance_id"))
    encode_memory_info(answers, instance)
    encode_window(answers, bar1_bytes(placed, instance.get("memory_total_bytes")))
    answers.reply_each(
        ("nvmlDeviceGetAttributes", "nvmlDeviceGetAttributes_v2"),
        read_member(instance, "memory_total_bytes"),
        lambda size: pack_struct("c_nvmlDeviceAttributes", memorySizeMB=size // _BYTES_PER_MIB),
    )
    encode_processes(answers, _processes_of(placed, instance))


def _processes_of(placed: PlacedGpu, instance: Mapping[str, Any]) -> Any:
    """The GPU's processes that run in this instance."""
    processes = placed.read("processes")
    if isinstance(processes, Refusal):
        return processes
    names = ("gpu_instance_id", "compute_instance_id")
    return [
        process for process in processes if all(process.get(name) == instance.get(name) for name in names)
    ]
