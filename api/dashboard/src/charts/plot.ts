// uPlot's options as all charts here want them: fixed axes, the page's colours, one cursor over all charts of a page.

import uPlot from "uplot";
import { clock } from "../format";
import { colour } from "../theme";

export interface Line {
  key: string;
  label: string;
  colour: string; // a name in the style sheet
  dash: number[];
  values: (number | null)[];
}

export interface PlotLook {
  height: number;
  top: number;
  from: number;
  to: number;
  onCursor: (position: number | null) => void;
  onSelect: ((from: number, to: number) => void) | null;
}

export function plotOptions(lines: Line[], look: PlotLook, width: number): uPlot.Options {
  const ink = colour("muted");
  const grid = { stroke: colour("grid"), width: 1 };
  const font = "11px system-ui, sans-serif";
  return {
    width,
    height: look.height,
    legend: { show: false },
    padding: [8, 14, 0, 0],
    cursor: {
      sync: { key: "time" },
      points: { size: 5 },
      drag: { x: look.onSelect !== null, y: false, setScale: false },
    },
    scales: {
      x: { time: true, range: () => [look.from, look.to] },
      y: { range: () => [0, look.top] },
    },
    axes: [
      { stroke: ink, grid, ticks: grid, font, size: 26, space: 70, values: (_, splits) => splits.map((at) => shortClock(at, look.to - look.from)) },
      { stroke: ink, grid, ticks: { show: false }, font, size: 40, splits: () => [0, look.top / 2, look.top], values: (_, splits) => splits.map(short) },
    ],
    series: [
      {},
      ...lines.map((line) => ({ label: line.label, stroke: colour(line.colour), width: 1.5, dash: line.dash, points: { show: false }, spanGaps: false })),
    ],
    hooks: {
      setCursor: [(plot) => look.onCursor(plot.cursor.idx ?? null)],
      setSelect: [
        (plot) => {
          if (!look.onSelect || plot.select.width < 8) return;
          const edge = (left: number): number => plot.posToVal(left, "x");
          look.onSelect(edge(plot.select.left), edge(plot.select.left + plot.select.width));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
  };
}

const short = (value: number): string => (value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1));
const shortClock = (at: number, span: number): string => (span <= 300 ? clock(at) : clock(at).slice(0, 5));
