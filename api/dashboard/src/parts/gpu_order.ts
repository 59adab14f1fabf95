// Which GPUs a table shows, and in which order: words that must all be found, one column up or down.

import type { GpuProcess, LiveDevice } from "../model";
import { program, words } from "../format";
import { gpuKey, gpuName } from "./gpu";

export interface Column {
  id: string; // what the address calls it
  name: string;
  weight: (device: LiveDevice) => number | string | null; // null: last, whatever the direction
  down?: boolean; // the most first, at the first click
}

const WORST_FIRST = ["fail", "error", "warn", "ok"];

export function holder(process: GpuProcess): string {
  const what = process.command ? program(process.command) : `pid ${process.pid}`;
  return process.user ? `${process.user} ${what}` : what;
}

export const COLUMNS: Column[] = [
  { id: "gpu", name: "GPU", weight: (device) => device.nvml_index ?? 1e6 },
  { id: "health", name: "Health", weight: (device) => (device.responding ? WORST_FIRST.indexOf(device.health) : -1) },
  { id: "load", name: "Utilisation", weight: (device) => device.utilization_percent, down: true },
  { id: "memory", name: "Memory GiB", weight: (device) => device.memory_used_bytes, down: true },
  { id: "power", name: "Power W", weight: (device) => device.power_draw_watts, down: true },
  { id: "heat", name: "Temp", weight: (device) => device.temperature_celsius, down: true },
  { id: "clock", name: "SM MHz", weight: (device) => device.sm_clock_mhz, down: true },
  { id: "throttle", name: "Throttle", weight: (device) => (device.clocks_event_reasons?.some((reason) => reason !== "gpu_idle") ? device.clocks_event_reasons.join() : null) },
  { id: "users", name: "Used by", weight: (device) => (device.processes?.[0] ? holder(device.processes[0]) : null) },
];

// "heat" or "-heat": the other way round.
export function ordered(devices: LiveDevice[], order: string): LiveDevice[] {
  const column = COLUMNS.find(({ id }) => id === order.replace("-", ""));
  if (!column) return devices;
  const sign = column.down === !order.startsWith("-") ? -1 : 1;
  return devices.toSorted((one, other) => {
    const [first, second] = [column.weight(one), column.weight(other)];
    if (first === null || second === null) return Number(first === null) - Number(second === null);
    return sign * (typeof first === "string" ? first.localeCompare(String(second)) : first - Number(second));
  });
}

function textOf(device: LiveDevice): string {
  const parts = [gpuName(device), gpuKey(device), device.bus_id, device.name, device.responding ? device.health : "lost", ...device.finding_codes.map((code) => words(code.replaceAll(".", " ")))];
  const owners = [...(device.processes ?? []).map((process) => `${holder(process)} ${process.command ?? ""} ${process.pid}`), ...device.pods.map(({ namespace, pod }) => `${namespace}/${pod}`), ...device.slurm_jobs.map((job) => `job ${job.slurm_job_id} ${job.user ?? ""}`)];
  const instances = (device.mig_instances ?? []).map(({ name, uuid }) => `${name} ${uuid}`);
  const free = device.processes?.length === 0 && device.responding ? "free" : "";
  return [...parts, ...owners, ...instances, device.throttled ? "throttled" : "", free].join(" ").toLowerCase();
}

export function matching(devices: LiveDevice[], query: string): LiveDevice[] {
  const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
  return wanted.length ? devices.filter((device) => wanted.every((word) => textOf(device).includes(word))) : devices;
}
