// The metrics of some GPUs over one span of time: strips for several, lines for one, all on one time axis with the timeline below.

import type { Span } from "../charts/frame";
import { Lines } from "../charts/lines";
import { type Metric, partOf, seriesOf, valuesOf } from "../charts/metrics";
import { Strips } from "../charts/strips";
import { Timeline } from "../charts/timeline";
import { reasonText } from "../format";
import type { LiveDevice } from "../model";
import type { Recent } from "../recent";
import { link } from "../route";
import { gpuKey } from "./gpu";
import { Loading } from "./notice";

// What a click and a drag over the last minutes lead to: the same minutes in the history, marked or closer.
export function toHistory(from: number, to: number, settings: Record<string, string> = {}): Pick<Span, "onSelect" | "onMoment"> {
  const open = (first: number, last: number, more: Record<string, string>): void => {
    location.hash = link("history", "", { ...settings, from: String(Math.floor(first)), to: String(Math.ceil(last)), ...more });
  };
  return { onSelect: (first, last) => open(first, last, {}), onMoment: (at) => open(from, to, { at: String(at) }) };
}

interface ChartsProps extends Span {
  recent: Recent;
  devices: LiveDevice[];
  metrics: Metric[];
}

const isThere = (recent: Recent, device: LiveDevice, metric: Metric): boolean =>
  seriesOf(metric).some((series) => recent.devices.get(gpuKey(device))?.[series]?.some((value) => value !== null));

export function MetricCharts({ recent, devices, metrics, ...span }: ChartsProps) {
  if (!recent.loaded && recent.times.length < 2) return <Loading what="the history" />;
  const there = metrics.filter((metric) => devices.some((device) => isThere(recent, device, metric)));
  const absent = metrics.filter((metric) => !there.includes(metric));
  const lanes = devices.map((device) => ({ uuid: gpuKey(device), nvml_index: device.nvml_index, bus_id: device.bus_id }));
  const only = devices.length === 1 ? devices[0]! : null;
  return (
    <>
      {there.length === 0 && <p class="empty">No reading in this time.</p>}
      <div class="charts">
        {there.map((metric) => (only ? <Single key={metric.series} metric={metric} device={only} recent={recent} {...span} /> : <Strips key={metric.series} metric={metric} devices={devices} recent={recent} {...span} />))}
      </div>
      <Timeline recent={recent} lanes={lanes} {...span} />
      {there.length > 0 && absent.length > 0 && <p class="hint">Without a reading here: {absent.map((metric) => `${metric.title} (${whyAbsent(devices, metric)})`).join(", ")}.</p>}
    </>
  );
}

function whyAbsent(devices: LiveDevice[], metric: Metric): string {
  const reasons = devices.map((device) => device.missing?.[metric.series]).filter((reason) => reason !== undefined);
  return reasons.length ? [...new Set(reasons.map(reasonText))].join(", ") : "not read";
}

function Single({ metric, device, recent, ...span }: { metric: Metric; device: LiveDevice; recent: Recent } & Span) {
  const key = gpuKey(device);
  const lines = metric.parts
    ? metric.parts.map(([series, name]) => ({ name, values: partOf(recent, key, series, metric.factor) }))
    : [{ name: metric.title, values: valuesOf(recent, key, metric) }];
  return <Lines title={metric.title} unit={metric.unit} decimals={metric.decimals} lines={lines} recent={recent} limit={metric.unit === "%" ? null : metric.limit?.(device) ?? null} {...span} />;
}
