// Two runs side by side: how each ended, what their plans do not have alike, and what each measured. What a difference
// between two reports means is `gpudiag compare`'s to judge; of the others there are the numbers, and no verdict.

import type { ComponentChildren } from "preact";
import { CurveChart } from "../charts/curve";
import { DASH, dateClock, duration, plural, rate, seconds, significant, size, words } from "../format";
import { useLoaded } from "../load";
import type { CollectiveResult, Comparison, Run, StrategyResult } from "../model";
import { Loading, Notice, ProblemNotice } from "../parts/notice";
import { Status } from "../parts/status";
import { Table } from "../parts/table";
import { link } from "../route";
import { JOB, type JobDocument, JobReport } from "./report_job";
import { type CollectiveDocument, curvesOf, pointsOf } from "./report_collective";

export function RunsBeside({ before, now }: { before: string; now: string }) {
  const first = useLoaded<Run>(`runs/${encodeURIComponent(before)}`);
  const second = useLoaded<Run>(`runs/${encodeURIComponent(now)}`);
  const problem = first.problem ?? second.problem;
  return (
    <>
      <h1>Two runs</h1>
      {problem && <ProblemNotice problem={problem} />}
      {!problem && (!first.value || !second.value) && <Loading what="both runs" />}
      {first.value && second.value && <Both before={first.value} now={second.value} />}
      <p><a href={link("runs")}>All runs</a></p>
    </>
  );
}

const at = (run: Run): string => dateClock(run.started_at ?? run.requested_at);
const took = (run: Run): string => (run.started_at && run.ended_at ? duration(seconds(run.ended_at) - seconds(run.started_at)) : DASH);

function Both({ before, now }: { before: Run; now: Run }) {
  const alike = before.kind === now.kind;
  const without = [before, now].find((run) => !run.has_report);
  return (
    <>
      <div class="both">{[before, now].map((run, place) => <Head key={run.id} run={run} name={place ? "Now" : "Before"} />)}</div>
      {now.kind !== JOB && <PlanDifferences before={before} now={now} />}
      {!alike ? <Notice title={`A ${before.kind} and a ${now.kind} measure different things.`}>Choose two runs of one kind to compare what they measured.</Notice>
        : without ? <Notice title={`The run of ${at(without)} has left no report.`}>There is nothing of it to compare. Its <a href={link("runs", without.id)}>log</a> shows why.</Notice>
        : now.kind === "nccl-test" ? <Collectives before={before} now={now} />
        : now.kind === JOB ? <Jobs before={before} now={now} />
        : now.kind === "train" ? <Trainings before={before} now={now} />
        : <Judged before={before} now={now} />}
    </>
  );
}

function Head({ run, name }: { run: Run; name: string }) {
  return (
    <section class="panel">
      <h2>{name}: <a href={link("runs", run.id)}>{run.kind} of {at(run)}</a></h2>
      <p class="headline">{run.outcome ? <Status state={run.outcome} large /> : <Status state={run.state} large />} <span>{took(run)}</span></p>
      {run.reason && <p>{run.reason}</p>}
      <p><code class="command">{run.command}</code></p>
    </section>
  );
}

const gpuCount = (run: Run): string => (run.gpus.length ? plural(run.gpus.length, "GPU") : "none");

function PlanDifferences({ before, now }: { before: Run; now: Run }) {
  const text = (value: unknown): string => (value === null || value === undefined ? "gpudiag decides" : Array.isArray(value) ? value.join(", ") || "none" : String(value));
  const names = [...new Set([...Object.keys(before.plan), ...Object.keys(now.plan)])].filter((name) => text(before.plan[name]) !== text(now.plan[name]));
  const gpus = before.gpus.join() === now.gpus.join();
  if (!names.length && gpus) return <p class="calm">Both ran the same plan on the same GPUs.</p>;
  return (
    <Table caption="What the plans do not have alike" columns={["Setting", "Before", "Now"]}>
      {names.map((name) => <tr key={name}><th scope="row">{words(name)}</th><td>{text(before.plan[name])}</td><td>{text(now.plan[name])}</td></tr>)}
      {!gpus && <tr><th scope="row">GPUs</th><td>{gpuCount(before)}</td><td>{gpuCount(now)}{before.gpus.length === now.gpus.length && ", others"}</td></tr>}
    </Table>
  );
}

interface Reports<T> {
  before: T;
  now: T;
}

function useReports<T>(before: Run, now: Run): { reports: Reports<T> | null; waits: ComponentChildren } {
  const first = useLoaded<T>(`runs/${encodeURIComponent(before.id)}/report`);
  const second = useLoaded<T>(`runs/${encodeURIComponent(now.id)}/report`);
  const problem = first.problem ?? second.problem;
  return {
    reports: first.value && second.value ? { before: first.value, now: second.value } : null,
    waits: problem ? <ProblemNotice problem={problem} /> : <Loading what="both reports" />,
  };
}

// A change in per cent, with its sign: what is more is not better everywhere.
function Change({ before, now }: { before: number | null | undefined; now: number | null | undefined }) {
  if (!before || now === null || now === undefined) return <>{DASH}</>;
  const percent = (now / before - 1) * 100;
  const text = Math.abs(percent) < 0.05 ? "0%" : `${percent > 0 ? "+" : "−"}${significant(Math.abs(percent))}%`;
  return <>{text}</>;
}

