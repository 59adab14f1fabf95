// The metrics of some GPUs over one span of time: a chart per metric, all on the same time axis, and the timeline below.

import { Chart } from "../charts/chart";
import type { Metric } from "../charts/metrics";
import type { Line } from "../charts/plot";
import { Timeline } from "../charts/timeline";
import type { LiveDevice } from "../model";
import type { Recent } from "../recent";
import { gpuKey, gpuName, lineColour, lineDash } from "./gpu";

interface ChartsProps {
  recent: Recent;
  devices: LiveDevice[];
  metrics: Metric[];
  from: number;
  to: number;
  onSelect?: (from: number, to: number) => void;
}

export function linesOf(recent: Recent, devices: LiveDevice[], metric: Metric): Line[] {
  return devices.map((device, position) => ({
    key: gpuKey(device),
    label: gpuName(device),
    colour: lineColour(position),
    dash: lineDash(position),
    values: (recent.devices.get(gpuKey(device))?.[metric.series] ?? recent.times.map(() => null)).map((value) =>
      value === null ? null : value * metric.factor,
    ),
  }));
}

export function MetricCharts({ recent, devices, metrics, from, to, onSelect }: ChartsProps) {
  const lanes = devices.map((device) => ({ uuid: gpuKey(device), nvml_index: device.nvml_index, bus_id: device.bus_id }));
  const silent = recent.times.length > 0 && devices.every((device) => metrics.every((metric) => !recent.devices.get(gpuKey(device))?.[metric.series]?.some((value) => value !== null)));
  if (silent) {
    return (
      <>
        <p class="empty">No reading in this time.</p>
        <Timeline recent={recent} lanes={lanes} from={from} to={to} />
      </>
    );
  }
  return (
    <>
      <div class="charts">
        {metrics.map((metric) => (
          <Chart
            key={metric.series}
            title={metric.title}
            unit={metric.unit}
            decimals={metric.decimals}
            top={metric.top(devices)}
            from={from}
            to={to}
            times={recent.times}
            lines={linesOf(recent, devices, metric)}
            {...(onSelect ? { onSelect } : {})}
          />
        ))}
      </div>
      <Timeline recent={recent} lanes={lanes} from={from} to={to} />
    </>
  );
}
