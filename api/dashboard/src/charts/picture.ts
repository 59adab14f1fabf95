// A chart as a picture of its own, to save: the same as on the page, with what a reader elsewhere must know.

import { dateClock, timeZone } from "../format";
import { state } from "../store";
import { colour } from "../theme";
import { ticks, tickText } from "./frame";
import { columnsOf, paint, palette, RAMP, type Row } from "./heat";
import { type Line, pathOf } from "./lines";
import type { Scale } from "./scale";

interface Common {
  title: string;
  unit: string;
  times: number[];
  from: number;
  to: number;
}
export interface StripPicture extends Common {
  kind: "strips";
  names: string[];
  values: string[]; // the last ones, or those at the cursor
  rows: Row[];
}
export interface LinePicture extends Common {
  kind: "lines";
  lines: Line[];
  axis: Scale;
  limit: number | null;
}
export type Picture = StripPicture | LinePicture;

const WIDTH = 960;
const LEFT = 64;
const RIGHT = 72;
const TOP = 64;
const BOTTOM = 40;
const ROW = 20;
const LINES_HEIGHT = 240;
const FINER = 2; // pixels of a PNG for each of the SVG

const escaped = (text: string): string => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");

function text(x: number, y: number, words: string, attributes = ""): string {
  return `<text x="${x}" y="${y}" ${attributes}>${escaped(words)}</text>`;
}

// The document, and its height.
export function drawn(picture: Picture): [svg: string, height: number] {
  const { from, to, times } = picture;
  const inner = picture.kind === "strips" ? ROW * picture.rows.length : LINES_HEIGHT;
  const width = WIDTH - LEFT - RIGHT;
  const height = TOP + inner + BOTTOM;
  const [ink, muted, grid] = [colour("text"), colour("muted"), colour("grid")];
  const x = (time: number): number => LEFT + ((time - from) / (to - from)) * width;
  const { live } = state;
  const source = [live?.host, live?.simulated ? `simulated: ${live.simulated}` : "", `${dateClock(from)} to ${dateClock(to)} ${timeZone()}`].filter(Boolean).join(" · ");
  const parts = [
    `<rect width="${WIDTH}" height="${height}" fill="${colour("panel")}"/>`,
    text(16, 28, `${picture.title}, ${picture.unit}`, `font-size="18" font-weight="600" fill="${ink}"`),
    text(16, 48, source, `font-size="12" fill="${muted}"`),
    text(WIDTH - 16, 28, "gpudiag", `font-size="12" font-weight="600" fill="${colour("accent")}" text-anchor="end"`),
    ...ticks(from, to, width).map((time) => text(x(time), TOP + inner + 18, tickText(time), `font-size="12" fill="${muted}" text-anchor="middle"`)),
  ];
  if (picture.kind === "strips") {
    const canvas = document.createElement("canvas");
    paint(canvas, picture.rows, columnsOf(times, from, to, width), palette());
    parts.push(`<rect x="${LEFT}" y="${TOP}" width="${width}" height="${inner}" fill="${colour(RAMP[0]!)}" opacity="0.4"/>`);
    parts.push(`<image x="${LEFT}" y="${TOP}" width="${width}" height="${inner}" preserveAspectRatio="none" image-rendering="pixelated" style="image-rendering:pixelated" href="${canvas.toDataURL()}"/>`);
    picture.names.forEach((name, row) => {
      const y = TOP + row * ROW;
      parts.push(text(LEFT - 8, y + 14, name, `font-size="12" fill="${ink}" text-anchor="end"`), text(WIDTH - 16, y + 14, picture.values[row]!, `font-size="12" fill="${ink}" text-anchor="end"`));
      if (row) parts.push(`<rect x="${LEFT}" y="${y}" width="${width}" height="1" fill="${colour("panel")}"/>`);
    });
  } else {
    const { axis, limit, lines } = picture;
    const y = (value: number): number => TOP + (1 - (value - axis.low) / (axis.high - axis.low)) * inner;
    for (const tick of axis.ticks) {
      parts.push(`<path d="M${LEFT} ${y(tick)}H${LEFT + width}" stroke="${grid}"/>`, text(LEFT - 8, y(tick) + 4, String(Number(tick.toPrecision(6))), `font-size="12" fill="${muted}" text-anchor="end"`));
    }
    if (limit !== null && limit >= axis.low && limit <= axis.high) parts.push(`<path d="M${LEFT} ${y(limit)}H${LEFT + width}" stroke="${colour("fail")}" stroke-dasharray="6 4"/>`);
    lines.forEach((line, place) => {
      parts.push(`<path d="${pathOf(line.values, times, x, y)}" fill="none" stroke="${colour(`line-${place}`)}" stroke-width="2"/>`);
      if (lines.length > 1) parts.push(text(LEFT + width + 8, TOP + 14 + place * 18, line.name, `font-size="12" fill="${colour(`line-${place}`)}"`));
    });
  }
  const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" font-family="system-ui, sans-serif" style="font-variant-numeric:tabular-nums">`;
  return [`${head}${parts.join("")}</svg>`, height];
}

function download(blob: Blob, name: string): void {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function savePicture(picture: Picture, kind: "png" | "svg"): void {
  const [svg, height] = drawn(picture);
  const name = `gpudiag-${state.live?.host ?? "machine"}-${picture.title.toLowerCase().replaceAll(/\W+/g, "-")}.${kind}`;
  if (kind === "svg") {
    download(new Blob([svg], { type: "image/svg+xml" }), name);
    return;
  }
  const image = new Image();
  image.onload = (): void => {
    const canvas = Object.assign(document.createElement("canvas"), { width: WIDTH * FINER, height: height * FINER });
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => blob && download(blob, name));
  };
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
}
