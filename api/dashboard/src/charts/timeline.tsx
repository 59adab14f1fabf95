// When clocks were held down and why, and when something happened (Xid, GPU lost), a lane per GPU.

import { useState } from "preact/hooks";
import { clock, dateClock, seconds, words } from "../format";
import type { TimelineEntry } from "../model";
import { gpuName } from "../parts/gpu";
import { Table } from "../parts/table";
import type { Recent } from "../recent";
import { reasonsOf } from "../reasons";
import type { EventReason } from "../vocabulary";
import { Frame, type Span as Moments } from "./frame";

interface Lane {
  uuid: string;
  nvml_index: number | null;
  bus_id?: string | null;
}
interface Span {
  from: number;
  to: number;
  reasons: EventReason[]; // a fault is drawn strong, what costs speed otherwise (a busy GPU's power cap) light
}

export function spansOf(times: number[], masks: (number | null)[]): Span[] {
  const spans: Span[] = [];
  let open: { mask: number; span: Span } | null = null;
  times.forEach((time, position) => {
    const mask = masks[position] ?? 0;
    if (open && open.mask === mask) {
      open.span.to = time;
      return;
    }
    if (open) open.span.to = time;
    const reasons = reasonsOf(mask);
    open = reasons.length ? { mask, span: { from: time, to: time, reasons } } : null;
    if (open) spans.push(open.span);
  });
  return spans;
}

const LANE_PIXELS = 16;
const MANY_LANES = 16; // of more GPUs than these only those are shown to which something happened

interface TimelineProps extends Moments {
  recent: Recent;
  lanes: Lane[];
}

interface Row {
  key: string;
  name: string;
  spans: Span[];
  events: TimelineEntry[];
}

export function Timeline({ recent, lanes, ...moments }: TimelineProps) {
  const [asTable, setAsTable] = useState(false);
  const { from, to } = moments;
  const events = recent.events.filter((event) => seconds(event.at) >= from && seconds(event.at) <= to);
  const all = lanes.map((lane): Row => ({
    key: lane.uuid,
    name: gpuName(lane),
    spans: spansOf(recent.times, recent.devices.get(lane.uuid)?.clocks_event_mask ?? []).filter((span) => span.to >= from),
    events: events.filter((event) => event.uuid === lane.uuid),
  }));
  const machine = events.filter((event) => !lanes.some((lane) => lane.uuid === event.uuid));
  const gpus = all.length > MANY_LANES ? all.filter((row) => row.spans.length || row.events.length) : all;
  const rows = machine.length ? [...gpus, { key: "machine", name: "Machine", spans: [], events: machine }] : gpus;
  return (
    <figure class="chart timeline">
      <figcaption>
        <span class="title">Throttling and events</span>
        <span class="note parts-key">
          <span><span class="swatch strong" aria-hidden="true" />slowdown</span>
          <span><span class="swatch light" aria-hidden="true" />power cap</span>
          <span><b aria-hidden="true">✕</b> event</span>
        </span>
        <button type="button" class="small" aria-pressed={asTable} onClick={() => setAsTable(!asTable)} aria-label="Throttling and events: show as table">
          Table
        </button>
      </figcaption>
      {asTable ? <TimelineTable rows={all} events={events} /> : rows.length === 0 ? <p class="empty">Nothing happened in this time.</p> : (
        <div class="strips">
          <ol class="names wide" aria-hidden="true">{rows.map((row) => <li key={row.key} style={{ height: `${LANE_PIXELS}px` }}>{row.name}</li>)}</ol>
          <div class="field">
            <Frame {...moments} label="Throttling and events over time" height={LANE_PIXELS * rows.length} rows={rows.map(({ key }) => key)}>
              {() => rows.map((row, place) => <LaneRow key={row.key} row={row} top={place * LANE_PIXELS} from={from} to={to} />)}
            </Frame>
          </div>
        </div>
      )}
    </figure>
  );
}

function LaneRow({ row, top, from, to }: { row: Row; top: number; from: number; to: number }) {
  const place = (time: number): string => `${(Math.min(1, Math.max(0, (time - from) / (to - from))) * 100).toFixed(2)}%`;
  const extent = (span: Span): string => `${Math.max(0.4, ((span.to - Math.max(span.from, from)) / (to - from)) * 100).toFixed(2)}%`;
  return (
    <span class="lane" style={{ top: `${top}px` }}>
      {row.spans.map((span) => (
        <span
          key={span.from}
          class={`span ${span.reasons.some((reason) => reason.means === "fault") ? "strong" : "light"}`}
          style={{ left: place(span.from), width: extent(span) }}
          title={`${clock(span.from)} – ${clock(span.to)}: ${span.reasons.map(({ word }) => words(word)).join(", ")}`}
        />
      ))}
      {row.events.map((event) => (
        <span key={event.number} class={`mark ${event.severity}`} style={{ left: place(seconds(event.at)) }} title={`${dateClock(event.at)} ${event.message}`}>
          ✕
        </span>
      ))}
    </span>
  );
}

function TimelineTable({ rows, events }: { rows: Row[]; events: TimelineEntry[] }) {
  const lines = [
    ...rows.flatMap(({ name, spans }) =>
      spans.map((span) => ({ at: span.from, gpu: name, text: `${span.reasons.map(({ word }) => words(word)).join(", ")} until ${clock(span.to)}` })),
    ),
    ...events.map((event) => ({ at: seconds(event.at), gpu: event.nvml_index === null ? "machine" : `GPU ${event.nvml_index}`, text: event.message })),
  ].sort((a, b) => b.at - a.at);
  if (!lines.length) return <p class="empty">Nothing happened in this time: no throttling, no Xid, no GPU lost.</p>;
  return (
    <Table caption="Throttling and events, newest first" columns={["Time", "GPU", "What"]}>
      {lines.map((line, position) => (
        <tr key={position}><th scope="row">{dateClock(line.at)}</th><td>{line.gpu}</td><td>{line.text}</td></tr>
      ))}
    </Table>
  );
}
