// What stands around the view, on a machine's page and on a hub's: where we are, the connection, the colours.

import { useEffect, useRef, useState } from "preact/hooks";
import { clock, seconds, timeZone } from "../format";
import { parseRoute, type Route } from "../route";
import { useStore } from "../store";
import { chooseTheme, chosenTheme, type Theme } from "../theme";
import { Command, Loading, Notice } from "./notice";
import { Status } from "./status";

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

// Calls with each key that is pressed alone, outside of any field.
export function useKeys(pressed: (key: string) => void): void {
  const newest = useRef(pressed);
  newest.current = pressed;
  useEffect(() => {
    const listener = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, dialog")) return;
      if (!/^[1-9/?]$/.test(event.key)) return;
      event.preventDefault();
      newest.current(event.key);
    };
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);
}

export function Help({ views, onClose }: { views: string[]; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-label="Help" onClose={onClose} onClick={(event) => event.target === dialog.current && dialog.current?.close()}>
      <form method="dialog">
        <h2>Keys</h2>
        <dl>
          {views.map((view, place) => <div key={view}><dt><kbd>{place + 1}</kbd></dt><dd>{view}</dd></div>)}
          <div><dt><kbd>/</kbd></dt><dd>find, <kbd>Esc</kbd> ends it</dd></div>
          <div><dt><kbd>?</kbd></dt><dd>this list</dd></div>
        </dl>
        <h2>Charts</h2>
        <p>Point at a GPU in any chart or row: the others step back in all of them. Drag to look closer. Click for a link to that moment.</p>
        <h2>Verdicts</h2>
        <p class="counts"><Status state="ok" text="fit" /> <Status state="warn" text="works, not at its best" /> <Status state="fail" text="keep jobs off" /> <Status state="error" text="not known" /></p>
        <button class="primary">Close</button>
      </form>
    </dialog>
  );
}
