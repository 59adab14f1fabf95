// A search field that the key / reaches, and what of a view's choices stands in its address.

import { useEffect, useRef } from "preact/hooks";
import { link, type Route } from "../route";

let isWanted = false; // the key was pressed where there is no field: the next one takes the focus

// The view's own field, or that of the GPUs.
export function find(): void {
  const field = document.querySelector<HTMLInputElement>("main .filter");
  if (field) {
    field.focus();
    return;
  }
  isWanted = true;
  location.hash = link("overview");
}

export function Filter({ label, placeholder, query, onQuery }: { label: string; placeholder: string; query: string; onQuery: (query: string) => void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (!isWanted) return;
    isWanted = false;
    setTimeout(() => field.current?.focus()); // after the view itself, which takes it as it opens
  }, []);
  return (
    <input
      ref={field}
      class="filter"
      type="search"
      aria-label={label}
      aria-keyshortcuts="/"
      placeholder={placeholder}
      value={query}
      onInput={(event) => onQuery(event.currentTarget.value)}
      onKeyDown={(event) => event.key === "Escape" && (onQuery(""), event.currentTarget.blur())}
    />
  );
}

// The address with other settings; the view stays, and so does the way back.
export function changeSettings({ view, subject, settings }: Route, change: Record<string, string>): void {
  const wanted = Object.entries({ ...Object.fromEntries(settings), ...change }).filter(([, value]) => value);
  history.replaceState(null, "", link(view, subject, Object.fromEntries(wanted)));
  dispatchEvent(new Event("hashchange"));
}
