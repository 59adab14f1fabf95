"""A GPU's links: PCIe and NVLink."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudiag.reference.nvml import constant
from gpudiag.simulate.answers import AnswerTable, Refusal, u64
from gpudiag.simulate.encode_details import encode_bit_error_rate
from gpudiag.simulate.encode_identity import pack_pci_info
from gpudiag.simulate.gpu_answers import GpuAnswers, PlacedGpu, read_member

_ERROR_COUNTERS = {  # nvmlNvLinkErrorCounter_t, and how the field ids spell them
    "replay_errors": (constant("NVML_NVLINK_ERROR_DL_REPLAY"), "REPLAY"),
    "recovery_errors": (constant("NVML_NVLINK_ERROR_DL_RECOVERY"), "RECOVERY"),
    "crc_flit_errors": (constant("NVML_NVLINK_ERROR_DL_CRC_FLIT"), "CRC_FLIT"),
    "crc_data_errors": (constant("NVML_NVLINK_ERROR_DL_CRC_DATA"), "CRC_DATA"),
}
_SCOPED_FIELDS = {
    "replay_errors": "DEV_NVLINK_ERROR_DL_REPLAY",
    "recovery_errors": "DEV_NVLINK_ERROR_DL_RECOVERY",
    "crc_flit_errors": "DEV_NVLINK_ERROR_DL_CRC",
}
_LINKS_WITH_FIELDS = 12  # NVML_FI_DEV_NVLINK_*_L0 to _L11


def encode_pcie(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer what the GPU's PCIe link can reach in its slot."""
    answers = GpuAnswers(table, placed.subject)
    answers.reply("nvmlDeviceGetMaxPcieLinkGeneration", _link_maximum(placed, "pcie_generation"))
    answers.reply("nvmlDeviceGetMaxPcieLinkWidth", _link_maximum(placed, "pcie_width"))
    answers.reply_field("DEV_PCIE_REPLAY_COUNTER", placed.read("pcie_replay_count"))


def _link_maximum(placed: PlacedGpu, name: str) -> Any:
    """What the link can reach with this GPU in this slot: the smaller of the two limits."""
    by_gpu, by_slot = placed.read(f"{name}_gpu_max"), placed.read(f"{name}_slot_max")
    if isinstance(by_gpu, Refusal):
        return by_gpu if isinstance(by_slot, Refusal) else by_slot
    if isinstance(by_slot, Refusal):
        return by_gpu
    return min(by_gpu, by_slot)


def encode_nvlinks(placed: PlacedGpu, gpus: Sequence[PlacedGpu], table: AnswerTable) -> None:
    """Answer the state, the far end and the error counters of each of the GPU's NVLinks."""
    answers = GpuAnswers(table, placed.subject)
    links = placed.read("nvlinks")
    if isinstance(links, Refusal):
        for function in (
            "nvmlDeviceGetNvLinkState",
            "nvmlDeviceGetNvLinkErrorCounter",
            "nvmlDeviceGetNvLinkRemotePciInfo",
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        ):
            table.refuse_all(function, placed.subject, links)
        answers.reply_field("DEV_NVLINK_LINK_COUNT", links)
        return
    answers.reply_field("DEV_NVLINK_LINK_COUNT", len(links))
    gpu_bus_ids = {gpu.gpu.readings.get("bus_id") for gpu in gpus}
    for link in links:
        _encode_link(answers, link, gpu_bus_ids)
    for name, (_number, word) in _ERROR_COUNTERS.items():
        answers.reply_field(f"DEV_NVLINK_{word}_ERROR_COUNT_TOTAL", _total(links, name), wide=True)


def _encode_link(answers: GpuAnswers, link: Mapping[str, Any], gpu_bus_ids: set[str | None]) -> None:
    number = link["link"]
    active, remote = read_member(link, "active"), read_member(link, "remote_bus_id")
    answers.reply("nvmlDeviceGetNvLinkState", active, keys=(number,))
    answers.reply_field("DEV_NVLINK_GET_STATE", active, scope=number)
    for function in ("nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetNvLinkRemotePciInfo_v2"):
        answers.reply(function, remote, pack_pci_info, keys=(number,))
    kind = "GPU" if remote in gpu_bus_ids else "SWITCH"
    kind_number = remote if isinstance(remote, Refusal) else constant(f"NVML_NVLINK_DEVICE_TYPE_{kind}")
    answers.reply("nvmlDeviceGetNvLinkRemoteDeviceType", kind_number, keys=(number,))
    failures, rate = read_member(link, "recovery_failures"), read_member(link, "bit_error_rate")
    answers.reply_field("DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", failures, wide=True, scope=number)
    encoded = rate if isinstance(rate, Refusal) else encode_bit_error_rate(rate)
    answers.reply_field("DEV_NVLINK_COUNT_EFFECTIVE_BER", encoded, wide=True, scope=number)
    for name, (counter, word) in _ERROR_COUNTERS.items():
        count = read_member(link, name)
        answers.reply("nvmlDeviceGetNvLinkErrorCounter", count, u64, keys=(number, counter))
        if number < _LINKS_WITH_FIELDS:
            answers.reply_field(f"DEV_NVLINK_{word}_ERROR_COUNT_L{number}", count, wide=True)
        if name in _SCOPED_FIELDS:
            answers.reply_field(_SCOPED_FIELDS[name], count, wide=True, scope=number)


def _total(links: Sequence[Mapping[str, Any]], name: str) -> Any:
    counts = [read_member(link, name) for link in links]
    known = [count for count in counts if not isinstance(count, Refusal)]
    return sum(known) if known else Refusal()
