// The one sentence a person opens the page for: is this machine fit, and if not, what is it.

import { plural } from "../format";
import type { Live } from "../model";
import { link } from "../route";
import { Status } from "./status";

const WORDS: Record<string, string> = { pass: "PASS", warn: "WARN", fail: "FAIL", error: "CANNOT TELL" };

export function Verdict({ live }: { live: Live }) {
  const verdict = live.verdict ?? "none";
  return (
    <section class={`verdict ${verdict}`} aria-label="Verdict">
      <p class="headline">
        {live.verdict ? <Status state={live.verdict} text={WORDS[live.verdict] ?? live.verdict} large /> : <Status state="skip" text="Nothing judged yet" large />}
        <span class="sentence">{live.headline}</span>
      </p>
      {live.finding_count > 0 && (
        <p class="more"><a href={link("checks")}>{plural(live.finding_count, "finding")}: what and why</a></p>
      )}
    </section>
  );
}
