// The one sentence a person opens the page for: is this machine fit, since when, and if not, what is it.

import { clock, dateClock, duration, plural, seconds } from "../format";
import { useTicks } from "../load";
import type { Live } from "../model";
import { link } from "../route";
import { serviceNow, silentSince, useStore } from "../store";
import { Status } from "./status";

export const WORDS: Record<string, string> = { pass: "PASS", warn: "WARN", fail: "FAIL", error: "UNKNOWN" };
const A_DAY = 86400;

export function Verdict({ live }: { live: Live }) {
  useTicks(1); // it may become unknown while nothing happens
  // The service shows by itself when its numbers are old; when it is the service that is silent, the page must.
  const silent = useStore(silentSince);
  const was = silent !== null && live.verdict !== "error" ? live.verdict : null;
  const verdict = was ? "error" : live.verdict;
  const since = live.verdict_since === null ? null : seconds(live.verdict_since);
  const age = since === null ? 0 : serviceNow() - since;
  return (
    <section class={`verdict ${verdict ?? "none"}`} aria-label="Verdict">
      <p class="headline">
        {verdict ? <Status state={verdict} text={WORDS[verdict] ?? verdict} large /> : <Status state="skip" text="Nothing judged yet" large />}
        <span class="sentence">{was ? `At ${clock(silent!)} it was ${WORDS[was]}: ${live.headline}` : live.headline}</span>
      </p>
      <p class="more">
        {since !== null && !was && <span title="as far back as this service has judged">since {age < A_DAY ? clock(since) : dateClock(since)} ({duration(Math.max(0, age))})</span>}
        {live.finding_count > 0 && <a href={link("checks")}>{plural(live.finding_count, "finding")}: what and why</a>}
      </p>
    </section>
  );
}
