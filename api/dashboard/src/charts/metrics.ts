// What can be drawn over time: unit, scale and each GPU's own limits, by which its colours go.

import type { LiveDevice } from "../model";
import type { Recent } from "../recent";
import { reasonsOf } from "../reasons";

export interface Metric {
  series: string; // what the address calls it
  title: string;
  unit: string;
  factor: number; // shown = stored x factor
  decimals: number;
  parts?: [series: string, name: string][]; // where it is the sum of several
  from?: number; // where its colours begin, in the shown unit
  limit?: (device: LiveDevice) => number | null; // the GPU's own
  top?: number; // where its colours end without one; else at the most that is seen
  showsFaults?: boolean; // in the colour of an alarm: where a fault held the clocks down
  alarm?: (device: LiveDevice) => number | null; // from here on the GPU is in trouble
}

const GIB = 1 / 1024 ** 3;
const GB = 1e-9;
const MARGIN_CELSIUS = 5; // as gpudiag/checks/limits.py has it

const share = (series: string, title: string): Metric => ({ series, title, unit: "%", factor: 1, decimals: 0, limit: () => 100 });
const traffic = (link: "pcie" | "nvlink", title: string): Metric => ({
  series: `${link}_received_bytes_per_second`,
  title,
  unit: "GB/s",
  factor: GB,
  decimals: 1,
  parts: [[`${link}_received_bytes_per_second`, "in"], [`${link}_transmitted_bytes_per_second`, "out"]],
});

export const METRICS: Metric[] = [
  share("utilization_percent", "Utilisation"),
  { series: "power_draw_watts", title: "Power", unit: "W", factor: 1, decimals: 0, limit: (device) => device.power_limit_enforced_watts },
  {
    series: "temperature_celsius",
    title: "Temperature",
    unit: "°C",
    factor: 1,
    decimals: 0,
    from: 20,
    top: 90, // of a GPU that reports no such limit: newer ones have a margin in its place
    limit: (device) => device.temperature_slowdown_celsius,
    showsFaults: true,
    alarm: (device) => device.temperature_slowdown_celsius && device.temperature_slowdown_celsius - MARGIN_CELSIUS,
  },
  {
    series: "memory_used_bytes",
    title: "Memory used",
    unit: "GiB",
    factor: GIB,
    decimals: 1,
    limit: (device) => device.memory_total_bytes && device.memory_total_bytes * GIB,
  },
  { series: "sm_clock_mhz", title: "SM clock", unit: "MHz", factor: 1, decimals: 0, limit: (device) => device.sm_clock_max_mhz, showsFaults: true },
  share("tensor_activity_percent", "Tensor cores busy"),
  traffic("nvlink", "NVLink throughput"),
  traffic("pcie", "PCIe throughput"),
  { series: "memory_temperature_celsius", title: "Memory temperature", unit: "°C", factor: 1, decimals: 0, from: 20, top: 105 },
  share("sm_activity_percent", "SMs busy"),
  share("dram_activity_percent", "Memory bandwidth in use"),
];

export const metricOf = (series: string): Metric => METRICS.find((metric) => metric.series === series) ?? METRICS[0]!;

export const seriesOf = (metric: Metric): string[] => metric.parts?.map(([series]) => series) ?? [metric.series];

type Values = (number | null)[];

// The values of one series in the shown unit.
export function partOf(recent: Recent, key: string, series: string, factor: number): Values {
  const stored = recent.devices.get(key)?.[series];
  return stored ? stored.map((value) => (value === null ? null : value * factor)) : [];
}

// The values of a metric, in the shown unit: of several series the sum of those that are there.
export function valuesOf(recent: Recent, key: string, metric: Metric): Values {
  const [first = [], ...others] = seriesOf(metric).map((series) => partOf(recent, key, series, metric.factor));
  return others.reduce((sum, part) => recent.times.map((_, at) => (sum[at] == null ? part[at] ?? null : part[at] == null ? sum[at]! : sum[at]! + part[at]!)), first);
}

// Where something holds the clocks down that should not.
export const faultsOf = (recent: Recent, key: string): boolean[] =>
  (recent.devices.get(key)?.clocks_event_mask ?? []).map((mask) => mask !== null && mask > 0 && reasonsOf(mask).some(({ means }) => means === "fault"));
