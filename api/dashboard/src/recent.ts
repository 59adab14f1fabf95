// The last minutes of every GPU, for the charts of the first screen: read once from the history, then kept up by live ticks.

import { useEffect, useReducer } from "preact/hooks";
import { read } from "./api";
import { METRICS, seriesOf } from "./charts/metrics";
import { seconds } from "./format";
import { gpuKey } from "./parts/gpu";
import type { Live, Series, TimelineEntry } from "./model";
import { maskOf } from "./reasons";
import { state, useEvents } from "./store";

export const RECENT_SECONDS = 600;
const MAX_POINTS = 700;
const SLOWEST_SAMPLE_SECONDS = 12; // twice what the sampler takes its time for, and a little
export const RECENT_METRICS = METRICS.slice(0, 8);
const RECENT_SERIES = [...RECENT_METRICS.flatMap(seriesOf), "clocks_event_mask"];

export interface Recent {
  loaded: boolean; // whether the history has answered: until then an empty list means nothing
  times: number[];
  devices: Map<string, Record<string, (number | null)[]>>;
  events: TimelineEntry[];
}

const empty = (): Recent => ({ loaded: false, times: [], devices: new Map(), events: [] });

// The samples of a series. While nobody looks there is one in 5 s: the points between them are no gaps. Where there
// is none for longer, one empty point stands for the gap, so that no line is drawn across it.
export function fromSeries(series: Series): Recent {
  const lists = series.devices.flatMap((device) => Object.values(device.series));
  const longest = Math.max(SLOWEST_SAMPLE_SECONDS, 2.5 * series.step_seconds);
  const kept: (number | null)[] = []; // positions; null for a gap
  let last = -Infinity;
  series.times.forEach((time, position) => {
    const sampled = lists.some((list) => list[position] !== null);
    if (sampled || time - last > longest) {
      if (sampled || kept.at(-1) !== null) kept.push(sampled ? position : null);
      if (sampled) last = time;
    }
  });
  const times: number[] = [];
  for (const position of kept) times.push(position === null ? (times.at(-1) ?? series.times[0]! - 1) + 1 : series.times[position]!);
  const pick = (list: (number | null)[]): (number | null)[] => kept.map((position) => (position === null ? null : list[position] ?? null));
  const devices = series.devices.map((device): [string, Record<string, (number | null)[]>] => [
    device.uuid,
    Object.fromEntries(Object.entries(device.series).map(([name, list]) => [name, pick(list)])),
  ]);
  return { loaded: true, times, devices: new Map(devices), events: series.events };
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
      const value = name === "clocks_event_mask" ? device.clocks_event_reasons && maskOf(device.clocks_event_reasons) : (device[name as keyof typeof device] as number | null);
      next[name] = [...(before[name] ?? gap()).slice(drop), value];
    }
    devices.set(uuid, next);
  }
  // A GPU that is gone from the list keeps its past, and gets no new points.
  for (const [uuid, series] of devices) {
    if (live.devices.some((device) => gpuKey(device) === uuid)) continue;
    devices.set(uuid, Object.fromEntries(Object.entries(series).map(([name, list]) => [name, [...list.slice(drop), null]])));
  }
  return { ...recent, times: [...recent.times.slice(drop), at], devices };
}

let recent = empty();
let refresh: Promise<void> | null = null;

// Reads what is missing: all of it at first, and again after the page was hidden for a while.
async function fill(): Promise<void> {
  const now = state.live ? seconds(state.live.at) : Date.now() / 1000;
  const query = `history?from=${Math.floor(now - RECENT_SECONDS)}&series=${RECENT_SERIES.join(",")}`;
  const series = await read<Series>(query).catch(() => null);
  recent = series ? fromSeries(series) : { ...recent, loaded: true };
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
