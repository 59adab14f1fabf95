// A value, or the reason why there is none: never 0, never an empty cell.

import type { ComponentChildren } from "preact";
import { DASH, reasonText } from "../format";
import type { WithMissing } from "../model";

export function Absent({ of, field }: { of: WithMissing; field: string }) {
  const reason = reasonText(of.missing?.[field]);
  return (
    <span class="absent" title={of.missing_detail?.[field] ?? reason}>
      {DASH} <span class="why">{reason}</span>
    </span>
  );
}

export function Reading({ of, field, children }: { of: WithMissing; field: string; children: ComponentChildren }) {
  const value = (of as Record<string, unknown>)[field];
  return value === null || value === undefined ? <Absent of={of} field={field} /> : <>{children}</>;
}

// How full, against a limit that does not move; the text beside it shows the same in numbers. Nothing where there is no limit.
export function Meter({ value, limit, tone = "" }: { value: number | null; limit: number | null; tone?: string }) {
  if (!limit) return null;
  const share = value === null ? 0 : Math.min(1, Math.max(0, value / limit));
  return (
    <span class={`meter ${tone}`} aria-hidden="true">
      <span style={{ width: `${(share * 100).toFixed(1)}%` }} />
    </span>
  );
}
