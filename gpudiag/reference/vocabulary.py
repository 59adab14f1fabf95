"""The words for what NVML answers in numbers: one table per enumeration, for all code that names its values.

nvml.h as of driver 595, unless a table names another. The page has a copy (`python
tools/write_vocabulary.py`). Plain tuples: `gpudiag list` loads this file in the child that asks NVML.
"""

# nvmlDeviceGpuRecoveryAction_t, number by number; field 230 and Xid 154 count alike. Those marked unfit make
# a GPU unfit for work until they are followed. nvidia-smi's words:
# https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, read 2026-11; its words for the last two are not
# published.
_RECOVERY_ACTIONS = (
    # word, unfit, nvidia-smi's word, the driver's words in Xid 154
    ("none", False, "None", "None"),
    ("gpu_reset", True, "Reset", "GPU Reset Required"),
    ("node_reboot", True, "Reboot", "Node Reboot Required"),
    ("drain_p2p", False, "Drain P2P", "Drain P2P"),
    ("drain_and_reset", True, "Drain and Reset", "Drain and Reset"),
    ("recover_imex_domain", False, "Recover IMEX Domain", "Recover IMEX Domain"),
    ("bus_reset", True, "Bus Reset", "Bus Reset Required"),
    ("system_reboot", True, "System Reboot", "System Reboot Required"),
)
RECOVERY_ACTIONS = tuple(word for word, _, _, _ in _RECOVERY_ACTIONS)
UNFIT_ACTIONS = tuple(word for word, unfit, _, _ in _RECOVERY_ACTIONS if unfit)
ACTIONS_IN_NVIDIA_SMI = {word: shown for word, _, shown, _ in _RECOVERY_ACTIONS}
ACTIONS_IN_XID_154 = {word: logged for word, _, _, logged in _RECOVERY_ACTIONS}

# nvmlClocksEventReason*, bit by bit, and the two that only the older nvmlClocksThrottleReason* names:
# nvidia-smi shows those no longer. What a reason means: `fault` something is wrong (heat, a power brake);
# `power` the power limit, as a busy GPU works; `peers` the clocks of GPUs in step with it; `setting` as
# somebody chose; `idle`; `limit` the board's.
_EVENT_REASONS = (
    # word, what it means, in a word or two for a narrow column
    ("gpu_idle", "idle", "idle"),
    ("applications_clocks_setting", "setting", "clocks set"),
    ("sw_power_cap", "power", "power cap"),
    ("hw_slowdown", "fault", "slowdown"),
    ("sync_boost", "peers", "sync boost"),
    ("sw_thermal_slowdown", "fault", "heat"),
    ("hw_thermal_slowdown", "fault", "heat"),
    ("hw_power_brake_slowdown", "fault", "power brake"),
    ("display_clocks_setting", "setting", "display clocks"),
    ("board_limit", "limit", "board limit"),
    ("reliability", "limit", "reliability"),
)
EVENT_REASONS = tuple(word for word, _, _ in _EVENT_REASONS)
REASONS_IN_NVIDIA_SMI = tuple(word for word, means, _ in _EVENT_REASONS if means != "limit")
FAULT_REASONS = tuple(word for word, means, _ in _EVENT_REASONS if means == "fault")
HARMLESS_REASONS = tuple(word for word, means, _ in _EVENT_REASONS if means not in ("fault", "limit"))
COSTLY_REASONS = tuple(word for word, means, _ in _EVENT_REASONS if means in ("fault", "power"))
REASON_MEANINGS = {word: means for word, means, _ in _EVENT_REASONS}
SHORT_REASONS = {word: short for word, _, short in _EVENT_REASONS}

# nvmlPerfPolicyType_t: for how long something kept the clocks down. The power limit, and the clocks of GPUs
# in step, are part of normal work. NVML's other policies are low utilization, and totals.
_PERFORMANCE_LIMITS = (
    # word, number, whether something is wrong
    ("power", 0, False),
    ("thermal", 1, True),
    ("sync_boost", 2, False),
    ("board_limit", 3, True),
    ("reliability", 5, True),
)
PERFORMANCE_LIMITS = {word: number for word, number, _ in _PERFORMANCE_LIMITS}
FAULT_LIMITS = tuple(word for word, _, wrong in _PERFORMANCE_LIMITS if wrong)

ENABLE_STATES = ("disabled", "enabled")  # nvmlEnableState_t
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")  # nvmlComputeMode_t
# nvmlDeviceArchitecture_t
ARCHITECTURES = (
    None,
    None,
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "dla",
    "dla2",
    "rubin",
    None,
    "npu3",
)
# nvmlBrandType_t
BRANDS = (
    None,
    "quadro",
    "tesla",
    "nvs",
    "grid",
    "geforce",
    "titan",
    "vapps",
    "vpc",
    "vcs",
    "vws",
    "cloud_gaming",
    "quadro_rtx",
    "nvidia_rtx",
    "nvidia",
    "geforce_rtx",
    "titan_rtx",
    "dla",
    "vgamedev",
    "npu",
)

