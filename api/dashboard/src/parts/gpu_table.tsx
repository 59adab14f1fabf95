// One row per GPU, also of one that is gone: load, memory, power against its limit, heat, throttling, health, who uses it. Its MIG instances below.

import { Spark } from "../charts/spark";
import { point, useCursor } from "../charts/cursor";
import { clock, DASH, dateClock, duration, gib, plural, reasonText, seconds, shortName, words } from "../format";
import type { LiveDevice, MigInstance } from "../model";
import type { Recent } from "../recent";
import { shortReason } from "../reasons";
import { serviceNow } from "../store";
import { gpuKey, gpuLink, gpuName } from "./gpu";
import { COLUMNS, holder } from "./gpu_order";
import { Meter, Reading } from "./reading";
import { Status } from "./status";

const SPARK_POINTS = 60;
const MARGIN_CELSIUS = 5;
const A_DAY = 86400;
const DENSE = 24; // more rows than this are drawn lower

interface GpuTableProps {
  devices: LiveDevice[];
  recent: Recent;
  driverAnswers: boolean; // only a driver that answers can show that a GPU is missing
  order?: string;
  onOrder?: (order: string) => void;
}

export function GpuTable({ devices, recent, driverAnswers, order = "", onOrder }: GpuTableProps) {
  const { key } = useCursor();
  const open = (event: MouseEvent, device: LiveDevice): void => {
    const target = event.target as HTMLElement;
    if (!target.closest("a, button") && !getSelection()?.toString()) location.hash = gpuLink(device);
  };
  return (
    <table class={`gpus${devices.length > DENSE ? " dense" : ""}`} role="table">
      <caption class="unseen">GPUs now</caption>
      <thead role="rowgroup">
        <tr role="row">{COLUMNS.map(({ id, name }) => <Heading key={id} id={id} name={name} order={order} {...(onOrder ? { onOrder } : {})} />)}</tr>
      </thead>
      <tbody role="rowgroup">
        {devices.flatMap((device) => [
          <GpuRow
            key={gpuKey(device)}
            device={device}
            load={recent.devices.get(gpuKey(device))?.utilization_percent ?? []}
            driverAnswers={driverAnswers}
            isPointed={key === gpuKey(device)}
            {...(onOrder ? { open } : {})}
          />,
          ...(device.responding ? device.mig_instances ?? [] : []).map((instance) => <InstanceRow key={instance.uuid} device={device} instance={instance} />),
        ])}
      </tbody>
    </table>
  );
}

function Heading({ id, name, order, onOrder }: { id: string; name: string; order: string; onOrder?: (order: string) => void }) {
  const isIt = order.replace("-", "") === id;
  const up = isIt && order.startsWith("-") !== !COLUMNS.find((column) => column.id === id)!.down;
  return (
    <th scope="col" role="columnheader" {...(isIt ? { "aria-sort": up ? ("ascending" as const) : ("descending" as const) } : {})}>
      {onOrder ? <button type="button" class="sort" onClick={() => onOrder(!isIt ? id : order.startsWith("-") ? "" : `-${id}`)}>{name}<span aria-hidden="true">{isIt ? (up ? " ▴" : " ▾") : ""}</span></button> : name}
    </th>
  );
}

interface GpuRowProps {
  device: LiveDevice;
  load: (number | null)[];
  driverAnswers: boolean;
  isPointed: boolean;
  open?: (event: MouseEvent, device: LiveDevice) => void;
}

