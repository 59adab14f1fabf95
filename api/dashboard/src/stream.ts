// Live events for every tab of a browser over one connection. One tab leads: it holds the stream and passes events on.
// Browsers allow six connections to one origin over HTTP/1.1, and each stream would keep one for itself.

import { address, asProblem, read } from "./api";

export type Connection = "connecting" | "live" | "polling" | "lost";
export interface StreamEvent {
  name: string;
  data: unknown;
}

const NAMES = ["live", "findings", "event", "run", "run_event", "run_log", "machines", "machine_event"];
const FIRST_EVENT_MS = 5_000; // then the stream is held up by a proxy, and polling takes over
const POLL_MS = 1_000;
const POLLS_BEFORE_RETRY = 60;
const LEADER_SILENT_MS = 9_000; // the slowest tick is 5 s
const ELECTION_MS = 250;

interface Poll {
  last_id: string;
  events: { event: string; data: unknown }[];
}
type Message = { from: number } & ({ kind: "event"; event: StreamEvent } | { kind: "who" | "here" | "bye" });

// `refused` is called when the service answers and wants a token: it was started anew, or the session has ended.
export function openStream(receive: (event: StreamEvent) => void, onConnection: (connection: Connection) => void, refused: () => void): () => void {
  const self = Math.random();
  const channel = new BroadcastChannel(`gpudiag ${address("")}`);
  const post = (message: Message): void => channel.postMessage(message);
  let stop: (() => void) | null = null;
  let timer = 0;

  const follow = (patience: number): void => {
    clearTimeout(timer);
    timer = window.setTimeout(lead, patience + Math.random() * ELECTION_MS);
  };
  const lead = (): void => {
    stop ??= connect((event) => {
      receive(event);
      post({ from: self, kind: "event", event });
    }, onConnection, refused);
  };
  const yieldTo = (other: number): void => {
    if (stop && other < self) {
      stop();
      stop = null;
    }
    if (!stop) follow(LEADER_SILENT_MS);
  };
  channel.onmessage = ({ data }: MessageEvent<Message>): void => {
    if (data.kind === "who" && stop) post({ from: self, kind: "here" });
    else if (data.kind === "here") yieldTo(data.from);
    else if (data.kind === "bye" && !stop) follow(0);
    else if (data.kind === "event") {
      yieldTo(data.from);
      if (stop) return;
      onConnection("live");
      receive(data.event);
    }
  };
  post({ from: self, kind: "who" });
  follow(ELECTION_MS);

  return () => {
    clearTimeout(timer);
    if (stop) post({ from: self, kind: "bye" });
    stop?.();
    channel.close();
  };
}

// The stream, or polling where no stream comes through; returns what ends it.
function connect(receive: (event: StreamEvent) => void, onConnection: (connection: Connection) => void, refused: () => void): () => void {
  let source: EventSource | null = null;
  let timer = 0;
  let ended = false;
  let lastId = "";

  const stream = (): void => {
    onConnection("connecting");
    source = new EventSource(address("stream"));
    timer = window.setTimeout(fallBack, FIRST_EVENT_MS);
    for (const name of NAMES) source.addEventListener(name, (event) => take(name, event));
    source.onerror = (): void => {
      onConnection("lost");
      // CLOSED: the service refused, and the browser does not try again by itself.
      if (source?.readyState === EventSource.CLOSED) fallBack();
    };
  };
  const take = (name: string, event: MessageEvent<string>): void => {
    clearTimeout(timer);
    onConnection("live");
    lastId = event.lastEventId;
    receive({ name, data: JSON.parse(event.data) });
  };
  const fallBack = (): void => {
    clearTimeout(timer);
    source?.close();
    source = null;
    void poll(POLLS_BEFORE_RETRY);
  };
  const poll = async (left: number): Promise<void> => {
    if (ended) return;
    if (left === 0) return stream();
    try {
      const answer = await read<Poll>(`poll${lastId ? `?since=${encodeURIComponent(lastId)}` : ""}`);
      if (ended) return;
      lastId = answer.last_id;
      onConnection("polling");
      for (const { event, data } of answer.events) receive({ name: event, data });
    } catch (error) {
      if (ended) return;
      onConnection("lost");
      if (asProblem(error).status === 401) refused();
    }
    timer = window.setTimeout(() => void poll(left - 1), POLL_MS);
  };
  stream();

  return () => {
    ended = true;
    clearTimeout(timer);
    source?.close();
  };
}
