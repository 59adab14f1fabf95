// Verdicts, healths and states: always a glyph and a word, never a colour alone.

import { createContext } from "preact";
import { useContext } from "preact/hooks";

const LOOKS: Record<string, [glyph: string, tone: string]> = {
  ok: ["✓", "ok"],
  pass: ["✓", "ok"],
  succeeded: ["○", "quiet"],
  warn: ["▲", "warn"],
  fail: ["✕", "fail"],
  failed: ["✕", "fail"],
  error: ["?", "error"],
  lost: ["?", "error"],
  skip: ["○", "quiet"],
  queued: ["…", "quiet"],
  cancelled: ["○", "quiet"],
  cancelling: ["○", "quiet"],
  running: ["▶", "busy"],
};

// A run succeeded when it came to a verdict; beside a verdict of fail that word would be a lie to the eye.
const WORDS: Record<string, string> = { succeeded: "ended" };

// Since when what is shown may hold no more; null: it is current. Nothing is green then: a thing was well, and nobody
// knows whether it is.
export const Outdated = createContext<number | null>(null);

export const toneOf = (state: string): string => LOOKS[state]?.[1] ?? "quiet";

export function Status({ state, text, large }: { state: string; text?: string; large?: boolean }) {
  const [glyph, tone] = LOOKS[state] ?? ["○", "quiet"];
  if (useContext(Outdated) !== null && tone === "ok") return <Status state="skip" text={`was ${text ?? state}`} {...(large ? { large } : {})} />;
  return (
    <span class={`status ${tone}${large ? " large" : ""}`}>
      <span class="glyph" aria-hidden="true">{glyph}</span>
      {text ?? WORDS[state] ?? state}
    </span>
  );
}
