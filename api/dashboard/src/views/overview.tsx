// The first screen: the verdict and the machine at a glance, what keeps jobs off it, one row per GPU, other findings, and the last ten minutes.

import { useMemo } from "preact/hooks";
import { duration, plural, seconds } from "../format";
import type { JoinedFinding, Live } from "../model";
import { changeSettings, Filter } from "../parts/filter";
import { JoinedList, useFindings } from "../parts/findings";
import { GpuMap } from "../parts/gpu_map";
import { COLUMNS, matching, ordered } from "../parts/gpu_order";
import { GpuTable } from "../parts/gpu_table";
import { MetricCharts, toHistory } from "../parts/metric_charts";
import { NoGpu } from "../parts/no_gpu";
import { Status } from "../parts/status";
import { Strip } from "../parts/strip";
import { Verdict } from "../parts/verdict";
import { RECENT_METRICS, RECENT_SECONDS, type Recent, useRecent } from "../recent";
import { link, type Route } from "../route";

const FIRST_FINDINGS = 3;
const PHONE = "(max-width: 640px)"; // as the style sheet has it
const REDRAW_SECONDS = 4; // of ten minutes over some 300 pixels
const MANY = 16; // GPUs: a map has them in one view, rows have not

export function Overview({ live, route }: { live: Live; route: Route }) {
  const findings = useFindings(live);
  const recent = useRecent();
  const failed = findings.filter(({ finding }) => finding.outcome === "fail");
  const isNarrow = matchMedia(PHONE).matches; // there what to do comes before what the machine is
  const others = findings.filter(({ finding }) => finding.outcome !== "fail");
  return (
    <>
      <h1 class="unseen">GPUs of {live.host}</h1>
      <Verdict live={live} />
      {isNarrow && <Failed findings={failed} />}
      <Strip live={live} />
      <ActiveRuns live={live} />
      <div class={`overview${live.devices.length ? "" : " empty"}`}>
        <div class="now">
          {!isNarrow && <Failed findings={failed} />}
          {live.devices.length === 0 ? <NoGpu live={live} /> : <Gpus live={live} route={route} recent={recent} />}
          {others.length > 0 && (
            <section>
              <h2>{failed.length ? "Then look at" : "What to look at first"}</h2>
              <JoinedList joined={others.slice(0, FIRST_FINDINGS)} compact />
              {others.length > FIRST_FINDINGS && <p><a href={link("checks")}>All {plural(findings.length, "finding")}</a></p>}
            </section>
          )}
        </div>
        {live.devices.length > 0 && <Recently live={live} recent={recent} />}
      </div>
    </>
  );
}

function Failed({ findings }: { findings: JoinedFinding[] }) {
  if (!findings.length) return null;
  return (
    <section>
      <h2>Act on this first</h2>
      <JoinedList joined={findings.slice(0, FIRST_FINDINGS)} compact />
      {findings.length > FIRST_FINDINGS && <p><a href={link("checks")}>All {findings.length} that failed</a></p>}
    </section>
  );
}

function Gpus({ live, route, recent }: { live: Live; route: Route; recent: Recent }) {
  const order = route.settings.get("sort") ?? "";
  const query = route.settings.get("find") ?? "";
  const shown = ordered(matching(live.devices, query), order);
  const isMany = live.devices.length > MANY;
  const asMap = isMany && route.settings.get("as") !== "rows";
  const change = (settings: Record<string, string>): void => changeSettings(route, settings);
  return (
    <section>
      <div class="tools">
        <h2>{query ? `${shown.length} of ` : ""}{plural(live.devices.length, "GPU")}</h2>
        <Filter label="Find GPUs" placeholder="user, job, finding, UUID  ( / )" query={query} onQuery={(find) => change({ find })} />
        <label class="sorts">Sort{" "}
          <select value={order} onChange={(event) => change({ sort: event.currentTarget.value })}>
            <option value="">as NVML lists them</option>
            {COLUMNS.slice(1).map(({ id, name }) => <option key={id} value={id}>{name}</option>)}
          </select>
        </label>
        {isMany && <button type="button" class="small" aria-pressed={!asMap} onClick={() => change({ as: asMap ? "rows" : "" })}>Rows</button>}
      </div>
      {shown.length === 0 && <p class="empty">No GPU fits “{query}”. <button type="button" class="small" onClick={() => change({ find: "" })}>Show all</button></p>}
      {shown.length > 0 && (asMap ? <GpuMap devices={shown} /> : <GpuTable devices={shown} recent={recent} driverAnswers={live.driver_version !== null} order={order} onOrder={(sort) => change({ sort })} />)}
    </section>
  );
}

function Recently({ live, recent }: { live: Live; recent: Recent }) {
  // Anew only when they have moved by about a pixel: each second would cost a browser more than all else here.
  const to = Math.ceil(seconds(live.at) / REDRAW_SECONDS) * REDRAW_SECONDS;
  const from = to - RECENT_SECONDS;
  const charts = useMemo(
    () => <MetricCharts recent={recent} devices={live.devices} metrics={RECENT_METRICS} from={from} to={to} {...toHistory(from, to)} />,
    [to, recent.loaded, recent.events, live.devices.length],
  );
  return (
    <section class="recently">
      <h2>The last {duration(RECENT_SECONDS)} <a class="aside" href={link("history")}>longer</a>{!recent.loaded && <small role="status"> reading them …</small>}</h2>
      {charts}
    </section>
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
