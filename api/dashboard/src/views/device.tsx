// One GPU whole: its health and findings, its last ten minutes, every reading, its processes, links and MIG instances.

import { reasonText, seconds, shortName } from "../format";
import { useLoaded, useTicks } from "../load";
import type { Finding, Live, LiveDevice } from "../model";
import { FACTS, type Fact } from "../parts/device_facts";
import { FindingList } from "../parts/findings";
import { gpuKey, gpuLink, gpuName } from "../parts/gpu";
import { GpuTable } from "../parts/gpu_table";
import { Loading, ProblemNotice } from "../parts/notice";
import { ProcessTable } from "../parts/process_table";
import { MetricCharts, toHistory } from "../parts/metric_charts";
import { Absent } from "../parts/reading";
import { RECENT_METRICS, RECENT_SECONDS, useRecent } from "../recent";
import { link } from "../route";

type Whole = Record<string, unknown> & { device?: Record<string, unknown>; findings?: Finding[] };
interface NvLink {
  active: boolean | null;
}

export function DeviceView({ subject, live }: { subject: string; live: Live }) {
  const device = live.devices.find((one) => gpuKey(one) === subject || String(one.nvml_index) === subject);
  const loaded = useLoaded<Whole>(`devices/${encodeURIComponent(subject)}`, useTicks(5));
  const recent = useRecent();
  const to = seconds(live.at);
  const from = to - RECENT_SECONDS;
  if (!device) {
    return <p class="empty">There is no GPU {subject} on {live.host} now. <a href={link("overview")}>The GPUs that are here</a></p>;
  }
  const whole = { ...device, ...(loaded.value?.device ?? loaded.value ?? {}) } as Record<string, unknown>;
  const findings = loaded.value?.findings ?? live.findings.filter(({ subject: about }) => about.kind === "device" && about.uuid === device.uuid);
  return (
    <>
      <h1>{gpuName(device)} <small>{device.name && shortName(device.name)}</small></h1>
      <Neighbours devices={live.devices} device={device} />
      <GpuTable devices={[device]} recent={recent} driverAnswers={live.driver_version !== null} />
      {findings.length > 0 && <section><h2>Findings</h2><FindingList findings={findings} /></section>}
      <section>
        <h2>The last 10 min <a class="aside" href={link("history", "", { device: gpuKey(device) })}>longer</a></h2>
        <MetricCharts recent={recent} devices={[device]} metrics={RECENT_METRICS} from={from} to={to} {...toHistory(from, to, { device: gpuKey(device) })} />
      </section>
      <section>
        <h2>Processes</h2>
        <Owners device={device} />
        <ProcessTable
          processes={(device.processes ?? []).map((process) => ({ ...process, uuid: device.uuid, nvml_index: device.nvml_index }))}
          none={device.processes ? "No process is on the GPU." : `Not known: ${reasonText(device.missing?.processes)}.`}
        />
      </section>
      <section>
        <h2>Readings</h2>
        {loaded.problem && <ProblemNotice problem={loaded.problem} />}
        {!loaded.value && !loaded.problem ? <Loading what="every reading" /> : <Facts whole={withNvlinks(whole)} />}
      </section>
    </>
  );
}

// Whom the GPU was given to; a process may have ended, or be hidden, while its pod or job still has the GPU.
function Owners({ device }: { device: LiveDevice }) {
  const pods = (device.pods ?? []).map((use) => <>pod <code>{use.namespace}/{use.pod}</code>, container <code>{use.container}</code></>);
  const jobs = (device.slurm_jobs ?? []).map((job) => <>Slurm job {job.slurm_job_id}{job.user && ` of ${job.user}`}</>);
  const all = [...pods, ...jobs];
  return all.length ? <p>In use by {all.map((owner, place) => <>{place > 0 && "; "}{owner}</>)}.</p> : null;
}

function Neighbours({ devices, device }: { devices: LiveDevice[]; device: LiveDevice }) {
  if (devices.length < 2) return null;
  return (
    <nav class="neighbours" aria-label="GPUs">
      {devices.map((one) => (
        <a key={gpuKey(one)} href={gpuLink(one)} {...(one === device ? { "aria-current": "page" } : {})}>{gpuName(one)}</a>
      ))}
    </nav>
  );
}

function withNvlinks(whole: Record<string, unknown>): Record<string, unknown> {
  const { nvlinks, ...others } = whole as { nvlinks?: NvLink[] | null };
  return nvlinks?.length ? { ...others, nvlinks: `${nvlinks.filter((one) => one.active).length} of ${nvlinks.length}` } : others;
}

function Facts({ whole }: { whole: Record<string, unknown> }) {
  return (
    <div class="facts-grid">
      {FACTS.map(([group, facts]) => {
        const shown = facts.filter((fact) => fact.field in whole);
        return shown.length === 0 ? null : (
          <section key={group} class="panel">
            <h3>{group}</h3>
            <dl>{shown.map((fact) => <FactLine key={fact.field} fact={fact} whole={whole} />)}</dl>
          </section>
        );
      })}
    </div>
  );
}

function FactLine({ fact, whole }: { fact: Fact; whole: Record<string, unknown> }) {
  const value = whole[fact.field];
  const plain = typeof value === "boolean" ? (value ? "yes" : "no") : String(value);
  return (
    <div>
      <dt>{fact.label}</dt>
      <dd>{value === null || value === undefined ? <Absent of={whole} field={fact.field} /> : fact.show ? fact.show(value) : plain}</dd>
    </div>
  );
}
