// Every reading of a GPU that people ask for, in the groups and the order in which they look for it.

import { gib, rate, size } from "../format";
import { DECLARED_FACTS } from "../readings";

export interface Fact {
  field: string;
  label: string;
  show?: (value: unknown) => string;
}

const SHOWN: Record<string, (value: unknown) => string> = {
  bytes: (value) => `${gib(value as number)} GiB`,
  size: (value) => size(value as number),
  rate: (value) => rate(value as number),
};

const withUnit = (unit: string) => (value: unknown): string => `${typeof value === "number" && !Number.isInteger(value) ? value.toFixed(1) : String(value)} ${unit}`;

const shown = (show: string): Pick<Fact, "show"> => {
  if (!show) return {};
  if (show.endsWith("#")) return { show: (value) => `${show.slice(0, -1)}${String(value)}` };
  return { show: SHOWN[show] ?? withUnit(show) };
};

export const FACTS: [group: string, facts: Fact[]][] = DECLARED_FACTS.map(([group, facts]) => [
  group,
  facts.map(({ field, label, show }) => ({ field, label, ...shown(show) })),
]);
