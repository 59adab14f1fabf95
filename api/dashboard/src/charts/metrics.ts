// What can be drawn over time: unit, scale and axis of each series. Axes are fixed, so that charts compare at a glance.

import type { LiveDevice } from "../model";

export interface Metric {
  series: string;
  title: string;
  unit: string;
  factor: number; // shown = stored x factor
  decimals: number;
  top: (devices: LiveDevice[]) => number; // of the axis, in the shown unit
}

const most = (devices: LiveDevice[], field: keyof LiveDevice, factor: number, fallback: number): number =>
  Math.max(...devices.map((device) => ((device[field] as number | null) ?? 0) * factor), 0) || fallback;

const PER_GIB = 1 / 1024 ** 3;

export const METRICS: Metric[] = [
  { series: "utilization_percent", title: "Utilisation", unit: "%", factor: 1, decimals: 0, top: () => 100 },
  {
    series: "memory_used_bytes",
    title: "Memory used",
    unit: "GiB",
    factor: PER_GIB,
    decimals: 1,
    top: (devices) => most(devices, "memory_total_bytes", PER_GIB, 80),
  },
  {
    series: "power_draw_watts",
    title: "Power",
    unit: "W",
    factor: 1,
    decimals: 0,
    top: (devices) => most(devices, "power_limit_enforced_watts", 1, 700),
  },
  {
    series: "temperature_celsius",
    title: "Temperature",
    unit: "°C",
    factor: 1,
    decimals: 0,
    top: (devices) => Math.max(100, most(devices, "temperature_slowdown_celsius", 1, 0)),
  },
  {
    series: "sm_clock_mhz",
    title: "SM clock",
    unit: "MHz",
    factor: 1,
    decimals: 0,
    top: (devices) => most(devices, "sm_clock_max_mhz", 1, 2000),
  },
  {
    series: "memory_temperature_celsius",
    title: "Memory temperature",
    unit: "°C",
    factor: 1,
    decimals: 0,
    top: () => 110,
  },
];

export const metricOf = (series: string): Metric => METRICS.find((metric) => metric.series === series) ?? METRICS[0]!;
