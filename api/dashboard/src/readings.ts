// Written by `python tools/write_readings.py` from gpudiag/reference/readings.

// A GPU's readings as `gpudiag.device/1` has them; null where one is missing.
export interface Readings {
  uuid: string | null;
  bus_id: string | null;
  name: string | null;
  serial: string | null;
  board_part_number: string | null;
  pci_subsystem_id: string | null;
  vbios_version: string | null;
  architecture: string | null;
  compute_capability: string | null;
  brand: string | null;
  cuda_cores: number | null;
  gsp_firmware_version: string | null;
  gsp_firmware_mode: string | null;
  gsp_firmware_mode_default: string | null;
  inforom_version: string | null;
  inforom_valid: boolean | null;
  cuda_ordinal: number | null;
  memory_used_bytes: number | null;
  memory_free_bytes: number | null;
  memory_reserved_bytes: number | null;
  memory_total_bytes: number | null;
  memory_kind: string | null;
  memory_bus_width_bits: number | null;
  utilization_percent: number | null;
  memory_utilization_percent: number | null;
  encoder_utilization_percent: number | null;
  decoder_utilization_percent: number | null;
  pstate: number | null;
  clocks_event_reasons: string[] | null;
  throttle_seconds: unknown | null;
  graphics_activity_percent: number | null;
  sm_activity_percent: number | null;
  sm_occupancy_percent: number | null;
  tensor_activity_percent: number | null;
  dram_activity_percent: number | null;
  fp64_activity_percent: number | null;
  fp32_activity_percent: number | null;
  fp16_activity_percent: number | null;
  pcie_transmitted_bytes_per_second: number | null;
  pcie_received_bytes_per_second: number | null;
  nvlink_transmitted_bytes_per_second: number | null;
  nvlink_received_bytes_per_second: number | null;
  temperature_celsius: number | null;
  memory_temperature_celsius: number | null;
  temperature_margin_celsius: number | null;
  temperature_margin_slowdown_celsius: number | null;
  temperature_slowdown_celsius: number | null;
  temperature_shutdown_celsius: number | null;
  temperature_gpu_max_celsius: number | null;
  temperature_memory_max_celsius: number | null;
  fan_speed_percent: number | null;
  power_draw_watts: number | null;
  power_limit_enforced_watts: number | null;
  power_limit_watts: number | null;
  power_limit_default_watts: number | null;
  power_limit_min_watts: number | null;
  power_limit_max_watts: number | null;
  energy_joules: number | null;
  sm_clock_mhz: number | null;
  sm_clock_max_mhz: number | null;
  memory_clock_mhz: number | null;
  memory_clock_max_mhz: number | null;
  graphics_clock_mhz: number | null;
  graphics_clock_max_mhz: number | null;
  video_clock_mhz: number | null;
  graphics_clock_application_mhz: number | null;
  memory_clock_application_mhz: number | null;
  graphics_clock_application_default_mhz: number | null;
  memory_clock_application_default_mhz: number | null;
  ecc_mode: string | null;
  ecc_mode_pending: string | null;
  ecc_uncorrected_volatile: number | null;
  ecc_uncorrected_aggregate: number | null;
  ecc_corrected_volatile: number | null;
  ecc_corrected_aggregate: number | null;
  ecc_locations: unknown | null;
  ecc_sram_threshold_exceeded: boolean | null;
  row_remap_uncorrectable: number | null;
  row_remap_correctable: number | null;
  row_remap_pending: boolean | null;
  row_remap_failed: boolean | null;
  row_remap_histogram: unknown | null;
  retired_pages_uncorrected: number | null;
  retired_pages_corrected: number | null;
  page_retirement_pending: boolean | null;
  memory_unrepairable: boolean | null;
  memory_channel_repair_pending: boolean | null;
  tpc_repair_pending: boolean | null;
  pcie_generation: number | null;
  pcie_generation_gpu_max: number | null;
  pcie_generation_slot_max: number | null;
  pcie_width: number | null;
  pcie_width_gpu_max: number | null;
  pcie_width_slot_max: number | null;
  pcie_replay_count: number | null;
  pcie_errors: unknown | null;
  numa_node: number | null;
  nvlinks: unknown | null;
  nvlink_bytes_per_second: number | null;
  nvlink_transmitted_bytes: number | null;
  nvlink_received_bytes: number | null;
  nvlink_throughput_bytes_per_second: number | null;
  fabric: unknown | null;
  peers: unknown | null;
  mig_mode: string | null;
  mig_mode_pending: string | null;
  compute_mode: string | null;
  persistence_mode: string | null;
  recovery_action: string | null;
  vgpu_license: string | null;
  mig_instances: unknown | null;
  processes: unknown | null;
}

