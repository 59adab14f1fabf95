// The last minutes of every GPU, for the charts of the first screen: read once from the history, then kept up by live ticks.

import { useEffect, useReducer } from "preact/hooks";
import { read } from "./api";
import { seconds } from "./format";
import { gpuKey } from "./parts/gpu";
import type { Live, LiveDevice, Series, TimelineEntry } from "./model";
import { state, useEvents } from "./store";

export const RECENT_SECONDS = 600;
const MAX_POINTS = 700;
export const RECENT_SERIES = [
  "utilization_percent",
  "memory_used_bytes",
  "power_draw_watts",
  "temperature_celsius",
  "sm_clock_mhz",
  "clocks_event_mask",
];

// Bits of `clocks_event_mask`, in the order of docs/api.md.
export const EVENT_REASONS = [
  "gpu_idle",
  "applications_clocks_setting",
  "sw_power_cap",
  "hw_slowdown",
  "sync_boost",
  "sw_thermal_slowdown",
  "hw_thermal_slowdown",
  "hw_power_brake_slowdown",
  "display_clocks_setting",
];

export interface Recent {
  times: number[];
  devices: Map<string, Record<string, (number | null)[]>>;
  events: TimelineEntry[];
}

const empty = (): Recent => ({ times: [], devices: new Map(), events: [] });

export function fromSeries(series: Series): Recent {
  return {
    times: series.times,
    devices: new Map(series.devices.map((device) => [device.uuid, device.series])),
    events: series.events,
  };
}

function maskOf(device: LiveDevice): number | null {
  const reasons = device.clocks_event_reasons;
  if (!reasons) return null;
  return reasons.reduce((mask, reason) => {
    const bit = EVENT_REASONS.indexOf(reason);
    return bit < 0 ? mask : mask | (1 << bit);
  }, 0);
}

function append(recent: Recent, live: Live): Recent {
  const at = seconds(live.at);
  const last = recent.times.at(-1);
  if (last !== undefined && at <= last) return recent;
  const kept = recent.times.filter((time) => time > at - RECENT_SECONDS).slice(1 - MAX_POINTS).length;
  const drop = recent.times.length - kept;
  const devices = new Map(recent.devices);
  for (const device of live.devices) {
    const uuid = gpuKey(device);
    const before = recent.devices.get(uuid) ?? {};
    const gap = (): null[] => recent.times.map(() => null);
    const next: Record<string, (number | null)[]> = {};
    for (const name of RECENT_SERIES) {
      const value = name === "clocks_event_mask" ? maskOf(device) : (device[name] as number | null);
      next[name] = [...(before[name] ?? gap()).slice(drop), value];
    }
    devices.set(uuid, next);
  }
  // A GPU that is gone from the list keeps its past, and gets no new points.
  for (const [uuid, series] of devices) {
    if (live.devices.some((device) => gpuKey(device) === uuid)) continue;
    devices.set(uuid, Object.fromEntries(Object.entries(series).map(([name, list]) => [name, [...list.slice(drop), null]])));
  }
  return { times: [...recent.times.slice(drop), at], devices, events: recent.events };
}

let recent = empty();
let refresh: Promise<void> | null = null;

// Reads what is missing: all of it at first, and again after the page was hidden for a while.
async function fill(): Promise<void> {
  const now = state.live ? seconds(state.live.at) : Date.now() / 1000;
  const query = `history?from=${Math.floor(now - RECENT_SECONDS)}&series=${RECENT_SERIES.join(",")}`;
  const series = await read<Series>(query).catch(() => null);
  if (series) recent = fromSeries(series);
  if (state.live) recent = append(recent, state.live);
}

export function useRecent(): Recent {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const fillOnce = (): void => {
    refresh ??= fill().finally(() => {
      refresh = null;
      redraw(undefined);
    });
  };
  useEffect(fillOnce, []);
  useEvents((event) => {
    if (event.name === "event") {
      recent = { ...recent, events: [...recent.events, event.data as TimelineEntry].slice(-200) };
    }
    if (event.name !== "live") return;
    const live = event.data as Live;
    const last = recent.times.at(-1);
    const late = last !== undefined && seconds(live.at) - last > 15;
    recent = append(recent, live);
    if (late) fillOnce();
    if (!document.hidden) redraw(undefined);
  }, []);
  return recent;
}
