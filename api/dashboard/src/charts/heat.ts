// Colours of heat strips, and their painting: a pixel of the canvas for each GPU and each moment, which the style sheet enlarges.

import { colour } from "../theme";

const LEVELS = 64;
const ALARM = LEVELS;
export const RAMP = ["heat-0", "heat-1", "heat-2", "heat-3", "heat-4"]; // names in the style sheet, from nothing to the limit
const GAP_SECONDS = 12; // as long as the slowest sampling leaves between two samples

export interface Row {
  values: (number | null)[];
  from: number;
  limit: number;
  alarm: number | null;
  faults: boolean[] | null; // samples that are drawn as alarms whatever their value
}

type Rgb = [number, number, number];

const rgb = (hex: string): Rgb => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as Rgb;

// Each level, then the alarm, as the pixels of a canvas are stored.
export function palette(): Uint32Array {
  const stops = RAMP.map((name) => rgb(colour(name)));
  const pixel = ([r, g, b]: Rgb): number => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const mixed = Array.from({ length: LEVELS }, (_, level) => {
    const place = (level / (LEVELS - 1)) * (stops.length - 1);
    const [low, high] = [stops[Math.floor(place)]!, stops[Math.ceil(place)]!];
    return pixel(low.map((part, at) => Math.round(part + (high[at]! - part) * (place % 1))) as Rgb);
  });
  return Uint32Array.from([...mixed, pixel(rgb(colour("heat-alarm")))]);
}

// For each column the samples in it, [first, end); an empty column stands for the sample before it, where that is near.
export function columnsOf(times: number[], from: number, to: number, count: number): [first: number, end: number][] {
  const columns: [number, number][] = [];
  const width = (to - from) / count;
  let next = times.findIndex((time) => time >= from);
  if (next < 0) next = times.length;
  for (let column = 0; column < count; column += 1) {
    const first = next;
    const end = from + (column + 1) * width;
    while (next < times.length && times[next]! < end) next += 1;
    const before = times[first - 1];
    if (next > first) columns.push([first, next]);
    else columns.push(before !== undefined && end - before <= Math.max(GAP_SECONDS, 2.5 * width) ? [first - 1, first] : [0, 0]);
  }
  return columns;
}

function levelOf(row: Row, [first, end]: [number, number]): number | null {
  let most: number | null = null;
  for (let at = first; at < end; at += 1) {
    const value = row.values[at] ?? null;
    if (value === null) continue;
    if (row.faults?.[at] || (row.alarm !== null && value >= row.alarm)) return ALARM;
    if (most === null || value > most) most = value;
  }
  if (most === null) return null;
  return Math.round(Math.min(1, Math.max(0, (most - row.from) / (row.limit - row.from || 1))) * (LEVELS - 1));
}

export function paint(canvas: HTMLCanvasElement, rows: Row[], columns: [number, number][], colours: Uint32Array): void {
  canvas.width = columns.length;
  canvas.height = rows.length;
  const picture = new ImageData(columns.length, rows.length);
  const pixels = new Uint32Array(picture.data.buffer);
  rows.forEach((row, line) => {
    columns.forEach((column, at) => {
      const level = levelOf(row, column);
      if (level !== null) pixels[line * columns.length + at] = colours[level]!;
    });
  });
  canvas.getContext("2d")!.putImageData(picture, 0, 0);
}
