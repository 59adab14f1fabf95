// The command line that does in a terminal what a run did, to be copied.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Run } from "../model";

const SHOWN_MS = 2_000;

// The GPUs of a run are those that its process was shown; the command itself does not name them.
export const commandLine = (run: Run): string => (run.gpus.length ? `CUDA_VISIBLE_DEVICES=${run.gpus.join(",")} ${run.command}` : run.command);

export function Reproduce({ run }: { run: Run }) {
  const [state, setState] = useState<"" | "Copied" | "Select it and copy">("");
  const code = useRef<HTMLElement>(null);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async (): Promise<void> => {
    setState((await toClipboard(commandLine(run))) ? "Copied" : "Select it and copy");
    if (code.current) getSelection()?.selectAllChildren(code.current);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => setState(""), SHOWN_MS);
  };
  return (
    <p class="reproduce">
      <code class="command" ref={code} tabIndex={0} role="region" aria-label="The command of this run">{commandLine(run)}</code>
      <button type="button" class="small" onClick={() => void copy()}>Copy</button>
      <span role="status">{state}</span>
    </p>
  );
}

// Over plain HTTP from another machine a browser gives no clipboard: then the text is selected.
async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
