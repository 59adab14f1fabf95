// A job of `gpudiag run` after its end: what ended it, where each rank was last, and when it stood still.

import { DASH, dateClock, duration, plural, preciseDuration } from "../format";
import type { RankRecord, SignalSeen, StepTime, WithMissing } from "../model";
import { Reading } from "../parts/reading";
import { Status } from "../parts/status";
import { Table } from "../parts/table";

export const JOB = "run"; // the kind: somebody's own job, which the service does not start

export interface JobDocument extends WithMissing {
  host: string;
  exit_status: number | null;
  signal: string | null;
  torch_version: string | null;
  world_size: number | null;
  ranks: RankRecord[];
  steps: StepTime | null;
  stalls: { began: string; stood_seconds: number; ended: boolean }[];
  signals: SignalSeen[];
  folder: string | null;
  unseen: string[];
}

const COLUMNS = [{ name: "Rank", number: true }, "End", "Ended at", "Last seen", "Exception"];

export function JobReport({ document: job }: { document: JobDocument }) {
  // What failed first comes first; the others as they are numbered.
  const ranks = [...job.ranks].sort((a, b) => (a.order ?? Infinity) - (b.order ?? Infinity) || (a.rank ?? Infinity) - (b.rank ?? Infinity));
  const here = new Set(ranks.map((one) => one.rank)).size;
  const facts = [
    `On ${job.host}`,
    `exit status ${job.exit_status ?? DASH}${job.signal ? ` (${job.signal})` : ""}`,
    `${plural(here, "rank")} seen here${job.world_size ? ` of ${job.world_size} in all` : ""}`,
    job.steps && `a step took ${duration(job.steps.seconds)}`,
    job.torch_version && `torch ${job.torch_version}`,
  ];
  return (
    <>
      <p>{facts.filter(Boolean).join(", ")}.</p>
      {job.signals.length > 0 && <p>Signals: {job.signals.map((one) => `${one.name} at ${dateClock(one.at)}`).join(", ")}.</p>}
      {ranks.length > 0 && (
        <Table caption="Where each rank was last" columns={COLUMNS}>
          {ranks.map((one) => <RankRow key={`${one.pid} ${one.started}`} one={one} />)}
        </Table>
      )}
      {job.stalls.length > 0 && (
        <Table caption="When it stood still" columns={["Since", { name: "For", number: true }, "Then"]}>
          {job.stalls.map((one) => <tr key={one.began}><th scope="row">{dateClock(one.began)}</th><td class="number">{duration(one.stood_seconds)}</td><td>{one.ended ? "it continued by itself" : "it did not continue"}</td></tr>)}
        </Table>
      )}
      {job.folder && <p>Dumps of the flight recorder are in <code>{job.folder}</code> on {job.host}.</p>}
      {job.unseen.length > 0 && <><h3>What could not be looked at</h3><ul>{job.unseen.map((why) => <li key={why}>{why}</li>)}</ul></>}
    </>
  );
}

const ENDS: Record<RankRecord["end"], [state: string, words: string]> = {
  finished: ["pass", "finished"],
  failed: ["fail", "failed"],
  killed: ["fail", "killed"],
  ended: ["skip", "ended; how is not known"],
  runs: ["warn", "outlived the command"],
};

function RankRow({ one }: { one: RankRecord }) {
  const [state, words] = ENDS[one.end];
  const how = one.end === "killed" && one.signal ? `${words} by ${one.signal}` : one.end === "failed" && one.exit_code ? `${words}, exit code ${one.exit_code}` : words;
  // Where it raised is newer than the last glance at it.
  const seen = one.last_wait ? `waited for others in ${one.last_wait}` : one.last_place ?? DASH;
  const still = one.still_seconds !== null && one.still_seconds >= 1 ? ` (still for ${preciseDuration(one.still_seconds)})` : "";
  return (
    <tr>
      <th scope="row" class="number"><Reading of={one} field="rank">{one.rank}</Reading>{one.attempt > 1 && <small> start {one.attempt}</small>}</th>
      <td><Status state={state} text={how} />{one.order === 1 && <small> first to fail</small>}</td>
      <td>{one.ended ? dateClock(one.ended) : DASH}</td>
      <td class="wide">{one.error_place ?? seen + still}</td>
      <td class="wide">{one.error ?? DASH}</td>
    </tr>
  );
}
