// Why clocks are held down: NVML's reasons as words and as the bits of `clocks_event_mask`.

import { words } from "./format";
import { EVENT_REASONS, type EventReason } from "./vocabulary";

const NOT_SHOWN = ["idle", "setting"]; // on a timeline: they cost no speed that a job could have
const LAST_BIT = 30; // a mask is a number whose bits JavaScript can shift
const WITHOUT_WORD = "bit_"; // bit_19: the service has no word for it either

export function maskOf(reasons: string[]): number {
  return reasons.reduce((mask, reason) => {
    const known = EVENT_REASONS.findIndex(({ word }) => word === reason);
    const bit = known < 0 && reason.startsWith(WITHOUT_WORD) ? Number(reason.slice(WITHOUT_WORD.length)) : known;
    return bit < 0 || bit > LAST_BIT ? mask : mask | (1 << bit);
  }, 0);
}

// Those that a timeline shows.
export function reasonsOf(mask: number): EventReason[] {
  const reasons: EventReason[] = [];
  for (let bit = 0; bit <= LAST_BIT; bit += 1) {
    if (!((mask >> bit) & 1)) continue;
    const word = `${WITHOUT_WORD}${bit}`;
    reasons.push(EVENT_REASONS[bit] ?? { word, means: "unknown", short: words(word) });
  }
  return reasons.filter(({ means }) => !NOT_SHOWN.includes(means));
}

export const shortReason = (reason: string): string => EVENT_REASONS.find(({ word }) => word === reason)?.short ?? words(reason);
