// The one sentence a person opens the page for: is this machine fit, and if not, what is it.

import { clock, plural } from "../format";
import type { Live } from "../model";
import { link } from "../route";
import { silentSince, useStore } from "../store";
import { Status } from "./status";

export const WORDS: Record<string, string> = { pass: "PASS", warn: "WARN", fail: "FAIL", error: "UNKNOWN" };

export function Verdict({ live }: { live: Live }) {
  // The service shows by itself when its numbers are old; when it is the service that is silent, the page must.
  const since = useStore(silentSince);
  const was = since !== null && live.verdict !== "error" ? live.verdict : null;
  const verdict = was ? "error" : live.verdict;
  return (
    <section class={`verdict ${verdict ?? "none"}`} aria-label="Verdict">
      <p class="headline">
        {verdict ? <Status state={verdict} text={WORDS[verdict] ?? verdict} large /> : <Status state="skip" text="Nothing judged yet" large />}
        <span class="sentence">{was ? `At ${clock(since!)} it was ${WORDS[was]}: ${live.headline}` : live.headline}</span>
      </p>
      {live.finding_count > 0 && (
        <p class="more"><a href={link("checks")}>{plural(live.finding_count, "finding")}: what and why</a></p>
      )}
    </section>
  );
}