function Collectives({ before, now }: { before: Run; now: Run }) {
  const { reports, waits } = useReports<CollectiveDocument>(before, now);
  if (!reports) return <>{waits}</>;
  const curves = curvesOf(reports.now.results).map((curve) => ({ ...curve, baseline: pointsOf(reports.before.results, curve.name), before: `the run of ${at(before)}` }));
  const key = (one: CollectiveResult): string => `${one.op} ${one.dtype} ${one.size_bytes} ${one.in_place}`;
  const earlier = new Map(reports.before.results.map((one) => [key(one), one]));
  const ranks = [reports.before, reports.now].map((one) => `${one.world_size} ${one.backend} ranks on ${one.device_kind === "cpu" ? "the CPU" : "GPUs"}`);
  return (
    <>
      <p>{ranks[0] === ranks[1] ? `${ranks[0]}, both.` : `Before ${ranks[0]}, now ${ranks[1]}: their speeds are not comparable.`}</p>
      {curves.length > 0 && <CurveChart title="Bus bandwidth" curves={curves} />}
      <Table caption="busbw at each size" columns={["Operation", { name: "Size", number: true }, { name: "Before", number: true }, { name: "Now", number: true }, { name: "Change", number: true }]}>
        {reports.now.results.map((one) => {
          const was = earlier.get(key(one));
          return (
            <tr key={key(one)}>
              <th scope="row">{one.op} {one.dtype}</th>
              <td class="number">{size(one.size_bytes)}</td>
              <td class="number">{was?.busbw_bytes_per_second != null ? rate(was.busbw_bytes_per_second) : DASH}</td>
              <td class="number">{one.busbw_bytes_per_second !== null ? rate(one.busbw_bytes_per_second) : DASH}</td>
              <td class="number"><Change before={was?.busbw_bytes_per_second} now={one.busbw_bytes_per_second} /></td>
            </tr>
          );
        })}
      </Table>
    </>
  );
}

function Trainings({ before, now }: { before: Run; now: Run }) {
  const { reports, waits } = useReports<{ strategies: StrategyResult[] }>(before, now);
  if (!reports) return <>{waits}</>;
  return (
    <Table caption="Samples per second, and the median step" columns={["Strategy", "Before", "Now", { name: "Samples before", number: true }, { name: "Samples now", number: true }, { name: "Change", number: true }, { name: "Step before", number: true }, { name: "Step now", number: true }]}>
      {reports.now.strategies.map((one) => {
        const was = reports.before.strategies.find((other) => other.strategy === one.strategy);
        const step = (result: StrategyResult | undefined): string => (result?.step_p50_seconds != null ? duration(result.step_p50_seconds) : DASH);
        return (
          <tr key={one.strategy}>
            <th scope="row">{one.strategy}</th>
            <td>{was ? <Status state={was.outcome} /> : DASH}</td>
            <td><Status state={one.outcome} /></td>
            <td class="number">{was?.samples_per_second != null ? significant(was.samples_per_second) : DASH}</td>
            <td class="number">{one.samples_per_second !== null ? significant(one.samples_per_second) : DASH}</td>
            <td class="number"><Change before={was?.samples_per_second} now={one.samples_per_second} /></td>
            <td class="number">{step(was)}</td>
            <td class="number">{step(one)}</td>
          </tr>
        );
      })}
    </Table>
  );
}

function Jobs({ before, now }: { before: Run; now: Run }) {
  const { reports, waits } = useReports<JobDocument>(before, now);
  if (!reports) return <>{waits}</>;
  return <div class="both">{[reports.before, reports.now].map((one, place) => <section key={place}><JobReport document={one} /></section>)}</div>;
}

function Judged({ before, now }: { before: Run; now: Run }) {
  const { value, problem } = useLoaded<Comparison>(`runs/${encodeURIComponent(now.id)}/comparison?before=${encodeURIComponent(before.id)}`);
  if (problem) return <ProblemNotice problem={problem} />;
  if (!value) return <Loading what="what differs" />;
  return (
    <section>
      <h2>What differs, as <code>gpudiag compare</code> judges <Status state={value.outcome} /></h2>
      {value.differences.length > 0 ? (
        <Table caption="Differences, worst first" columns={["Matters", "Part", "Where", "What", "Before", "Now", "Why"]} hideCaption>
          {value.differences.map((one, place) => (
            <tr key={place}>
              <td><Status state={one.outcome === "pass" ? "skip" : one.outcome} text={one.outcome === "pass" ? "no" : one.outcome} /></td>
              <td>{one.whose}</td>
              <td>{one.where}</td>
              <th scope="row">{one.name}</th>
              <td class="wide">{one.before}</td>
              <td class="wide">{one.now}</td>
              <td class="wide">{one.why}</td>
            </tr>
          ))}
        </Table>
      ) : <p>Nothing differs.</p>}
      <p class="calm">{plural(value.alike, "fact")} alike.{value.not_compared.length > 0 && ` Not compared: ${value.not_compared.join("; ")}.`}</p>
    </section>
  );
}
