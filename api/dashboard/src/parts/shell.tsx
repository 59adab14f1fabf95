// What stands around the view, on a machine's page and on a hub's: where we are, the connection, the colours.

import { useEffect, useState } from "preact/hooks";
import { clock, seconds, timeZone } from "../format";
import { parseRoute, type Route } from "../route";
import { useStore } from "../store";
import { chooseTheme, chosenTheme, type Theme } from "../theme";
import { Command, Loading, Notice } from "./notice";

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = (): void => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parseRoute(hash);
}

export function Waiting({ what }: { what: string }) {
  const connection = useStore((state) => state.connection);
  if (connection !== "lost") return <Loading what={what} />;
  return (
    <Notice tone="fail" title="gpudiag serve cannot be reached." announce="gpudiag serve cannot be reached.">
      The page keeps trying. Start it again with <Command>gpudiag serve</Command>; <Command>gpudiag</Command> in a terminal answers without it.
    </Notice>
  );
}

// The `#` of the address names the view: following the link would leave it.
export function jumpToMain(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

export function Connection({ at }: { at: string }) {
  const connection = useStore((state) => state.connection);
  return <span class={`connection ${connection}`} title={`connection: ${connection}; times are ${timeZone()}`}>{connection === "polling" ? "live (polling)" : connection} {clock(seconds(at))}</span>;
}

export function ThemeChoice() {
  const [theme, setTheme] = useState<Theme>(chosenTheme());
  return (
    <select
      aria-label="Colours"
      value={theme}
      onChange={(event) => {
        const chosen = event.currentTarget.value as Theme;
        chooseTheme(chosen);
        setTheme(chosen);
      }}
    >
      <option value="auto">Auto</option>
      <option value="light">Light</option>
      <option value="dark">Dark</option>
    </select>
  );
}