# nvmlGpuFabricState_t, its summary of health, and the values of its health mask
FABRIC_STATES = (None, "not_started", "in_progress", "completed")
FABRIC_HEALTH = (None, "healthy", "unhealthy", "limited_capacity")
# By the shift of their bits.
FABRIC_FAULTS = {
    "degraded_bw": 0,
    "route_recovery": 2,
    "route_unhealthy": 4,
    "access_timeout_recovery": 6,
}
FABRIC_MISCONFIGURATIONS = (
    None,
    None,
    "incorrect_sysguid",
    "incorrect_chassis_sn",
    "no_partition",
    "insufficient_nvlinks",
    "incompatible_gpu_fw",
    "invalid_location",
    "gpu_state_invalid",
)

# nvmlGpuTopologyLevel_t, nvmlGpuP2PStatus_t
PEER_PATHS = {
    "board": 0,
    "pcie_switch": 10,
    "pcie_switches": 20,
    "host_bridge": 30,
    "numa_node": 40,
    "system": 50,
}
# The letters of `nvidia-smi topo -m` for each path over PCIe, as its legend explains them.
PATH_LABELS = {
    "board": "PIX",
    "pcie_switch": "PIX",
    "pcie_switches": "PXB",
    "host_bridge": "PHB",
    "numa_node": "NODE",
    "system": "SYS",
}
PEER_STATUSES = (
    "ok",
    "chipset_not_supported",
    "gpu_not_supported",
    "topology_not_supported",
    "disabled",
    "not_supported",
    "unknown",
)


# nvidia-smi's words for those that it does not write as NVML's header does, one capital letter each.
ARCHITECTURES_IN_NVIDIA_SMI = {"ada": "Ada Lovelace", "dla": "DLA", "dla2": "DLA2", "npu3": "NPU3"}
BRANDS_IN_NVIDIA_SMI = {
    "nvs": "NVS",
    "grid": "GRID",
    "geforce": "GeForce",
    "vapps": "NVIDIA Virtual Applications",
    "vpc": "NVIDIA Virtual PC",
    "vcs": "NVIDIA Virtual Compute Server",
    "vws": "NVIDIA RTX Virtual Workstation",
    "cloud_gaming": "NVIDIA Cloud Gaming",
    "quadro_rtx": "Quadro RTX",
    "nvidia_rtx": "NVIDIA RTX",
    "nvidia": "NVIDIA",
    "geforce_rtx": "GeForce RTX",
    "titan_rtx": "Titan RTX",
}

# Other names that `nvidia-smi --query-gpu` accepts for its fields.
QUERY_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "power.draw.instant": "power.draw",
    "power.draw.average": "power.draw",
    "clocks.current.graphics": "clocks.gr",
    "clocks.current.sm": "clocks.sm",
    "clocks.current.memory": "clocks.mem",
    "clocks.current.video": "clocks.video",
    "clocks.max.graphics": "clocks.max.gr",
    "clocks.max.memory": "clocks.max.mem",
    "clocks.applications.graphics": "clocks.applications.gr",
    "clocks.applications.memory": "clocks.applications.mem",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "pcie.link.gen.gpucurrent": "pcie.link.gen.current",
}


def word_of(words: tuple[str | None, ...], number: int) -> str:
    """The word of that table for NVML's number; `unknown_9` for a number that has none."""
    word = words[number] if 0 <= number < len(words) else None
    return word or f"unknown_{number}"


_IN_A_SENTENCE = {
    "gpu_reset": "a GPU reset",
    "node_reboot": "a reboot of the node",
    "drain_p2p": "a drain of P2P traffic",
    "drain_and_reset": "a drain and a GPU reset",
}


def name_action(action: str) -> str:
    """A recovery action in a sentence: `a GPU reset`, `recovery action 7`."""
    return _IN_A_SENTENCE.get(action, action.replace("unknown_", "recovery action ").replace("_", " "))


def reasons_of(mask: int) -> list[str]:
    """The reasons that a clocks event mask names, lowest bit first; `bit_11` where there is no word."""
    bits = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    return [EVENT_REASONS[bit] if bit < len(EVENT_REASONS) else f"bit_{bit}" for bit in bits]


def number_of(words: tuple[str | None, ...], word: str) -> int:
    """NVML's number for a word of that table; 9 for `unknown_9`, `bit_9`. Raises ValueError: no word."""
    return words.index(word) if word in words else int(word.rpartition("_")[2])


def reason_mask(reasons: tuple[str, ...]) -> int:
    """NVML's mask with the bits of those reasons."""
    return sum(1 << number_of(EVENT_REASONS, reason) for reason in reasons)
