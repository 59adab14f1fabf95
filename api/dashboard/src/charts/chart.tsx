// One metric over time, a line per GPU, with the values under the cursor beside it, or the same as a table.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clock, DASH } from "../format";
import { Table } from "../parts/table";
import { onThemeChange } from "../theme";
import { type Line, plotOptions } from "./plot";

interface ChartProps {
  title: string;
  unit: string;
  decimals: number;
  top: number;
  from: number;
  to: number;
  times: number[];
  lines: Line[];
  height?: number;
  onSelect?: (from: number, to: number) => void;
}

const TABLE_ROWS = 60;

export function Chart(props: ChartProps) {
  const { title, unit, lines, times } = props;
  const [asTable, setAsTable] = useState(false);
  const [cursor, setCursor] = useState<number | null>(null);
  const position = cursor ?? times.length - 1;
  const empty = times.length > 0 && lines.every((line) => line.values.every((value) => value === null));
  const show = (value: number | null | undefined): string => (value === null || value === undefined ? DASH : value.toFixed(props.decimals));
  return (
    <figure class="chart">
      <figcaption>
        <span class="title">{title} <span class="unit">{unit}</span></span>
        <span class="at">{cursor !== null && times[cursor] ? clock(times[cursor]) : ""}</span>
        <button type="button" class="small" aria-pressed={asTable} onClick={() => setAsTable(!asTable)} aria-label={`${title}: show as table`}>
          Table
        </button>
      </figcaption>
      {empty ? <p class="empty">No such reading in this time.</p> : asTable ? <ChartTable {...props} show={show} /> : <Plot {...props} onCursor={setCursor} />}
      <ul class="legend" aria-label={`${title}, ${cursor === null ? "now" : "at the cursor"}`}>
        {lines.map((line) => (
          <li key={line.key}>
            <span class={`swatch ${line.colour}${line.dash.length ? " dashed" : ""}`} aria-hidden="true" />
            {line.label} <b>{show(line.values[position])}</b>
          </li>
        ))}
      </ul>
    </figure>
  );
}

function ChartTable({ title, unit, times, lines, show }: ChartProps & { show: (value: number | null | undefined) => string }) {
  const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
  const rows = times.map((_, position) => position).filter((position) => (times.length - 1 - position) % step === 0).reverse();
  // Of the points that a row stands for, the newest that has a reading.
  const newest = (values: (number | null)[], position: number): number | null =>
    values.slice(Math.max(0, position - step + 1), position + 1).findLast((value) => value !== null) ?? null;
  const caption = `${title} in ${unit}, newest first${step > 1 ? `, every ${step}th point` : ""}`;
  return (
    <Table caption={caption} columns={["Time", ...lines.map((line) => ({ name: line.label, number: true }))]}>
      {rows.map((position) => (
        <tr key={times[position]}>
          <th scope="row">{clock(times[position]!)}</th>
          {lines.map((line) => <td class="number" key={line.key}>{show(newest(line.values, position))}</td>)}
        </tr>
      ))}
    </Table>
  );
}

function Plot(props: ChartProps & { onCursor: (position: number | null) => void }) {
  const { title, unit, lines, times, from, to, top, height = 150, onCursor, onSelect } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  // uPlot keeps its options for good: what may change is looked up here.
  const look = useRef({ from, to, top, onSelect });
  look.current = { from, to, top, onSelect };
  const names = lines.map((line) => line.key).join(" ");
  const data = [times, ...lines.map((line) => line.values)] as uPlot.AlignedData;

  useEffect(() => {
    const element = box.current!;
    const make = (): void => {
      plot.current?.destroy();
      const options = plotOptions(
        lines,
        {
          height,
          get top() { return look.current.top; },
          get from() { return look.current.from; },
          get to() { return look.current.to; },
          onCursor,
          onSelect: onSelect ? (a, b) => look.current.onSelect?.(a, b) : null,
        },
        element.clientWidth || 300,
      );
      plot.current = new uPlot(options, data, element);
    };
    make();
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    sized.observe(element);
    const forget = onThemeChange(make);
    return () => {
      sized.disconnect();
      forget();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names, height]);

  useEffect(() => plot.current?.setData(data), [times, lines, from, to]);

  return <div class="plot" ref={box} role="img" aria-label={`${title} in ${unit} over time; the table button shows the numbers`} />;
}
