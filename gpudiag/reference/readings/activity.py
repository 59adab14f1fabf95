"""What a GPU's engines and links did between two looks at it: NVML's GPM, on Hopper and later.

The numbers are those of nvmlGpmMetricId_t; DCGM 4.6 reads the same ones for its PROF fields on such GPUs
(dcgmlib/src/dcgm_fields.cpp, DcgmFieldIdToNvmlGpmMetricId).
"""

from __future__ import annotations

from gpudiag.reference.declaration import Activity, Dcgm, Declared, Fact, Family, HistoryKind, Metric
from gpudiag.units import MIB

_PERCENT = 100.0

# Metrics of which several readings are samples.
_PIPE = Family("pipe_activity_ratio", "Share of cycles in which that pipe worked, 0 to 1.", core=False)
_PCIE = Family("pcie_bytes_per_second", "Traffic over PCIe with its headers, tx is from the GPU.")
_NVLINK = Family(
    "nvlink_bytes_per_second", "Traffic over all NVLinks with its headers, tx is from the GPU.", core=False
)


def _share(
    name: str,
    words: str,
    number: int,
    family: Family,
    dcgm: Dcgm,
    *,
    labels: dict[str, str] | None = None,
    history: HistoryKind | None = None,
    fact: Fact | None = None,
) -> Declared:
    """A share of time or cycles: per cent in NVML and in ours, a ratio in both dialects."""
    metric = Metric(family, 1 / _PERCENT, labels, dcgm=dcgm)
    return Declared(name, words, Activity(number), history=history, metric=metric, fact=fact)


def _rate(name: str, words: str, number: int, family: Family, direction: str, dcgm: Dcgm) -> Declared:
    """Traffic in one direction: MiB per second in NVML."""
    metric = Metric(family, labels={"direction": direction}, dcgm=dcgm)
    return Declared(name, words, Activity(number, per=MIB), history="mean", metric=metric)


ACTIVITY: tuple[Declared, ...] = (
    _share(
        "graphics_activity_percent",
        "engine {} %",
        1,
        Family(
            "graphics_activity_ratio", "Share of time in which the graphics or compute engine worked, 0 to 1."
        ),
        Dcgm("PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active."),
    ),
    _share(
        "sm_activity_percent",
        "SMs {} %",
        2,
        Family("sm_activity_ratio", "Share of cycles in which an SM had a warp, over all SMs, 0 to 1."),
        Dcgm("PROF_SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned."),
        history="mean",
        fact=Fact("Clocks", "SMs busy", "%"),
    ),
    _share(
        "sm_occupancy_percent",
        "warps {} %",
        3,
        Family(
            "sm_occupancy_ratio", "Warps that were resident, as a share of the most there can be, 0 to 1."
        ),
        Dcgm("PROF_SM_OCCUPANCY", "The ratio of number of warps resident on an SM."),
    ),
    _share(
        "tensor_activity_percent",
        "tensor cores {} %",
        5,
        Family("tensor_activity_ratio", "Share of cycles in which the tensor cores worked, 0 to 1."),
        Dcgm("PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active."),
        history="mean",
        fact=Fact("Clocks", "Tensor cores busy", "%"),
    ),
    _share(
        "dram_activity_percent",
        "memory bandwidth {} %",
        10,
        Family("dram_activity_ratio", "Memory bandwidth in use, as a share of the highest, 0 to 1."),
        Dcgm(
            "PROF_DRAM_ACTIVE",
            "Ratio of cycles the device memory interface is active sending or receiving data.",
        ),
        history="mean",
        fact=Fact("Memory", "Memory bandwidth in use", "%"),
    ),
    _share(
        "fp64_activity_percent",
        "FP64 {} %",
        11,
        _PIPE,
        Dcgm("PROF_PIPE_FP64_ACTIVE", "Ratio of cycles the fp64 pipes are active."),
        labels={"pipe": "fp64"},
    ),
    _share(
        "fp32_activity_percent",
        "FP32 {} %",
        12,
        _PIPE,
        Dcgm("PROF_PIPE_FP32_ACTIVE", "Ratio of cycles the fp32 pipes are active."),
        labels={"pipe": "fp32"},
    ),
    _share(
        "fp16_activity_percent",
        "FP16 {} %",
        13,
        _PIPE,
        Dcgm("PROF_PIPE_FP16_ACTIVE", "Ratio of cycles the fp16 pipes are active."),
        labels={"pipe": "fp16"},
    ),
    _rate(
        "pcie_transmitted_bytes_per_second",
        "{} to PCIe",
        20,
        _PCIE,
        "tx",
        Dcgm("PROF_PCIE_TX_BYTES", "The rate of data transmitted over the PCIe bus (in bytes per second)."),
    ),
    _rate(
        "pcie_received_bytes_per_second",
        "{} from PCIe",
        21,
        _PCIE,
        "rx",
        Dcgm("PROF_PCIE_RX_BYTES", "The rate of data received over the PCIe bus (in bytes per second)."),
    ),
    _rate(
        "nvlink_transmitted_bytes_per_second",
        "{} to NVLink",
        61,
        _NVLINK,
        "tx",
        Dcgm("PROF_NVLINK_TX_BYTES", "The rate of data transmitted over NVLink (in bytes per second)."),
    ),
    _rate(
        "nvlink_received_bytes_per_second",
        "{} from NVLink",
        60,
        _NVLINK,
        "rx",
        Dcgm("PROF_NVLINK_RX_BYTES", "The rate of data received over NVLink (in bytes per second)."),
    ),
)
