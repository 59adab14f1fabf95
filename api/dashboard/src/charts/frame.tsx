// The plane on which a chart lies: a time axis, the shared cursor, a marked moment, and what pointing, dragging and a click do.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { clock } from "../format";
import { point, useCursor } from "./cursor";

export interface Span {
  from: number;
  to: number;
  at?: number | null; // a moment that is marked
  onSelect?: (from: number, to: number) => void;
  onMoment?: (at: number) => void;
}

interface FrameProps extends Span {
  label: string;
  height: number;
  rows?: string[]; // keys of GPUs, from top to bottom
  children: (width: number) => ComponentChildren;
}

const STEPS = [5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 28800];
const TICK_PIXELS = 84;
const DRAG_PIXELS = 8;
const EDGE_PIXELS = 18; // half of a time's text

// The moments on the axis, on round local times.
export function ticks(from: number, to: number, width: number): number[] {
  const most = Math.max(2, Math.floor(width / TICK_PIXELS));
  const step = STEPS.find((seconds) => (to - from) / seconds <= most) ?? 86400;
  const zone = new Date(to * 1000).getTimezoneOffset() * 60;
  const found = [];
  const edge = ((to - from) / width) * EDGE_PIXELS;
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to - edge; at += step) if (at >= from + edge) found.push(at);
  return found;
}

export const tickText = (at: number): string => (at % 60 ? clock(at) : clock(at).slice(0, 5));

export function useWidth(): [{ current: HTMLDivElement | null }, number] {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const sized = new ResizeObserver(([entry]) => setWidth(Math.round(entry!.contentRect.width)));
    sized.observe(box.current!);
    return () => sized.disconnect();
  }, []);
  return [box, width];
}

const percent = (share: number): string => `${(Math.min(1, Math.max(0, share)) * 100).toFixed(2)}%`;

export function Frame({ from, to, at, onSelect, onMoment, label, height, rows, children }: FrameProps) {
  const [box, width] = useWidth();
  const cursor = useCursor();
  const [drag, setDrag] = useState<[start: number, end: number] | null>(null);
  const place = (time: number): string => percent((time - from) / (to - from));
  const timeOf = (event: PointerEvent): number => {
    const { left, width } = box.current!.getBoundingClientRect();
    return from + Math.min(1, Math.max(0, (event.clientX - left) / width)) * (to - from);
  };
  const rowOf = (event: PointerEvent): string | null => {
    const { top } = box.current!.getBoundingClientRect();
    return rows?.[Math.floor(((event.clientY - top) / height) * rows.length)] ?? null;
  };
  const moved = (event: PointerEvent): void => {
    const time = timeOf(event);
    point(time, rows ? rowOf(event) : cursor.key);
    if (drag) setDrag([drag[0], time]);
  };
  const released = (event: PointerEvent): void => {
    if (!drag) return;
    const [first, last] = [drag[0], timeOf(event)].sort((one, other) => one - other) as [number, number];
    setDrag(null);
    if (((last - first) / (to - from)) * width >= DRAG_PIXELS) onSelect?.(first, last);
    else onMoment?.(Math.round(last));
  };
  const row = rows && cursor.key ? rows.indexOf(cursor.key) : -1;
  const each = rows ? 100 / rows.length : 0;
  return (
    <>
      <div
        ref={box}
        class={`frame${onSelect ? " selects" : ""}`}
        role="img"
        aria-label={`${label}; the table button shows the numbers`}
        style={{ height: `${height}px`, "--rows": rows?.length ?? 1 }}
        onPointerDown={(event) => event.button === 0 && setDrag([timeOf(event), timeOf(event)])}
        onPointerMove={moved}
        onPointerUp={released}
        onPointerLeave={() => (point(null, null), setDrag(null))}
        onPointerCancel={() => setDrag(null)}
      >
        {width > 0 && children(width)}
        {row >= 0 && (
          <>
            <span class="veil" style={{ top: 0, height: `${row * each}%` }} />
            <span class="veil" style={{ top: `${(row + 1) * each}%`, bottom: 0 }} />
          </>
        )}
        {drag && <span class="selection" style={{ left: place(Math.min(...drag)), width: percent(Math.abs(drag[1] - drag[0]) / (to - from)) }} />}
        {at != null && at >= from && at <= to && <span class="moment" style={{ left: place(at) }} />}
        {cursor.at !== null && cursor.at >= from && cursor.at <= to && <span class="cursor" style={{ left: place(cursor.at) }} />}
      </div>
      <div class="axis" aria-hidden="true">
        {width > 0 && ticks(from, to, width).map((time) => <span key={time} style={{ left: place(time) }}>{tickText(time)}</span>)}
      </div>
    </>
  );
}
