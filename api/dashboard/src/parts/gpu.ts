// How a GPU is called and led to, everywhere on the page.

import { link } from "../route";

interface Named {
  uuid: string | null;
  nvml_index: number | null;
  bus_id?: string | null;
}

export function gpuName(device: Named): string {
  if (device.nvml_index !== null) return `GPU ${device.nvml_index}`;
  return `GPU ${device.bus_id?.replace(/^0000+:/, "") ?? device.uuid?.slice(0, 12) ?? "?"}`;
}

// A GPU that never answered has no UUID: its place on the bus distinguishes it from the others.
export const gpuKey = (device: Named): string => device.uuid ?? device.bus_id ?? String(device.nvml_index ?? "");

export const gpuLink = (device: Named): string => link("gpu", gpuKey(device));
