// A table with a caption, in a region of its own that scrolls sideways where the screen is narrow. On a phone rows with
// long words are cards instead (styles/parts.css): words that one must scroll to are not read.

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface Column {
  name: string;
  number?: boolean;
  detail?: boolean; // left out on a phone, with its cells of that class
}

interface TableProps {
  caption: string;
  columns: (string | Column)[];
  children: ComponentChildren;
  hideCaption?: boolean;
}

// In a card each value names its column; by its roles it is a table all the same.
function nameCells(body: HTMLTableSectionElement, names: string[]): void {
  for (const row of body.rows) {
    row.role = "row";
    let column = 0;
    for (const cell of row.cells) {
      cell.role = cell.tagName === "TH" ? "rowheader" : "cell";
      cell.dataset.label = names[column] ?? "";
      column += cell.colSpan;
    }
  }
}

export function Table({ caption, columns, children, hideCaption = false }: TableProps) {
  const body = useRef<HTMLTableSectionElement>(null);
  useLayoutEffect(() => {
    if (body.current?.querySelector("td.wide")) nameCells(body.current, columns.map((column) => (typeof column === "string" ? column : column.name)));
  });
  return (
    <div class="scroll" role="region" aria-label={caption} tabIndex={0}>
      <table>
        <caption class={hideCaption ? "unseen" : ""}><span>{caption}</span></caption>
        <thead>
          <tr>
            {columns.map((column) => {
              const { name, number, detail }: Column = typeof column === "string" ? { name: column } : column;
              return <th scope="col" class={[number && "number", detail && "detail"].filter(Boolean).join(" ")} key={name}>{name}</th>;
            })}
          </tr>
        </thead>
        <tbody ref={body}>{children}</tbody>
      </table>
    </div>
  );
}
