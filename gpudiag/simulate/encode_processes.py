"""The processes that hold memory on a GPU, in every version of NVML's lists."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudiag.reference.nvml import constant, pack_struct, struct_version
from gpudiag.simulate.answers import NO_SUBJECT, AnswerTable, Refusal, text, u32
from gpudiag.simulate.gpu_answers import GpuAnswers, read_member

_NO_INSTANCE = 0xFFFFFFFF
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE of an unsigned long long
_LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
_MODES = {"compute": "COMPUTE", "graphics": "GRAPHICS", "mps": "MPS"}


def encode_processes(answers: GpuAnswers, processes: Any) -> None:
    """Answer the process lists of a GPU or a MIG device; `processes` may be a Refusal."""
    for kind, function in _LISTS.items():
        of_kind = processes
        if not isinstance(processes, Refusal):
            of_kind = [process for process in processes if process["kind"] == kind]
        answers.reply(function, of_kind, lambda records: _pack_list(records, with_instances=False))
        for newer in (f"{function}_v2", f"{function}_v3"):
            answers.reply(newer, of_kind, lambda records: _pack_list(records, with_instances=True))
        _encode_details(answers, kind, of_kind)
    if not isinstance(processes, Refusal):
        _encode_names(answers.table, processes)


def _pack_list(processes: Sequence[Mapping[str, Any]], *, with_instances: bool) -> bytes:
    size = 24 if with_instances else 16
    packed = [_pack_process("c_nvmlProcessInfo_v2_t", process)[:size] for process in processes]
    return u32(len(packed)) + b"".join(packed)


def _pack_process(struct: str, process: Mapping[str, Any]) -> bytes:
    memory = read_member(process, "memory_used_bytes")
    return pack_struct(
        struct,
        pid=process["pid"],
        usedGpuMemory=_NOT_AVAILABLE if isinstance(memory, Refusal) else memory,
        gpuInstanceId=_instance(process, "gpu_instance_id"),
        computeInstanceId=_instance(process, "compute_instance_id"),
    )


def _instance(process: Mapping[str, Any], name: str) -> int:
    number = process.get(name)
    return _NO_INSTANCE if number is None else int(number)


def _encode_details(answers: GpuAnswers, kind: str, processes: Any) -> None:
    """Answer RunningProcessDetailList: the count and the address of the array are in the struct."""
    version = struct_version("c_nvmlProcessDetailList_v1_t", 1)
    mode = constant(f"NVML_PROCESS_MODE_{_MODES[kind]}")

    def pack(records: Sequence[Mapping[str, Any]]) -> bytes:
        packed = [_pack_process("c_nvmlProcessDetail_v1_t", process) for process in records]
        return u32(len(packed)) + b"".join(packed)

    answers.reply("nvmlDeviceGetRunningProcessDetailList", processes, pack, keys=(version, mode))


def _encode_names(table: AnswerTable, processes: Sequence[Mapping[str, Any]]) -> None:
    for process in processes:
        command = process.get("command")
        if command:
            table.answer(
                "nvmlSystemGetProcessName", NO_SUBJECT, text(command.split()[0]), keys=(process["pid"],)
            )
