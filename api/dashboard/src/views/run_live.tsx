// A run that goes on draws itself: the curve of its sizes as they are measured, its strategies as they end, and its ranks
// with what each waits for.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { CurveChart } from "../charts/curve";
import { duration, plural, seconds, significant, size, words } from "../format";
import { useLoaded, useTicks } from "../load";
import type { CollectiveResult, NumberedEvent, RankStanding, Run, RunEvents, StrategyResult } from "../model";
import { Status } from "../parts/status";
import { serviceNow, useEvents } from "../store";
import { curvesOf } from "./report_collective";

const REREAD_SECONDS = 5;
const STANDS_SECONDS = 1; // a wait for less is what every collective is

interface Seen {
  results: CollectiveResult[];
  strategies: StrategyResult[];
  ranks: RankStanding[];
  ranksAt: number; // when the rows were right, by the service's clock
}

// What the run has reported: by the stream, and read again now and then, as a stream may lose events.
function useRunEvents(run: Run): Seen {
  const known = useRef(new Map<number, NumberedEvent>());
  const receivedAt = useRef(0);
  const since = useRef(0);
  const [, redraw] = useState(0);
  const add = (events: NumberedEvent[], at: number): void => {
    const ranksBefore = newestRanks(known.current)?.number ?? 0;
    for (const one of events) known.current.set(one.number, one);
    if ((newestRanks(known.current)?.number ?? 0) > ranksBefore) receivedAt.current = at;
    redraw((count) => count + 1);
  };
  useEvents((event) => {
    const news = event.data as { run: string; number: number; event: NumberedEvent["event"] };
    if (event.name === "run_event" && news.run === run.id) add([{ number: news.number, event: news.event }], serviceNow());
  }, [run.id]);
  const tick = useTicks(REREAD_SECONDS);
  const from = useMemo(() => since.current, [tick]); // what the last answer had is not asked for again
  const { value } = useLoaded<RunEvents>(`runs/${encodeURIComponent(run.id)}/events?since=${from}`, tick);
  useEffect(() => {
    if (!value) return;
    // Of what was there before the page came, the run's own clock has the age.
    const newest = value.events.at(-1);
    const wasAt = newest && run.started_at ? seconds(run.started_at) + newest.event.at_seconds : serviceNow();
    add(value.events, Math.min(serviceNow(), wasAt));
    since.current = Math.max(since.current, newest?.number ?? 0);
  }, [value]);
  const events = [...known.current.values()].sort((a, b) => a.number - b.number).map((one) => one.event);
  return {
    results: events.flatMap((event) => event.result ?? []),
    strategies: events.flatMap((event) => event.strategy ?? []),
    ranks: newestRanks(known.current)?.event.ranks ?? [],
    ranksAt: receivedAt.current,
  };
}

const newestRanks = (known: Map<number, NumberedEvent>): NumberedEvent | null =>
  [...known.values()].reduce<NumberedEvent | null>((newest, one) => (one.event.kind === "ranks" && one.number > (newest?.number ?? 0) ? one : newest), null);

export function RunLive({ run }: { run: Run }) {
  const seen = useRunEvents(run);
  const last = seen.results.at(-1);
  return (
    <>
      {seen.ranks.length > 0 ? <Ranks ranks={seen.ranks} at={seen.ranksAt} /> : <p class="empty">{run.state === "running" ? "Its ranks, if it has any, have not started yet." : "Its ranks start with it."}</p>}
      {seen.results.length > 0 && <CurveChart title="busbw so far" curves={curvesOf(seen.results).map((curve) => ({ ...curve, baseline: [], before: "" }))} />}
      {last && <p class="calm">Last: {last.op} of {size(last.size_bytes)} in {duration(last.time_p50_seconds)}; {plural(seen.results.length, "size")} of {run.planned} measured.</p>}
      {seen.strategies.length > 0 && (
        <ul class="strategies" aria-label="Strategies that have ended">
          {seen.strategies.map((one) => (
            <li key={one.strategy}><b>{one.strategy}</b> <Status state={one.outcome} />{one.samples_per_second !== null && <span> {significant(one.samples_per_second)} samples/s</span>}</li>
          ))}
        </ul>
      )}
    </>
  );
}

