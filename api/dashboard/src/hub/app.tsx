// The page of a hub: how many machines are well, the search, and a card for each machine, worst first.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { read } from "../api";
import { clock, plural, seconds } from "../format";
import { useTicks } from "../load";
import type { HubCounts, HubDocument, HubEvent, HubEvents } from "../model";
import { Notice } from "../parts/notice";
import { Connection, jumpToMain, ThemeChoice, useRoute, Waiting } from "../parts/shell";
import { Outdated, Status } from "../parts/status";
import { WORDS } from "../parts/verdict";
import { serviceNow, useEvents, useStore } from "../store";
import { LogIn } from "../views/log_in";
import { match, ORDERS, sorted } from "./find";
import { Machine } from "./machine";

const SILENT_SECONDS = 15; // a hub that somebody looks at has news every two or three seconds
const SHOWN_EVENTS = 15;
const VERDICTS: [verdict: string, count: keyof HubCounts][] = [["fail", "failed"], ["error", "unknown"], ["warn", "warned"], ["pass", "passed"]];

export function HubApp() {
  const hub = useStore((state) => state.hub);
  const session = useStore((state) => state.session);
  const locked = session !== null && session.token_required && session.role === null;
  const bad = hub ? hub.counts.failed + hub.counts.unknown : 0;
  useTicks(5); // what is silent grows older while nothing happens
  useEffect(() => {
    document.title = `${bad ? `${bad} ✕ · ` : ""}${hub?.host ?? ""} · gpudiag hub`;
  }, [bad, hub?.host]);
  return (
    <>
      <a class="skip" href="#main" onClick={jumpToMain}>Skip to content</a>
      <header>
        <p class="brand">gpudiag <span class="host">hub on {hub?.host}</span></p>
        <p class="facts">{hub && <Connection at={hub.at} />}<ThemeChoice /></p>
      </header>
      <main id="main" class="hub" tabIndex={-1}>{locked ? <LogIn /> : hub ? <Machines hub={hub} /> : <Waiting what="the machines" />}</main>
    </>
  );
}

// Since when the hub itself has sent nothing; null: it sends. The machines' answers do not count then.
function useSilence(hub: HubDocument): number | null {
  const connection = useStore((state) => state.connection);
  const sent = seconds(hub.at);
  const since = connection === "lost" || serviceNow() - sent > SILENT_SECONDS ? sent : null;
  useLayoutEffect(() => void document.documentElement.toggleAttribute("data-outdated", since !== null), [since !== null]);
  return since;
}

function Machines({ hub }: { hub: HubDocument }) {
  const { settings } = useRoute();
  const [query, setQuery] = useState(settings.get("q") ?? "");
  const [shown, setShown] = useState(settings.get("show") ?? "");
  const [order, setOrder] = useState(settings.get("sort") ?? "worst");
  const silent = useSilence(hub);
  const grid = useRef<HTMLOListElement>(null);
  const search = useRef<HTMLInputElement>(null);
  useAddress({ q: query, show: shown, sort: order === "worst" ? "" : order });
  useKeys(search, grid, () => setQuery(""));
  const matching = hub.machines.map((machine) => ({ machine, found: match(machine, query) })).filter(({ found }) => found !== null);
  const wanted = new Map(matching.filter(({ machine }) => !shown || machine.verdict === shown).map(({ machine, found }) => [machine, found!]));
  return (
    <Outdated.Provider value={silent}>
      <h1 class="unseen">Machines of {hub.host}</h1>
      {silent !== null && <Notice tone="fail" title={`The hub has been silent since ${clock(silent)}.`} announce="The hub is silent.">What is below was so then. Is gpudiag serve --hub still running on {hub.host}?</Notice>}
      {hub.notes.map((note) => <Notice key={note} tone="warn" title={note} />)}
      <Totals counts={hub.counts} />
      <form class="find" role="search" onSubmit={(event) => event.preventDefault()}>
        <label>Search <input ref={search} type="search" value={query} placeholder="host, user, job, serial number" aria-keyshortcuts="/" onInput={(event) => setQuery(event.currentTarget.value)} /></label>
        <span class="choices" role="group" aria-label="Verdict">
          <button type="button" aria-pressed={shown === ""} onClick={() => setShown("")}>All {matching.length}</button>
          {VERDICTS.map(([verdict]) => (
            <button key={verdict} type="button" aria-pressed={shown === verdict} onClick={() => setShown(shown === verdict ? "" : verdict)}>
              {WORDS[verdict]} {matching.filter(({ machine }) => machine.verdict === verdict).length}
            </button>
          ))}
        </span>
        <label>Order <select value={order} onChange={(event) => setOrder(event.currentTarget.value)}>{ORDERS.map(([value, title]) => <option key={value} value={value}>{title}</option>)}</select></label>
        <span class="hint keys"><kbd>/</kbd> searches, arrows go from machine to machine</span>
      </form>
      <p class="unseen" role="status">{plural(wanted.size, "machine")} shown</p>
      {wanted.size === 0 && <p class="empty">No machine fits{query && <> “{query}”</>}. <button type="button" class="small" onClick={() => (setQuery(""), setShown(""))}>Show all</button></p>}
      <h2 class="unseen">Machines</h2>
      <ol class="machines" ref={grid}>
        {sorted([...wanted.keys()], order).map((machine) => <li key={machine.name + machine.page}><Machine machine={machine} found={wanted.get(machine)!} /></li>)}
      </ol>
      <Events />
    </Outdated.Provider>
  );
}

