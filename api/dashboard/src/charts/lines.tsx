// One or a few lines over time, on an axis that fits them, with the limit where it is near.

import { clock } from "../format";
import type { Recent } from "../recent";
import { nearest, useCursor } from "./cursor";
import { Figure, shown } from "./figure";
import { Frame, type Span } from "./frame";
import { fit, type Scale } from "./scale";

export interface Line {
  name: string;
  values: (number | null)[];
}

interface LinesProps extends Span {
  title: string;
  unit: string;
  decimals: number;
  lines: Line[];
  recent: Recent;
  limit?: number | null;
  scale?: Scale; // where several charts share one
  height?: number;
}

// Pieces of a path, broken where there is no reading.
export function pathOf(values: (number | null)[], times: number[], x: (time: number) => number, y: (value: number) => number): string {
  let path = "";
  let pen = "M";
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${x(times[at]!).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

export function Lines({ title, unit, decimals, lines, recent, limit, scale, height = 110, ...span }: LinesProps) {
  const cursor = useCursor();
  const axis = scale ?? fit(lines.map((line) => line.values), unit);
  const at = cursor.at ?? span.at ?? null;
  const position = at === null ? recent.times.length - 1 : nearest(recent.times, at);
  const y = (value: number): number => 3 + (1 - (value - axis.low) / (axis.high - axis.low)) * (height - 6);
  const inReach = limit != null && limit >= axis.low && limit <= axis.high;
  return (
    <Figure
      title={title}
      unit={unit}
      note={at === null ? "" : clock(at)}
      times={recent.times}
      decimals={decimals}
      columns={lines}
      picture={() => ({ kind: "lines", title, unit, lines, axis, limit: limit ?? null, times: recent.times, from: span.from, to: span.to })}
    >
      <div class="lines">
        <ol class="ticks" aria-hidden="true">{axis.ticks.map((tick) => <li key={tick} style={{ top: `${y(tick)}px` }}>{Number(tick.toPrecision(6))}</li>)}</ol>
        <div class="field">
          <Frame {...span} label={`${title} over time, in ${unit}`} height={height}>
            {(width) => {
              const x = (time: number): number => ((time - span.from) / (span.to - span.from)) * width;
              return (
                <svg width={width} height={height} aria-hidden="true">
                  {axis.ticks.map((tick) => <line key={tick} class="grid" x1="0" x2={width} y1={y(tick)} y2={y(tick)} />)}
                  {inReach && <line class="limit" x1="0" x2={width} y1={y(limit)} y2={y(limit)} />}
                  {lines.map((line, place) => <path key={line.name} class={`line-${place}`} d={pathOf(line.values, recent.times, x, y)} />)}
                </svg>
              );
            }}
          </Frame>
        </div>
      </div>
      <p class="scale">
        {lines.map((line, place) => (
          <span key={line.name}>
            {lines.length > 1 && <><span class={`swatch line-${place}`} aria-hidden="true" /> {line.name} </>}
            <b>{shown(line.values[position], decimals)}</b> {unit}
          </span>
        ))}
        {limit != null && <span>limit {shown(limit, decimals)} {unit}</span>}
      </p>
    </Figure>
  );
}
