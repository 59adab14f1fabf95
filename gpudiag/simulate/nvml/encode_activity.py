"""The activity of a GPU's engines and links in NVML: GPM, codecs, data over NVLink, vGPU licenses."""

import struct
from collections.abc import Mapping
from typing import Any

from gpudiag.reference.declaration import Activity, Declared
from gpudiag.reference.nvml import pack_struct
from gpudiag.reference.readings import READINGS
from gpudiag.simulate.nvml.answers import AnswerTable, GpuAnswers, PlacedGpu, Refusal, read_member, u32
from gpudiag.simulate.nvml.calls import NOT_SUPPORTED
from gpudiag.simulate.nvml.encode_memory import list_mig_instances
from gpudiag.units import KIB

_METRICS: tuple[tuple[Declared, Activity], ...] = tuple(
    (one, one.question) for one in READINGS if isinstance(one.question, Activity)
)
_SAMPLING_PERIOD_US = 167_000  # as drivers return it for codecs, between 1/6 and 1 s (nvml.h)
_ALL_LINKS = 0xFFFFFFFF
_VGPU_FEATURE = 1  # NVML_GRID_LICENSE_FEATURE_CODE_VGPU
_WORDS = ("not_needed", "unlicensed", "licensed")


def encode_activity(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer what the GPU's engines and links did, and those of its MIG instances."""
    answers = GpuAnswers(table, placed.subject)
    for engine in ("encoder", "decoder"):
        answers.reply(
            f"nvmlDeviceGet{engine.capitalize()}Utilization",
            placed.read(f"{engine}_utilization_percent"),
            lambda busy: u32(busy) + u32(_SAMPLING_PERIOD_US),
        )
    for direction, word in (("transmitted", "TX"), ("received", "RX")):
        data = placed.read(f"nvlink_{direction}_bytes")
        kib = data if isinstance(data, Refusal) else data // KIB
        answers.reply_field(f"DEV_NVLINK_THROUGHPUT_DATA_{word}", kib, wide=True, scope=_ALL_LINKS)
    answers.reply("nvmlDeviceGetGridLicensableFeatures_v4", placed.read("vgpu_license"), _features)
    _encode_gpm(placed, table)


def _features(license_word: str) -> bytes:
    """An nvmlGridLicensableFeatures_t with one feature, or with none where no license is needed."""
    needed = int(license_word != _WORDS[0])
    head = pack_struct(
        "c_nvmlGridLicensableFeatures_v4_t", isGridLicenseSupported=needed, licensableFeaturesCount=needed
    )
    first = struct.pack("<II", _VGPU_FEATURE, int(license_word == _WORDS[2])) if needed else b""
    return head[:8] + first + head[8 + len(first) :]


def _encode_gpm(placed: PlacedGpu, table: AnswerTable) -> None:
    metrics = {question.number: (placed.read(one.name), question.per) for one, question in _METRICS}
    supported = _encode_metrics(table, placed.subject, metrics)
    answers = GpuAnswers(table, placed.subject)
    answers.reply_versioned("nvmlGpmQueryDeviceSupport", int(supported), _support, 1)
    if supported:
        answers.reply("nvmlGpmSampleGet", b"", bytes)
        for number, instance in enumerate(list_mig_instances(placed)):
            _encode_instance(placed, placed.mig_subject(number), instance, table)


def _support(supported: int) -> bytes:
    return pack_struct("c_nvmlGpmSupport_t", version=1, isSupportedDevice=supported)


def _encode_metrics(table: AnswerTable, subject: int, metrics: Mapping[int, tuple[Any, int]]) -> bool:
    """Answer each metric, or refuse it for its reason; whether there is anything but "not supported"."""
    for number, (reading, per) in metrics.items():
        value = reading if isinstance(reading, Refusal) else struct.pack("<d", reading / per)
        table.answer("nvmlGpmMetricsGet", subject, value, keys=(number,))
    readings = [reading for reading, _ in metrics.values()]
    return any(not isinstance(reading, Refusal) or reading.code != NOT_SUPPORTED for reading in readings)


def _encode_instance(
    placed: PlacedGpu, subject: int, instance: Mapping[str, Any], table: AnswerTable
) -> None:
    """Answer the sample of the instance's GPU instance; those that share one have the same activity."""
    metrics = {question.number: (read_member(instance, one.name), question.per) for one, question in _METRICS}
    number = instance.get("gpu_instance_id")
    if number is not None and _encode_metrics(table, subject, metrics):
        table.answer("nvmlGpmMigSampleGet", placed.subject, u32(subject), keys=(number,))
