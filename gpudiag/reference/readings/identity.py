"""A GPU's identity, its settings, and the processes that use it."""

from __future__ import annotations

from gpudiag.reference.declaration import ByHand, Call, Declared, Fact, Field
from gpudiag.reference.vocabulary import ARCHITECTURES, COMPUTE_MODES, RECOVERY_ACTIONS

IDENTITY: tuple[Declared, ...] = (
    Declared("uuid", "{}", Call("nvmlDeviceGetUUID", gives="text"), "once", fact=Fact("Identity", "UUID")),
    Declared("bus_id", "{}", ByHand("place"), "once", fact=Fact("Identity", "PCI bus id")),
    Declared("name", "", Call("nvmlDeviceGetName", gives="text"), "once", called="product name"),
    Declared("serial", "serial {}", ByHand("serial"), "once", fact=Fact("Identity", "Serial")),
    Declared(
        "board_part_number",
        "board {}",
        Call("nvmlDeviceGetBoardPartNumber", gives="text"),
        "once",
        fact=Fact("Identity", "Board part", after="vbios_version"),
    ),
    Declared("pci_subsystem_id", "subsystem {}", ByHand("place"), "once", called="PCI subsystem"),
    Declared(
        "vbios_version",
        "VBIOS {}",
        Call("nvmlDeviceGetVbiosVersion", gives="text"),
        "once",
        fact=Fact("Identity", "VBIOS", after="compute_capability"),
    ),
    Declared(
        "architecture",
        "{}",
        Call("nvmlDeviceGetArchitecture", gives=ARCHITECTURES),
        "once",
        fact=Fact("Identity", "Architecture"),
    ),
    Declared(
        "compute_capability",
        "compute capability {}",
        ByHand("compute_capability"),
        "once",
        fact=Fact("Identity", "Compute capability"),
    ),
    Declared("brand", "brand {}", ByHand("brand"), "fixed"),
    Declared("cuda_cores", "{} CUDA cores", Call("nvmlDeviceGetNumGpuCores"), "fixed"),
    Declared(
        "gsp_firmware_version",
        "GSP firmware {}",
        Call("nvmlDeviceGetGspFirmwareVersion", gives="text"),
        "fixed",
    ),
    Declared("gsp_firmware_mode", "{}", ByHand("gsp_modes"), "fixed", called="whether GSP firmware runs"),
    Declared(
        "gsp_firmware_mode_default",
        "by default {}",
        ByHand("gsp_modes"),
        "fixed",
        called="whether GSP firmware runs by default",
    ),
    Declared(
        "inforom_version", "InfoROM {}", Call("nvmlDeviceGetInforomImageVersion", gives="text"), "fixed"
    ),
    Declared("inforom_valid", "valid {}", ByHand("inforom_valid"), called="whether the InfoROM is valid"),
    Declared("cuda_ordinal", "CUDA ordinal {}", None, fact=Fact("Identity", "CUDA ordinal")),
)

MODES: tuple[Declared, ...] = (
    Declared(
        "mig_mode",
        "MIG {}",
        Call("nvmlDeviceGetMigMode", gives="switch", place=0),
        fact=Fact("Clocks", "MIG mode", after="persistence_mode"),
    ),
    Declared(
        "mig_mode_pending",
        "pending {}",
        Call("nvmlDeviceGetMigMode", gives="switch", place=1),
        called="MIG mode after the next reset",
    ),
    Declared(
        "compute_mode",
        "compute {}",
        Call("nvmlDeviceGetComputeMode", gives=COMPUTE_MODES),
        fact=Fact("Clocks", "Compute mode"),
    ),
    Declared(
        "persistence_mode",
        "persistence {}",
        Call("nvmlDeviceGetPersistenceMode", gives="switch"),
        "fixed",
        fact=Fact("Clocks", "Persistence mode"),
    ),
    Declared(
        "recovery_action",
        "recovery action {}",
        Field(230, gives=RECOVERY_ACTIONS),
        "prompt",
        called="what the driver wants done",
        fact=Fact("Errors", "Driver asks for", first=True),
    ),
    Declared("vgpu_license", "vGPU license {}", ByHand("vgpu_license")),
)

MIG: tuple[Declared, ...] = (Declared("mig_instances", "{}", ByHand("mig_instances")),)

USERS: tuple[Declared, ...] = (Declared("processes", "{}", ByHand("processes"), called="who uses it"),)
