// Bandwidth against size, as nccl-tests draws it: sizes doubling along the axis, the baseline behind the line.

import { useState } from "preact/hooks";
import { DASH, rate, significant, size } from "../format";
import { Table } from "../parts/table";

export interface CurvePoint {
  size_bytes: number;
  value: number; // bytes per second
}
export interface Curve {
  name: string;
  points: CurvePoint[];
  baseline: CurvePoint[];
  before: string; // what the baseline is
}

const WIDTH = 640;
const HEIGHT = 260;
const LEFT = 52;
const BOTTOM = 34;
const TOP = 10;
const RIGHT = 26;

// The smallest 1, 2 or 5 times a power of ten that is not below the value.
function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? value;
}

export function CurveChart({ title, curves }: { title: string; curves: Curve[] }) {
  const [asTable, setAsTable] = useState(false);
  const all = curves.flatMap((curve) => [...curve.points, ...curve.baseline]).filter((point) => point.size_bytes > 0);
  if (!all.length) return null;
  const unit = unitOf(all);
  return (
    <figure class="chart curve">
      <figcaption>
        <span class="title">{title} <span class="unit">{asTable ? "GB/s" : unit.name}</span></span>
        <button type="button" class="small" aria-pressed={asTable} onClick={() => setAsTable(!asTable)} aria-label={`${title}: show as table`}>Table</button>
      </figcaption>
      {asTable ? <CurveTable title={title} curves={curves} /> : <Drawing title={title} curves={curves} all={all} unit={unit.bytes} />}
      <ul class="legend">
        {curves.map((curve, position) => (
          <li key={curve.name}>
            <span class={`swatch line-${position % 8}`} aria-hidden="true" /> {curve.name}
            {curve.baseline.length > 0 && ` (dashed: ${curve.before})`}
          </li>
        ))}
      </ul>
    </figure>
  );
}

// GB/s as everywhere, but where only small sizes are measured so far: their numbers would have five zeros.
const UNITS = [{ name: "GB/s", bytes: 1e9 }, { name: "MB/s", bytes: 1e6 }, { name: "kB/s", bytes: 1e3 }];

function unitOf(points: CurvePoint[]): { name: string; bytes: number } {
  const most = Math.max(...points.map((point) => point.value));
  return UNITS.find((unit) => most >= unit.bytes / 100) ?? UNITS[2]!;
}

function Drawing({ title, curves, all, unit }: { title: string; curves: Curve[]; all: CurvePoint[]; unit: number }) {
  const sizes = all.map((point) => Math.log2(point.size_bytes));
  const [low, high] = [Math.min(...sizes), Math.max(...sizes)];
  const top = roundUp(Math.max(...all.map((point) => point.value / unit), 1e-9));
  const x = (bytes: number): number => LEFT + ((Math.log2(bytes) - low) / (high - low || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value: number): number => HEIGHT - BOTTOM - (value / unit / top) * (HEIGHT - BOTTOM - TOP);
  const path = (points: CurvePoint[]): string => points.filter((point) => point.size_bytes > 0).map((point, position) => `${position ? "L" : "M"}${x(point.size_bytes).toFixed(1)} ${y(point.value).toFixed(1)}`).join("");
  const steps = Math.max(1, Math.ceil((high - low) / 7));
  const marks = Array.from({ length: Math.floor((high - low) / steps) + 1 }, (_, position) => 2 ** (low + position * steps));
  return (
    <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${title} against size; the table button shows the numbers`}>
      {[0, 0.25, 0.5, 0.75, 1].map((share) => (
        <g key={share}>
          <line class="grid" x1={LEFT} x2={WIDTH - RIGHT} y1={y(share * top * unit)} y2={y(share * top * unit)} />
          <text x={LEFT - 6} y={y(share * top * unit) + 4} text-anchor="end">{significant(share * top)}</text>
        </g>
      ))}
      {marks.map((bytes) => <text key={bytes} x={x(bytes)} y={HEIGHT - 12} text-anchor="middle">{size(Math.round(bytes))}</text>)}
      {curves.map((curve, position) => (
        <g key={curve.name} class={`line-${position % 8}`}>
          <path class="baseline" d={path(curve.baseline)} />
          {curve.baseline.length === 1 && <circle class="baseline" cx={x(curve.baseline[0]!.size_bytes)} cy={y(curve.baseline[0]!.value)} r="5" />}
          <path d={path(curve.points)} />
          {curve.points.filter((point) => point.size_bytes > 0).map((point) => (
            <circle key={point.size_bytes} cx={x(point.size_bytes)} cy={y(point.value)} r="3"><title>{`${size(point.size_bytes)}: ${rate(point.value)}`}</title></circle>
          ))}
        </g>
      ))}
    </svg>
  );
}

function CurveTable({ title, curves }: { title: string; curves: Curve[] }) {
  const sizes = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point.size_bytes)))].sort((a, b) => a - b);
  const at = (points: CurvePoint[], bytes: number): string => {
    const point = points.find((one) => one.size_bytes === bytes);
    return point ? significant(point.value / 1e9) : DASH;
  };
  const columns = curves.flatMap((curve) => [{ name: curve.name, number: true }, ...(curve.baseline.length ? [{ name: `${curve.name} before`, number: true }] : [])]);
  return (
    <Table caption={`${title} in GB/s`} columns={["Size", ...columns]}>
      {sizes.map((bytes) => (
        <tr key={bytes}>
          <th scope="row">{size(bytes)}</th>
          {curves.flatMap((curve) => [
            <td class="number" key={curve.name}>{at(curve.points, bytes)}</td>,
            ...(curve.baseline.length ? [<td class="number" key={`${curve.name} before`}>{at(curve.baseline, bytes)}</td>] : []),
          ])}
        </tr>
      ))}
    </Table>
  );
}
