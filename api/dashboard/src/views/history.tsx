// Readings over a range of time. The range, the GPU and the layout stand in the address: a link shows the same again.

import { useEffect, useMemo, useState } from "preact/hooks";
import { address } from "../api";
import type { Span } from "../charts/frame";
import { Lines } from "../charts/lines";
import { type Metric, METRICS, metricOf, seriesOf, valuesOf } from "../charts/metrics";
import { fit } from "../charts/scale";
import { dateClock, duration, timeZone } from "../format";
import { useLoaded, useTicks } from "../load";
import type { Live, LiveDevice, Series } from "../model";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { gpuKey, gpuName } from "../parts/gpu";
import { MetricCharts } from "../parts/metric_charts";
import { fromSeries, type Recent } from "../recent";
import { link } from "../route";
import { serviceNow } from "../store";

const RANGES: [seconds: number, text: string][] = [[600, "10 min"], [3600, "1 h"], [6 * 3600, "6 h"], [24 * 3600, "24 h"]];
const REFRESH_SECONDS = 10;
const FIRST_SECONDS = 2; // until there are two points to draw: the service has only begun
const SERIES = [...METRICS.flatMap(seriesOf), "clocks_event_mask"].join(",");
const AROUND_SECONDS = 300; // of a moment that is named without a range

interface Range {
  from: number;
  to: number;
  at: number | null; // a moment that is marked
}

// A range that was named by its ends, or by a moment alone, stays; "the last hour" moves on.
function useRange(settings: URLSearchParams, refreshSeconds: number): Range & { last: number | null } {
  const at = Number(settings.get("at")) || null;
  const named = [Number(settings.get("from")), Number(settings.get("to"))] as const;
  const ends = at !== null && !settings.has("from") && !settings.has("last") ? ([at - AROUND_SECONDS, at + AROUND_SECONDS] as const) : named;
  const fixed = ends[0] > 0 && ends[1] > ends[0];
  const last = Number(settings.get("last")) || 3600;
  const ticks = useTicks(refreshSeconds);
  const [to, setTo] = useState(() => Math.floor(serviceNow()));
  useEffect(() => setTo(Math.floor(serviceNow())), [ticks, last]);
  return fixed ? { from: ends[0], to: ends[1], at, last: null } : { from: to - last, to, at, last };
}

export function HistoryView({ settings, live }: { settings: URLSearchParams; live: Live }) {
  const [begins, setBegins] = useState(false);
  const { from, to, at, last } = useRange(settings, begins ? FIRST_SECONDS : REFRESH_SECONDS);
  const uuid = settings.get("device");
  const query = `from=${from}&to=${to}${uuid ? `&device=${encodeURIComponent(uuid)}` : ""}`;
  const { value, problem } = useLoaded<Series>(`history?${query}&series=${SERIES}`);
  const [shown, setShown] = useState<Series | null>(null);
  useEffect(() => {
    if (!value) return;
    setShown(value);
    setBegins(live.devices.length > 0 && fromSeries(value).times.length < 2);
  }, [value]);
  const devices = live.devices.filter((device) => !uuid || gpuKey(device) === uuid);
  const metric = settings.get("metric");
  const recent = useMemo(() => shown && fromSeries(shown), [shown]);
  return (
    <>
      <h1>History</h1>
      <RangeChoice settings={settings} last={last} devices={live.devices} />
      <p class="range">
        {dateClock(from)} to {dateClock(to)} ({duration(to - from)}), {timeZone()} time
        {shown && `, a point every ${duration(shown.step_seconds)}`}
        <a href={address(`history?${query}&format=csv`)} download="gpudiag-history.csv">CSV</a>
      </p>
      {at !== null && (
        <p class="pinned">
          Marked: <b>{dateClock(at)}</b>. The address of this page is a link to it.{" "}
          <a href={link("history", "", keep(settings, ["device", "metric", "last", "from", "to"]))}>Unmark</a>
        </p>
      )}
      {problem && <ProblemNotice problem={problem} />}
      {!shown && !problem && <Loading what="the history" />}
      {recent && recent.times.length < 2 && (
        <Notice title="Nothing is stored for this time.">{live.devices.length ? "While the service runs, the last hour is kept at 1 s and the last day at 10 s." : `There is no GPU to read on ${live.host}.`}</Notice>
      )}
      {recent && recent.times.length > 1 && (
        <Charts recent={recent} devices={devices} metric={metric} range={{ from, to, at }} settings={settings} />
      )}
    </>
  );
}

