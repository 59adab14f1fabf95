// Many GPUs in one view: a tile for each, as full as its load, marked where it is not healthy.

import { point, useCursor } from "../charts/cursor";
import { words } from "../format";
import type { LiveDevice } from "../model";
import { gpuKey, gpuLink, gpuName } from "./gpu";

const GLYPHS: Record<string, string> = { warn: "▲", fail: "✕", error: "?" };

export function GpuMap({ devices }: { devices: LiveDevice[] }) {
  const { key } = useCursor();
  return (
    <ol class="map" aria-label="GPUs now">
      {devices.map((device) => (
        <li key={gpuKey(device)} class={key === gpuKey(device) ? "on" : ""} onPointerEnter={() => point(null, gpuKey(device))} onPointerLeave={() => point(null, null)}>
          <a class={`tile ${device.health}`} href={gpuLink(device)} title={device.finding_codes.map((code) => words(code.replaceAll(".", " "))).join(", ")}>
            <span class="fill" style={{ width: `${device.responding ? device.utilization_percent ?? 0 : 0}%` }} />
            <b>{gpuName(device).replace("GPU ", "")}<span class="mark"><span aria-hidden="true"> {GLYPHS[device.health] ?? ""}</span><span class="unseen"> {device.health}</span></span></b>
            <span>{device.responding ? `${device.utilization_percent ?? "–"}% ${device.temperature_celsius ?? "–"}°` : "lost"}</span>
          </a>
        </li>
      ))}
    </ol>
  );
}