export interface DeclaredFact {
  field: keyof Readings;
  label: string;
  show: string; // a unit, bytes, size, rate, or a prefix that ends in #
}

// What the page of a GPU shows, by group, in order.
export const DECLARED_FACTS: [group: string, facts: DeclaredFact[]][] = [
  ["Identity", [
    { field: "uuid", label: "UUID", show: "" },
    { field: "bus_id", label: "PCI bus id", show: "" },
    { field: "serial", label: "Serial", show: "" },
    { field: "architecture", label: "Architecture", show: "" },
    { field: "compute_capability", label: "Compute capability", show: "" },
    { field: "vbios_version", label: "VBIOS", show: "" },
    { field: "board_part_number", label: "Board part", show: "" },
    { field: "cuda_ordinal", label: "CUDA ordinal", show: "" },
    { field: "numa_node", label: "NUMA node", show: "" },
  ]],
  ["Memory", [
    { field: "memory_total_bytes", label: "Total", show: "bytes" },
    { field: "memory_used_bytes", label: "Used", show: "bytes" },
    { field: "memory_free_bytes", label: "Free", show: "bytes" },
    { field: "memory_reserved_bytes", label: "Reserved by the driver", show: "size" },
    { field: "memory_utilization_percent", label: "Memory busy", show: "%" },
    { field: "dram_activity_percent", label: "Memory bandwidth in use", show: "%" },
    { field: "memory_temperature_celsius", label: "Memory temperature", show: "°C" },
  ]],
  ["Heat and power", [
    { field: "temperature_celsius", label: "Temperature", show: "°C" },
    { field: "temperature_margin_celsius", label: "Margin to the limit", show: "°C" },
    { field: "temperature_slowdown_celsius", label: "Slowdown at", show: "°C" },
    { field: "temperature_shutdown_celsius", label: "Shutdown at", show: "°C" },
    { field: "power_draw_watts", label: "Power", show: "W" },
    { field: "power_limit_enforced_watts", label: "Enforced limit", show: "W" },
    { field: "power_limit_default_watts", label: "Default limit", show: "W" },
    { field: "fan_speed_percent", label: "Fan", show: "%" },
  ]],
  ["Clocks", [
    { field: "sm_activity_percent", label: "SMs busy", show: "%" },
    { field: "tensor_activity_percent", label: "Tensor cores busy", show: "%" },
    { field: "sm_clock_mhz", label: "SM", show: "MHz" },
    { field: "sm_clock_max_mhz", label: "SM at most", show: "MHz" },
    { field: "memory_clock_mhz", label: "Memory", show: "MHz" },
    { field: "pstate", label: "Performance state", show: "P#" },
    { field: "compute_mode", label: "Compute mode", show: "" },
    { field: "persistence_mode", label: "Persistence mode", show: "" },
    { field: "mig_mode", label: "MIG mode", show: "" },
  ]],
  ["Errors", [
    { field: "recovery_action", label: "Driver asks for", show: "" },
    { field: "ecc_mode", label: "ECC", show: "" },
    { field: "ecc_corrected_volatile", label: "Corrected since driver load", show: "" },
    { field: "ecc_uncorrected_volatile", label: "Uncorrected since driver load", show: "" },
    { field: "ecc_uncorrected_aggregate", label: "Uncorrected ever", show: "" },
    { field: "row_remap_pending", label: "Row remap pending", show: "" },
    { field: "row_remap_failed", label: "Row remap failed", show: "" },
    { field: "row_remap_uncorrectable", label: "Rows remapped (uncorrectable)", show: "" },
    { field: "retired_pages_uncorrected", label: "Retired pages", show: "" },
  ]],
  ["Links", [
    { field: "pcie_generation", label: "PCIe generation", show: "" },
    { field: "pcie_generation_gpu_max", label: "PCIe generation at most", show: "" },
    { field: "pcie_width", label: "PCIe width", show: "x#" },
    { field: "pcie_replay_count", label: "PCIe replays", show: "" },
    { field: "nvlinks", label: "NVLinks up", show: "" },
    { field: "nvlink_bytes_per_second", label: "One NVLink, one direction", show: "rate" },
  ]],
];
