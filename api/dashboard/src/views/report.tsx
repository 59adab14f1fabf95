// A run's document: its findings with evidence and remedies, then what was measured, by the kind of document.

import { LateRanks } from "../charts/late_ranks";
import type { Finding, LatenessSeries, Outcome, Run } from "../model";
import { FindingList } from "../parts/findings";
import { BandwidthReport, type BandwidthDocument } from "./report_bandwidth";
import { CollectiveReport, type CollectiveDocument } from "./report_collective";
import { type JobDocument, JobReport } from "./report_job";
import { TrainingReport, type TrainingDocument } from "./report_training";
import { type CheckResult, CheckTable } from "./checks";

interface Document {
  schema?: string;
  verdict?: Outcome;
  outcome?: Outcome;
  findings?: Finding[];
  results?: unknown[];
  measures?: {
    collective?: CollectiveDocument | null;
    active?: BandwidthDocument | null;
    training?: { strategy: string; lateness?: LatenessSeries | null }[] | null;
  };
}

export function ReportView({ document: whole, run }: { document: Record<string, unknown>; run: Run }) {
  const document = whole as Document;
  const kind = document.schema?.split("/")[0] ?? "";
  const checks = kind === "gpudiag.report" ? (document.results as CheckResult[]) : null;
  const findings = document.findings ?? checks?.flatMap((result) => result.findings) ?? [];
  const outcome = document.verdict ?? document.outcome;
  return (
    <>
      {findings.length > 0 ? <FindingList findings={findings} /> : <p>{outcome === "pass" ? "Nothing was found." : "No finding."}</p>}
      {kind === "gpudiag.collective" && <CollectiveReport document={whole as unknown as CollectiveDocument} run={run} />}
      {kind === "gpudiag.training" && <TrainingReport document={whole as unknown as TrainingDocument} />}
      {kind === "gpudiag.job_run" && <JobReport document={whole as unknown as JobDocument} />}
      {kind === "gpudiag.bandwidth" && <BandwidthReport document={whole as unknown as BandwidthDocument} />}
      {document.measures?.collective && <CollectiveReport document={document.measures.collective} />}
      {document.measures?.training?.map((one) => one.lateness && <LateRanks key={one.strategy} title={`Slow ranks of ${one.strategy}`} lateness={one.lateness} />)}
      {document.measures?.active && <BandwidthReport document={document.measures.active} />}
      {checks && <CheckTable results={checks} />}
    </>
  );
}
