// Who was slow when: a lane per rank on one axis of time, darker the later the rank came to the collectives.

import { useState } from "preact/hooks";
import { DASH, duration } from "../format";
import type { LatenessSeries, RankLateness } from "../model";
import { Table } from "../parts/table";

const MOST_LANES = 128;
const STEPS = [0.5, 1, 3, 10]; // times the limit: from each on the next colour

export function LateRanks({ lateness, title }: { lateness: LatenessSeries; title: string }) {
  const [asTable, setAsTable] = useState(false);
  const [at, setAt] = useState("");
  const { limit_seconds: limit, from_seconds: from, span_seconds: span } = lateness;
  const rows = lateness.ranks.map((rank) => ({ ...rank, share: shareAbove(rank, limit), worst: Math.max(0, ...rank.late_seconds.map((value) => value ?? 0)) }));
  const latest = [...rows].sort((a, b) => b.share - a.share || b.worst - a.worst);
  const shown = rows.length <= MOST_LANES ? rows : latest.slice(0, MOST_LANES);
  const first = latest[0];
  if (!first) return null;
  const count = first.late_seconds.length;
  return (
    <figure class={`chart late-ranks${shown.length > 24 ? " many" : ""}`}>
      <figcaption>
        <span class="title">{title}</span>
        <span class="at">{at}</span>
        <button type="button" class="small" aria-pressed={asTable} onClick={() => setAsTable(!asTable)} aria-label={`${title}: show as table`}>Table</button>
      </figcaption>
      <p class="calm">
        {first.share > 0.5
          ? `Rank ${first.rank} came late most: by more than ${duration(limit)} in ${Math.round(first.share * 100)}% of the time.`
          : `No rank came late for most of the time${first.share > 0 ? `; rank ${first.rank} by more than ${duration(limit)} in ${Math.round(first.share * 100)}% of it` : ""}.`}
        {shown.length < rows.length && ` The latest ${MOST_LANES} of ${rows.length} ranks.`}
      </p>
      {asTable ? <LateTable rows={latest} lateness={lateness} title={title} /> : (
        <div class="lanes" role="img" aria-label={`${title}: lateness of each rank over time; the table button shows the numbers`} onPointerLeave={() => setAt("")}>
          {shown.map((row) => (
            <div class="lane" key={row.rank}>
              <span class="name">rank {row.rank}</span>
              <span
                class="track"
                style={{ backgroundImage: gradient(row, limit) }}
                onPointerMove={(event) => {
                  const box = event.currentTarget.getBoundingClientRect();
                  const place = Math.min(count - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * count)));
                  const value = row.late_seconds[place];
                  setAt(`rank ${row.rank} at ${(from + place * span).toFixed(1)} s: ${value == null ? "no collective" : `late by ${duration(value)}`}`);
                }}
              />
            </div>
          ))}
          <p class="from-to"><span>{from.toFixed(1)} s</span><span>since the ranks started</span><span>{(from + count * span).toFixed(1)} s</span></p>
        </div>
      )}
      <ul class="legend" aria-label="Late by">
        {STEPS.map((step, position) => <li key={step}><span class={`swatch late-${position + 1}`} aria-hidden="true" /> from {duration(step * limit)}</li>)}
      </ul>
    </figure>
  );
}

function shareAbove(rank: RankLateness, limit: number): number {
  const known = rank.late_seconds.filter((value) => value !== null);
  return known.length ? known.filter((value) => value > limit).length / known.length : 0;
}

// One background of a lane: a band for each run of spans of one colour.
function gradient(rank: RankLateness, limit: number): string {
  const count = rank.late_seconds.length;
  const bands: { colour: string; from: number; to: number }[] = [];
  rank.late_seconds.forEach((value, place) => {
    const level = value === null ? "none" : String(STEPS.filter((step) => value >= step * limit).length);
    const colour = `var(--late-${level})`;
    const last = bands.at(-1);
    if (last?.colour === colour) last.to = place + 1;
    else bands.push({ colour, from: place, to: place + 1 });
  });
  const edge = (place: number): string => `${((place / count) * 100).toFixed(2)}%`;
  return `linear-gradient(90deg, ${bands.map((band) => `${band.colour} ${edge(band.from)} ${edge(band.to)}`).join(", ")})`;
}

interface TableProps {
  rows: (RankLateness & { share: number; worst: number })[];
  lateness: LatenessSeries;
  title: string;
}

function LateTable({ rows, lateness, title }: TableProps) {
  return (
    <Table caption={`${title}, the latest first, over ${lateness.iterations} timed iterations`} columns={[{ name: "Rank", number: true }, { name: `Above ${duration(lateness.limit_seconds)}`, number: true }, { name: "Worst", number: true }, { name: "At", number: true }]}>
      {rows.map((row) => (
        <tr key={row.rank}>
          <th scope="row" class="number">{row.rank}</th>
          <td class="number">{Math.round(row.share * 100)}%</td>
          <td class="number">{duration(row.worst)}</td>
          <td class="number">{row.worst > 0 ? `${(lateness.from_seconds + row.late_seconds.indexOf(row.worst) * lateness.span_seconds).toFixed(1)} s` : DASH}</td>
        </tr>
      ))}
    </Table>
  );
}
