// A search field that the key / reaches, and what of a view's choices stands in its address.

import { link, type Route } from "../route";

export function Filter({ label, placeholder, query, onQuery }: { label: string; placeholder: string; query: string; onQuery: (query: string) => void }) {
  return (
    <input
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
