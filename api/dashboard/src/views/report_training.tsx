// Sanity training: the strategies side by side, what each cost, and whether it trained the same model.

import { DASH, significant, words } from "../format";
import type { Finding, Outcome } from "../model";
import { FindingList } from "../parts/findings";
import { Meter } from "../parts/reading";
import { Status } from "../parts/status";
import { Table } from "../parts/table";

type Strategy = Record<string, unknown> & {
  strategy: string;
  outcome: Outcome;
  world_size?: number;
  samples_per_second?: number | null;
  findings?: Finding[];
};
export interface TrainingDocument {
  strategies: Strategy[];
}

const OWN_COLUMNS = new Set(["strategy", "outcome", "world_size", "samples_per_second", "findings", "missing", "missing_detail", "schema"]);
const MAX_COLUMNS = 8;

export function TrainingReport({ document }: { document: TrainingDocument }) {
  const { strategies } = document;
  const best = Math.max(...strategies.map((one) => one.samples_per_second ?? 0), 0);
  const plain = (value: unknown): boolean => typeof value === "number" || typeof value === "string" || typeof value === "boolean";
  const more = [...new Set(strategies.flatMap((one) => Object.keys(one).filter((name) => !OWN_COLUMNS.has(name) && plain(one[name]))))].slice(0, MAX_COLUMNS);
  const columns = ["Strategy", "Outcome", { name: "Ranks", number: true }, "Samples per second", ...more.map((name) => ({ name: words(name), number: true }))];
  const findings = strategies.flatMap((one) => one.findings ?? []);
  return (
    <>
      <Table caption="Strategies" columns={columns} hideCaption>
        {strategies.map((one) => (
          <tr key={one.strategy}>
            <th scope="row">{one.strategy}</th>
            <td><Status state={one.outcome} /></td>
            <td class="number">{one.world_size ?? DASH}</td>
            <td><Meter value={one.samples_per_second ?? null} limit={best} /> {one.samples_per_second == null ? DASH : significant(one.samples_per_second)}</td>
            {more.map((name) => <td class="number" key={name}>{shown(one[name])}</td>)}
          </tr>
        ))}
      </Table>
      {findings.length > 0 && <FindingList findings={findings} />}
    </>
  );
}

function shown(value: unknown): string {
  if (value === null || value === undefined) return DASH;
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? significant(value) : String(value);
}
