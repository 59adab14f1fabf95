// What the page knows now, and who listens to its changes.

import { useEffect, useState } from "preact/hooks";
import { asProblem, type Problem, read, send } from "./api";
import type { Findings, HubDocument, Live, Session } from "./model";
import { type Connection, openStream, type StreamEvent } from "./stream";

export interface State {
  live: Live | null;
  findings: Findings | null; // all of them, and joined
  hub: HubDocument | null; // in place of `live`, where the service is a hub
  receivedAt: number; // milliseconds of this machine's clock
  connection: Connection;
  session: Session | null;
}

const SLOWEST_NEWS_SECONDS = 5; // somebody looks: a tick a second
const HIDDEN_MS = 30_000; // then the stream is given up: the sampler slows down when nobody looks

const first = inlined<Live | HubDocument>("gpudiag-live");

export let state: State = {
  live: first && "devices" in first ? first : null,
  findings: inlined<Findings>("gpudiag-findings"),
  hub: first && "machines" in first ? first : null,
  receivedAt: Date.now(),
  connection: "connecting",
  session: inlined<Session>("gpudiag-session"),
};

const watchers = new Set<() => void>();
const listeners = new Set<(event: StreamEvent) => void>();
let close: (() => void) | null = null;

function inlined<T>(id: string): T | null {
  return JSON.parse(document.getElementById(id)?.textContent ?? "null") as T | null;
}

export function update(change: Partial<State>): void {
  state = { ...state, ...change };
  if (!document.hidden) for (const watcher of watchers) watcher();
}

export function useStore<T>(select: (state: State) => T): T {
  const [, redraw] = useState(0);
  const selected = select(state);
  useEffect(() => {
    let last = selected;
    const watcher = (): void => {
      const next = select(state);
      if (Object.is(next, last)) return;
      last = next;
      redraw((count) => count + 1);
    };
    watcher(); // it may have changed between the drawing and now
    watchers.add(watcher);
    return () => void watchers.delete(watcher);
  }, []);
  return selected;
}

// Calls `listener` with every live event while the view is shown.
export function useEvents(listener: (event: StreamEvent) => void, dependencies: unknown[]): void {
  useEffect(() => {
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, dependencies);
}

// The service's clock: the page's own may be wrong, and ages must not be.
export const serviceNow = (): number => {
  const newest = state.live ?? state.hub;
  return (newest ? Date.parse(newest.at) + (Date.now() - state.receivedAt) : Date.now()) / 1000;
};

const tooOld = (at: number, live: Live): boolean =>
  serviceNow() - at > Math.max(live.sampler.stale_after_seconds, SLOWEST_NEWS_SECONDS);

// Since when the service itself has sent nothing, in seconds of its clock; null: it sends. Then its verdict does not count:
// it may be gone, or stopped, or the computer with this page was asleep.
export function silentSince({ live, connection }: State): number | null {
  if (!live) return null;
  const sent = Date.parse(live.at) / 1000;
  return tooOld(sent, live) || connection === "lost" ? sent : null;
}

// Since when the page has had no numbers that can be called current; null: they are current. The service shows that too, in
// its verdict, for as long as it sends.
export function outdatedSince(now: State): number | null {
  if (!now.live) return null;
  const silent = silentSince(now);
  const read = now.live.sampler.last_good_at === null ? null : Date.parse(now.live.sampler.last_good_at) / 1000;
  if (silent !== null) return read === null ? silent : Math.min(silent, read);
  return read !== null && tooOld(read, now.live) ? read : null;
}

function receive(event: StreamEvent): void {
  if (event.name === "live") update({ live: event.data as Live, receivedAt: Date.now() });
  if (event.name === "findings") update({ findings: event.data as Findings });
  if (event.name === "machines") update({ hub: event.data as HubDocument, receivedAt: Date.now() });
  for (const listener of listeners) listener(event);
}

const mayRead = (session: Session | null): boolean => session === null || session.role !== null || !session.token_required;

function connect(): void {
  if (close || !mayRead(state.session)) return;
  let wasLost = false;
  const onConnection = (connection: Connection): void => {
    if (connection === state.connection) return;
    update({ connection });
    if (connection === "lost") wasLost = true;
    else if (wasLost && connection !== "connecting") {
      // A service that was started anew knows none of the sessions before it: what this page may do has changed.
      wasLost = false;
      void readSession();
    }
  };
  close = openStream(receive, onConnection, () => void readSession());
}

// Reads what this page may do now; without the right to read, it asks for a token and listens no longer.
async function readSession(): Promise<void> {
  const session = await read<Session>("session").catch(() => null);
  if (session === null) return; // the service has gone again
  update({ session });
  if (mayRead(session)) connect();
  else disconnect();
}

function disconnect(): void {
  close?.();
  close = null;
}

// Reads who we are, takes a token from the address where there is one, and starts listening.
export async function start(): Promise<void> {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (token) {
    history.replaceState(null, "", `${location.pathname}${location.search}#/`);
    await logIn(decodeURIComponent(token));
  }
  if (!state.session) update({ session: await read<Session>("session").catch(() => null) });
  connect();
  watchVisibility();
}

// Null, or why the token was not taken.
export async function logIn(token: string): Promise<Problem | null> {
  try {
    await send("session", { token });
    update({ session: await read<Session>("session") });
    connect();
    return null;
  } catch (error) {
    return asProblem(error);
  }
}

function watchVisibility(): void {
  let timer = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) {
      timer = window.setTimeout(disconnect, HIDDEN_MS);
      return;
    }
    if (mayRead(state.session)) connect();
    else void readSession(); // another tab may have shown a token meanwhile
    update({});
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);
}

