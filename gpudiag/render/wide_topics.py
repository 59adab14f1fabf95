"""What `gpudiag list --wide` says of a GPU, as data: every reading of `model.Device`, by topic."""

# (topic, ((field of Device or DeviceId, the words around its value), ...))
TOPICS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "identity",
        (
            ("uuid", "{}"),
            ("bus_id", "{}"),
            ("serial", "serial {}"),
            ("board_part_number", "board {}"),
            ("vbios_version", "VBIOS {}"),
            ("architecture", "{}"),
            ("compute_capability", "compute capability {}"),
            ("cuda_ordinal", "CUDA ordinal {}"),
        ),
    ),
    (
        "memory",
        (
            ("memory_used_bytes", "{} used"),
            ("memory_free_bytes", "{} free"),
            ("memory_reserved_bytes", "{} reserved"),
            ("memory_total_bytes", "{} in all"),
            ("memory_kind", "{}"),
        ),
    ),
    (
        "load",
        (
            ("utilization_percent", "{} %"),
            ("memory_utilization_percent", "memory {} %"),
            ("pstate", "P{}"),
            ("clocks_event_reasons", "clocks held back by {}"),
        ),
    ),
    (
        "heat",
        (
            ("temperature_celsius", "{} C"),
            ("memory_temperature_celsius", "memory {} C"),
            ("temperature_margin_celsius", "{} C below the limit"),
            ("temperature_slowdown_celsius", "slows at {} C"),
            ("temperature_shutdown_celsius", "shuts down at {} C"),
            ("fan_speed_percent", "fan {} %"),
        ),
    ),
    (
        "power",
        (
            ("power_draw_watts", "{} W"),
            ("power_limit_enforced_watts", "enforced limit {} W"),
            ("power_limit_watts", "set {} W"),
            ("power_limit_default_watts", "default {} W"),
            ("power_limit_min_watts", "least {} W"),
            ("power_limit_max_watts", "most {} W"),
        ),
    ),
    (
        "clocks",
        (
            ("sm_clock_mhz", "SM {} MHz"),
            ("sm_clock_max_mhz", "max {}"),
            ("memory_clock_mhz", "memory {} MHz"),
            ("memory_clock_max_mhz", "max {}"),
            ("graphics_clock_mhz", "graphics {} MHz"),
            ("graphics_clock_max_mhz", "max {}"),
            ("video_clock_mhz", "video {} MHz"),
            ("graphics_clock_application_mhz", "application graphics {} MHz"),
            ("memory_clock_application_mhz", "application memory {} MHz"),
        ),
    ),
    (
        "ECC",
        (
            ("ecc_mode", "{}"),
            ("ecc_mode_pending", "{} after the next reset"),
            ("ecc_uncorrected_volatile", "uncorrected {} since driver load"),
            ("ecc_uncorrected_aggregate", "{} in its life"),
            ("ecc_corrected_volatile", "corrected {} since driver load"),
            ("ecc_corrected_aggregate", "{} in its life"),
            ("ecc_locations", "counted for {}"),
        ),
    ),
    (
        "bad memory",
        (
            ("row_remap_uncorrectable", "{} rows remapped for uncorrectable"),
            ("row_remap_correctable", "{} for correctable errors"),
            ("row_remap_pending", "remap pending {}"),
            ("row_remap_failed", "failed {}"),
            ("row_remap_histogram", "banks with all/most/some/few/no spares {}"),
            ("retired_pages_uncorrected", "{} pages retired for double-bit"),
            ("retired_pages_corrected", "{} for single-bit errors"),
            ("page_retirement_pending", "retirement pending {}"),
        ),
    ),
    (
        "slot",
        (
            ("pcie_generation", "PCIe gen {} now"),
            ("pcie_generation_gpu_max", "GPU gen {}"),
            ("pcie_generation_slot_max", "slot gen {}"),
            ("pcie_width", "x{} now"),
            ("pcie_width_gpu_max", "GPU x{}"),
            ("pcie_width_slot_max", "slot x{}"),
            ("pcie_replay_count", "{} replays"),
            ("numa_node", "NUMA node {}"),
        ),
    ),
    ("NVLink", (("nvlinks", "{}"),)),
    (
        "modes",
        (
            ("mig_mode", "MIG {}"),
            ("mig_mode_pending", "{} after the next reset"),
            ("compute_mode", "compute {}"),
            ("persistence_mode", "persistence {}"),
            ("recovery_action", "recovery action {}"),
        ),
    ),
    ("MIG", (("mig_instances", "{}"),)),
    ("users", (("processes", "{}"),)),
)
