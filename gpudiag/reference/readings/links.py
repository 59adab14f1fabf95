"""A GPU's links: PCIe and NVLink."""

from __future__ import annotations

from gpudiag.reference.declaration import COUNTER, ByHand, Call, Dcgm, Declared, Fact, Family, Metric
from gpudiag.units import KIB

# Metrics of which several readings are samples.
_PCIE_GENERATION = Family("pcie_link_generation", "PCIe generation of the link.")
_PCIE_WIDTH = Family("pcie_link_width", "PCIe lanes of the link.")
_NVLINK_BYTES = Family("nvlink_bytes", "Data over all NVLinks, tx is from the GPU.", COUNTER)

SLOT: tuple[Declared, ...] = (
    Declared(
        "pcie_generation",
        "PCIe gen {} now",
        Call("nvmlDeviceGetCurrPcieLinkGeneration", gives="positive"),
        called="PCIe generation in use",
        metric=Metric(
            _PCIE_GENERATION,
            labels={"which": "current"},
            dcgm=Dcgm("PCIE_LINK_GEN", "PCIe current link generation."),
        ),
        fact=Fact("Links", "PCIe generation"),
    ),
    Declared(
        "pcie_generation_gpu_max",
        "GPU gen {}",
        Call(
            "nvmlDeviceGetGpuMaxPcieLinkGeneration",
            gives="positive",
            older=Call("nvmlDeviceGetMaxPcieLinkGeneration", gives="positive"),
        ),
        "fixed",
        called="highest PCIe generation of the GPU",
        metric=Metric(
            _PCIE_GENERATION,
            labels={"which": "max"},
            dcgm=Dcgm("PCIE_MAX_LINK_GEN", "PCIe maximum link generation."),
            rare=True,
        ),
        fact=Fact("Links", "PCIe generation at most"),
    ),
    Declared("pcie_generation_slot_max", "slot gen {}", None, called="highest PCIe generation of the slot"),
    Declared(
        "pcie_width",
        "x{} now",
        Call("nvmlDeviceGetCurrPcieLinkWidth", gives="positive"),
        called="PCIe lanes in use",
        metric=Metric(
            _PCIE_WIDTH, labels={"which": "current"}, dcgm=Dcgm("PCIE_LINK_WIDTH", "PCIe current link width.")
        ),
        fact=Fact("Links", "PCIe width", "x#"),
    ),
    Declared(
        "pcie_width_gpu_max",
        "GPU x{}",
        Call("nvmlDeviceGetMaxPcieLinkWidth", gives="positive"),
        "fixed",
        called="PCIe lanes of the GPU",
        metric=Metric(
            _PCIE_WIDTH,
            labels={"which": "max"},
            dcgm=Dcgm("PCIE_MAX_LINK_WIDTH", "PCIe maximum link width."),
            rare=True,
        ),
    ),
    Declared("pcie_width_slot_max", "slot x{}", None, called="PCIe lanes of the slot"),
    Declared(
        "pcie_replay_count",
        "{} replays",
        Call("nvmlDeviceGetPcieReplayCounter"),
        called="PCIe replays",
        history="last",
        metric=Metric(
            Family("pcie_replay", "PCIe packets retransmitted.", COUNTER),
            dcgm=Dcgm("PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", kind=COUNTER),
        ),
        fact=Fact("Links", "PCIe replays"),
    ),
    Declared("pcie_errors", "{} errors", ByHand("pcie_errors", 173, 174, 176, 177, 178, 179, 180)),
    Declared("numa_node", "NUMA node {}", None, called="NUMA node", fact=Fact("Identity", "NUMA node")),
)

NVLINK: tuple[Declared, ...] = (
    Declared("nvlinks", "{}", ByHand("nvlinks", 91), called="NVLinks", fact=Fact("Links", "NVLinks up")),
    Declared(
        "nvlink_bytes_per_second",
        "{} a link",
        ByHand("nvlink_speed", 90),
        called="speed of an NVLink",
        fact=Fact("Links", "One NVLink, one direction", "rate"),
    ),
    Declared(
        "nvlink_transmitted_bytes",
        "{} sent",
        ByHand("nvlink_traffic"),
        metric=Metric(_NVLINK_BYTES, labels={"direction": "tx"}),
    ),
    Declared(
        "nvlink_received_bytes",
        "{} received",
        ByHand("nvlink_traffic"),
        metric=Metric(_NVLINK_BYTES, labels={"direction": "rx"}),
    ),
    Declared(
        "nvlink_throughput_bytes_per_second",
        "{} now, both ways",
        ByHand("nvlink_traffic"),
        metric=Metric(
            Family(
                "nvlink_throughput_bytes_per_second", "Data over all NVLinks, both directions.", core=False
            ),
            # A rate in MB/s, whatever its name and its type suggest: so does DCGM compute it from the
            # counters.
            dcgm=Dcgm(
                "NVLINK_BANDWIDTH_TOTAL",
                "Total number of NVLink bandwidth counters for all lanes.",
                1 / (KIB * 1000),
                COUNTER,
            ),
        ),
    ),
    Declared("fabric", "fabric {}", ByHand("fabric"), called="registration with the NVLink fabric"),
    Declared("peers", "{}", None, called="which other GPUs it reaches"),
)
