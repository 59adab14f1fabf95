// The machine at a glance: what its GPUs do together, who uses them, and the host below them.

import type { ComponentChildren } from "preact";
import { DASH, duration } from "../format";
import type { Live, LiveDevice } from "../model";
import { gpuName } from "./gpu";
import { Meter } from "./reading";

const GIB = 1024 ** 3;
const KILOWATT = 1000;
const MOST_USERS = 3;

interface Total {
  value: number;
  limit: number | null;
}

// The sum over the GPUs that have it; its limit where all of those have one.
function totalOf(devices: LiveDevice[], field: keyof LiveDevice, limit?: keyof LiveDevice): Total | null {
  const known = devices.filter((device) => device.responding && device[field] !== null);
  if (!known.length) return null;
  const sum = (name: keyof LiveDevice): number => known.reduce((total, device) => total + (device[name] as number), 0);
  return { value: sum(field), limit: limit && known.every((device) => device[limit] !== null) ? sum(limit) : null };
}

const powerUnit = (power: Total | null): string => ((power?.limit ?? power?.value ?? 0) >= KILOWATT ? "kW" : "W");
const watts = (value: number, power: Total): string => (powerUnit(power) === "kW" ? (value / KILOWATT).toFixed(2) : value.toFixed(0));

export function Strip({ live }: { live: Live }) {
  const { devices, host_activity: host } = live;
  const load = totalOf(devices, "utilization_percent");
  const memory = totalOf(devices, "memory_used_bytes", "memory_total_bytes");
  const power = totalOf(devices, "power_draw_watts", "power_limit_enforced_watts");
  const counted = devices.filter((device) => device.responding && device.utilization_percent !== null).length;
  const hottest = devices.reduce<LiveDevice | null>((most, device) => ((device.temperature_celsius ?? -1) > (most?.temperature_celsius ?? -1) ? device : most), null);
  const hostMemory = host?.memory_total_bytes != null && host.memory_available_bytes != null ? host.memory_total_bytes - host.memory_available_bytes : null;
  return (
    <dl class="strip" aria-label="The machine now">
      {devices.length > 0 && (
        <>
          <Tile name="GPU load" value={load && counted ? Math.round(load.value / counted) : null} unit="%" share={load && { value: load.value, limit: counted * 100 }} />
          <Tile name="GPU memory" value={memory && (memory.value / GIB).toFixed(memory.value < 100 * GIB ? 1 : 0)} unit={memory?.limit ? `/ ${Math.round(memory.limit / GIB)} GiB` : "GiB"} share={memory} />
          <Tile name="GPU power" value={power && watts(power.value, power)} unit={power?.limit ? `/ ${watts(power.limit, power)} ${powerUnit(power)}` : powerUnit(power)} share={power} />
          <Tile name="Hottest" value={hottest?.temperature_celsius ?? null} unit={`°C ${hottest ? gpuName(hottest) : ""}`} />
          <Users devices={devices} />
        </>
      )}
      <Tile name="Host load" value={host?.load_average?.toFixed(1) ?? null} unit={host?.processors_busy_percent != null ? `CPU ${Math.round(host.processors_busy_percent)} %` : ""} />
      <Tile name="Host memory" value={hostMemory === null ? null : (hostMemory / GIB).toFixed(0)} unit={host?.memory_total_bytes != null ? `/ ${(host.memory_total_bytes / GIB).toFixed(0)} GiB` : "GiB"} share={hostMemory === null ? null : { value: hostMemory, limit: host!.memory_total_bytes }} />
      <Tile isWords name="Driver" value={live.driver_version} unit={live.cuda_driver_version ? `CUDA ${live.cuda_driver_version}` : ""} />
      <Tile name="Up for" value={host?.uptime_seconds != null ? duration(host.uptime_seconds) : null} unit="" />
    </dl>
  );
}

interface TileProps {
  name: string;
  value: ComponentChildren;
  unit: string;
  share?: Total | null;
  isWords?: boolean; // drawn smaller than a number
}

function Tile({ name, value, unit, share, isWords }: TileProps) {
  return (
    <div>
      <dt>{name}</dt>
      <dd class={isWords ? "words" : ""}>
        <b>{value ?? DASH}</b> <span class="unit">{value === null ? "" : unit}</span>
        {share && <Meter value={share.value} limit={share.limit} />}
      </dd>
    </div>
  );
}

// Who has GPUs and how many; a GPU that two share counts for each.
function Users({ devices }: { devices: LiveDevice[] }) {
  const counts = new Map<string, number>();
  for (const device of devices) {
    const users = [...(device.processes ?? []).map(({ user }) => user), ...device.slurm_jobs.map(({ user }) => user)];
    for (const user of new Set(users)) if (user) counts.set(user, (counts.get(user) ?? 0) + 1);
  }
  const users = [...counts].sort((one, other) => other[1] - one[1]);
  const free = devices.filter((device) => device.responding && device.processes?.length === 0 && !device.signs_of_use.length && !device.not_free_because.length).length;
  const names = users.slice(0, MOST_USERS).map(([user, count]) => `${user}\u00a0${count}`).join(", ");
  const more = users.length > MOST_USERS ? ` +${users.length - MOST_USERS}` : "";
  return <Tile isWords name="Users" value={users.length ? <span title={users.map(([user, count]) => `${user}: ${count} GPUs`).join("\n")}>{names}{more}</span> : "none"} unit={`${free} free`} />;
}