function GpuRow({ device, load, driverAnswers, isPointed, open }: GpuRowProps) {
  const name = device.name ? shortName(device.name) : "";
  const parts = device.mig_instances?.length ?? 0;
  return (
    <tr
      role="row"
      class={`${device.responding ? "" : "silent"}${isPointed ? " on" : ""}${open ? " opens" : ""}`}
      onClick={(event) => open?.(event, device)}
      onPointerEnter={() => point(null, gpuKey(device))}
      onPointerLeave={() => point(null, null)}
    >
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
  const slowdown = device.temperature_slowdown_celsius;
  const isHot = (slowdown !== null && device.temperature_celsius !== null && device.temperature_celsius >= slowdown - MARGIN_CELSIUS) || device.finding_codes.some((code) => code.startsWith("temperature.gpu"));
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
          <span class="value">{gib(device.memory_used_bytes ?? 0)}{device.memory_total_bytes !== null && <small>/{gib(device.memory_total_bytes)}</small>}</span>
        </Reading>
      </td>
      <td role="cell" data-label="Power W">
        <Reading of={device} field="power_draw_watts">
          <Meter value={device.power_draw_watts} limit={device.power_limit_enforced_watts} />
          <span class="value">{device.power_draw_watts?.toFixed(0)}{device.power_limit_enforced_watts !== null && <small>/{device.power_limit_enforced_watts.toFixed(0)}</small>}</span>
        </Reading>
      </td>
      <td role="cell" data-label="Temp" class={isHot ? "hot" : ""}><Reading of={device} field="temperature_celsius">{device.temperature_celsius} °C</Reading></td>
      <td role="cell" data-label="SM MHz"><Reading of={device} field="sm_clock_mhz">{device.sm_clock_mhz}</Reading></td>
      <td role="cell" data-label="Throttle" class="throttle"><Throttle device={device} /></td>
      <td role="cell" data-label="Used by" class="users"><Users device={device} /></td>
    </>
  );
}

// A GPU that does not answer stays a row: why, since when, and its last readings.
function SilentCells({ device, driverAnswers }: { device: LiveDevice; driverAnswers: boolean }) {
  const last = device.last_good;
  const before = [
    last?.utilization_percent != null && `${last.utilization_percent}%`,
    last?.memory_used_bytes != null && `${gib(last.memory_used_bytes)} GiB`,
    last?.power_draw_watts != null && `${last.power_draw_watts.toFixed(0)} W`,
    last?.temperature_celsius != null && `${last.temperature_celsius} °C`,
  ].filter(Boolean);
  const since = device.last_good_at === null ? null : seconds(device.last_good_at);
  const age = since === null ? 0 : serviceNow() - since;
  return (
    <td role="cell" data-label="State" colSpan={COLUMNS.length - 2} class="gone">
      <b>{whySilent(device, driverAnswers)}{since !== null && ` since ${age < A_DAY ? clock(since) : dateClock(since)} (${duration(Math.max(0, age))})`}.</b>
      {last ? <> Last good: {before.join(", ")}.</> : since === null ? <> No good reading since the service started.</> : <> An earlier gpudiag serve saw it last.</>}
    </td>
  );
}

// In the words of the headline: "1 of 8 missing", "8 unread".
function whySilent(device: LiveDevice, driverAnswers: boolean): string {
  if (device.missing?.responding !== "source_absent") return reasonText(device.missing?.responding);
  if (!driverAnswers) return "unread";
  return device.bus_id ? `missing from ${device.bus_id.replace(/^0000+:/, "")}` : "missing";
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

// A MIG instance has memory, activity and users of its own; power, heat and clocks are the GPU's.
function InstanceRow({ device, instance }: { device: LiveDevice; instance: MigInstance }) {
  const isOf = (use: { gpu_instance_id: number | null }): boolean => use.gpu_instance_id === instance.gpu_instance_id;
  const users = [...(device.processes ?? []).filter(isOf).map(holder), ...device.pods.filter(isOf).map(({ namespace, pod }) => `${namespace}/${pod}`)];
  const activity = instance.sm_activity_percent ?? instance.graphics_activity_percent;
  return (
    <tr role="row" class="instance">
      <th scope="row" role="rowheader">MIG {instance.gpu_instance_id}/{instance.compute_instance_id} <span class="name">{instance.name?.replace(/.* MIG /, "")}</span></th>
      <td role="cell" data-label="Health" />
      <td role="cell" data-label="Utilisation" class="load"><Reading of={instance} field="sm_activity_percent">{activity === null ? null : <span class="value">{Math.round(activity)}%</span>}</Reading></td>
      <td role="cell" data-label="Memory GiB">
        <Reading of={instance} field="memory_used_bytes">
          <Meter value={instance.memory_used_bytes} limit={instance.memory_total_bytes} />
          <span class="value">{gib(instance.memory_used_bytes ?? 0)}<small>/{gib(instance.memory_total_bytes ?? 0)}</small></span>
        </Reading>
      </td>
      <td role="cell" data-label="UUID" colSpan={4} class="uuid"><Reading of={instance} field="uuid"><code>{instance.uuid}</code></Reading></td>
      <td role="cell" data-label="Used by" class="users">{users.length ? <span title={users.join("\n")}>{users[0]}{users.length > 1 && ` +${users.length - 1}`}</span> : <span class="calm">no process</span>}</td>
    </tr>
  );
}
