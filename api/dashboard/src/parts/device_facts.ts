// Every reading of a GPU that people ask for, in the groups and the order in which they look for it.

import { gib, rate, size } from "../format";

export interface Fact {
  field: string;
  label: string;
  show?: (value: unknown) => string;
}

const bytes = (value: unknown): string => `${gib(value as number)} GiB`;
const unit = (name: string) => (value: unknown): string => `${typeof value === "number" && !Number.isInteger(value) ? value.toFixed(1) : String(value)} ${name}`;
const perSecond = (value: unknown): string => rate(value as number);
const small = (value: unknown): string => size(value as number);

export const FACTS: [group: string, facts: Fact[]][] = [
  ["Identity", [
    { field: "uuid", label: "UUID" },
    { field: "bus_id", label: "PCI bus id" },
    { field: "serial", label: "Serial" },
    { field: "architecture", label: "Architecture" },
    { field: "compute_capability", label: "Compute capability" },
    { field: "vbios_version", label: "VBIOS" },
    { field: "board_part_number", label: "Board part" },
    { field: "cuda_ordinal", label: "CUDA ordinal" },
    { field: "numa_node", label: "NUMA node" },
  ]],
  ["Memory", [
    { field: "memory_total_bytes", label: "Total", show: bytes },
    { field: "memory_used_bytes", label: "Used", show: bytes },
    { field: "memory_free_bytes", label: "Free", show: bytes },
    { field: "memory_reserved_bytes", label: "Reserved by the driver", show: small },
    { field: "memory_utilization_percent", label: "Memory busy", show: unit("%") },
    { field: "memory_temperature_celsius", label: "Memory temperature", show: unit("°C") },
  ]],
  ["Heat and power", [
    { field: "temperature_celsius", label: "Temperature", show: unit("°C") },
    { field: "temperature_margin_celsius", label: "Margin to the limit", show: unit("°C") },
    { field: "temperature_slowdown_celsius", label: "Slowdown at", show: unit("°C") },
    { field: "temperature_shutdown_celsius", label: "Shutdown at", show: unit("°C") },
    { field: "power_draw_watts", label: "Power", show: unit("W") },
    { field: "power_limit_enforced_watts", label: "Enforced limit", show: unit("W") },
    { field: "power_limit_default_watts", label: "Default limit", show: unit("W") },
    { field: "fan_speed_percent", label: "Fan", show: unit("%") },
  ]],
  ["Clocks", [
    { field: "sm_clock_mhz", label: "SM", show: unit("MHz") },
    { field: "sm_clock_max_mhz", label: "SM at most", show: unit("MHz") },
    { field: "memory_clock_mhz", label: "Memory", show: unit("MHz") },
    { field: "pstate", label: "Performance state", show: (value) => `P${String(value)}` },
    { field: "compute_mode", label: "Compute mode" },
    { field: "persistence_mode", label: "Persistence mode" },
    { field: "mig_mode", label: "MIG mode" },
  ]],
  ["Errors", [
    { field: "recovery_action", label: "Driver asks for" },
    { field: "ecc_mode", label: "ECC" },
    { field: "ecc_corrected_volatile", label: "Corrected since driver load" },
    { field: "ecc_uncorrected_volatile", label: "Uncorrected since driver load" },
    { field: "ecc_uncorrected_aggregate", label: "Uncorrected ever" },
    { field: "row_remap_pending", label: "Row remap pending" },
    { field: "row_remap_failed", label: "Row remap failed" },
    { field: "row_remap_uncorrectable", label: "Rows remapped (uncorrectable)" },
    { field: "retired_pages_uncorrected", label: "Retired pages" },
  ]],
  ["Links", [
    { field: "pcie_generation", label: "PCIe generation" },
    { field: "pcie_generation_gpu_max", label: "PCIe generation at most" },
    { field: "pcie_width", label: "PCIe width", show: (value) => `x${String(value)}` },
    { field: "pcie_replay_count", label: "PCIe replays" },
    { field: "nvlinks_active", label: "NVLinks up" },
    { field: "nvlink_bytes_per_second", label: "One NVLink, one direction", show: perSecond },
  ]],
];
