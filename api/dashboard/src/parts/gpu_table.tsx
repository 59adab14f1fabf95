// One row per GPU: load, memory, power against its limit, heat, throttling, health, and who uses it.

import { clock, DASH, gib, plural, program, reasonText, seconds, shortName, words } from "../format";
import { Spark } from "../charts/spark";
import type { GpuProcess, LiveDevice } from "../model";
import type { Recent } from "../recent";
import { shortReason } from "../reasons";
import { gpuKey, gpuLink, gpuName } from "./gpu";
import { Meter, Reading } from "./reading";
import { Status } from "./status";

const COLUMNS = ["GPU", "Health", "Utilisation", "Memory GiB", "Power W", "Temp", "SM MHz", "Throttle", "Used by"];
const SPARK_POINTS = 60;

interface GpuTableProps {
  devices: LiveDevice[];
  recent: Recent;
  driverAnswers: boolean; // only a driver that answers can show that a GPU is missing
}

export function GpuTable({ devices, recent, driverAnswers }: GpuTableProps) {
  return (
    <table class="gpus" role="table">
      <caption class="unseen">GPUs now</caption>
      <thead role="rowgroup">
        <tr role="row">{COLUMNS.map((name) => <th scope="col" role="columnheader" key={name}>{name}</th>)}</tr>
      </thead>
      <tbody role="rowgroup">
        {devices.map((device) => (
          <GpuRow
            key={gpuKey(device)}
            device={device}
            load={recent.devices.get(gpuKey(device))?.utilization_percent ?? []}
            driverAnswers={driverAnswers}
          />
        ))}
      </tbody>
    </table>
  );
}

function GpuRow({ device, load, driverAnswers }: { device: LiveDevice; load: (number | null)[]; driverAnswers: boolean }) {
  const name = device.name ? shortName(device.name) : "";
  const parts = device.mig_instances?.length ?? 0;
  return (
    <tr role="row" class={device.responding ? "" : "silent"}>
      <th scope="row" role="rowheader">
        <a href={gpuLink(device)}>{gpuName(device)}</a> <span class="name">{name}{parts > 0 && `, ${plural(parts, "MIG instance")}`}</span>
      </th>
      <td role="cell" data-label="Health" class="health"><HealthCell device={device} /></td>
      {device.responding ? <Readings device={device} load={load} /> : <SilentCells device={device} driverAnswers={driverAnswers} />}
    </tr>
  );
}

function HealthCell({ device }: { device: LiveDevice }) {
  const first = device.finding_codes[0];
  return <Status state={device.health} text={first && device.health !== "ok" ? words(first.replaceAll(".", " ")) : device.health} />;
}

function Readings({ device, load }: { device: LiveDevice; load: (number | null)[] }) {
  return (
    <>
      <td role="cell" data-label="Utilisation" class="load">
        <Reading of={device} field="utilization_percent">
          <span class="value">{device.utilization_percent}%</span> <Spark values={load.slice(-SPARK_POINTS)} top={100} />
        </Reading>
      </td>
      <td role="cell" data-label="Memory GiB">
        <Reading of={device} field="memory_used_bytes">
          <Meter value={device.memory_used_bytes} limit={device.memory_total_bytes} />
          <span class="value">{gib(device.memory_used_bytes ?? 0)}<small>/{device.memory_total_bytes === null ? DASH : gib(device.memory_total_bytes)}</small></span>
        </Reading>
      </td>
      <td role="cell" data-label="Power W">
        <Reading of={device} field="power_draw_watts">
          <Meter value={device.power_draw_watts} limit={device.power_limit_enforced_watts} />
          <span class="value">{device.power_draw_watts?.toFixed(0)}<small>/{device.power_limit_enforced_watts?.toFixed(0) ?? DASH}</small></span>
        </Reading>
      </td>
      <td role="cell" data-label="Temp"><Reading of={device} field="temperature_celsius">{device.temperature_celsius} °C</Reading></td>
      <td role="cell" data-label="SM MHz"><Reading of={device} field="sm_clock_mhz">{device.sm_clock_mhz}</Reading></td>
      <td role="cell" data-label="Throttle" class="throttle"><Throttle device={device} /></td>
      <td role="cell" data-label="Used by" class="users"><Users device={device} /></td>
    </>
  );
}

// A GPU that does not answer stays a row: why, and its last readings.
function SilentCells({ device, driverAnswers }: { device: LiveDevice; driverAnswers: boolean }) {
  const last = device.last_good;
  const before = [
    last?.utilization_percent != null && `${last.utilization_percent}%`,
    last?.memory_used_bytes != null && `${gib(last.memory_used_bytes)} GiB`,
    last?.power_draw_watts != null && `${last.power_draw_watts.toFixed(0)} W`,
    last?.temperature_celsius != null && `${last.temperature_celsius} °C`,
  ].filter(Boolean);
  return (
    <td role="cell" data-label="State" colSpan={COLUMNS.length - 2} class="gone">
      <b>{whySilent(device, driverAnswers)}.</b>
      {last ? <> Last good at {clock(seconds(last.at))}: {before.join(", ")}.</> : <> No good reading since the service started.</>}
    </td>
  );
}

// In the words of the headline: "1 of 8 missing", "8 unread".
function whySilent(device: LiveDevice, driverAnswers: boolean): string {
  if (device.missing?.responding !== "source_absent") return reasonText(device.missing?.responding);
  if (!driverAnswers) return "unread";
  return device.bus_id ? `missing; it was at ${device.bus_id}` : "missing";
}

function Throttle({ device }: { device: LiveDevice }) {
  if (device.clocks_event_reasons === null) return <Reading of={device} field="clocks_event_reasons">{DASH}</Reading>;
  const reasons = device.clocks_event_reasons.filter((reason) => reason !== "gpu_idle");
  if (!reasons.length) return <span class="calm">none</span>;
  const text = [...new Set(reasons.map((reason) => shortReason(reason)))].join(", ");
  return <span title={reasons.map(words).join(", ")}>{device.throttled ? <Status state="warn" text={text} /> : text}</span>;
}

function Users({ device }: { device: LiveDevice }) {
  if (device.processes === null) return <Reading of={device} field="processes">{DASH}</Reading>;
  if (!device.processes.length) {
    const signs = (device.signs_of_use ?? []).join(", ");
    if (signs) return <span title={`${signs}; no process is seen from here`}>in use</span>;
    const reasons = (device.not_free_because ?? []).join(", ");
    return reasons ? <span title={reasons}>not free</span> : <span class="calm">free</span>;
  }
  const [first, ...rest] = device.processes.map(holder);
  return <span title={device.processes.map((process) => process.command ?? `pid ${process.pid}`).join("\n")}>{first}{rest.length > 0 && ` +${rest.length}`}</span>;
}

function holder(process: GpuProcess): string {
  const what = process.command ? program(process.command) : `pid ${process.pid}`;
  return process.user ? `${process.user} ${what}` : what;
}
