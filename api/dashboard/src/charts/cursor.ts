// The moment and the GPU under the pointer: one for all charts and tables of the page.

import { useEffect, useState } from "preact/hooks";

export interface Cursor {
  at: number | null; // Unix seconds
  key: string | null; // of a GPU: all others step back
}

let cursor: Cursor = { at: null, key: null };
const listeners = new Set<(cursor: Cursor) => void>();

export function point(at: number | null, key: string | null): void {
  if (at === cursor.at && key === cursor.key) return;
  cursor = { at, key };
  for (const listener of listeners) listener(cursor);
}

export function useCursor(): Cursor {
  const [now, redraw] = useState(cursor);
  useEffect(() => {
    listeners.add(redraw);
    return () => void listeners.delete(redraw);
  }, []);
  return now;
}

// The sample nearest to a moment; -1: there is none near it.
export function nearest(times: number[], at: number): number {
  let low = 0;
  let high = times.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle]! < at) low = middle;
    else high = middle;
  }
  const best = high > 0 && Math.abs(times[high]! - at) < Math.abs(times[low]! - at) ? high : low;
  const reach = Math.max(12, ((times.at(-1) ?? 0) - (times[0] ?? 0)) / 100);
  return times.length && Math.abs(times[best]! - at) <= reach ? best : -1;
}