function RangeChoice({ settings, last, devices }: { settings: URLSearchParams; last: number | null; devices: LiveDevice[] }) {
  const kept = keep(settings, ["device", "metric"]);
  return (
    <div class="controls">
      <nav aria-label="Range of time">
        {RANGES.map(([seconds, text]) => (
          <a key={text} href={link("history", "", { ...kept, last: String(seconds) })} {...(seconds === last ? { "aria-current": "true" as const } : {})}>{text}</a>
        ))}
      </nav>
      <Choice label="GPU" name="device" settings={settings} options={[["", "all"], ...devices.map((device): [string, string] => [gpuKey(device), gpuName(device)])]} />
      <Choice label="Charts" name="metric" settings={settings} options={[["", "one per metric"], ...METRICS.map((metric): [string, string] => [metric.series, `${metric.title}, one per GPU`])]} />
    </div>
  );
}

function Choice({ label, name, settings, options }: { label: string; name: string; settings: URLSearchParams; options: [string, string][] }) {
  const choose = (value: string): void => {
    location.hash = link("history", "", { ...keep(settings, ["device", "metric", "last", "from", "to"].filter((other) => other !== name)), ...(value ? { [name]: value } : {}) });
  };
  return (
    <label>
      {label}{" "}
      <select value={settings.get(name) ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
        {options.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
      </select>
    </label>
  );
}

const keep = (settings: URLSearchParams, names: string[]): Record<string, string> =>
  Object.fromEntries([...settings].filter(([name]) => names.includes(name)));

interface ChartsProps {
  recent: Recent;
  devices: LiveDevice[];
  metric: string | null;
  range: Range;
  settings: URLSearchParams;
}

function Charts({ recent, devices, metric, range, settings }: ChartsProps) {
  const zoom = (from: number, to: number): void => {
    location.hash = link("history", "", { ...keep(settings, ["device", "metric"]), from: String(Math.floor(from)), to: String(Math.ceil(to)) });
  };
  const mark = (at: number): void => {
    location.hash = link("history", "", { ...keep(settings, ["device", "metric"]), from: String(Math.floor(range.from)), to: String(Math.ceil(range.to)), at: String(at) });
  };
  const span = { ...range, onSelect: zoom, onMoment: mark };
  return (
    <>
      <p class="hint">Drag over a chart to look closer. Click to mark a moment: the address then leads to it.</p>
      {metric ? (
        <SmallMultiples recent={recent} devices={devices} metric={metricOf(metric)} {...span} />
      ) : (
        <MetricCharts recent={recent} devices={devices} metrics={METRICS} {...span} />
      )}
    </>
  );
}

interface SmallMultiplesProps extends Span {
  recent: Recent;
  devices: LiveDevice[];
  metric: Metric;
}

// The same metric, axis and size for every GPU: the odd one out is seen at once.
function SmallMultiples({ recent, devices, metric, ...span }: SmallMultiplesProps) {
  const values = devices.map((device) => valuesOf(recent, gpuKey(device), metric));
  const scale = fit(values, metric.unit);
  return (
    <div class="charts small">
      {devices.map((device, place) => (
        <Lines
          key={gpuKey(device)}
          title={`${gpuName(device)} ${metric.title.toLowerCase()}`}
          unit={metric.unit}
          decimals={metric.decimals}
          recent={recent}
          lines={[{ name: gpuName(device), values: values[place]! }]}
          scale={scale}
          limit={metric.unit === "%" ? null : metric.limit?.(device) ?? null}
          height={80}
          {...span}
        />
      ))}
    </div>
  );
}
