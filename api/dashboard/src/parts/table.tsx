// A table with a caption, in a region of its own that scrolls sideways where the screen is narrow.

import type { ComponentChildren } from "preact";

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

export function Table({ caption, columns, children, hideCaption = false }: TableProps) {
  return (
    <div class="scroll" role="region" aria-label={caption} tabIndex={0}>
      <table>
        <caption class={hideCaption ? "unseen" : ""}>{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => {
              const { name, number, detail }: Column = typeof column === "string" ? { name: column } : column;
              return <th scope="col" class={[number && "number", detail && "detail"].filter(Boolean).join(" ")} key={name}>{name}</th>;
            })}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
