// One metric as a heat strip: a row for each GPU, coloured by how near the GPU is to its own limit.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock } from "../format";
import type { LiveDevice } from "../model";
import { gpuKey, gpuName } from "../parts/gpu";
import type { Recent } from "../recent";
import { onThemeChange } from "../theme";
import { nearest, point, useCursor } from "./cursor";
import { Figure, shown } from "./figure";
import { Frame, type Span } from "./frame";
import { columnsOf, paint, palette, type Row } from "./heat";
import { faultsOf, type Metric, valuesOf } from "./metrics";
import { leastOf, niceTop } from "./scale";

interface StripsProps extends Span {
  metric: Metric;
  devices: LiveDevice[];
  recent: Recent;
}

const MOST_COLUMNS = 600;
const ROW_PIXELS: [gpus: number, pixels: number][] = [[8, 15], [16, 13], [32, 9], [Infinity, 4]];
const LABELLED_PIXELS = 13; // lower rows have no room for a name each

export function Strips({ metric, devices, recent, ...span }: StripsProps) {
  const cursor = useCursor();
  const values = devices.map((device) => valuesOf(recent, gpuKey(device), metric));
  // Without limits of their own, all GPUs share one scale, which fits what is seen.
  const common = niceTop(values.reduce((most, list) => list.reduce<number>((high, value) => Math.max(high, value ?? 0), most), leastOf(metric.unit)));
  const rows = devices.map((device, position): Row => ({
    values: values[position]!,
    from: metric.from ?? 0,
    limit: metric.limit?.(device) ?? metric.top ?? common,
    alarm: metric.alarm?.(device) ?? null,
    faults: metric.showsFaults ? faultsOf(recent, gpuKey(device)) : null,
  }));
  const keys = devices.map(gpuKey);
  const pixels = ROW_PIXELS.find(([gpus]) => devices.length <= gpus)![1];
  const at = cursor.at ?? span.at ?? null;
  const position = at === null ? recent.times.length - 1 : nearest(recent.times, at);
  const row = cursor.key === null ? -1 : keys.indexOf(cursor.key);
  const labelled = pixels >= LABELLED_PIXELS;
  const value = (place: number): string => shown(values[place]![position], metric.decimals);
  const note = [row >= 0 && !labelled ? `${gpuName(devices[row]!)}: ${value(row)}` : "", at === null ? "" : clock(at)].filter(Boolean).join(" · ");
  const round = (value: number): string => String(Number(value.toPrecision(3)));
  const limits = [...new Set(rows.map(({ limit }) => round(limit)))];
  return (
    <Figure
      title={metric.title}
      unit={metric.unit}
      note={note}
      times={recent.times}
      decimals={metric.decimals}
      columns={devices.map((device, place) => ({ name: gpuName(device), values: values[place]! }))}
      picture={() => ({ kind: "strips", title: metric.title, unit: metric.unit, names: devices.map(gpuName), values: devices.map((_, place) => value(place)), rows, times: recent.times, from: span.from, to: span.to })}
    >
      <div class={`strips${labelled ? "" : " dense"}`}>
        <ol class="names" aria-hidden="true">
          {devices.map((device, place) => (
            <li key={keys[place]} class={row === place ? "on" : ""} style={{ height: `${pixels}px` }} onPointerEnter={() => point(null, keys[place]!)} onPointerLeave={() => point(null, null)}>
              {labelled ? gpuName(device).replace("GPU ", "") : place % 8 ? "" : gpuName(device).replace("GPU ", "")}
            </li>
          ))}
        </ol>
        <div class="field">
          <Frame {...span} label={`${metric.title} of each GPU over time, in ${metric.unit}`} height={pixels * rows.length} rows={keys}>
            {(width) => <Canvas rows={rows} times={recent.times} from={span.from} to={span.to} count={Math.min(MOST_COLUMNS, width)} />}
          </Frame>
        </div>
        {labelled && (
          <ol class="numbers" aria-label={`${metric.title}, ${at === null ? "now" : "then"}, in ${metric.unit}`}>
            {devices.map((device, place) => (
              <li key={keys[place]} class={row === place ? "on" : ""} style={{ height: `${pixels}px` }}><span class="unseen">{gpuName(device)} </span>{value(place)}</li>
            ))}
          </ol>
        )}
      </div>
      <p class="scale">
        {metric.from ?? 0} <span class="ramp" aria-hidden="true" /> {limits.length === 1 ? limits[0] : "each GPU's limit"} {metric.unit}
        {metric.showsFaults && <><span class="swatch alarm" aria-hidden="true" /> {metric.alarm ? "slows down, or is about to" : "held down by a fault"}</>}
      </p>
    </Figure>
  );
}

interface CanvasProps {
  rows: Row[];
  times: number[];
  from: number;
  to: number;
  count: number;
}

function Canvas({ rows, times, from, to, count }: CanvasProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [theme, setTheme] = useState(0);
  const colours = useMemo(palette, [theme]);
  useEffect(() => onThemeChange(() => setTheme((count) => count + 1)), []);
  useEffect(() => paint(canvas.current!, rows, columnsOf(times, from, to, count), colours), [times, from, to, count, colours, rows.length]);
  return <canvas ref={canvas} />;
}
