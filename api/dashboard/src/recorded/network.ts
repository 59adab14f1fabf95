// What the page asks in place of a service: requests are answered, and the stream is sent, from the recording.

import { type Json, moved, type Played, recording } from "./recording";

const TICK_MS = 250;
const REPEAT_MS = 1_000;
const API = new URL("api/v1/", new URL(".", document.baseURI)).href;

interface Series {
  from_at: number;
  to_at: number;
  times: number[];
  devices: { uuid: string; series: Record<string, (number | null)[]> }[];
  events: { at: string }[];
}

const json = (value: Json, status = 200): Response =>
  new Response(JSON.stringify(value), { status, headers: { "Content-Type": "application/json" } });

const absent = (path: string): Response =>
  json({ status: 404, code: "not_recorded", title: `This recording has no ${path}.`, detail: `This recording has no ${path}.`, hint: "A service of your own answers it: gpudiag demo" }, 404);

function newest(played: Played, name: string, until = played.passed()): Json | undefined {
  return played.entries.findLast((entry) => entry.name === name && entry.at <= until)?.value;
}

// The part of the recorded history that was asked for, up to now.
function history(played: Played, query: URLSearchParams): Json | undefined {
  const whole = newest(played, "answer/history", Infinity) as unknown as Series | undefined;
  if (!whole) return undefined;
  const now = played.recordedAt + Math.min(played.passed(), played.seconds);
  const from = Number(query.get("from")) || now - 3600;
  const to = Math.min(now, Number(query.get("to")) || now);
  const devices = query.get("device")?.split(",");
  const names = query.get("series")?.split(",");
  const places = whole.times.flatMap((time, place) => (time >= from && time <= to ? [place] : []));
  const pick = (list: (number | null)[]): (number | null)[] => places.map((place) => list[place] ?? null);
  const cut = {
    ...whole,
    from_at: from,
    to_at: to,
    times: pick(whole.times),
    devices: whole.devices
      .filter(({ uuid }) => !devices || devices.includes(uuid))
      .map(({ series, ...device }) => ({ ...device, series: Object.fromEntries(Object.entries(series).flatMap(([name, list]) => (!names || names.includes(name) ? [[name, pick(list)]] : []))) })),
    events: whole.events.filter(({ at }) => Date.parse(at) / 1000 >= from && Date.parse(at) / 1000 <= to),
  };
  return cut as unknown as Json;
}

async function answer(address: string): Promise<Response> {
  const { pathname, searchParams } = new URL(address);
  const path = decodeURIComponent(pathname.slice(new URL(API).pathname.length));
  const played = await recording;
  if (path === "history") {
    const found = history(played, searchParams);
    return found === undefined ? absent(path) : json(found);
  }
  const found = path === "devices" ? newest(played, "live") : newest(played, `answer/${path}`);
  return found === undefined ? absent(path) : json(found);
}

window.fetch = (request: RequestInfo | URL): Promise<Response> => answer(request instanceof Request ? request.url : String(request));

// The stream: every event at its time, and the last tick again and again once the recording has ended.
class RecordedStream extends EventTarget {
  readyState = 1;
  onerror = null;
  private timer = 0;

  constructor() {
    super();
    void recording.then((played) => this.play(played));
  }

  private play(played: Played): void {
    const events = played.entries.filter(({ name }) => !name.startsWith("answer/"));
    let next = events.findIndex(({ at }) => at > played.passed());
    if (next < 0) next = events.length;
    const first = newest(played, "live");
    if (first !== undefined) this.send("live", first);
    let sentAt = performance.now();
    const tick = (): void => {
      for (; next < events.length && events[next]!.at <= played.passed(); next++) {
        this.send(events[next]!.name, events[next]!.value);
        sentAt = performance.now();
      }
      if (next < events.length || performance.now() - sentAt < REPEAT_MS) return;
      const last = newest(played, "live");
      if (last !== undefined) this.send("live", moved(last, Math.max(0, played.passed() - played.seconds)));
      sentAt = performance.now();
    };
    this.timer = window.setInterval(tick, TICK_MS);
  }

  private send(name: string, value: Json): void {
    this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(value), lastEventId: "" }));
  }

  close(): void {
    clearInterval(this.timer);
    this.readyState = 2;
  }
}

window.EventSource = RecordedStream as unknown as typeof EventSource;

// Each tab plays the recording for itself.
window.BroadcastChannel = class extends BroadcastChannel {
  constructor(name: string) {
    super(`${name} ${Math.random()}`);
  }
};

// Links to answers, such as the history as CSV: no server is there to give them.
addEventListener("click", (event) => {
  const link = (event.target as Element | null)?.closest?.("a");
  if (!link?.href.startsWith(API)) return;
  event.preventDefault();
  void recording.then((played) => {
    const text = newest(played, "answer/history.csv", Infinity);
    if (typeof text !== "string") return;
    const file = document.createElement("a");
    file.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    file.download = link.download;
    file.click();
  });
});
