// A recording of a service: what it answered and sent, each document as what changed in it since the one before.
// `tools/static_demo` writes it. Its times stay as they were recorded.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type Path = (string | number)[];

export interface Chapter {
  at: number; // seconds since the beginning
  title: string;
}
interface Line {
  at: number;
  name: string; // an event of the stream (`live`), or the path of an answer (`answer/processes`)
  value?: Json; // the document, or
  set?: [Path, Json][]; // what is another since the one before of that name
}
interface Recording {
  began_at: number; // Unix time
  seconds: number;
  chapters: Chapter[];
  lines: Line[];
}
export interface Entry {
  at: number;
  name: string;
  value: Json;
}

const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)$/;

async function unpack(packed: string): Promise<Recording> {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(plain).json()) as Recording;
}

// The value with one place in it changed; what did not change is shared with the value of before.
function changed(before: Json, [step, ...rest]: Path, value: Json): Json {
  if (step === undefined) return value;
  const copy = (Array.isArray(before) ? [...before] : { ...(before as object) }) as { [name: string]: Json };
  copy[step] = changed(copy[step]!, rest, value);
  return copy;
}

// The value with every time in it moved by so many seconds.
export function moved(value: Json, seconds: number): Json {
  if (typeof value === "string") {
    return ISO_TIME.test(value) ? new Date(Date.parse(value) + 1000 * seconds).toISOString() : value;
  }
  if (Array.isArray(value)) return value.map((one) => moved(one, seconds));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, moved(one, seconds)]));
}

export interface Played {
  recordedAt: number; // Unix time
  seconds: number;
  chapters: Chapter[];
  entries: Entry[];
  passed: () => number; // seconds since its beginning, beyond its end too
}

// `?at=60` begins a minute after the beginning.
async function open(): Promise<Played> {
  const packed = JSON.parse(document.getElementById("gpudiag-recording")!.textContent!) as string;
  const { began_at, seconds, chapters, lines } = await unpack(packed);
  const newest = new Map<string, Json>();
  const entries = lines.map(({ at, name, value, set }): Entry => {
    const whole = set ? set.reduce<Json>((before, [path, now]) => changed(before, path, now), newest.get(name)!) : value!;
    newest.set(name, whole);
    return { at, name, value: whole };
  });
  const skipped = Math.min(seconds, Math.max(0, Number(new URLSearchParams(location.search).get("at")) || 0));
  const opened = performance.now();
  return { recordedAt: began_at, seconds, chapters, entries, passed: () => skipped + (performance.now() - opened) / 1000 };
}

export const recording: Promise<Played> = open();