// Ranks as people write them: 0-3, 5.
export function rankNumbers(ranks: number[]): string {
  const spans: [number, number][] = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = spans.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else spans.push([rank, rank]);
  }
  return spans.map(([from, to]) => (from === to ? String(from) : `${from}-${to}`)).join(", ");
}

const nameRanks = (ranks: number[]): string => `${ranks.length === 1 ? "rank" : "ranks"} ${rankNumbers(ranks)}`;

function Ranks({ ranks, at }: { ranks: RankStanding[]; at: number }) {
  useTicks(1);
  const age = Math.max(0, serviceNow() - at);
  const still = (rank: RankStanding): number => rank.still_seconds + age;
  const behind = ranks.filter((rank) => rank.behind).map((rank) => rank.rank);
  const stuck = ranks.filter((rank) => rank.waits && still(rank) >= STANDS_SECONDS);
  const longest = Math.max(0, ...stuck.map(still));
  const hosts = [...new Set(ranks.map((rank) => rank.host))];
  const operation = stuck.find((rank) => rank.operation)?.operation ?? null;
  const alike = stuck.every((rank) => rank.operation === operation); // then the sentence has it, and the rows need not
  return (
    <section class="panel rank-rows" aria-label="Ranks">
      <h2>{plural(ranks.length, "rank")}{hosts.length > 1 && ` on ${hosts.length} hosts`}</h2>
      <p class="sentence-of-ranks">
        {stuck.length > 0 && behind.length > 0 ? (
          <><Status state="warn" text={`${capital(nameRanks(stuck.map((rank) => rank.rank)))} ${stuck.length === 1 ? "waits" : "wait"} for ${nameRanks(behind)}`} /> <span>{operation && `in ${operation}, `}for {duration(longest)}</span></>
        ) : <span class="calm">{sentenceOf(ranks)}</span>}
      </p>
      <ul class={`ranks${ranks.length > 16 ? " many" : ""}`}>
        {ranks.map((rank) => <RankRow key={rank.rank} rank={rank} still={still(rank)} behind={behind} host={hosts.length > 1} alike={alike} />)}
      </ul>
    </section>
  );
}

const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

function sentenceOf(ranks: RankStanding[]): string {
  const there = ranks.filter((rank) => rank.life === "alive").length;
  if (there === 0) return ranks.every((rank) => rank.life === "ended") ? "All ranks have ended." : "The ranks start.";
  return there === ranks.length ? "All ranks move." : `${there} of ${ranks.length} ranks are there.`;
}

interface RowProps {
  rank: RankStanding;
  still: number;
  behind: number[];
  host: boolean;
  alike: boolean;
}

function RankRow({ rank, still, behind, host, alike }: RowProps) {
  const stands = still >= STANDS_SECONDS;
  const waits = rank.waits && stands;
  const awaited = rank.behind && stands;
  const tone = rank.life === "stopped" || awaited ? "awaited" : waits ? "waits" : rank.life === "alive" ? "moves" : "gone";
  return (
    <li class={tone}>
      <b>{rank.rank}</b>
      <span class="stage">{rank.life === "alive" ? words(rank.stage) : words(rank.life)}{rank.iteration !== null && rank.life === "alive" && ` ${rank.iteration}`}</span>
      <span class="what">{host && `${rank.host}: `}{doing(alike ? { ...rank, operation: waits ? null : rank.operation } : rank, waits, awaited, behind)}</span>
      {(waits || awaited) && <span class="for">{duration(still)}</span>}
    </li>
  );
}

function doing(rank: RankStanding, waits: boolean, awaited: boolean, behind: number[]): string {
  if (rank.life === "stopped") return "its process is stopped";
  if (rank.life === "ended") return "its process has ended";
  if (rank.life === "not_started") return "not there yet";
  if (waits) return `waits for ${nameRanks(behind)}${rank.operation ? ` in ${rank.operation}` : ""}`;
  if (awaited) return `others wait for it${rank.operation ? `; in ${rank.operation}` : ""}`;
  return rank.operation ? `in ${rank.operation}` : "works";
}
