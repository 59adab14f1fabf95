// Sanity training: the strategies side by side, whether each trained the same model, and where its time goes.

import { DASH, duration, gib, significant } from "../format";
import { LateRanks } from "../charts/late_ranks";
import type { StrategyResult } from "../model";
import { Meter, Reading } from "../parts/reading";
import { Status } from "../parts/status";
import { Table } from "../parts/table";

const PARTS = ["data", "forward", "backward", "optimizer", "communication"] as const;

export interface TrainingDocument {
  strategies: StrategyResult[];
  machine?: string[];
  advice?: { strategy: string; reasons: string[] }[];
}

const COLUMNS = ["Strategy", "Outcome", { name: "Ranks", number: true }, "Same as one process", "Samples per second", { name: "Step p50", number: true }, { name: "Scaling", number: true }, "Time of a step", { name: "Memory", number: true }];

export function TrainingReport({ document }: { document: TrainingDocument }) {
  const best = Math.max(...document.strategies.map((one) => one.samples_per_second ?? 0), 0);
  return (
    <>
      <Table caption="Strategies" columns={COLUMNS} hideCaption>
        {document.strategies.map((one) => <StrategyRow key={one.strategy} one={one} best={best} />)}
      </Table>
      <p class="key parts-key">{PARTS.map((part, position) => <span key={part}><span class={`swatch line-${position}`} aria-hidden="true" /> {part}</span>)}</p>
      {document.strategies.map((one) => one.lateness && <LateRanks key={one.strategy} title={`Slow ranks of ${one.strategy}`} lateness={one.lateness} />)}
      {document.advice?.map((advice) => <p key={advice.strategy}><b>{advice.strategy}</b> suits this machine: {advice.reasons.join("; ")}</p>)}
      {document.machine && <p class="hint">{document.machine.join(", ")}</p>}
    </>
  );
}

function StrategyRow({ one, best }: { one: StrategyResult; best: number }) {
  if (one.outcome === "skip") {
    return (
      <tr>
        <th scope="row">{one.strategy}</th>
        <td><Status state="skip" /></td>
        <td class="wide" colSpan={COLUMNS.length - 2}>{one.reason} {one.hint && <code class="command">{one.hint}</code>}</td>
      </tr>
    );
  }
  const passed = one.verifications.filter((verification) => verification.passed).length;
  return (
    <tr>
      <th scope="row">{one.strategy} <small>{one.framework}</small></th>
      <td><Status state={one.outcome} /></td>
      <td class="number">{one.world_size}</td>
      <td><Reading of={one} field="verified"><Status state={one.verified ? "pass" : "fail"} text={`${passed} of ${one.verifications.length} proofs`} /></Reading></td>
      <td><Reading of={one} field="samples_per_second"><Meter value={one.samples_per_second} limit={best} />{significant(one.samples_per_second ?? 0)}</Reading></td>
      <td class="number"><Reading of={one} field="step_p50_seconds">{duration(one.step_p50_seconds ?? 0)}</Reading></td>
      <td class="number"><Reading of={one} field="scaling_efficiency">{((one.scaling_efficiency ?? 0) * 100).toFixed(0)}%</Reading></td>
      <td><Shares one={one} /></td>
      <td class="number"><Reading of={one} field="host_memory_bytes">{gib(one.host_memory_bytes ?? 0)} GiB</Reading></td>
    </tr>
  );
}

function Shares({ one }: { one: StrategyResult }) {
  const { shares } = one;
  if (!shares) return <Reading of={one} field="shares">{DASH}</Reading>;
  const text = PARTS.map((part) => `${part} ${(shares[part] * 100).toFixed(0)}%`).join(", ");
  return (
    <span title={text}>
      <span class="shares" aria-hidden="true">
        {PARTS.map((part, position) => <span key={part} class={`line-${position}`} style={{ width: `${(shares[part] * 100).toFixed(1)}%` }} />)}
      </span>
      <span class="unseen">{text}</span>
    </span>
  );
}
