// What stands around each chart: its title, the moment that is shown, the same as a table, and a picture of it to save.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { clock, DASH, dateClock } from "../format";
import { Table } from "../parts/table";
import type { Picture } from "./picture";

export interface Column {
  name: string;
  values: (number | null)[];
}

interface FigureProps {
  title: string;
  unit: string;
  note?: ComponentChildren;
  times: number[];
  columns: Column[];
  decimals: number;
  picture: () => Picture;
  children: ComponentChildren;
}

const TABLE_ROWS = 60;

export const shown = (value: number | null | undefined, decimals: number): string => (value == null ? DASH : value.toFixed(decimals));

export function Figure({ title, unit, note, times, columns, decimals, picture, children }: FigureProps) {
  const [asTable, setAsTable] = useState(false);
  return (
    <figure class="chart">
      <figcaption>
        <span class="title">{title} <span class="unit">{unit}</span></span>
        <span class="note">{note}</span>
        <Save title={title} picture={picture} />
        <button type="button" class="small" aria-pressed={asTable} onClick={() => setAsTable(!asTable)} aria-label={`${title}: show as table`}>Table</button>
      </figcaption>
      {asTable ? <NumberTable title={title} unit={unit} times={times} columns={columns} decimals={decimals} /> : children}
    </figure>
  );
}

function Save({ title, picture }: { title: string; picture: () => Picture }) {
  const [open, setOpen] = useState(false);
  const save = async (kind: "png" | "svg"): Promise<void> => {
    setOpen(false);
    (await import("../views/more")).savePicture(picture(), kind);
  };
  if (!open) return <button type="button" class="small" onClick={() => setOpen(true)} aria-label={`${title}: save a picture`}>Save</button>;
  return (
    <span class="save">
      <button type="button" class="small" onClick={() => void save("png")} aria-label={`${title}: save as PNG`}>PNG</button>
      <button type="button" class="small" onClick={() => void save("svg")} aria-label={`${title}: save as SVG`}>SVG</button>
    </span>
  );
}

function NumberTable({ title, unit, times, columns, decimals }: Omit<FigureProps, "note" | "picture" | "children">) {
  const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
  const rows = times.map((_, position) => position).filter((position) => (times.length - 1 - position) % step === 0).reverse();
  const day = (times.at(-1) ?? 0) - (times[0] ?? 0) > 43200;
  // Of the points that a row stands for, the newest that has a reading.
  const newest = (values: (number | null)[], position: number): number | null =>
    values.slice(Math.max(0, position - step + 1), position + 1).findLast((value) => value !== null) ?? null;
  const caption = `${title} in ${unit}, newest first${step > 1 ? `, every ${step}th point` : ""}`;
  return (
    <Table caption={caption} columns={["Time", ...columns.map(({ name }) => ({ name, number: true }))]}>
      {rows.map((position) => (
        <tr key={times[position]}>
          <th scope="row">{day ? dateClock(times[position]!) : clock(times[position]!)}</th>
          {columns.map(({ name, values }) => <td class="number" key={name}>{shown(newest(values, position), decimals)}</td>)}
        </tr>
      ))}
    </Table>
  );
}
