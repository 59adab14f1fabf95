// How a GPU is called, coloured and led to, everywhere on the page.

import { link } from "../route";

interface Named {
  uuid: string | null;
  nvml_index: number | null;
  bus_id?: string | null;
}

const COLOURS = 8;

export function gpuName(device: Named): string {
  if (device.nvml_index !== null) return `GPU ${device.nvml_index}`;
  return `GPU ${device.bus_id?.replace(/^0000+:/, "") ?? device.uuid?.slice(0, 12) ?? "?"}`;
}

// A GPU that never answered has no UUID: its place on the bus distinguishes it from the others.
export const gpuKey = (device: Named): string => device.uuid ?? device.bus_id ?? String(device.nvml_index ?? "");

export const gpuLink = (device: Named): string => link("gpu", gpuKey(device));

// The colour of the n-th line; a second round of eight is dashed.
export const lineColour = (position: number): string => `line-${position % COLOURS}`;
export const lineDash = (position: number): number[] => (position >= COLOURS ? [6, 3] : []);
