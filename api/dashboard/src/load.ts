// One document for a view: asked for when the view opens, again when `again` changes, with what went wrong.

import { useEffect, useState } from "preact/hooks";
import { asProblem, type Problem, read } from "./api";

export interface Loaded<T> {
  value: T | null;
  problem: Problem | null;
}

export function useLoaded<T>(path: string | null, again: unknown = 0): Loaded<T> {
  const [loaded, setLoaded] = useState<Loaded<T> & { path: string | null }>({ path, value: null, problem: null });
  useEffect(() => {
    let current = true;
    if (path === null) return;
    read<T>(path).then(
      (value) => current && setLoaded({ path, value, problem: null }),
      // What was there stays on the screen, with the problem beside it.
      (error: unknown) =>
        current && setLoaded((before) => ({ path, value: before.path === path ? before.value : null, problem: asProblem(error) })),
    );
    return () => {
      current = false;
    };
  }, [path, again]);
  // Another path's document is not this one's.
  return loaded.path === path ? loaded : { value: null, problem: null };
}

// A number that grows every `intervalSeconds`, to read something again or to let an age grow.
export function useTicks(intervalSeconds: number): number {
  const [ticks, setTicks] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setTicks((count) => count + 1), intervalSeconds * 1000);
    return () => clearInterval(timer);
  }, [intervalSeconds]);
  return ticks;
}
