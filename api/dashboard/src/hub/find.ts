// Which machines are shown, and in which order: words that must all be found, one verdict, one order.

import type { HubMachine, MachineGpu } from "../model";

export const ORDERS: [order: string, title: string][] = [
  ["worst", "worst first"],
  ["name", "by name"],
  ["load", "most load"],
  ["heat", "hottest"],
  ["memory", "most free memory"],
];

// The part of a machine in which a word was found that its card does not show by itself; null: it is not there.
function place(machine: HubMachine, word: string): string | null {
  const has = (text: string | null | undefined): boolean => !!text && text.toLowerCase().includes(word);
  const { report } = machine;
  if (has(machine.name) || has(machine.reason) || machine.notes.some(has)) return "";
  if (!report) return null;
  if (has(report.host) || has(report.headline) || has(report.version) || has(report.driver_version)) return "";
  if (report.users.some(has) || report.jobs.some(has)) return "";
  const finding = report.findings.find((one) => has(one.code) || has(one.message));
  if (finding) return finding.code;
  const gpu = report.gpus.find((one) => has(one.serial) || has(one.uuid) || has(one.name));
  if (!gpu) return null;
  return `GPU ${gpu.nvml_index ?? "?"}: ${has(gpu.name) ? gpu.name : has(gpu.serial) ? `serial number ${gpu.serial}` : gpu.uuid}`;
}

// Where all words were found; null: one of them was not.
export function match(machine: HubMachine, query: string): string[] | null {
  const found: string[] = [];
  for (const word of query.toLowerCase().split(/\s+/).filter(Boolean)) {
    const where = place(machine, word);
    if (where === null) return null;
    if (where) found.push(where);
  }
  return [...new Set(found)];
}

// Sum, mean and the like of one reading over the GPUs that have it; null where none has.
export function values(gpus: MachineGpu[], reading: (gpu: MachineGpu) => number | null): number[] {
  return gpus.map(reading).filter((value) => value !== null);
}

export const sum = (numbers: number[]): number => numbers.reduce((total, value) => total + value, 0);

// What a machine is called, and what else: a host's name is shown before a numeric address that DNS has found.
export function names({ name, report }: HubMachine): [name: string, other: string | null] {
  if (!report || name.toLowerCase().includes(report.host.toLowerCase())) return [name, null];
  return /^[\d[]/.test(name) ? [report.host, name] : [name, report.host];
}

function weight(machine: HubMachine, order: string): number {
  const gpus = machine.verdict === "error" ? [] : machine.report?.gpus ?? [];
  if (order === "load") return sum(values(gpus, (gpu) => gpu.utilization_percent));
  if (order === "heat") return Math.max(-1, ...values(gpus, (gpu) => gpu.temperature_celsius));
  return sum(values(gpus, (gpu) => (gpu.memory_total_bytes === null || gpu.memory_used_bytes === null ? null : gpu.memory_total_bytes - gpu.memory_used_bytes)));
}

// The hub has put them worst first; names are compared as people count, gpu2 before gpu10.
export function sorted(machines: HubMachine[], order: string): HubMachine[] {
  if (order === "name") return machines.toSorted((one, other) => names(one)[0].localeCompare(names(other)[0], "en", { numeric: true }));
  if (order === "worst") return machines;
  return machines.toSorted((one, other) => weight(other, order) - weight(one, order));
}