function Totals({ counts }: { counts: HubCounts }) {
  const worst = VERDICTS.find(([, count]) => counts[count] > 0)?.[0] ?? "none";
  return (
    <section class={`verdict ${worst}`} aria-label="Verdicts">
      <p class="headline">
        {VERDICTS.map(([verdict, count]) => counts[count] > 0 && <Status key={verdict} state={verdict} text={`${counts[count]} ${WORDS[verdict]}`} large />)}
        <span class="sentence">
          {counts.healthy_gpus} of {plural(counts.gpus, "GPU")} healthy on {plural(counts.machines, "machine")}
          {counts.silent > 0 && `, ${counts.silent} without an answer`}
        </span>
      </p>
    </section>
  );
}

function Events() {
  const [events, setEvents] = useState<HubEvent[]>([]);
  useEffect(() => {
    const add = ({ entries }: HubEvents): void => setEvents((newer) => [...entries.filter((one) => !newer.some(({ number }) => number === one.number)), ...newer]);
    read<HubEvents>("events").then(add, () => undefined); // those that come are shown all the same
  }, []);
  useEvents(({ name, data }) => {
    if (name === "machine_event") setEvents((older) => [...older, data as HubEvent].slice(-SHOWN_EVENTS * 4));
  }, []);
  if (!events.length) return null;
  return (
    <section>
      <h2>What happened</h2>
      <ol class="events" aria-label="What happened, newest first">
        {events.slice(-SHOWN_EVENTS).reverse().map((event) => (
          <li key={event.number}>
            <time dateTime={event.at}>{clock(seconds(event.at))}</time> <b>{event.machine}</b> <Status state={event.severity === "pass" ? "skip" : event.severity} text={event.message} />
          </li>
        ))}
      </ol>
    </section>
  );
}

// What is searched stands in the address: the link shows the same to others.
function useAddress(settings: Record<string, string>): void {
  const query = new URLSearchParams(Object.entries(settings).filter(([, value]) => value)).toString();
  useEffect(() => {
    const hash = query ? `#/?${query}` : "#/";
    if (location.hash !== hash && (location.hash || query)) history.replaceState(null, "", hash);
  }, [query]);
}

function useKeys(search: { current: HTMLInputElement | null }, grid: { current: HTMLOListElement | null }, clear: () => void): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const inField = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === "/" && !inField) {
        event.preventDefault();
        search.current?.focus();
      } else if (event.key === "Escape" && event.target === search.current) clear();
      else if (event.key === "ArrowDown" && event.target === search.current) step(event, grid.current, "first");
      else if (!inField && event.key.startsWith("Arrow")) step(event, grid.current, event.key);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

// The focus goes from machine to machine, in rows as they stand on the screen.
function step(event: Event, grid: HTMLOListElement | null, key: string): void {
  const links = [...(grid?.querySelectorAll<HTMLAnchorElement>("h3 a") ?? [])];
  const here = links.indexOf(document.activeElement as HTMLAnchorElement);
  if (!links.length || (here < 0 && key !== "first")) return;
  const tops = [...grid!.children].map((card) => (card as HTMLElement).offsetTop);
  const columns = Math.max(1, tops.filter((top) => top === tops[0]).length);
  const distance = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key] ?? 0;
  const next = links[key === "first" ? 0 : here + distance];
  if (!next) return;
  event.preventDefault();
  next.focus();
}
