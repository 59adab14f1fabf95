// One machine of a hub: its verdict, its GPUs side by side, who is on it, and what is wrong with it or with its answer.

import { clock, DASH, dateClock, duration, plural, seconds, shortName } from "../format";
import type { HubMachine, MachineGpu, MachineReport } from "../model";
import { Prose } from "../parts/prose";
import { Status } from "../parts/status";
import { WORDS } from "../parts/verdict";
import { serviceNow } from "../store";
import { names, sum, values } from "./find";

const GLYPHS: Record<string, string> = { warn: "▲", fail: "✕", error: "?" };
const A_DAY = 86400;
const GIB = 1024 ** 3;

const gib = (bytes: number[]): number => Math.round(sum(bytes) / GIB);

const answers = (machine: HubMachine): boolean => machine.state === "answers";

export function Machine({ machine, found }: { machine: HubMachine; found: string[] }) {
  const { report, verdict } = machine;
  const finding = report?.findings[0];
  const isSilent = !answers(machine);
  const [name, other] = names(machine);
  return (
    <article class={`machine ${verdict ?? "none"}${isSilent || verdict === "error" ? " old" : ""}`}>
      <h3>
        <a href={machine.page} target="_blank" rel="noopener noreferrer">{name}</a>
        {other && <span class="host">{other}</span>}
        <Status state={verdict ?? "skip"} text={verdict ? WORDS[verdict] ?? verdict : machine.state === "asked" ? "asking" : "not judged"} />
      </h3>
      {isSilent ? <Silence machine={machine} /> : report && <p class="headline">{report.headline}{report.simulated && <small> (simulated: {report.simulated})</small>}</p>}
      {report && report.gpus.length > 0 && <Gpus report={report} />}
      {report && (report.users.length > 0 || report.jobs.length > 0) && <p class="who">{[report.users.join(", "), report.jobs.join(", ")].filter(Boolean).join(" · ")}</p>}
      {machine.notes.map((note) => <p class="note" key={note}><span aria-hidden="true">▲</span> {note}</p>)}
      {found.map((where) => <p class="where" key={where}>{where}</p>)}
      {finding && !isSilent && verdict !== "pass" && (
        <div class="first">
          <p><Prose text={finding.message} /></p>
          <p class="remedy"><span class="do">What to do</span> <Prose text={finding.remedy} /></p>
          {report.finding_count > 1 && <p class="rest">and {plural(report.finding_count - 1, "more finding")} on its page</p>}
        </div>
      )}
    </article>
  );
}

function Silence({ machine }: { machine: HubMachine }) {
  if (machine.state === "asked") return <p class="headline">The first answer is not there yet.</p>;
  const since = seconds(machine.answered_at ?? machine.since);
  const age = Math.max(1, serviceNow() - since);
  const at = age < A_DAY ? clock(since) : dateClock(since);
  const last = machine.report?.verdict;
  return (
    <>
      <p class="headline">
        {machine.answered_at ? `No report since ${at} (${duration(age)}): ` : `No report yet, for ${duration(age)}: `}{machine.reason}
      </p>
      {last && <p class="was">Then it was {WORDS[last] ?? last}: {machine.report!.headline}</p>}
    </>
  );
}

function Gpus({ report }: { report: MachineReport }) {
  const { gpus } = report;
  const load = values(gpus, (gpu) => gpu.utilization_percent);
  const used = values(gpus, (gpu) => gpu.memory_used_bytes);
  const total = values(gpus, (gpu) => gpu.memory_total_bytes);
  const heat = values(gpus, (gpu) => gpu.temperature_celsius);
  const power = values(gpus, (gpu) => gpu.power_draw_watts);
  const names = [...new Set(gpus.map((gpu) => (gpu.name ? shortName(gpu.name) : "unknown")))].join(", ");
  const bad = gpus.filter((gpu) => gpu.health !== "ok").length;
  const facts = [
    load.length ? `${Math.round(sum(load) / load.length)} %` : DASH,
    total.length ? `${gib(used)} of ${gib(total)} GiB` : DASH,
    power.length ? `${Math.round(sum(power))} W` : DASH,
    heat.length ? `${Math.max(...heat)} °C` : DASH,
  ];
  return (
    <>
      <div class="blocks" role="img" aria-label={`${plural(gpus.length, "GPU")}, ${bad ? `${bad} not healthy` : "all healthy"}, load ${facts[0]}`}>
        {gpus.map((gpu, index) => <Block key={gpu.uuid ?? index} gpu={gpu} />)}
      </div>
      <p class="facts-line"><span>{gpus.length} × {names}</span>{facts.map((fact, index) => <span key={index}>{fact}</span>)}</p>
    </>
  );
}

// One GPU: as full as its load, and marked where it is not healthy.
function Block({ gpu }: { gpu: MachineGpu }) {
  const title = `GPU ${gpu.nvml_index ?? "?"}: ${gpu.health}, ${gpu.utilization_percent === null ? "no load known" : `${gpu.utilization_percent} %`}${gpu.temperature_celsius === null ? "" : `, ${gpu.temperature_celsius} °C`}`;
  return (
    <span class={`block ${gpu.health}`} title={title}>
      <span class="fill" style={{ height: `${gpu.utilization_percent ?? 0}%` }} />
      <span class="mark" aria-hidden="true">{GLYPHS[gpu.health] ?? ""}</span>
    </span>
  );
}
