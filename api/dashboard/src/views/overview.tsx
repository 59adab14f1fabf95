// The first screen: the verdict, one row per GPU, the worst findings, and the last ten minutes.

import { METRICS } from "../charts/metrics";
import { duration, plural, seconds } from "../format";
import type { Live } from "../model";
import { FindingList } from "../parts/findings";
import { GpuTable } from "../parts/gpu_table";
import { NoGpu } from "../parts/no_gpu";
import { MetricCharts } from "../parts/recent_charts";
import { Status } from "../parts/status";
import { Verdict } from "../parts/verdict";
import { RECENT_SECONDS, useRecent } from "../recent";
import { link } from "../route";

const FIRST_METRICS = METRICS.slice(0, 4);
const FIRST_FINDINGS = 3;

export function Overview({ live }: { live: Live }) {
  const recent = useRecent();
  const to = seconds(live.at);
  return (
    <>
      <h1 class="unseen">GPUs of {live.host}</h1>
      <Verdict live={live} />
      <ActiveRuns live={live} />
      {live.devices.length === 0 ? <NoGpu live={live} /> : <GpuTable devices={live.devices} recent={recent} driverAnswers={live.driver_version !== null} />}
      {live.findings.length > 0 && (
        <section>
          <h2>What to look at first</h2>
          <FindingList findings={live.findings.slice(0, FIRST_FINDINGS)} compact />
          {live.finding_count > FIRST_FINDINGS && <p><a href={link("checks")}>All {plural(live.finding_count, "finding")}</a></p>}
        </section>
      )}
      {live.devices.length > 0 && (
        <section>
          <h2>The last {duration(RECENT_SECONDS)} <a class="aside" href={link("history")}>longer</a></h2>
          <MetricCharts recent={recent} devices={live.devices} metrics={FIRST_METRICS} from={to - RECENT_SECONDS} to={to} />
        </section>
      )}
    </>
  );
}

function ActiveRuns({ live }: { live: Live }) {
  if (!live.active_runs.length) return null;
  return (
    <ul class="active-runs" aria-label="Active runs">
      {live.active_runs.map((run) => (
        <li key={run.id}>
          <Status state={run.state} /> <a href={link("runs", run.id)}>{run.kind}</a>
          {run.progress !== null && <span> {Math.round(run.progress * 100)}%</span>}
        </li>
      ))}
    </ul>
  );
}
